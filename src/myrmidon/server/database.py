"""Runs transactions off the event loop, and reports what they committed to the callers and bots that wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from enum import StrEnum
from functools import partial
from typing import TypeVar

from myrmidon.model.errors import StoreUnavailable
from myrmidon.server.metrics import Metrics
from myrmidon.store.engine.db import Db, Dialect, Transactions, Tx
from myrmidon.store.engine.effects import CommitEffects
from myrmidon.store.engine.group_commit import BackgroundWrites, GroupCommit

T = TypeVar("T")

DB_TIMEOUT_S = 20.0
"""The time for which a caller waits for the database before it is told that the database is unavailable."""


class Purpose(StrEnum):
    """What a transaction is for. Each purpose has threads of its own, so that none waits for the work of another."""

    BOTS = "bots"
    CHANGES = "changes"
    """Calls of people that change something, and those that must be answered always, such as health."""
    WAITS = "waits"
    """Long polls and streams of people: an end is read at once, however long other queries take."""
    QUERIES = "queries"
    BACKGROUND = "background"


THREADS = {Purpose.BOTS: 8, Purpose.CHANGES: 8, Purpose.WAITS: 4, Purpose.QUERIES: 6, Purpose.BACKGROUND: 4}
"""Each thread uses at most one connection at a time: see docs/server.md."""
purpose: ContextVar[Purpose] = ContextVar("purpose", default=Purpose.CHANGES)
"""Set where a call or background work begins; all that it awaits has the same."""


class Executor:
    """Runs the transactions of one database on threads.

    SQLite has one writer, whose commits are shared by all writes that wait. On PostgreSQL and MariaDB each transaction
    has a connection and commits alone. ``on_commit`` is called with the number of writes of each commit.
    """

    def __init__(self, db: Db, on_commit: Callable[[int], None]) -> None:
        self._db = db
        self._on_commit = on_commit
        self._group = GroupCommit(db, on_commit=on_commit) if db.dialect is Dialect.SQLITE else None
        self.background: Transactions = BackgroundWrites(db, self._group) if self._group else db
        """For work of many transactions that runs on one of the threads, such as a sweep."""
        self._threads = {name: ThreadPoolExecutor(size, thread_name_prefix=name) for name, size in THREADS.items()}

    def write(self, fn: Callable[[Tx], T], size: int = 1) -> Future[T]:
        """Start a transaction that changes about ``size`` tasks. On SQLite smaller ones may be run before it."""
        return self._group.submit(fn, size) if self._group else self.run(partial(self._write_alone, fn))

    def run(self, fn: Callable[[], T]) -> Future[T]:
        """Run a blocking function on a thread of the current purpose."""
        return self._threads[purpose.get()].submit(fn)

    def close(self) -> None:
        if self._group:
            self._group.close()
        for threads in self._threads.values():
            threads.shutdown()

    def _write_alone(self, fn: Callable[[Tx], T]) -> T:
        result = self._db.write(fn)
        self._on_commit(1)
        return result


class AsyncDatabase:
    """Awaitable transactions on one database. ``engine`` is the blocking database below it.

    StoreUnavailable is raised when there is no result after ``DB_TIMEOUT_S``. A write may still be carried out
    afterwards: repeating it with the same request key returns its result.
    """

    def __init__(self, engine: Db, executor: Executor) -> None:
        self.engine = engine
        self.executor = executor
        self.background = executor.background

    async def read(self, fn: Callable[[Tx], T]) -> T:
        """Run fn on a reader. It is not started any more if the caller is cancelled before, or has given up."""
        reading = self.executor.run(partial(self.engine.read, fn))
        try:
            return await settled_on_loop(reading)
        finally:
            reading.cancel()

    def write(self, fn: Callable[[Tx], T]) -> Awaitable[T]:
        """Start fn in a transaction; its result can be awaited, and is there when it is on disk.

        As with ``read``, a transaction is not started if its caller no longer awaits it.
        """
        writing = self.executor.write(fn)
        waiting = settled_on_loop(writing)
        waiting.add_done_callback(lambda _: writing.cancel())
        return waiting

    async def run_in_thread(self, fn: Callable[[], T]) -> T:
        """Run a blocking function, such as a sweep, on a thread. It may take as long as it likes."""
        return await asyncio.wrap_future(self.executor.run(fn))


class SchedulingDatabase(AsyncDatabase):
    """The main database: after each commit ``publish`` gets the effects, so that waiting bots and callers wake up."""

    def __init__(
        self, engine: Db, executor: Executor, metrics: Metrics, publish: Callable[[CommitEffects], None]
    ) -> None:
        super().__init__(engine, executor)
        self._metrics = metrics
        self.publish = publish

    def write(
        self, fn: Callable[[Tx], T], on_commit: Callable[[T], None] | None = None, *, size: int = 1
    ) -> asyncio.Future[T]:
        """Start fn in a transaction; its result can be awaited, and is there when it is on disk and published.

        ``on_commit`` gets the result before that, also if the caller was cancelled meanwhile. ``size`` is how many
        tasks fn changes, about: smaller transactions may be run before it.
        """

        def publish(result: T, effects: CommitEffects) -> None:
            self.publish(effects)
            if on_commit is not None:
                on_commit(result)

        return self.write_unpublished(fn, publish, size=size)

    def write_unpublished(
        self,
        fn: Callable[[Tx], T],
        on_commit: Callable[[T, CommitEffects], None],
        on_failure: Callable[[], None] | None = None,
        *,
        size: int = 1,
    ) -> asyncio.Future[T]:
        """As ``write``; ``on_commit`` publishes the effects. It is carried out even if its caller stops waiting."""
        metrics, started = self._metrics, time.perf_counter()

        def run(tx: Tx) -> tuple[T, CommitEffects]:
            metrics.write_started(time.perf_counter() - started)
            effects = tx.effects = CommitEffects()  # writes that share a transaction each have their own
            return fn(tx), effects

        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[T] = loop.create_future()
        timer = loop.call_later(DB_TIMEOUT_S, _time_is_up, waiting)

        def settle(written: Future[tuple[T, CommitEffects]]) -> None:
            timer.cancel()
            error = written.exception()
            if error is not None:
                if not waiting.done():
                    waiting.set_exception(error)
                if on_failure is not None:
                    on_failure()
                return
            result, effects = written.result()
            if not waiting.done():
                waiting.set_result(result)  # its caller continues only after this function
            on_commit(result, effects)

        self.executor.write(run, size).add_done_callback(partial(_call_on, loop, settle))
        return waiting


def settled_on_loop(running: Future[T]) -> asyncio.Future[T]:
    """What runs on a thread, as a future of the event loop. Its caller is told that the database does not answer.

    A timer of the future itself costs a fraction of ``asyncio.timeout``.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[T] = loop.create_future()
    timer = loop.call_later(DB_TIMEOUT_S, _time_is_up, waiting)

    def settle(ended: Future[T]) -> None:
        timer.cancel()
        if waiting.done() or ended.cancelled():
            return
        error = ended.exception()
        if error is None:
            waiting.set_result(ended.result())
        else:
            waiting.set_exception(error)

    running.add_done_callback(partial(_call_on, loop, settle))
    return waiting


def _call_on(loop: asyncio.AbstractEventLoop, settle: Callable[[Future[T]], None], ended: Future[T]) -> None:
    """Call ``settle`` on the event loop. Called on the thread that has ended the future."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle, ended)


def _time_is_up(waiting: asyncio.Future[T]) -> None:
    if not waiting.done():
        waiting.set_exception(StoreUnavailable(f"The database has not answered for {DB_TIMEOUT_S:.0f} s."))
