"""Every call that changes something, over real connections: its answer is lost, cut in half, or it arrives twice.

Made from the route table. Whoever repeats such a call with the same request key gets the answer that was lost, and
no table has more rows than after a call whose answer came. Clients of Swarming's API v1 know no keys: what they repeat
is harmless by itself, and so that they may repeat `tasks/new` they send a uuid.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3
from msgspec import to_builtins

from myrmidon.server.calls import OURS, Role
from myrmidon.server.facades import every_route
from myrmidon.server.swarming_v1.style import V1
from tests.cases import some
from tests.chaos.proxy import Chaos, chaos
from tests.deadline import HANG_S
from tests.live import LiveServer, live_server
from tests.server.asgi.test_routes import LOCAL_WEBHOOKS, a_request, name_of, plain
from tests.server.botapi.test_bots_on_the_wire import state_of
from tests.server.contexts import a_task
from tests.server.inside import BOT
from tests.server.swarming_v1 import swarm
from tests.server.wire import WireBot, wait_for

pytestmark = pytest.mark.untraced
CHANGING = [
    line for line in every_route() if line.mutates and line.style in (OURS, V1) and not line.path.startswith("/auth/")
]
"""The older prefix of v1 leads to the same handlers. Each login is another session: tests/server/web has them."""
NOT_COUNTED = {
    "activity", "bot_events", "bot_event_facts", "cache_sizes", "chunked_work", "dimension_aggregation",
    "shared_numbers", "sinks", "webhook_deliveries",
}  # fmt: skip
"""What a bot says of itself may be written down more than once; what is still to be carried out comes and goes. The
server's background jobs may run between the counts: they write marks, count dimensions, tags and caches, and queue
messages for webhooks and count charts when events are read."""
_keys = itertools.count(1)


class Outside:
    """A real server with the manners of ``Inside``, as far as the builders of requests ask for them."""

    def __init__(self, server: LiveServer, proxy: Chaos) -> None:
        self.server = server
        self.proxy = proxy
        self.bot = WireBot(server, BOT, session=1)
        self.http = urllib3.PoolManager(retries=False, timeout=HANG_S)
        self._tokens: dict[tuple[str, str], str] = {}
        self.meet_bot()
        wanted = server.get("/api/v1/server")[1]["bot_version"]
        db = SimpleNamespace(engine=SimpleNamespace(write=lambda _: self.add_release()))
        self.context = SimpleNamespace(hub=SimpleNamespace(active_release=wanted), db=db)

    def add_release(self) -> None:
        """One that can be taken back; the server itself would have to be started from other sources."""
        with sqlite3.connect(self.server.folder / "myrmidon.db") as store:
            columns = "digest, created_at, active, canary_percent, content"
            store.execute(f"INSERT OR IGNORE INTO releases ({columns}) VALUES (?, 1, 0, 0, '')", ("0" * 64,))

    def add_delivery(self, hook: str) -> None:
        """A message that was delivered to a webhook."""
        with sqlite3.connect(self.server.folder / "myrmidon.db") as store:
            columns = "webhook_id, position, message_id, kind, body, state, queued_at, num_attempts"
            values = (int(hook, 16), 7, "1.1", "task-pending", "{}", "delivered", time.time_ns() // 1000, 1)
            store.execute(f"INSERT INTO webhook_deliveries ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def meet_bot(self) -> None:
        self.bot.shake(state={})

    def new_token(self, role: str, group: str) -> str:
        return self.server.new_token(role, None if role in (Role.ADMIN, Role.BOOTSTRAP) else group)

    def token(self, role: str, group: str = "default") -> str:
        if (role, group) not in self._tokens:
            self._tokens[role, group] = self.new_token(role, group)
        return self._tokens[role, group]

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return SimpleNamespace(json=self.server.post(path, {} if body is None else body, **options)[1])

    def submit(self, *tasks: Any, **options: Any) -> list[str]:
        answers = self.post("/api/v1/tasks", {"tasks": list(tasks)}, **options).json["tasks"]
        return [one["task_id"] for one in answers]

    def settle(self, job_id: str) -> None:
        """Wait until the server has carried out what a change of a job means for its tasks."""
        wait_for(lambda: not self.server.get(f"/api/v1/jobs/{job_id}")[1]["busy"])

    def a_call(self, route: Any) -> dict[str, Any]:
        """A request of this route that changes something, with a key of its own."""
        self.meet_bot()
        path, body = self.a_v1_request(route) if route.style is V1 else a_request(self, route)  # type: ignore[arg-type]
        headers = {"Content-Type": "application/json"}
        if route.style is OURS or route.path.endswith("/server/token"):
            headers["Idempotency-Key"] = f"key {next(_keys)}"
        token = self.bot.credential if route.path.startswith("/bot/") else self.server.token
        if route.path == "/bot/v1/exchange":
            self.bot.nonce += 1
            body = {"session": 1, "nonce": self.bot.nonce, "n": 1, "wait_s": 5}
        if "{run}" in route.path:
            run = self.bot.work()[0]
            path = path.replace(path.split("/")[4], run["run"])
            headers["X-Run-Token"] = run["token"]
        headers["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return {"method": route.method, "path": path, "body": data, "headers": headers}

    def a_v1_request(self, route: Any) -> tuple[str, Any]:
        tag = f"said:{next(_keys)}"
        task = self.submit(a_task(tags=[tag]))[0] if route.path.endswith("/cancel") else ""
        bodies = {"tasks/new": swarm.a_task(request_uuid=str(uuid.uuid4())), "tasks/cancel": {"tags": [tag]}}
        body = bodies.get(route.path.partition("swarming/v1/")[2], {})
        return route.path.format(task_id=task, bot_id=BOT), body

    def send(self, call: dict[str, Any], fault: str = "") -> tuple[int, Any]:
        """Through the proxy if something shall go wrong."""
        if fault:
            self.proxy.plan = [fault]
        at = self.proxy.url if fault else self.server.url
        answer = self.http.request(call["method"], at + call["path"], body=call["body"], headers=call["headers"])
        if "content-length" not in answer.headers:
            raise urllib3.exceptions.ProtocolError("cut among its headers")
        told = json.loads(answer.data)
        for field in ("server_time", "now"):
            told.pop(field, None)
        if call["path"].startswith(swarm.NEW) and call["path"].endswith("/cancel"):
            told = sorted(told)  # v1 says whether this very call has ended anything, and nobody will change that
        return answer.status, plain(told)

    def rows(self) -> dict[str, int]:
        """How many rows each table has, once nothing is left to be carried out: that writes rows of its own."""
        wait_for(lambda: self._count_rows()["chunked_work"] == 0)
        return {name: count for name, count in self._count_rows().items() if name not in NOT_COUNTED}

    def _count_rows(self) -> dict[str, int]:
        found = sqlite3.connect(f"file:{self.server.folder}/myrmidon.db?mode=ro", uri=True)
        tables = [name for (name,) in found.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        counts = {name: found.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in tables}
        found.close()
        return counts

    def grown(self, before: dict[str, int]) -> dict[str, int]:
        """What is deleted may go a moment later, and is not counted."""
        return {name: count - before[name] for name, count in self.rows().items() if count > before[name]}


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("replays")
    with (
        live_server(folder=folder, sweep_s=60, webhooks=to_builtins(LOCAL_WEBHOOKS)) as server,
        chaos(server.url, rate=0.0) as proxy,
    ):
        ready = Outside(server, proxy)
        ready.submit(a_task())
        yield ready


@pytest.mark.parametrize("route", some(CHANGING, short=13), ids=name_of)
def test_an_answer_that_was_lost_is_given_again_and_nothing_happens_twice(outside: Outside, route: Any):
    for _ in range(2):  # the first of all may make what the others find
        call = outside.a_call(route)
        before = outside.rows()
        status, answer = outside.send(call)
        assert status == 200, answer
        once = outside.grown(before)
    for fault in ("lost", "cut", "twice"):
        call = outside.a_call(route)
        before = outside.rows()
        if fault == "twice":
            first = outside.send(call, fault)
        else:
            with pytest.raises(urllib3.exceptions.ProtocolError):
                outside.send(call, fault)
            first = outside.send(call)
        assert first[0] == 200, (fault, first)
        assert outside.send(call) == first, fault
        assert outside.grown(before) == once, fault
    assert [fault for fault, _ in outside.proxy.done[-3:]] == ["lost", "cut", "twice"]


def test_a_mass_cancel_that_is_said_again_does_not_mean_what_came_meanwhile(outside: Outside):
    call = {"tags": ["meant:yes"]}
    key = {"Idempotency-Key": "cancel those"}
    old, new = (a_task(tags=["meant:yes"]) for _ in range(2))
    (meant,) = outside.submit(old)
    assert outside.server.post("/api/v1/tasks/cancel", call, headers=key)[0] == 200
    wait_for(lambda: state_of(outside.server, meant) == "CANCELLED")
    (spared,) = outside.submit(new)
    assert outside.server.post("/api/v1/tasks/cancel", call, headers=key)[0] == 200
    (third,) = outside.submit(a_task(tags=["other:yes"]))
    assert outside.server.post("/api/v1/tasks/cancel", {"tags": ["other:yes"]})[0] == 200
    wait_for(lambda: state_of(outside.server, third) == "CANCELLED")
    assert state_of(outside.server, spared) == "READY"
    status, refused = outside.server.post("/api/v1/tasks/cancel", {"tags": ["other:yes"]}, headers=key)
    assert (status, refused["error"]["code"]) == (409, "request.conflict")


def test_what_only_asks_is_known_by_its_method():
    """With exceptions, which have too much to say for a path."""
    asks = {line.path for line in every_route() if line.method != "GET" and not line.mutates}
    results = {"/api/v1/results", "/api/v1/results/streams", "/api/v1/results/streams/{id}"}
    assert asks == {"/api/v1/tasks/wait", "/api/v1/jobs/{id}/wait", "/api/v1/jobs/check", *results}
