"""The client and the server's route table name the same calls."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from myrmidon.sdk.client import Client
from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.jobs import Job
from myrmidon.sdk.transport import KEY_HEADER, Reply
from myrmidon.server.asgi.routes import every_route

CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "submit": (([{}],), {}),
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
    "delete_group": (("g",), {}),
    "tokens": ((), {}),
    "create_token": (("t",), {"role": "user"}),
    "revoke_token": (("1",), {}),
    "submit_job": (({},), {}),
    "check_job": (({},), {}),
    "job": (("j",), {}),
    "jobs": ((), {}),
    "call": (("GET", "server", dict), {}),
    "webhooks": ((), {}),
    "create_webhook": (("http://h",), {}),
    "delete_webhook": (("1",), {}),
    "webhook_deliveries": (("1",), {}),
    "replay_delivery": (("1", "2"), {}),
    "ready": ((), {}),
    "readiness_notes": ((), {}),
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


class Recorder:
    """Notes what would be called, and answers with nothing."""

    def __init__(self) -> None:
        self.called: list[tuple[str, str, str | None]] = []

    def call(self, method: str, path: str, *, key: str | None = None, **_: Any) -> Reply:
        self.called.append((method, path, key))
        return Reply(200, {"X-Log-Length": "0"}, b'{"tasks": []}' if "log" not in path else b"")

    def stream(self, path: str, **_: Any) -> Any:
        self.called.append(("GET", path, None))
        return iter(())


def called() -> list[tuple[str, str, str | None]]:
    recorder = Recorder()
    client = Client(recorder)  # type: ignore[arg-type]
    named = {"external_id": "e"}
    calls = [
        *((getattr(client, name), given) for name, given in CALLS.items()),
        *((getattr(client.job("j"), name), given) for name, given in JOB_CALLS.items()),
        (client.submit_job, ((named,), {})),
    ]
    for call, (arguments, options) in calls:
        with contextlib.suppress(CallFailed):  # the recorder's answers do not have the types of jobs
            answer = call(*arguments, **options)
            if isinstance(answer, Iterator):
                list(answer)
    return recorder.called


def test_every_method_of_the_client_is_tried_here():
    assert {name for name in vars(Client) if not name.startswith("_")} == set(CALLS)
    assert {name for name in vars(Job) if not name.startswith("_")} == set(JOB_CALLS)


def test_every_call_of_the_client_is_a_route_and_the_other_way_round():
    table = {(route.method, re.sub(r"\{\w+\}", "[^/]+", route.path)): route for route in every_route()}
    met = set()
    for method, path, key in called():
        fits = [line for line in table if line[0] == method and re.fullmatch(line[1], path)]
        assert fits, (method, path)
        found = (method, path) if (method, path) in fits else fits[0]  # tasks/wait is no task
        assert (key is not None) == table[found].mutates, (KEY_HEADER, method, path)
        met.add(found)
    api = {line for line in table if line[1].startswith("/api/v1/")}
    assert api - met == set()
