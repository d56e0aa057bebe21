"""A random life of a graph over HTTP: failures, lost bots, extensions, cancels, reruns, holds. The seed decides all.

Story(app, seed, Checker()).live()      # AssertionError with the seed if an invariant is broken, or nothing ends
"""

from __future__ import annotations

import random
from itertools import count
from typing import Any

from tests.invariants import Checker
from tests.server.api.graphs import drain
from tests.server.inside import Inside

FATES = ("ok",) * 6 + ("fail", "fail", "fault", "repeat", "die", "die late")
STEPS = 60
_names = count(1)


def random_graph(rng: random.Random, labels: list[str], existing: list[str], pool: str) -> dict[str, Any]:
    """Tasks with random parents among those before them and the existing ones."""
    tasks: dict[str, Any] = {}
    for label in labels:
        known = [*existing, *tasks]
        parents = rng.sample(known, min(len(known), rng.choice((0, 1, 1, 2, 3))))
        tasks[label] = {
            "requires": parents,
            "requires_policy": rng.choice(("all-succeeded", "all-succeeded", "all-resolved")),
            "reruns": rng.choice((0, 0, 1)),
            "hold": rng.random() < 0.05,
            "task": {
                "retries": rng.choice((0, 1)),
                "payload": {"command": ["true", label], "dimensions": {"pool": [pool]}},
            },
        }
    return tasks


