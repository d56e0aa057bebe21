"""Resume: what it costs to answer the calls of a job by the results of its earlier revision.

    resume        nodes per second of a graph of 10,000 calls of functions that is submitted again with other code and
                  the same identities, until all of them are answered, as a share of those of a plain submit of the
                  same graph, until it is stored

Real servers on SQLite, fully durable, on a real disk. Half of the calls have constants, the others read the results of
those, and fifty merge them. A simulated bot has done the first revision. Both are measured in turn, each on a server of
its own. As many commands without values, submitted in calls of 1,000, are shown beside them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Sequence
from itertools import count
from statistics import median
from typing import Any, NamedTuple

from bench.bars import Bar, measure_each, note
from bench.fleet import Connection
from bench.graphs import BATCH, CALL_S, POLL_S, QUEUE, a_server, request
from tests.live import LiveServer

MERGED = 99
INT = "int64"


class Sizes(NamedTuple):
    nodes: int = 10_000
    slots: int = 100
    rounds: int = 3


QUICK = Sizes(nodes=2_000, rounds=1)


def document(n: int, code: str) -> dict[str, Any]:
    """A graph of n calls: leaves, one call of the result of each, and merges of those."""
    pairs = n * MERGED // (2 * MERGED + 1)
    tasks: dict[str, Any] = {}
    for number in range(pairs):
        constant = {"kind": "constant", "type": INT, "payload": {"inline": _number(number)}}
        tasks[f"leaf[{number}]"] = _call("leaf", code, [constant])
        tasks[f"next[{number}]"] = _call("next", code, [{"kind": "output_of", "type": INT, "label": f"leaf[{number}]"}])
    for number in range(n - 2 * pairs):
        labels = [f"next[{i}]" for i in range(number * MERGED, min((number + 1) * MERGED, pairs))] or ["next[0]"]
        parts = [{"type": INT, "label": label} for label in labels]
        tasks[f"merge[{number}]"] = _call("merge", code, [{"kind": "gathered", "type": f"List<{INT}>", "parts": parts}])
    return {"name": "bench", "external_id": "bench", "tasks": tasks}


def _number(number: int) -> str:
    """A number in MessagePack, in base64: its form of four bytes."""
    return base64.b64encode(b"\xce" + number.to_bytes(4, "big")).decode()


def _call(name: str, code: str, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    identity = hashlib.sha256(name.encode()).hexdigest()
    function = {"package_name": "bench", "func_name": name, "code": code, "identity": identity}
    properties = {"dimensions": QUEUE}
    task = {"name": name, "function": function, "inputs": inputs, "outputs": [{"type": INT}]}
    return {"task": {**task, "slices": [{"properties": properties}]}}


def answered_share(sizes: Sizes) -> float:
    """The median over the rounds of answered nodes per second over plain tasks per second."""
    measures = (_time_resume, _time_plain, _time_commands)
    rounds = [[sizes.nodes / measure(sizes) for measure in measures] for _ in range(sizes.rounds)]
    resumed, plain, commands = zip(*rounds, strict=True)
    note(f"a graph of {sizes.nodes:,} calls, all of them answered", f"{median(resumed):,.0f} tasks/s")
    note("the same graph, submitted for the first time", f"{median(plain):,.0f} tasks/s")
    note(f"as many commands, {BATCH:,} a call", f"{median(commands):,.0f} tasks/s")
    return median(answered / tasks for answered, tasks, _ in rounds)


def _time_plain(sizes: Sizes) -> float:
    """Seconds of the submit of the graph to a server that knows nothing of it."""
    with a_server() as server:
        body = json.dumps({"job": document(sizes.nodes, _upload(server, b"first"))}).encode()
        began = time.perf_counter()
        _send(server, "POST", "/api/v1/jobs", body)
        return time.perf_counter() - began


def _time_commands(sizes: Sizes) -> float:
    n = sizes.nodes
    calls = [
        json.dumps({"tasks": [request(number) for number in range(start, min(start + BATCH, n))]}).encode()
        for start in range(0, n, BATCH)
    ]
    with a_server() as server:
        began = time.perf_counter()
        for body in calls:
            _send(server, "POST", "/api/v1/tasks", body)
        return time.perf_counter() - began


def _time_resume(sizes: Sizes) -> float:
    """Seconds from the first byte of the second submit to the end of its job."""
    with a_server() as server:
        codes = [_upload(server, text) for text in (b"first", b"second")]
        first, second = (json.dumps({"job": document(sizes.nodes, code), "resume": True}).encode() for code in codes)
        asyncio.run(_run(server, first, sizes.slots))
        began = time.perf_counter()
        job = _send(server, "PUT", "/api/v1/jobs/bench", second)
        while True:
            waited = _send(
                server, "POST", f"/api/v1/jobs/{job['job_id']}/wait", json.dumps({"wait_s": POLL_S}).encode()
            )
            if waited["done"]:
                break
        took = time.perf_counter() - began
        if (waited["job"]["state"], waited["job"]["num_succeeded"], job["revision"]) != ("SUCCEEDED", sizes.nodes, 2):
            raise RuntimeError(f"the second revision is {waited['job']}")
        return took


def _upload(server: LiveServer, text: bytes) -> str:
    digest = hashlib.sha256(text).hexdigest()
    answer = server.call("PUT", f"/api/v1/files/{digest}", text, timeout=CALL_S)
    if answer.status != 200:
        raise RuntimeError(f"upload: {answer.status} {answer.data[:300]!r}")
    return digest


def _send(server: LiveServer, method: str, path: str, body: bytes) -> Any:
    answer = server.call(method, path, body, timeout=CALL_S)
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {answer.data[:300]!r}")
    return json.loads(answer.data)


async def _run(server: LiveServer, body: bytes, slots: int) -> None:
    """Submit the first revision, and let a bot do all of it."""
    bot = asyncio.create_task(_serve(server, server.new_token("bot-bootstrap"), slots))
    job = await asyncio.to_thread(_send, server, "PUT", "/api/v1/jobs/bench", body)
    while True:
        path, question = f"/api/v1/jobs/{job['job_id']}/wait", json.dumps({"wait_s": 5}).encode()
        waited = await asyncio.to_thread(_send, server, "POST", path, question)
        if bot.done():
            bot.result()
        if waited["done"]:
            break
    bot.cancel()
    if waited["job"]["state"] != "SUCCEEDED":
        raise RuntimeError(f"the first revision has ended {waited['job']['state']}")


async def _serve(server: LiveServer, token: str, slots: int) -> None:
    """A bot that returns another number for each call."""
    connection = Connection()
    await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", server.port)
    session = time.time_ns() // 1000
    hello = {"bot_id": "bot", "session": session, "dimensions": {**QUEUE, "id": ["bot"]}}
    credential = (await connection.call("/bot/v1/handshake", token, hello))["credential"]
    nonce, reports, numbers = 0, list[Any](), count()
    while True:
        nonce += 1
        body = {"session": session, "nonce": nonce, "n": slots, "wait_s": POLL_S, "reports": reports}
        tasks = (await connection.call("/bot/v1/exchange", credential, body))["tasks"]
        reports = [
            {"type": "finish", "run": task["run"], "token": task["token"], "exit_code": 0, "duration": 0.01,
             "outputs": [{"type": INT, "payload": {"inline": _number(next(numbers)), "size": 5}}]}
            for task in tasks
        ]  # fmt: skip


BARS = (Bar("resume", "0.5", answered_share, at_least=True),)


def measure_bars(wanted: Sequence[Bar], *, quick: bool) -> None:
    measure_each(wanted, QUICK if quick else Sizes())
