"""Graphs: what edges cost.

    graph-submit  nodes per second of a graph of 100,000 tasks in one call, as a share of the same tasks per second
                  submitted without edges in calls of 1,000
    graph-feed    tasks per second of a graph of 100 layers of 100 tasks, as a share of those of the same job without
                  edges; 16 simulated bots do both

Real servers on SQLite, fully durable, on a real disk. Every task but those of the first layer requires three of the
layer before. What a bar compares is measured in turn, each on a server of its own, so that neither finds the other's
tasks in the queue.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.bars import Bar, measure_each, note
from bench.bed import real_disk
from bench.fleet import Connection
from tests.live import LiveServer, live_server

BATCH = 1_000
PARENTS = 3
QUEUE = {"pool": ["default"], "os": ["Linux"]}
CALL_S = 600.0
POLL_S = 30


class Sizes(NamedTuple):
    layers: int = 1_000
    width: int = 100
    feed_layers: int = 100
    feed_width: int = 100
    bots: int = 16
    slots: int = 8
    rounds: int = 3


QUICK = Sizes(layers=15, feed_layers=3, feed_width=20, rounds=1)


@contextmanager
def a_server() -> Iterator[LiveServer]:
    with (
        tempfile.TemporaryDirectory(prefix="graphs-", dir=real_disk()) as folder,
        live_server(f"sqlite:///{folder}/graphs.db", folder=Path(folder)) as server,
    ):
        yield server


def request(number: int) -> dict[str, Any]:
    properties = {"dimensions": QUEUE, "command": ["true", f"{number:08}"]}
    return {"name": f"bench-{number:08}", "slices": [{"properties": properties}]}


def layered(layers: int, width: int, *, edges: bool = True) -> dict[str, Any]:
    """A graph document: layers of tasks, each task with a few parents in the layer before."""
    tasks: dict[str, Any] = {}
    for number in range(layers * width):
        layer, place = divmod(number, width)
        tasks[f"n-{layer}-{place}"] = node = {"task": request(number)}
        if layer and edges:
            above = sorted({(place + step) % width for step in range(PARENTS)})
            node["requires"] = [f"n-{layer - 1}-{other}" for other in above]  # type: ignore[assignment]
    return {"name": "bench", "tasks": tasks}


def post(server: LiveServer, path: str, body: bytes) -> Any:
    answer = server.call("POST", path, body, timeout=CALL_S)
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {answer.data[:300]!r}")
    return json.loads(answer.data)


# ---------------------------------------------------------------- submits


def submit_share(sizes: Sizes) -> float:
    """The median over the rounds of nodes per second over plain tasks per second."""
    n = sizes.layers * sizes.width
    document = json.dumps({"job": layered(sizes.layers, sizes.width)}).encode()
    calls = [
        json.dumps({"tasks": [request(number) for number in range(start, min(start + BATCH, n))]}).encode()
        for start in range(0, n, BATCH)
    ]
    rounds = []
    for _ in range(sizes.rounds):
        plain_s, graph_s = _time_posts("/api/v1/tasks", calls), _time_posts("/api/v1/jobs", [document])
        rounds.append((n / graph_s, n / plain_s))
    graphs, plain = zip(*rounds, strict=True)
    note(f"a graph of {n:,} tasks in one call of {len(document) >> 20} MiB", f"{median(graphs):,.0f} tasks/s")
    note(f"the same tasks without edges, {BATCH:,} a call", f"{median(plain):,.0f} tasks/s")
    return median(graph / tasks for graph, tasks in rounds)


def _time_posts(path: str, bodies: Sequence[bytes]) -> float:
    """Seconds from the first byte of the first call to the answer of the last, on a new server."""
    with a_server() as server:
        began = time.perf_counter()
        for body in bodies:
            post(server, path, body)
        return time.perf_counter() - began


# ---------------------------------------------------------------- feeding


def feed_share(sizes: Sizes) -> float:
    """The median over the rounds of tasks per second with edges over those without."""
    n = sizes.feed_layers * sizes.feed_width
    rounds = []
    for _ in range(sizes.rounds):
        with_edges, without = (
            n / _time_job(layered(sizes.feed_layers, sizes.feed_width, edges=edges), sizes) for edges in (True, False)
        )
        rounds.append((with_edges, without))
    fed, plain = zip(*rounds, strict=True)
    note(f"a graph of {sizes.feed_layers} x {sizes.feed_width} tasks, {sizes.bots} bots", f"{median(fed):,.0f} tasks/s")
    note("the same tasks without edges", f"{median(plain):,.0f} tasks/s")
    return median(edges / without for edges, without in rounds)


def _time_job(document: dict[str, Any], sizes: Sizes) -> float:
    """Seconds from the first byte of the submit to the job's end."""
    with a_server() as server:
        return asyncio.run(_run_job(server, json.dumps({"job": document}).encode(), sizes))


async def _run_job(server: LiveServer, body: bytes, sizes: Sizes) -> float:
    token = server.new_token("bot-bootstrap")
    bots = [asyncio.create_task(serve(server, f"bot-{number}", token, sizes.slots)) for number in range(sizes.bots)]
    client = Connection()
    await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", server.port)
    began = time.perf_counter()
    status, answer = await client.send("/api/v1/jobs", server.token, body)
    if status != 200:
        raise RuntimeError(f"submit: {status} {answer[:300]!r}")
    job_id = json.loads(answer)["job_id"]
    while True:
        waited = await client.call(f"/api/v1/jobs/{job_id}/wait", server.token, {"wait_s": POLL_S})
        for bot in bots:
            if bot.done():
                bot.result()
        if waited["done"]:
            break
    took = time.perf_counter() - began
    if waited["job"]["state"] != "SUCCEEDED":
        raise RuntimeError(f"the job has ended {waited['job']['state']}")
    for bot in bots:
        bot.cancel()
    return took


async def serve(server: LiveServer, name: str, token: str, slots: int) -> None:
    """A bot that finishes whatever it gets at once."""
    connection = Connection()
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", server.port)
    session = time.time_ns() // 1000
    hello = {"bot_id": name, "session": session, "dimensions": {**QUEUE, "id": [name]}}
    credential = (await connection.call("/bot/v1/handshake", token, hello))["credential"]
    nonce, reports = 0, list[Any]()
    while True:
        nonce += 1
        body = {"session": session, "nonce": nonce, "n": slots, "wait_s": POLL_S, "reports": reports}
        tasks = (await connection.call("/bot/v1/exchange", credential, body))["tasks"]
        reports = [
            {"type": "finish", "run": task["run"], "token": task["token"], "exit_code": 0, "duration": 0.01}
            for task in tasks
        ]


BARS = (
    Bar("graph-submit", "0.5", submit_share, at_least=True),
    Bar("graph-feed", "0.6", feed_share, at_least=True),
)


def measure_bars(wanted: Sequence[Bar], *, quick: bool) -> None:
    measure_each(wanted, QUICK if quick else Sizes())
