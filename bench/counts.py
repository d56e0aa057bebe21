"""What one life costs the database: statements, rows and commits. These do not depend on how busy a machine is.

    W1       a function of a map of 500, from its submit to its reported end
    W2       one call of a function, submitted while a bot waits, until its result is read
    chain    one step of a chain of functions: a report, and the claim of the next function by the same exchange
    submit   one command, stored by a call of its own; no bot serves its queue

For each of them `statements-*`, `inserted-*`, `updated-*` and `deleted-*` (rows), and `commits-*`. The server's
application runs in this process on SQLite, and is called as its web server would call it; maintenance does not run.

`python -m bench.counts` prints the statements too.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.bars import Bar, measure_each, note
from bench.bed import DIMENSIONS
from myrmidon.store.engine.pool import Pool
from myrmidon.store.tables import stored_file
from tests.server.inside import Inside, inside

MAP = 500
CALLS = 20
CLAIM = 50
BOT = "counted"
FUNCTIONS = {"pool": ["default"], "python": ["3.11"]}
"""What the SDK asks for."""
CODE = hashlib.sha256(b"code").hexdigest()
_ONE = b64encode(b"\x01").decode()
_CHANGES = {"INSERT": "inserted", "UPDATE": "updated", "DELETE": "deleted"}


class CountedLink:
    """A link that counts its statements, the rows that they change, and its commits."""

    def __init__(self, link: Any, counts: Counter[str], statements: Counter[str]) -> None:
        self._link = link
        self._counts = counts
        self._statements = statements
        for name in ("all", "one", "run", "insert", "insert_new", "update_rows", "delete_rows"):
            setattr(self, name, partial(self._counted, getattr(link, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def commit(self) -> None:
        self._counts["commits"] += 1
        self._link.commit()

    def _counted(self, method: Callable[..., Any], statement: Any, *args: Any, **params: Any) -> Any:
        before = self._link.connection.total_changes
        found = method(statement, *args, **params)
        if isinstance(statement, str):
            text = " ".join(statement.split())
        else:
            verb = {"insert": "INSERT", "insert_new": "INSERT", "update_rows": "UPDATE"}.get(method.__name__, "DELETE")
            text = f"{verb} {statement.table}"
        if not text.startswith(("SAVEPOINT", "RELEASE")):
            self._counts["statements"] += 1
            self._statements[text] += 1
        changed = self._link.connection.total_changes - before
        if changed:
            self._counts[_CHANGES[text[:6].upper()]] += changed
            self._statements[f"{text[:60]}: rows"] += changed
        return found


class Counts:
    """An application that counts what it does to its database, with a bot."""

    def __init__(self, app: Inside) -> None:
        self.app = app
        self.counts: Counter[str] = Counter()
        self.statements: Counter[str] = Counter()
        engine = app.context.db.engine
        _count(engine._writers, partial(self._connect, writer=True))
        _count(engine._readers, partial(self._connect, writer=False))
        self._nonce = 0
        self._keys = 0
        self._measured: dict[str, Counter[str]] = {}
        dimensions = {"id": [BOT], "os": ["Linux"], **FUNCTIONS}
        app.post("/bot/v1/handshake", {"bot_id": BOT, "session": 1, "dimensions": dimensions})
        self.credential = app.credential(BOT)
        group = app.run(app.context.groups.id_of("default", app.context.now()))
        now = app.context.now()
        engine.write(lambda tx: stored_file.insert(tx, CODE, group, size=1, now=now))
        for life in LIVES.values():  # to warm up: queues are created and caches filled
            life(self)

    def _connect(self, *, writer: bool) -> CountedLink:
        return CountedLink(self.app.context.db.engine._backend.connect(writer=writer), self.counts, self.statements)

    def of(self, life: str) -> Counter[str]:
        """The counts of one life of a kind, times its number of lives; measured once."""
        if life not in self._measured:
            self.counts.clear()
            self.statements.clear()
            LIVES[life](self)
            self._measured[life] = Counter(self.counts)
        return self._measured[life]

    # -- a client and a bot

    async def job(self, tasks: dict[str, Any]) -> dict[str, str]:
        self._keys += 1
        headers = {"Idempotency-Key": f"key-{self._keys}"}
        reply = await self.app.ask("POST", "/api/v1/jobs", {"job": {"name": "j", "tasks": tasks}}, headers=headers)
        if reply.status != 200:
            raise RuntimeError(reply.body)
        ids: dict[str, str] = reply.json["task_ids"]
        return ids

    async def exchange(self, done: Sequence[dict[str, Any]] = (), *, n: int, wait_s: float = 0) -> list[dict[str, Any]]:
        self._nonce += 1
        reports = [_finish(one) for one in done]
        ask = {
            "session": 1, "nonce": self._nonce, "received": self._nonce - 1, "n": n, "wait_s": wait_s,
            "reports": reports,
        }  # fmt: skip
        reply = await self.app.ask("POST", "/bot/v1/exchange", ask, token=self.credential)
        if reply.status != 200 or any(one["outcome"] != "accepted" for one in reply.json["replies"]):
            raise RuntimeError(reply.body)
        tasks: list[dict[str, Any]] = reply.json["tasks"]
        return tasks

    async def run_map(self) -> None:
        await self.job({f"f[{number}]": _call() for number in range(MAP)})
        claimed, ran = await self.exchange(n=CLAIM), 0
        while claimed:
            ran += len(claimed)
            claimed = await self.exchange(claimed, n=CLAIM)
        _check(ran, MAP)

    async def run_calls(self) -> None:
        for _ in range(CALLS):
            held = asyncio.ensure_future(self.exchange(n=1, wait_s=60))
            while all(bot.future is None for bot in self.app.context.hub.bots.values()):  # noqa: ASYNC110
                await asyncio.sleep(0)
            ids = await self.job({"f": _call()})
            claimed = await held
            _check(len(claimed), 1)
            await self.exchange(claimed, n=0)
            results = await self.app.ask("POST", "/api/v1/results", {"task_ids": list(ids.values()), "wait_s": 60})
            _check(len(results.json["results"]), 1)

    async def run_chain(self) -> None:
        nodes = {"f0": _call()}
        for number in range(1, CALLS + 1):
            given = {"kind": "output_of", "type": "int64", "label": f"f{number - 1}", "position": 0}
            nodes[f"f{number}"] = _call(given)
        await self.job(nodes)
        claimed = await self.exchange(n=1)
        self.counts.clear()
        self.statements.clear()
        for _ in range(CALLS):
            claimed = await self.exchange(claimed, n=1)
            _check(len(claimed), 1)
        counted, statements = Counter(self.counts), Counter(self.statements)
        await self.exchange(claimed, n=0)
        self.counts, self.statements = _again(self.counts, counted), _again(self.statements, statements)

    async def submit_commands(self) -> None:
        for number in range(CALLS):
            properties = {"dimensions": {**DIMENSIONS, "os": ["none"]}, "command": ["true", str(number)]}
            task = {"name": "t", "slices": [{"properties": properties}]}
            reply = await self.app.ask("POST", "/api/v1/tasks", {"tasks": [task]})
            if reply.status != 200:
                raise RuntimeError(reply.body)


def _again(counter: Counter[str], content: Counter[str]) -> Counter[str]:
    """The same counter, which links hold, with other content."""
    counter.clear()
    counter.update(content)
    return counter


def _count(pool: Pool, connect: Callable[[], Any]) -> None:
    """Let a pool make counted links from now on."""
    pool.close_idle()
    pool._connect = connect


def _check(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found} in place of {wanted}")


def _call(given: dict[str, Any] | None = None) -> dict[str, Any]:
    constant = {"kind": "constant", "type": "int64", "payload": {"inline": _ONE}}
    function = {"package_name": "m", "func_name": "m.f", "code": CODE, "signature": "(x: int) -> int"}
    task = {
        "function": function, "slices": [{"properties": {"dimensions": FUNCTIONS}}], "inputs": [given or constant],
        "outputs": [{"type": "int64"}],
    }  # fmt: skip
    return {"requires": [given["label"]] if given else [], "task": task}


def _finish(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "finish", "run": task["run"], "token": task["token"], "exit_code": 0, "duration": 0.001,
        "outputs": [{"type": "int64", "payload": {"inline": _ONE, "size": 1}}],
    }  # fmt: skip


LIVES: dict[str, Callable[[Counts], None]] = {
    "W1": lambda bench: bench.app.run(bench.run_map()),
    "W2": lambda bench: bench.app.run(bench.run_calls()),
    "chain": lambda bench: bench.app.run(bench.run_chain()),
    "submit": lambda bench: bench.app.run(bench.submit_commands()),
}
LIMITS = {
    "W1": {"statements": "0.7", "inserted": "11.1", "updated": "4.1", "deleted": "1", "commits": "0.1"},
    "W2": {"statements": "32", "inserted": "15", "updated": "8", "deleted": "0", "commits": "2"},
    "chain": {"statements": "27", "inserted": "5", "updated": "7", "deleted": "0", "commits": "1"},
    "submit": {"statements": "7", "inserted": "4", "updated": "1", "deleted": "0", "commits": "1"},
}
"""What they are now: more is a regression."""


def _bar(life: str, what: str, limit: str) -> Bar:
    """Of single calls the whole part: the server reads a quota again now and then, whatever is called."""
    if life == "W1":
        return Bar(f"{what}-{life}", limit, lambda bench: bench.of(life)[what] / MAP)
    return Bar(f"{what}-{life}", limit, lambda bench: float(bench.of(life)[what] // CALLS))


BARS = tuple(_bar(life, what, limit) for life, limits in LIMITS.items() for what, limit in limits.items())


def measure_bars(wanted: Sequence[Bar], *, quick: bool) -> None:  # noqa: ARG001 - as every part of the benchmark
    with tempfile.TemporaryDirectory(prefix="counts-") as folder, inside(Path(folder)) as app:
        measure_each(wanted, Counts(app))


def main() -> None:
    """Print the statements of each life too."""
    with tempfile.TemporaryDirectory(prefix="counts-") as folder, inside(Path(folder)) as app:
        bench = Counts(app)
        for life in LIVES:
            bench.of(life)
            number = MAP if life == "W1" else CALLS
            for text, count in sorted(bench.statements.items()):
                note(text[:160], f"{count / number:.3f}")
            for bar in BARS:
                if bar.name.endswith(f"-{life}"):
                    print(bar.line(bar.measure(bench)))


if __name__ == "__main__":
    main()
