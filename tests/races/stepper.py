"""Two servers, stepped statement by statement.

Each side runs one call in a thread of its own, on a Db of its own whose probe stops before every statement and
before COMMIT. The stepper lets one side go at a time, for as many statements as it is to take in a row. A side that
does not come to its next stop waits for a row lock that the other holds: the stepper asks the database whether that
is so, and lets the other go on; the lock lasts until that one's transaction ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from threading import Condition, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pymysql

from tests.deadline import HANG_S

GLANCE_S = 0.002
"""When a side has said nothing for so long, the database is asked whether it waits for a lock."""
GLANCE_AT_MANY_S = 0.01
"""The same for a side that takes many statements in a row."""
TO_ITS_END = 1_000_000
DB_TIMEOUT_S = HANG_S
"""Longer than any lock wait or deadlock check of the databases."""


class Stuck(Exception):
    """A side neither came to its next statement nor waited for a lock."""


class Side:
    """One server and the call it makes; stops at every probe until it is let go."""

    def __init__(self, name: str, open_db: Callable[..., Any], turn: Condition) -> None:
        self.name = name
        self.db = open_db(probe=self._probe, sleep=lambda _: None)
        self._turn = turn
        self._stepping = False
        self._may_go = False
        self._more = 0
        self.stopped = False
        self.done = False
        self.waits = False
        self.statements: list[str] = []
        self.retries = 0
        self._count_retries()
        self.result: Any = None
        self.error: BaseException | None = None

    def begin(self, call: Callable[[], Any]) -> None:
        """Start the call; it runs up to its first statement."""
        self.stopped = self.done = self.waits = self._may_go = False
        self._more = 0
        self.statements, self.result, self.error, self.retries = [], None, None, 0
        self._stepping = True
        self._thread = Thread(target=self._run, args=(call,), name=self.name, daemon=True)
        self._thread.start()

    def _count_retries(self) -> None:
        write = self.db.write

        def counting(fn: Callable[[Any], Any], **options: Any) -> Any:
            self.retries -= 1

            def once(tx: Any) -> Any:
                self.retries += 1
                return fn(tx)

            return write(once, **options)

        self.db.write = counting

    def go(self, steps: int) -> None:
        """Let it take so many statements. The turn's lock is held."""
        self.stopped = False
        self._may_go = True
        self._more = steps - 1
        self._turn.notify_all()

    def found_waiting(self) -> None:
        """It waits for the other: when it gets its lock, it stops at its next statement."""
        self.waits = True
        self._more = 0

    def join(self) -> None:
        self._thread.join(DB_TIMEOUT_S)
        self._stepping = False

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except BaseException as error:  # noqa: BLE001 - it belongs to the test
            self.error = error
        with self._turn:
            self.done = True
            self._turn.notify_all()

    def _probe(self, event: str, sql: str) -> None:
        if not self._stepping or event == "committed":
            return
        with self._turn:
            self.statements.append(event if event == "commit" else sql)
            if self._more:
                self._more -= 1
                return
            self.stopped = True
            self._turn.notify_all()
            if not self._turn.wait_for(lambda: self._may_go, DB_TIMEOUT_S):
                raise Stuck(f"{self.name} was never let go")
            self._may_go = False


