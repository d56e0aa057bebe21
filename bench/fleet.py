"""A large idle fleet on one server: memory per bot, processor, and how fast a submit reaches a waiting bot.

One real server process on SQLite with its defaults; the bots are connections of this process that speak the
bots' wire: handshake, then long polls of 30 s over one kept connection each. The bars:

    fleet-memory   KiB of the server's resident memory per bot, the server itself included
    fleet-cpu      share of one core while nothing happens
    fleet-wake     ms from a submit's first byte to the bot's answer, p99

A process may have so many files open and no more; where the system allows fewer bots, fewer are simulated, and
the table says how many.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import uvloop

from bench.bars import Bar, measure_each, note
from bench.bed import real_disk
from tests.live import LiveServer, live_server

POLL_S = 30
SPARE_FILES = 500
AT_ONCE = 64
QUEUE = {"pool": ["default"], "os": ["Linux"]}


class Connection(asyncio.Protocol):
    """One kept HTTP/1.1 connection with one call under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._read = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio calls it so
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._read = self._read + data if self._read else data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) >= length and self._answer is not None and not self._answer.done():
            self._read = b""
            self._answer.set_result((int(head[9:12]), body))

    def send(self, path: str, token: str, body: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self.transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        return self._answer

    async def call(self, path: str, token: str, body: Any) -> Any:
        status, answer = await self.send(path, token, json.dumps(body).encode())
        if status != 200:
            raise RuntimeError(f"{path}: {status} {answer[:300]!r}")
        return json.loads(answer)


class Bot:
    """A bot that does whatever it gets at once, and well."""

    def __init__(self, number: int, fleet: Fleet) -> None:
        self.name = f"bot-{number:06}"
        self._fleet = fleet
        self._session = time.time_ns() // 1000
        self._nonce = 0
        self._credential = ""
        self._connection = Connection()

    async def join(self, loop: asyncio.AbstractEventLoop, port: int, token: str) -> None:
        await loop.create_connection(lambda: self._connection, "127.0.0.1", port)
        has = {**QUEUE, "id": [self.name]}
        body = {"bot_id": self.name, "session": self._session, "dimensions": has}
        self._credential = (await self._connection.call("/bot/v1/handshake", token, body))["credential"]

    async def serve(self) -> None:
        reports: list[Any] = []
        while True:
            self._nonce += 1
            body = {"session": self._session, "nonce": self._nonce, "n": 8, "wait_s": POLL_S, "reports": reports}
            answer = await self._connection.call("/bot/v1/exchange", self._credential, body)
            arrived = time.perf_counter()
            for task in answer["tasks"]:
                self._fleet.arrived(task["name"], arrived)
            reports = [
                {"type": "finish", "run": t["run"], "token": t["token"], "exit_code": 0, "duration": 0.01}
                for t in answer["tasks"]
            ]


class Fleet:
    """All bots, and when tasks reached one of them."""

    def __init__(self, server: LiveServer, n: int) -> None:
        self._server = server
        self._bots = [Bot(number, self) for number in range(n)]
        self._waited: dict[str, asyncio.Future[float]] = {}
        self._serving: list[asyncio.Task[None]] = []

    def arrived(self, name: str, at: float) -> None:
        future = self._waited.pop(name, None)
        if future is not None:
            future.set_result(at)

    async def join(self) -> None:
        loop, token = asyncio.get_running_loop(), self._server.new_token("bot-bootstrap")
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(bot: Bot) -> None:
            async with gate:
                await bot.join(loop, self._server.port, token)
            self._serving.append(loop.create_task(bot.serve()))

        await asyncio.gather(*[one(bot) for bot in self._bots])

    async def wake_times(self, n: int) -> list[float]:
        """Seconds from the submit's first byte to the bot's answer, one task after the other."""
        token, took, client = self._server.token, [], Connection()
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", self._server.port)
        for number in range(n):
            name = f"wake-{number}"
            self._waited[name] = asyncio.get_running_loop().create_future()
            properties = {"dimensions": QUEUE, "command": ["true"]}
            began = time.perf_counter()
            came = self._waited[name]
            await client.call(
                "/api/v1/tasks", token, {"tasks": [{"name": name, "slices": [{"properties": properties}]}]}
            )
            took.append(await asyncio.wait_for(came, 30) - began)
        return took

    def check(self) -> None:
        """A bot that fell away would make the figures better than they are."""
        for task in self._serving:
            if task.done():
                task.result()


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("the kernel does not say how large this process is")


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(server: LiveServer, bots: int, window_s: float, wakes: int) -> dict[str, float]:
    started_kib = resident_kib(server.pid)
    fleet = Fleet(server, bots)
    began = time.perf_counter()
    await fleet.join()
    joined_s = time.perf_counter() - began
    await fleet.wake_times(5)  # the queue becomes known
    await asyncio.sleep(min(POLL_S, window_s))  # every bot is in a poll that found nothing new
    before, at = processor_s(server.pid), time.perf_counter()
    await asyncio.sleep(window_s)
    share = (processor_s(server.pid) - before) / (time.perf_counter() - at)
    kib = resident_kib(server.pid)
    took = sorted(await fleet.wake_times(wakes))
    fleet.check()
    note(f"{bots:,} bots join in", f"{joined_s:.1f} s")
    note("the server grows", f"from {started_kib >> 10} to {kib >> 10} MiB")
    note("wake p50, p99", f"{1000 * took[len(took) // 2]:.1f} ms, {1000 * took[len(took) * 99 // 100]:.1f} ms")
    return {
        "fleet-memory": kib / bots,
        "fleet-cpu": share,
        "fleet-wake": 1000 * took[len(took) * 99 // 100],
    }


def allowed_bots(wanted: int) -> int:
    """As many as this process, and the server that inherits its limits, may have connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = hard - SPARE_FILES if hard != resource.RLIM_INFINITY else wanted
    if most < wanted:
        note(f"the system allows {hard:,} open files, so bots are", f"{most:,} of {wanted:,}")
    return min(wanted, most)


BARS = (
    Bar("fleet-memory", "30", itemgetter("fleet-memory")),
    Bar("fleet-cpu", "0.2", itemgetter("fleet-cpu")),
    Bar("fleet-wake", "100", itemgetter("fleet-wake")),
)


def measure_bars(wanted: Sequence[Bar], *, quick: bool) -> None:
    """All from one fleet."""
    bots, window_s, wakes = (100, 1.0, 20) if quick else (allowed_bots(20_000), 60.0, 500)
    with (
        tempfile.TemporaryDirectory(prefix="fleet-", dir=real_disk()) as folder,
        live_server(f"sqlite:///{folder}/fleet.db", folder=Path(folder)) as server,
    ):
        found = uvloop.run(measure(server, bots, window_s, wakes))
    measure_each(wanted, found)
