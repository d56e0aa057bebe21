"""A bot on the wire: real HTTP to a real server, and nothing of the bot's own code."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.deadline import HANG_S, POLL_S
from tests.live import LiveServer, ServerCalls


class WireBot:
    """Speaks the bots' calls one by one. `last` is the last call's path and body, for sending it again."""

    def __init__(self, server: ServerCalls, name: str, *, session: int | None = None) -> None:
        self.server = server
        self.name = name
        self.session = session or time.time_ns() // 1000
        self.nonce = 0
        self.credential = ""
        self.dimensions = {"id": [name], "pool": ["default"], "os": ["Linux"]}

    def shake(self, token: str | None = None, **fields: Any) -> Any:
        body = {"bot_id": self.name, "session": self.session, "dimensions": self.dimensions, **fields}
        status, answer = self.server.post("/bot/v1/handshake", body, token=token)
        assert status == 200, answer
        self.credential = answer["credential"]
        return answer

    def call(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        return self.server.post(path, body, token=self.credential, **options)

    def exchange(self, *, nonce: int | None = None, n: int = 1, **fields: Any) -> Any:
        if nonce is None:
            self.nonce += 1
        body = {"session": self.session, "nonce": self.nonce if nonce is None else nonce, "n": n, **fields}
        status, answer = self.call("/bot/v1/exchange", body)
        assert status == 200, answer
        return answer

    def work(self, **fields: Any) -> Any:
        """What a poll brings that is held until there is work."""
        tasks = self.exchange(wait_s=POLL_S, **fields)["tasks"]
        assert tasks, "no work came"
        return tasks

    def start(self, task: Any) -> None:
        self.exchange(n=0, reports=[{"type": "start", "run": task["run"], "token": task["token"]}])

    def finish(self, task: Any, exit_code: int = 0) -> Any:
        return self.exchange(n=0, reports=[self.finish_of(task, exit_code)])

    def finish_of(self, task: Any, exit_code: int = 0, **more: Any) -> Any:
        return {"type": "finish", "run": task["run"], "token": task["token"], "exit_code": exit_code, **more}

    def log(self, task: Any, stream: int, offset: int, data: bytes) -> tuple[int, Any]:
        path = f"/bot/v1/log/{task['run']}/{stream}?offset={offset}"
        answer = self.server.call("POST", path, data, token=self.credential, headers={"X-Run-Token": task["token"]})
        return answer.status, json.loads(answer.data)


def num_held(server: LiveServer) -> int:
    """How many polls a server holds."""
    page = server.call("GET", "/metrics").data.decode()
    (held,) = [line for line in page.splitlines() if line.startswith("myrmidon_bots_waiting ")]
    return round(float(held.split()[1]))


@contextmanager
def held(server: LiveServer, poll: Callable[..., Any], *args: Any, **fields: Any) -> Iterator[Future[Any]]:
    """A poll that the server holds from the first line of the block on; it must be answered before the block ends."""
    wait_for(lambda: num_held(server) == 0)  # one of an earlier test may not have been let go yet
    with ThreadPoolExecutor(1) as threads:
        poll_of = threads.submit(poll, *args, **fields)
        wait_for(lambda: poll_of.done() or num_held(server) == 1)
        assert not poll_of.done(), f"was not held: {poll_of.result()}"
        yield poll_of


def piece(task: Any, stream: int, offset: int, data: bytes) -> dict[str, Any]:
    said = base64.b64encode(data).decode()
    return {"run": task["run"], "token": task["token"], "stream": stream, "offset": offset, "data": said}


def a_task(command: str = "true", **more: Any) -> dict[str, Any]:
    properties = {"dimensions": {"pool": ["default"], "os": ["Linux"]}, "command": [command]}
    return {"name": command, "slices": [{"properties": properties}], **more}


def wait_for(true: Callable[[], bool]) -> None:
    """Until something shows that only another process knows."""
    end = time.monotonic() + HANG_S
    while not true():
        if time.monotonic() > end:
            raise AssertionError("it never came")
        time.sleep(0.005)
