"""Single submits: how many tasks per second clients can submit that send one task per call.

    submit-rate   POSTs of one task each to /api/v1/tasks per second, as a share of no-op POSTs on the same listener

A real server process on SQLite, fully durable, on a real disk; 32 keep-alive connections, each with one call at a time.
The no-op is POST /bot/v1/exchange of a bot that reports nothing, asks for no task and does not wait: it is
authenticated, decoded and answered as any other call, but reads and writes no database (except one heartbeat of the
bot in several seconds). Both are measured in turns, round by round, so that a busy machine changes both.

The client is this process, on raw non-blocking sockets with requests that were built before: it needs a small part of
the time that the server needs for a call, so the server is the bottleneck.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.bars import Bar, measure_each, note
from bench.bed import real_disk
from tests.live import LiveServer, live_server

CONNECTIONS = 32
BODIES = 256
ANSWER_BYTES = 1 << 16
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Sizes(NamedTuple):
    rounds: int = 15
    round_s: float = 1.0


QUICK = Sizes(rounds=1, round_s=0.2)


def post(path: str, token: str, body: Any) -> bytes:
    """The bytes of a whole request."""
    text = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


def task(number: int) -> dict[str, Any]:
    """A submit of one task; the command differs, so that no two requests are equal."""
    properties = {"dimensions": {"pool": ["default"], "os": ["Linux"]}, "command": ["true", str(number)]}
    return {"tasks": [{"name": "bench", "slices": [{"properties": properties}], "tags": [f"build:{number}"]}]}


class Connection:
    """One keep-alive connection with one call under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def send(self, request: bytes) -> None:
        """A request is far smaller than the socket's buffer, so this does not block."""
        self.socket.sendall(request)

    def answer_came(self) -> bool:
        """Read what there is; whether that completes an answer with status 200."""
        received = self._received + self.socket.recv(ANSWER_BYTES)
        head, _, body = received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if length is None or len(body) < int(length[1]):
            if received == self._received:
                raise ConnectionError("the server closed the connection")
            self._received = received
            return False
        self._received = b""
        if not head.startswith(b"HTTP/1.1 200") or b'"error"' in body:
            raise RuntimeError(f"{head[:20]!r} {body[:300]!r}")
        return True


def rate(port: int, requests: Sequence[bytes], seconds: float) -> float:
    """Calls per second over all connections; each sends its next call when the last one was answered."""
    following = cycle(requests)
    with ExitStack() as stack:
        ready = stack.enter_context(selectors.DefaultSelector())
        connections = [Connection(port) for _ in range(CONNECTIONS)]
        for each in connections:
            stack.enter_context(closing(each.socket))
            ready.register(each.socket, selectors.EVENT_READ, each)
        began = time.perf_counter()
        for each in connections:
            each.send(next(following))
        done, waiting = 0, CONNECTIONS
        while waiting:
            late = time.perf_counter() - began > seconds
            for key, _ in ready.select():
                if not key.data.answer_came():
                    continue
                done += 1
                if late:
                    waiting -= 1
                else:
                    key.data.send(next(following))
        return done / (time.perf_counter() - began)


def share(sizes: Sizes) -> float:
    """The median over the rounds of submits per second over no-ops per second."""
    with (
        tempfile.TemporaryDirectory(prefix="submit-", dir=real_disk()) as folder,
        live_server(f"sqlite:///{folder}/submit.db", folder=Path(folder)) as server,
    ):
        submits = [post("/api/v1/tasks", server.token, task(number)) for number in range(BODIES)]
        noops = [_noop(server)]
        rounds = []
        for _ in range(sizes.rounds + 1):
            submitted = rate(server.port, submits, sizes.round_s)
            rounds.append((submitted, rate(server.port, noops, sizes.round_s)))
    measured = rounds[1:]  # the first one warms up
    ours, theirs = zip(*measured, strict=True)
    note(f"single submits, {CONNECTIONS} connections", f"{median(ours):,.0f}/s")
    note(f"no-op POSTs, {CONNECTIONS} connections", f"{median(theirs):,.0f}/s")
    return median(submitted / noop for submitted, noop in measured)


def _noop(server: LiveServer) -> bytes:
    """The call of a bot that has nothing to report and wants nothing; the bot is of another pool than the tasks."""
    dimensions = {"id": ["idle"], "pool": ["idle"]}
    status, welcome = server.post("/bot/v1/handshake", {"bot_id": "idle", "session": 1, "dimensions": dimensions})
    if status != 200:
        raise RuntimeError(f"handshake: {status} {welcome}")
    body = {"session": 1, "nonce": 1, "n": 0, "wait_s": 0}
    return post("/bot/v1/exchange", welcome["credential"], body)


BARS = (Bar("submit-rate", "0.15", share, at_least=True),)


def measure_bars(wanted: Sequence[Bar], *, quick: bool) -> None:
    measure_each(wanted, QUICK if quick else Sizes())
