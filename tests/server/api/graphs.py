"""A small graph, submitted and run over HTTP: what the tests of jobs share."""

from __future__ import annotations

import itertools
from typing import Any

from myrmidon.server.background import loop
from tests.server.contexts import sweep
from tests.server.inside import Inside

GRAPH: dict[str, Any] = {
    "name": "nightly",
    "tags": ["suite:all"],
    "tasks": {
        "build": {"task": {"payload": {"command": ["make"], "maxRunTime": 60}}},
        "test-1": {"requires": ["build"], "reruns": 1, "task": {"payload": {"command": ["run", "1"]}}},
        "test-2": {"requires": ["build"], "task": {"payload": {"command": ["run", "2"]}}},
        "report": {"requires": ["test-1", "test-2"], "task": {"payload": {"command": ["report"]}}},
    },
}
_nonces = itertools.count(1)


def submit(app: Inside, document: object = GRAPH, **options: Any) -> dict[str, Any]:
    reply = app.post("/api/v1/jobs", {"job": document}, **options)
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json
    return answer


def exchange(app: Inside, **fields: Any) -> list[dict[str, Any]]:
    """One exchange of the bot; the tasks that it gets."""
    body = {"session": 1, "nonce": next(_nonces), **fields}
    reply = app.post("/bot/v1/exchange", body, token=app.token("bot"))
    assert reply.status == 200, reply
    tasks: list[dict[str, Any]] = reply.json.get("tasks") or []
    return tasks


def claim(app: Inside) -> list[dict[str, Any]]:
    """The next task as the bot gets it, or none."""
    return exchange(app, n=1)


def finish(app: Inside, task: dict[str, Any], exit_code: int = 0) -> None:
    report = {"type": "finish", "run": task["run"], "token": task["token"], "exit_code": exit_code, "duration": 2.5}
    exchange(app, n=0, reports=[report])


def work(app: Inside, exit_codes: dict[str, int] | None = None) -> list[str]:
    """Run everything that is ready as one bot, until nothing is; the labels in the order of their runs."""
    done: list[str] = []
    while tasks := claim(app):
        finish(app, tasks[0], (exit_codes or {}).get(tasks[0]["name"], 0))
        done.append(tasks[0]["name"])
    return done


def drain(app: Inside) -> None:
    """Carry out all chunked work."""
    app.run(sweep(loop.BackgroundWork(app.context), timed=False))


def show(app: Inside, job_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = app.get(f"/api/v1/jobs/{job_id}").json
    return answer


def states(app: Inside, job_id: str) -> dict[str, str]:
    """The state of each task by label."""
    tasks = app.get(f"/api/v1/jobs/{job_id}/tasks?limit=1000").json["tasks"]
    return {task["label"]: task["state"] for task in tasks}