class Stepper:
    """Steps two sides through one interleaving after another."""

    def __init__(self, url: str, open_db: Callable[..., Any]) -> None:
        self._turn = Condition()
        self.sides = (Side("A", open_db, self._turn), Side("B", open_db, self._turn))
        self._waits = _lock_waits(url)

    def close(self) -> None:
        for side in self.sides:
            side.db.close()
        self._waits.close()

    def run(self, calls: Sequence[Callable[[Any], Any]], order: Order) -> str:
        """Run both calls, given their Db, in this order of sides; what was done, step by step."""
        for side, call in zip(self.sides, calls, strict=True):
            side.begin(lambda side=side, call=call: call(side.db))  # type: ignore[misc]
        taken: list[str] = []
        with self._turn:
            for side in self.sides:
                self._settled(side, GLANCE_S)
            while not all(side.done for side in self.sides):
                side, steps = self._next(order)
                before = len(side.statements) - 1
                side.go(steps)
                self._settled(side, GLANCE_S if steps == 1 else GLANCE_AT_MANY_S)
                done = side.statements[before : -1 if side.stopped else None]
                taken += [f"{side.name} {' '.join(statement.split())[:70]}" for statement in done]
                if side.done or "commit" in done:
                    self._other(side).waits = False
        for side in self.sides:
            side.join()
        return "\n".join(taken)

    def _next(self, order: Order) -> tuple[Side, int]:
        """The side whose turn it is and its steps, or the other when that one waits for a lock or has finished."""
        number, steps = next(order, (0, 1))
        wanted = self.sides[number]
        other = self._other(wanted)
        if not wanted.stopped and not wanted.done and not wanted.waits:
            self._settled(wanted, GLANCE_S)
        if wanted.stopped and not wanted.done:
            return wanted, steps
        if other.stopped and not other.done:
            return other, TO_ITS_END if wanted.done else 1
        ready = self._turn.wait_for(self._anyone, DB_TIMEOUT_S)
        if not ready:
            raise Stuck("both sides wait, and neither gives up")
        return next((side for side in self.sides if side.stopped and not side.done), wanted), 1

    def _other(self, side: Side) -> Side:
        return self.sides[side is self.sides[0]]

    def _anyone(self) -> bool:
        return any(side.stopped for side in self.sides) or all(side.done for side in self.sides)

    def _settled(self, side: Side, glance: float) -> None:
        """Wait until the side has stopped, has finished, or waits for a lock in the database."""
        for _ in range(int(DB_TIMEOUT_S / glance)):
            if self._turn.wait_for(lambda: side.stopped or side.done, glance):
                side.waits = False
                return
            if not self._idle() and self._waits.any():
                side.found_waiting()
                return
        raise Stuck(f"{side.name} is silent after {side.statements[-1:]}")

    def _idle(self) -> bool:
        return all(side.stopped or side.done for side in self.sides)


# --- Who waits for a lock ---


class _PostgresqlWaits:
    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url, autocommit=True)

    def any(self) -> bool:
        found = self._db.execute(
            b"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() LIMIT 1",
            prepare=True,
        )
        return found.fetchone() is not None

    def close(self) -> None:
        self._db.close()


class _MariadbWaits:
    """The counter belongs to the whole server, and other tests may use it too. Taking a side that is only slow
    for one that waits does no harm: both sides then run at once for a moment, as real servers do."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self._db = pymysql.connect(
            host=at.hostname, port=at.port or 0, user=at.username, database=unquote(at.path[1:]), autocommit=True,
            ssl_disabled=True,
        )  # fmt: skip

    def any(self) -> bool:
        with self._db.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
            row = cursor.fetchone()
        return row is not None and int(row[1]) > 0

    def close(self) -> None:
        self._db.close()


def _lock_waits(url: str) -> Any:
    return _PostgresqlWaits(url) if url.startswith("postgresql:") else _MariadbWaits(url)


# --- Interleavings ---


Order = Iterator[tuple[int, int]]
"""Which side takes how many steps, again and again."""


def one_inside_the_other(outer: int, steps: int) -> Iterator[Order]:
    """``outer`` takes i steps, the other runs to its end, then ``outer`` goes on; for every i."""
    for i in range(steps + 1):
        yield _switch_at(outer, i)


def _switch_at(outer: int, i: int) -> Order:
    if i:
        yield outer, i
    while True:
        yield 1 - outer, TO_ITS_END


def mixed(seed: int, count: int) -> Iterator[Order]:
    """Random full interleavings, the same for the same seed; some switch at every step, some seldom."""
    source = random.Random(seed)
    for _ in range(count):
        yield _mixed(source.getrandbits(32), source.choice((0.5, 0.3, 0.15)))


def _mixed(seed: int, switch: float) -> Order:
    source = random.Random(seed)
    side = source.randrange(2)
    while True:
        steps = 1
        while source.random() >= switch:
            steps += 1
        yield side, steps
        side = 1 - side
