"""Runs transactions off the event loop, and reports what they committed to whoever waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from myrmidon.model.errors import StoreUnavailable
from myrmidon.server.metrics import Metrics
from myrmidon.store.engine.db import Db, Dialect, Transactions, Tx
from myrmidon.store.engine.effects import CommitEffects, collect_effects
from myrmidon.store.engine.group_commit import BackgroundWrites, GroupCommit

T = TypeVar("T")

WRITER_THREADS = 16
"""The number of connections that a database server gives us: more threads would only wait for one."""
READER_THREADS = 4
DB_TIMEOUT_S = 20.0
"""How long a caller waits for the database before it is told that the database is unavailable."""


class Executor(Protocol):
    """Runs the transactions of one database on threads."""

    threads: ThreadPoolExecutor
    background: Transactions
    """For work of many transactions that runs on one of the threads, such as a sweep."""

    def write(self, fn: Callable[[Tx], T], size: int = 1) -> Future[T]:
        """Start a transaction that changes about ``size`` tasks. Smaller ones may be run before it."""
        ...

    def read(self, fn: Callable[[Tx], T]) -> Future[T]: ...
    def close(self) -> None: ...


class GroupCommitExecutor:
    """SQLite: one writer whose commits are shared by all writes that wait, and a few readers."""

    def __init__(self, db: Db, on_commit: Callable[[int], None]) -> None:
        self._db = db
        self._writer = GroupCommit(db, on_commit=on_commit)
        self.background: Transactions = BackgroundWrites(db, self._writer)
        self.threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="reader")

    def write(self, fn: Callable[[Tx], T], size: int = 1) -> Future[T]:
        return self._writer.submit(fn, size)

    def read(self, fn: Callable[[Tx], T]) -> Future[T]:
        return self.threads.submit(self._db.read, fn)

    def close(self) -> None:
        self._writer.close()
        self.threads.shutdown()


class PooledExecutor:
    """PostgreSQL and MariaDB: one thread per connection, each transaction commits alone."""

    def __init__(self, db: Db, on_commit: Callable[[int], None]) -> None:
        self._db = db
        self.background: Transactions = db
        self._on_commit = on_commit
        self.threads = ThreadPoolExecutor(WRITER_THREADS, thread_name_prefix="store")

    def write(self, fn: Callable[[Tx], T], size: int = 1) -> Future[T]:  # noqa: ARG002 - nothing waits for one writer
        return self.threads.submit(self._write, fn)

    def read(self, fn: Callable[[Tx], T]) -> Future[T]:
        return self.threads.submit(self._db.read, fn)

    def close(self) -> None:
        self.threads.shutdown()

    def _write(self, fn: Callable[[Tx], T]) -> T:
        result = self._db.write(fn)
        self._on_commit(1)
        return result


def start_executor(db: Db, on_commit: Callable[[int], None]) -> Executor:
    """The executor for this kind of database; ``on_commit`` is called with the number of writes of each commit."""
    executor = GroupCommitExecutor if db.dialect is Dialect.SQLITE else PooledExecutor
    return executor(db, on_commit)


class AsyncDatabase:
    """Awaitable transactions on one database. ``engine`` is the blocking database below it."""

    def __init__(self, engine: Db, executor: Executor) -> None:
        self.engine = engine
        self.executor = executor
        self.background = executor.background

    async def read(self, fn: Callable[[Tx], T]) -> T:
        """Run fn on a reader."""
        return await _result_of(self.executor.read(fn))

    async def write(self, fn: Callable[[Tx], T]) -> T:
        """Run fn in a transaction; returns when it is on disk."""
        return await _result_of(self.executor.write(fn))

    async def run_in_thread(self, fn: Callable[[], T]) -> T:
        """Run a blocking function, such as a sweep, on a thread. It may take as long as it likes."""
        return await asyncio.wrap_future(self.executor.threads.submit(fn))


class SchedulingDatabase(AsyncDatabase):
    """The main database: after each commit ``publish`` gets the effects, so that waiting bots and callers wake up."""

    def __init__(
        self, engine: Db, executor: Executor, metrics: Metrics, publish: Callable[[CommitEffects], None]
    ) -> None:
        super().__init__(engine, executor)
        self._metrics = metrics
        self.publish = publish

    async def write(self, fn: Callable[[Tx], T], on_commit: Callable[[T], None] | None = None, *, size: int = 1) -> T:
        """Run fn in a transaction; returns when it is on disk and its effects are published.

        ``on_commit`` gets the result before that, also if the caller was cancelled meanwhile. ``size`` is how many
        tasks fn changes, about: smaller transactions may be run before it.
        """
        return await with_db_timeout(self.start_write(fn, on_commit, size=size))

    def start_write(
        self, fn: Callable[[Tx], T], on_commit: Callable[[T], None] | None = None, *, size: int = 1
    ) -> asyncio.Future[T]:
        """As `write`, without waiting for it. Cancelling the future does not cancel the write."""
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(written: Future[tuple[T, CommitEffects]]) -> None:
            error = written.exception()
            if error is not None:
                resolve(waiting, error=error)
                return
            result, effects = written.result()
            resolve(waiting, result)  # its caller continues only after this function
            self.publish(effects)
            if on_commit is not None:
                on_commit(result)

        self.begin_write(fn, settle, size=size)
        return waiting

    def begin_write(
        self, fn: Callable[[Tx], T], settle: Callable[[Future[tuple[T, CommitEffects]]], None], *, size: int = 1
    ) -> None:
        """Start a transaction without publishing its effects; ``settle`` gets its outcome on the event loop.

        It is carried out even if its caller has stopped waiting.
        """
        loop, metrics = asyncio.get_running_loop(), self._metrics
        started, with_effects = time.perf_counter(), collect_effects(fn)

        def timed(tx: Tx) -> tuple[T, CommitEffects]:
            metrics.write_started(time.perf_counter() - started)
            return with_effects(tx)

        self.executor.write(timed, size).add_done_callback(partial(_call_on, loop, settle))


async def _result_of(running: Future[T]) -> T:
    """Await what runs on a thread. It is not started any more if the caller is cancelled before, or has given up."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[T] = loop.create_future()

    def settle(ended: Future[T]) -> None:
        if ended.cancelled():
            return
        error = ended.exception()
        if error is None:
            resolve(waiting, ended.result())
        else:
            resolve(waiting, error=error)

    running.add_done_callback(partial(_call_on, loop, settle))
    try:
        return await with_db_timeout(waiting)
    finally:
        running.cancel()


def _call_on(loop: asyncio.AbstractEventLoop, settle: Callable[[Future[T]], None], ended: Future[T]) -> None:
    """Call ``settle`` on the event loop. Called on the thread that has ended the future."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle, ended)


def resolve(waiting: asyncio.Future[T], result: T | None = None, *, error: BaseException | None = None) -> None:
    """Resolve a future with a result or an error, unless it was cancelled or its time was up."""
    if waiting.done():
        return
    if error is not None:
        waiting.set_exception(error)
    else:
        waiting.set_result(result)  # type: ignore[arg-type]


async def with_db_timeout(waiting: asyncio.Future[T]) -> T:
    """Await a result of the database; raise StoreUnavailable when there is none after ``DB_TIMEOUT_S``.

    A write may still be carried out afterwards: repeating it with the same request key returns its result.
    A timer of the future itself costs a fraction of ``asyncio.timeout``.
    """
    timer = asyncio.get_running_loop().call_later(DB_TIMEOUT_S, _time_is_up, waiting)
    try:
        return await waiting
    finally:
        timer.cancel()


def _time_is_up(waiting: asyncio.Future[T]) -> None:
    resolve(waiting, error=StoreUnavailable(f"The database has not answered for {DB_TIMEOUT_S:.0f} s."))
