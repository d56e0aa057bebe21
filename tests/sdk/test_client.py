"""The client and the server's route table name the same calls, with the same structs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from msgspec.json import decode, encode

from myrmidon.sdk.api import administration, caller, overview
from myrmidon.sdk.client import Client
from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.jobs import Job
from myrmidon.sdk.transport import KEY_HEADER, Reply
from myrmidon.server.calls import Route
from myrmidon.server.facades import every_route

CLIENT_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "submit_tasks": (([{}],), {}),
    "tasks": ((), {}),
    "tags": ((), {}),
    "task": (("1",), {}),
    "why": (("1",), {}),
    "cancel": (("1",), {"kill_running": True}),
    "cancel_tagged": ((["a:b"],), {"kill_running": True}),
    "rerun": (("1",), {}),
    "annotate": (("1", "# done"), {}),
    "wait": ((["1"],), {}),
    "log": (("1",), {}),
    "log_tail": (("1",), {}),
    "follow": (("1",), {}),
    "events": ((), {}),
    "bots": ((), {}),
    "bot": (("b",), {}),
    "bot_events": (("b",), {}),
    "bot_tasks": (("b",), {}),
    "quarantine": (("b", "why"), {}),
    "drain": (("b",), {"draining": True}),
    "terminate": (("b",), {}),
    "bot_zip": ((), {}),
    "bot_dimensions": ((), {}),
    "config": ((), {}),
    "config_history": ((), {}),
    "change_config": (({"bot_config.py": "pass"},), {}),
    "releases": ((), {}),
    "revert_release": (("0" * 64,), {}),
    "allow_release": (("0" * 64,), {}),
    "delete_bot": (("b",), {"force": True}),
    "revoke_bot": (("b",), {}),
    "server": ((), {}),
    "servers": ((), {}),
    "queues": ((), {}),
    "pools": ((), {}),
    "set_pool": (("p",), {"task_order": "fifo"}),
    "groups": ((), {}),
    "create_group": (("g",), {}),
    "group": (("g",), {}),
    "delete_group": (("g",), {"force": True}),
    "tokens": ((), {}),
    "create_token": (("t",), {"role": "user"}),
    "revoke_token": (("1",), {}),
    "submit_job": (({},), {}),
    "submit_jobs": (([{}],), {}),
    "check_job": (({},), {}),
    "jobs": ((), {}),
    "results": ((["1"],), {}),
    "open_results": ((["1"],), {}),
    "follow_results": (("s", ["1"]), {}),
    "job_values": (("1",), {}),
    "value": (("1",), {}),
    "create_value": (("int64", {"inline": "Bw=="}), {}),
    "shared_value": (("1",), {}),
    "task_values": (("5cee4880088100",), {}),
    "ref_value": (("1",), {}),
    "unref_value": (("1",), {}),
    "localities": (("1",), {}),
    "change_localities": (("1",), {"add": ["10.0.0.1"]}),
    "missing_files": (({"0" * 64: 1},), {}),
    "file": (("0" * 64,), {}),
    "function_call": (("1",), {}),
    "upload_file": (("0" * 64, b"content"), {}),
    "webhooks": ((), {}),
    "create_webhook": (("http://h",), {}),
    "delete_webhook": (("1",), {}),
    "webhook_deliveries": (("1",), {}),
    "replay_delivery": (("1", "2"), {}),
    "readiness": ((), {}),
    "overview": ((), {}),
    "search": (("text",), {}),
    "changes": ((["tasks"],), {}),
    "count_tasks": ((), {}),
    "change_tasks": (("cancel", ["1"]), {}),
    "log_times": (("1",), {}),
    "job_names": ((), {}),
    "flaky_labels": (("nightly",), {}),
    "timeline": (("j",), {}),
    "job_failures": (("j",), {}),
    "functions": ((), {}),
    "function": (("pkg:f",), {}),
    "bot_counts": ((), {}),
    "bot_series": (("b",), {}),
    "pool_loads": ((), {}),
    "shared_values": ((), {}),
    "session": ((), {}),
    "login_link": ((), {}),
    "job": (("j",), {}),
    "query": (("tasks/list",), {"limit": 1}),
    "post": (("tasks/new", {}), {}),
}


JOB_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "info": ((), {}),
    "tasks": ((), {}),
    "task": (("label",), {}),
    "graph": ((), {}),
    "outputs": ((), {}),
    "compare": (("other",), {}),
    "errors": ((), {}),
    "unreachable": ((), {}),
    "poll": ((), {}),
    "wait": ((), {}),
    "result": ((), {}),
    "extend": (({},), {}),
    "seal": ((), {}),
    "cancel": ((), {}),
    "rerun": ((), {}),
    "hold": ((), {}),
    "release": ((), {}),
    "priority": ((50,), {}),
    "meta": ((), {}),
    "set_meta": (("name", "value"), {}),
    "delete": ((), {}),
}


class Called(NamedTuple):
    """One request, and the type that its answer is decoded as; None for bytes and streams."""

    method: str
    path: str
    key: str | None
    body: Any = None
    answer: Any = None


class Recorder:
    """Notes what would be called, and answers with nothing."""

    def __init__(self) -> None:
        self.called: list[Called] = []

    def call(self, method: str, path: str, *, key: str | None = None, body: Any = None, **_: Any) -> Reply:
        self.called.append(Called(method, path, key, body))
        return Reply(200, {"X-Log-Length": "0"}, b"")

    def open(self, method: str, path: str, *, body: Any) -> None:
        self.called.append(Called(method, path, None, body))

    def stream(self, path: str, **_: Any) -> Any:
        self.called.append(Called("GET", path, None))
        return iter(())


def called(monkeypatch: pytest.MonkeyPatch) -> list[Called]:
    recorder = Recorder()

    def decode(_: bytes, answer: Any) -> Any:
        recorder.called[-1] = recorder.called[-1]._replace(answer=answer)
        raise CallFailed("nothing to decode")

    monkeypatch.setattr(caller, "decode", decode)
    monkeypatch.setattr(administration, "decode", decode)
    monkeypatch.setattr(overview, "decode", decode)
    client = Client(recorder)  # type: ignore[arg-type]
    named = {"external_id": "e"}
    calls = [
        *((getattr(client, name), given) for name, given in CLIENT_CALLS.items()),
        *((getattr(client.job("j"), name), given) for name, given in JOB_CALLS.items()),
        (client.submit_job, ((named,), {})),
    ]
    for call, (arguments, options) in calls:
        with contextlib.suppress(CallFailed):
            answer = call(*arguments, **options)
            if isinstance(answer, Iterator):
                list(answer)
    return recorder.called


def route_of(call: Called) -> Route:
    fits = [
        route
        for route in every_route()
        if route.method == call.method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route.path), call.path)
    ]
    assert fits, call
    return next((route for route in fits if route.path == call.path), fits[0])  # tasks/wait is no task


def methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_method_of_the_client_is_tried_here():
    of_functions = {"new_job", "submit", "map", "map_with", "share", "executor", "as_completed"}
    without_calls = of_functions | {"close", "call"}  # tests/sdk/test_new_job.py, tests/functions
    assert methods(Client) - without_calls == set(CLIENT_CALLS)
    assert methods(Job) == set(JOB_CALLS)


def test_every_call_of_the_client_is_a_route_and_the_other_way_round(monkeypatch):
    met = set()
    for call in called(monkeypatch):
        route = route_of(call)
        assert (call.key is not None) == route.mutates, (KEY_HEADER, call)
        met.add((route.method, route.path))
    api = {(route.method, route.path) for route in every_route() if route.path.startswith("/api/v1/")}
    assert api - met == set()


def test_every_answer_is_the_struct_that_the_route_declares(monkeypatch):
    answers = {}
    for call in called(monkeypatch):
        route = route_of(call)
        if route.path.startswith("/api/v1/") or call.answer is not None:
            answers[route.method, route.path] = (call.answer, route.out)
    assert len(answers) > 50
    assert {name: pair for name, pair in answers.items() if pair[0] is not pair[1]} == {}


def test_every_body_is_one_that_the_route_accepts(monkeypatch):
    bodies = [(route_of(call).body, call.body) for call in called(monkeypatch) if call.body is not None]
    assert len(bodies) > 20
    for struct, body in bodies:
        if struct is not None:
            decode(encode(body), type=struct)