class Story:
    """One job and the bots that run it, in a pool of their own."""

    def __init__(self, app: Inside, seed: int, checker: Checker) -> None:
        self.app = app
        self.rng = random.Random(seed)
        self.checker = checker
        self.pool = f"story-{seed}-{next(_names)}"
        self.labels = [f"n{number}" for number in range(self.rng.randint(1, 14))]
        self.sessions: dict[str, int] = {}
        self.tokens: dict[str, str] = {}
        self.held: dict[str, list[Any]] = {}
        self.nonce = 0
        self.job = ""

    def live(self) -> None:
        fields = {
            "failure_policy": self.rng.choice(("continue", "continue", "fail-fast")),
            "max_num_retries": self.rng.choice((0, 0, 1)),
        }
        tasks = random_graph(self.rng, self.labels, [], self.pool)
        for name in ("x", "y"):
            self._greet(f"{self.pool}-{name}")
        self.job = self._post("/api/v1/jobs", {"job": {"name": self.pool, "tasks": tasks, **fields}})["job_id"]
        for _ in range(STEPS):
            self._step()
            self.checker.check(self.app.context.db.engine)
        self._end()

    def _step(self) -> None:
        action = self.rng.choices(
            (self._work, self._extend, self._rerun, self._hold, self._cancel_task, self._drain, self._cancel_job),
            (70, 8, 6, 4, 4, 7, 1),
        )[0]
        action()

    # -- bots

    def _greet(self, bot: str) -> None:
        self.sessions[bot] = session = self.sessions.get(bot, 0) + 1
        body = {"bot_id": bot, "session": session, "dimensions": {"id": [bot], "pool": [self.pool]}}
        answer = self._post("/bot/v1/handshake", body)
        self.tokens[bot], self.sessions[bot] = answer["credential"], answer.get("session", session)
        self.held[bot] = []

    def _exchange(self, bot: str, **fields: Any) -> Any:
        self.nonce += 1
        body = {"session": self.sessions[bot], "nonce": self.nonce, "n": 0, **fields}
        return self._post("/bot/v1/exchange", body, token=self.tokens[bot])

    def _work(self) -> None:
        bot = self.rng.choice(list(self.sessions))
        self.held[bot] += self._exchange(bot, n=self.rng.randint(1, 3))["tasks"]
        self.rng.shuffle(self.held[bot])
        while self.held[bot] and self.rng.random() < 0.8:
            self._decide(bot, self.rng.choice(FATES))

    def _decide(self, bot: str, fate: str) -> None:
        """What becomes of one of the bot's runs."""
        task = self.held[bot].pop()
        where = {"run": task["run"], "token": task["token"]}
        finish = {"type": "finish", **where, "exit_code": int(fate == "fail"), "duration": 0.1}
        if fate in ("ok", "fail"):
            self._exchange(bot, reports=[finish])
        elif fate == "repeat":
            self._exchange(bot, reports=[finish])
            self._exchange(bot, reports=[finish])
        elif fate == "fault":
            self._exchange(bot, reports=[{"type": "fault", **where, "kind": "reboot"}])
        elif fate == "die":
            self._exchange(bot, reports=[{"type": "start", **where}])
            self._greet(bot)
        else:
            self._greet(bot)
            self._exchange(bot, reports=[finish])  # of a run that is not its own any more

    # -- people

    def _extend(self) -> None:
        first = len(self.labels)
        new = [f"n{number}" for number in range(first, first + self.rng.randint(1, 4))]
        tasks = random_graph(self.rng, new, self.labels, self.pool)
        body = {"job": {"tasks": tasks}}
        for _ in range(self.rng.choice((1, 2))):
            status = self._try(f"/api/v1/jobs/{self.job}/extend", body)
        if status == 200:
            self.labels += new

    def _rerun(self) -> None:
        body: dict[str, Any] = {"full": self.rng.random() < 0.2}
        if self.rng.random() < 0.6:
            label = self.rng.choice(self.labels)
            body = {"task": label, "force": self.rng.random() < 0.5, "cascade": self.rng.random() < 0.5}
        self._try(f"/api/v1/jobs/{self.job}/rerun", body)

    def _hold(self) -> None:
        label = self.rng.choice([None, *self.labels])
        self._try(f"/api/v1/jobs/{self.job}/{self.rng.choice(('hold', 'release'))}", {"task": label})

    def _cancel_task(self) -> None:
        tasks = self._tasks()
        task = self.rng.choice(list(tasks.values()))
        self._try(f"/api/v1/tasks/{task['task_id']}/cancel", {"kill_running": self.rng.random() < 0.5})

    def _cancel_job(self) -> None:
        self._try(f"/api/v1/jobs/{self.job}/cancel", {})

    def _drain(self) -> None:
        drain(self.app)

    # -- the end

    def _end(self) -> None:
        """Release everything, run what can run well, and cancel what is left: then all has ended."""
        for _ in range(200):
            self._try(f"/api/v1/jobs/{self.job}/release", {})
            drain(self.app)
            busy = False
            for bot in self.sessions:
                self.held[bot] += self._exchange(bot, n=8)["tasks"]
                while self.held[bot]:
                    busy = True
                    self._decide(bot, "ok")
            if not busy:
                break
        else:
            raise AssertionError("it goes on for ever")
        drain(self.app)
        told = self.app.get(f"/api/v1/jobs/{self.job}").json
        if told["state"] in ("RUNNING", "PENDING_RETRY"):  # blocked for good, or the time of its retry has not come
            self._cancel_job()
            drain(self.app)
            told = self.app.get(f"/api/v1/jobs/{self.job}").json
        self.checker.check(self.app.context.db.engine)
        states = {label: task["state"] for label, task in self._tasks().items()}
        assert told["state"] in ("SUCCEEDED", "FAILED", "CANCELLED"), (told, states)
        assert not set(states.values()) & {"READY", "RUNNING"}, (told, states)
        assert (told["state"] == "SUCCEEDED") == (set(states.values()) == {"SUCCEEDED"}), (told, states)
        assert told["num_tasks"] == len(states)

    def _tasks(self) -> dict[str, Any]:
        page = self.app.get(f"/api/v1/jobs/{self.job}/tasks?limit=1000").json
        return {task["label"]: task for task in page["tasks"]}

    def _post(self, path: str, body: Any, **options: Any) -> Any:
        reply = self.app.post(path, body, **options)
        assert reply.status == 200, reply
        return reply.json

    def _try(self, path: str, body: Any) -> int:
        """A call that the job's state may forbid."""
        reply = self.app.post(path, body)
        assert reply.status in (200, 409), (path, body, reply)
        return reply.status
