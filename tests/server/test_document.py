"""Whatever the OpenAPI document allows, and much that it does not, is answered without a failure of the server."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.live import live_server
from tests.server.doors import a_task

WAITS = {"/api/v1/events", "/api/v1/tasks/{id}/log/follow", "/api/v1/tasks/wait", "/bot/v1/exchange"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(folder=tmp_path_factory.mktemp("document"), failed_attempts=1_000_000) as started:
        yield started


def operation_of(found: Any) -> Any:
    return found.ok()


class Caller:
    """Makes calls to one operation, and keeps those that the server failed at."""

    def __init__(self, token: str, task: str) -> None:
        self.token = token
        self.task = task
        self.count = 0
        self.failed: list[object] = []

    def try_out(self, operation, mode, examples: int, seconds: float) -> None:
        until = time.monotonic() + seconds

        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case):
            if time.monotonic() < until:
                self.call(operation, case)

        with suppress(Unsatisfiable):  # nothing can be wrong with a call that takes nothing
            call()

    def call(self, operation, case) -> None:
        if self.count % 2 and "/tasks/{id}" in operation.path:
            case.path_parameters["id"] = self.task
        answer = case.call(headers={"Authorization": f"Bearer {self.token}"}, timeout=20)
        self.count += 1
        if answer.status_code >= 500:
            self.failed.append((operation.label, case.as_curl_command(), answer.content))


@pytest.mark.parametrize(("examples", "seconds"), [(12, 16.0), pytest.param(200, 240.0, marks=pytest.mark.soak)])
def test_no_call_makes_the_server_fail(server, examples, seconds):
    """All operations share the time: each has its part of it, in which it gets as many calls as it can."""
    hello = {"bot_id": "b1", "session": 1, "dimensions": {"id": ["b1"], "pool": ["default"]}}
    bot = server.post("/bot/v1/handshake", hello)[1]["credential"]
    task = server.post("/api/v1/tasks", {"tasks": [a_task()] * 3})[1]["tasks"][0]["task_id"]
    document = schemathesis.openapi.from_url(f"{server.url}/api/openapi.json")
    chosen = [one for one in map(operation_of, document.get_all_operations()) if one.path not in WAITS]
    people, bots = Caller(server.token, task), Caller(bot, task)
    for operation in chosen:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            caller = bots if operation.path.startswith("/bot/") else people
            caller.try_out(operation, mode, examples, seconds / len(chosen) / 2)
    assert people.failed + bots.failed == []
    assert people.count + bots.count > 5 * len(chosen)
    assert "handler failed" not in server.log
