"""Whatever the OpenAPI document allows, and much that it does not, is answered without a failure of the server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from myrmidon.model.short_form import ShortForms, expand_task
from myrmidon.model.task_request import Properties, Slice, TaskRequest
from myrmidon.model.task_validation import parse_task
from myrmidon.model.validation import Checker
from myrmidon.wire.tasks import EXAMPLE
from tests.deadline import HANG_S
from tests.live import live_server
from tests.server.contexts import a_task

STREAMS = {"/api/v1/events", "/api/v1/stream", "/api/v1/tasks/{id}/log/follow", "/api/v1/results/streams"}
"""They never end: how they begin is looked at."""
HELD = {"/api/v1/tasks/wait", "/bot/v1/exchange"}


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
        self.called: set[str] = set()

    def try_out(self, operation, mode, examples: int, seconds: float) -> None:
        until, before = time.monotonic() + seconds, self.count

        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case):
            if time.monotonic() < until or self.count == before:  # at least one call, however slow
                self.call(operation, case)

        with suppress(Unsatisfiable):  # nothing can be wrong with a call that takes nothing
            call()

    def call(self, operation, case) -> None:
        if self.count % 2 and "/tasks/{id}" in operation.path:
            case.path_parameters["id"] = self.task
        if operation.path in HELD and isinstance(case.body, dict) and _may_be_long(case.body.get("wait_s")):
            case.body["wait_s"] = 0
        words = case.as_transport_kwargs(headers={"Authorization": f"Bearer {self.token}"})
        with requests.request(**words, timeout=HANG_S, stream=True) as answer:
            said = b"" if operation.path in STREAMS and answer.ok else answer.content
        self.count += 1
        self.called.add(operation.label)
        if answer.status_code >= 500:
            self.failed.append((operation.label, case.as_curl_command(), said))


def _may_be_long(wait_s: object) -> bool:
    return wait_s is None or (isinstance(wait_s, int | float) and not wait_s < 0.1)


@pytest.mark.full
@pytest.mark.parametrize(("examples", "seconds"), [(8, 9.0), pytest.param(200, 240.0, marks=pytest.mark.soak)])
def test_no_call_makes_the_server_fail(server, examples, seconds):
    """All operations share the time: each has its part of it, in which it gets as many calls as it can."""
    hello = {"bot_id": "b1", "session": 1, "dimensions": {"id": ["b1"], "pool": ["default"]}}
    bot = server.post("/bot/v1/handshake", hello)[1]["credential"]
    task = server.post("/api/v1/tasks", {"tasks": [a_task()] * 3})[1]["tasks"][0]["task_id"]
    document = schemathesis.openapi.from_url(f"{server.url}/api/openapi.json")
    chosen = [operation_of(found) for found in document.get_all_operations()]
    people, bots = Caller(server.token, task), Caller(bot, task)
    for operation in chosen:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            caller = bots if operation.path.startswith("/bot/") else people
            caller.try_out(operation, mode, examples, seconds / len(chosen) / 2)
    assert people.failed + bots.failed == []
    assert people.called | bots.called == {operation.label for operation in chosen}
    assert "handler failed" not in server.log


def test_a_browser_shows_every_call(server, tmp_path):
    """The page, its style and its script come from the server alone: the browser may reach nothing else."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no browser here")
    told = server.get("/api/openapi.json", token="")[1]
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    alone = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
    page = [browser, *flags, alone, "--virtual-time-budget=4000", f"{server.url}/api/docs#post-/api/v1/tasks"]
    shown = subprocess.run(page, capture_output=True, text=True, timeout=HANG_S, check=True).stdout
    assert shown.count("<details") == sum(len(calls) for calls in told["paths"].values())
    (opened,) = re.findall(r'<details [^>]*open="[^>]*>', shown)
    assert 'id="post-/api/v1/tasks"' in opened, "the one that the address names"
    assert "Submit tasks" in shown


def test_every_field_of_a_request_is_documented_and_the_examples_are_good():
    text = (Path(__file__).parents[3] / "docs" / "requests.md").read_text()
    documented = set(re.findall(r"`(\w+)`", text))
    for noun in (TaskRequest, Slice, Properties):
        assert set(noun.__struct_fields__) - documented == set()
    example, short = map(json.loads, re.findall(r"```json\n(.*?)```", text, re.DOTALL))
    assert parse_task(example).name == parse_task(EXAMPLE).name == "hello"
    request = expand_task(Checker(), short, (), ShortForms(), default_pool="default", now=0)
    assert parse_task({"name": "hello", **request}) == parse_task(example), "the short form is the same task"
