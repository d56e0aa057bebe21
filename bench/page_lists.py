"""The lists of the web page: what each asks the server for, and how long the server takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from bench.bars import note
from tests.live import LiveServer

STATES = ("READY", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "BOT_DIED")
BOT_STATES = ("alive", "dead", "silent", "quarantined", "maintenance", "draining", "busy", "idle")
WINDOWS = ("1h", "24h", "7d")
FILTERS = {
    "nothing": "",
    **{f"state {state}": f"state={state}" for state in STATES},
    "two states": "state=FAILED&state=CANCELLED",
    "a tag of all": "tag=pool:default",
    "a tag of few": "tag=build:7",
    "a tag of none": "tag=no:such",
    "two tags": "tag=suite:nightly&tag=branch:3",
    "a tag and a state": "tag=suite:nightly&state=FAILED",
    "a tag and a state of none": "tag=suite:nightly&state=BOT_DIED",
    "a name": "name=compile+part+7",
    "a name of none": "name=no+such",
    "a pool": "pool=gpu",
    "a bot": "bot=bot-007",
    "a bot of none": "bot=no-such",
    "a user": "user=user-7",
    "a user of none": "user=no-such",
    "mine": "mine=true",
    "a user and a state": "user=user-7&state=FAILED",
}


def percentile_95(times: list[float]) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]


def groups(server: LiveServer) -> dict[str, dict[str, str]]:
    """By bar: the addresses to ask, by a description of each."""
    task, job, failed_job = _newest(server, "tasks"), _newest(server, "jobs"), _newest(server, "jobs", "?state=FAILED")
    now = int(time.time() * 1e6)
    days = f"start={now - 3 * 86_400_000_000}&end={now - 2 * 86_400_000_000}"
    filters = {**FILTERS, "a day": days, "a day and a user": f"{days}&user=user-7"}
    return {
        "tasks": {
            **{f"tasks by {name}": f"/api/v1/tasks?{text}" for name, text in filters.items()},
            "tasks, the tenth page": _later_page(server),
            "tags of tasks": "/api/v1/tasks/tags",
        },
        "counts": {f"counts by {name}": f"/api/v1/tasks/counts?{text}" for name, text in filters.items()},
        "jobs": {
            "jobs": "/api/v1/jobs",
            "jobs that have failed": "/api/v1/jobs?state=FAILED",
            "jobs that run": "/api/v1/jobs?state=RUNNING",
            "jobs of a name": "/api/v1/jobs?name=pipeline+3",
            "jobs of no name": "/api/v1/jobs?name=no+such",
            "names of jobs": "/api/v1/job-names",
            "labels that fail": "/api/v1/job-names/flaky?name=pipeline+0",
            "tasks of a job": f"/api/v1/jobs/{job}/tasks",
            "times of a job": f"/api/v1/jobs/{job}/timeline",
            "failures of a job": f"/api/v1/jobs/{failed_job}/failures",
        },
        "bots": {
            "bots": "/api/v1/bots",
            **{f"bots by {state}": f"/api/v1/bots?state={state}" for state in BOT_STATES},
            "bots of a pool": "/api/v1/bots?dimension=pool:gpu",
            "counts of bots": "/api/v1/bots/counts",
            "dimensions of bots": "/api/v1/bots/dimensions",
            "runs of a bot": "/api/v1/bots/bot-007/tasks",
            "events of a bot": "/api/v1/bots/bot-007/events",
        },
        "queues": {
            "queues": "/api/v1/queues",
            "pools": "/api/v1/pools",
            "load of pools": "/api/v1/pools/load",
            "why a task waits": f"/api/v1/tasks/{_newest(server, 'tasks', '?state=READY')}/why",
        },
        "functions": {"functions": "/api/v1/functions", "a function": "/api/v1/functions/lib.work_1"},
        "values": {"shared values": "/api/v1/values", "values of a job": f"/api/v1/jobs/{job}/values"},
        "search": {
            "search for an id": f"/api/v1/search?q={task}",
            "search for half an id": f"/api/v1/search?q={task[:7]}",
            "search for a name": "/api/v1/search?q=part+7",
            "search for a bot": "/api/v1/search?q=bot-007",
            "search for a tag": "/api/v1/search?q=build:",
            "search for nothing that there is": "/api/v1/search?q=no+such",
        },
        "series": {
            **{f"the first view, {window}": f"/api/v1/overview?window={window}" for window in WINDOWS},
            **{f"series of a bot, {window}": f"/api/v1/bots/bot-007/series?window={window}" for window in WINDOWS},
        },
    }


def _newest(server: LiveServer, kind: str, query: str = "") -> str:
    status, answer = server.get(f"/api/v1/{kind}{query}")
    if status != 200:
        raise RuntimeError(f"{kind}: {status} {answer}")
    return str(answer[kind][0][f"{kind[:-1]}_id"])


def _later_page(server: LiveServer) -> str:
    path = "/api/v1/tasks?limit=1000"
    for _ in range(9):
        path = f"/api/v1/tasks?limit=1000&cursor={server.get(path)[1]['cursor']}"
    return path.replace("limit=1000", "limit=100")


def slowest(server: LiveServer, paths: dict[str, str], calls: int) -> float:
    """The 95th percentile of the slowest of these lists, in milliseconds; each is noted."""
    times = {name: percentile_95(list(_times(server, path, calls))) for name, path in paths.items()}
    for name, took in times.items():
        note(name, f"{took:.1f} ms")
    return max(times.values())


def _times(server: LiveServer, path: str, calls: int) -> Iterator[float]:
    """From the request to the whole answer, in milliseconds, over a connection that is open."""
    answer: Any
    for _ in range(calls):
        began = time.perf_counter()
        status, answer = server.get(path)
        yield (time.perf_counter() - began) * 1000
        if status != 200:
            raise RuntimeError(f"{path}: {status} {answer}")
