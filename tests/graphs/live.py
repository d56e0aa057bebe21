"""Jobs on a real server for tests: submit, change and wait for them over HTTP, and check the database afterwards.

graphs = Graphs(server, "some-pool")
job = graphs.submit({"a": graphs.node("echo 1"), "b": graphs.node("echo 2", "a")})
job.wait()["state"], job.states()          # "SUCCEEDED", {"a": "SUCCEEDED", "b": "SUCCEEDED"}
checked(server)                            # AssertionError unless all invariants hold
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from myrmidon.model.ids import try_parse_id
from tests import databases, invariants
from tests.bot.bots import wait_for
from tests.deadline import HANG_S
from tests.live import LiveServer
from tests.server.wire import WireBot

WAIT_S = 20


class Job:
    """One job. ``server`` is the one that is asked; a test may set another one."""

    def __init__(self, server: LiveServer, answer: Mapping[str, Any]) -> None:
        self.server = server
        self.id = str(answer["job_id"])
        self.ids: dict[str, str] = dict(answer["task_ids"])

    def call(self, action: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer of a call that changes the job."""
        return self.server.post(f"/api/v1/jobs/{self.id}/{action}", body)

    def do(self, action: str, body: Any = None) -> Any:
        status, answer = self.call(action, body)
        assert status == 200, answer
        return answer

    def extend(self, tasks: Mapping[str, Any]) -> Any:
        answer = self.do("extend", {"job": {"tasks": tasks}})
        self.ids.update(answer["task_ids"])
        return answer

    def show(self) -> Any:
        status, answer = self.server.get(f"/api/v1/jobs/{self.id}")
        assert status == 200, answer
        return answer

    def tasks(self) -> dict[str, Any]:
        """All tasks by label."""
        found, cursor = {}, ""
        while True:
            status, page = self.server.get(f"/api/v1/jobs/{self.id}/tasks?limit=1000{cursor}")
            assert status == 200, page
            found.update({task["label"]: task for task in page["tasks"]})
            if page["cursor"] is None:
                return found
            cursor = f"&cursor={page['cursor']}"

    def states(self) -> dict[str, str]:
        return {label: task["state"] for label, task in self.tasks().items()}

    def until(self, label: str, *states: str) -> None:
        """Wait until a task is in one of these states."""
        wait_for(lambda: self.states()[label] in states, f"{label} is {states}, not {self.states()}")

    def settle(self) -> Any:
        """Wait until nothing of it runs or is left to do; the job."""
        idle = {"WAITING", "SUCCEEDED", "FAILED", "TIMED_OUT", "BOT_DIED", "EXPIRED", "CANCELLED", "KILLED"}
        wait_for(lambda: set(self.states().values()) <= idle and not self.show()["busy"], "the job is idle")
        return self.show()

    def wait(self) -> Any:
        """The job when it has ended."""
        end = time.monotonic() + HANG_S
        while True:
            answer = self.do("wait", {"wait_s": WAIT_S})
            if answer["done"]:
                return answer["job"]
            assert time.monotonic() < end, (answer, self.states())

    def events(self) -> list[str]:
        """What was announced about the job, in order."""
        parsed = try_parse_id(self.id)
        assert parsed is not None
        with closing(databases.open_for_test(self.server.database, role="reader")) as db:
            rows = db.read(lambda tx: tx.all("SELECT body FROM outbox WHERE subject = :id ORDER BY seq", id=parsed[0]))
        return [str(json.loads(row[0])["what"]) for row in rows]


class Graphs:
    """Jobs whose tasks only the bots of one pool can run."""

    def __init__(self, server: LiveServer, pool: str) -> None:
        self.server = server
        self.pool = pool

    def node(self, script: str = "true", *requires: str, task: Any = None, **fields: Any) -> dict[str, Any]:
        """A task that runs a shell script."""
        payload = {
            "command": ["/bin/sh", "-c", script],
            "dimensions": {"pool": [self.pool]},
            "grace_period_s": 1,
        }
        return {"requires": list(requires), "task": {"payload": payload, **(task or {})}, **fields}

    def submit(self, tasks: Mapping[str, Any], **fields: Any) -> Job:
        status, answer = self.server.post("/api/v1/jobs", {"job": {"name": "a graph", "tasks": tasks, **fields}})
        assert status == 200, answer
        return Job(self.server, answer)

    def bot(self, name: str) -> WireBot:
        """A bot that the test itself plays."""
        bot = WireBot(self.server, name)
        bot.dimensions = {"id": [name], "pool": [self.pool]}
        bot.shake()
        return bot


def rows(server: LiveServer) -> dict[str, int]:
    """How many rows there are of everything that a submit may store."""
    tables = ("jobs", "task_requests", "task_results", "further_slices", "task_edges", "request_keys")
    with closing(databases.open_for_test(server.database, role="reader")) as db:
        count: Callable[[Any], dict[str, int]] = lambda tx: {  # noqa: E731
            name: int(tx.one(f"SELECT COUNT(*) FROM {name}")[0]) for name in tables
        }
        return dict(db.read(count))


def checked(server: LiveServer) -> None:
    """Every invariant holds. Nobody may write meanwhile."""
    with closing(databases.open_for_test(server.database, role="reader")) as db:
        invariants.check(db)
