"""Group commit for SQLite: all waiting writes share one transaction and one fsync.

The writer thread takes all writes that have arrived meanwhile, runs each in its own savepoint, and commits once. A
write that fails does not affect the others. Results are delivered after the commit. If the group as a whole fails, each
of its writes is run again in its own transaction.

Not used on PostgreSQL and MariaDB: there a deadlock rolls back the whole transaction, not one savepoint.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Any, Generic, TypeVar

from myrmidon.model.errors import StoreError, StoreUnavailable
from myrmidon.store.engine.db import Db, Tx

T = TypeVar("T")

MAX_GROUP_SIZE = 256
GROUP_S = 0.003
"""A group that has taken longer is committed, and its other writes begin the next one.

So a small write waits for the large ones before it, but not for those behind it. Where a commit takes long, a group may
take twice as long as the last commit: else the disk would set the pace of short writes.
"""


class Write(Generic[T]):
    """A queued function, and the future of its result."""

    __slots__ = ("error", "fn", "future", "result")

    def __init__(self, fn: Callable[[Tx], T]) -> None:
        self.fn = fn
        self.future: Future[T] = Future()
        self.result: Any = None
        self.error: BaseException | None = None

    def run_in(self, tx: Tx) -> None:
        """Run in a savepoint, and keep the result or the error. Only an error that ends the transaction is raised."""
        self.error = None
        try:
            self.result = tx.savepoint(self.fn)
        except Exception as error:
            if tx.ends_transaction(error):
                raise
            self.error = error

    def resolve(self) -> None:
        """Deliver the result or the error, after the commit."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class GroupCommit:
    """Accepts writes from many threads. ``inline`` runs every write in the caller: no thread, no grouping.

    ``on_commit`` is called with the size of every group before it is run.
    """

    def __init__(self, db: Db, *, inline: bool = False, on_commit: Callable[[int], None] | None = None) -> None:
        self._db = db
        self._inline = inline
        self._on_commit = on_commit
        self._waiting: SimpleQueue[Write[Any] | None] = SimpleQueue()
        self._deferred: list[Write[Any]] = []
        self._commit_s = 0.0
        self._lock = Lock()
        self._closed = False
        self._thread = Thread(target=self._run, name="writer", daemon=True)
        if not inline:
            self._thread.start()

    def write(self, fn: Callable[[Tx], T]) -> T:
        """As Db.write; waits for the group's commit."""
        if self._inline:
            return self._db.write(fn)
        return self.submit(fn).result()

    def submit(self, fn: Callable[[Tx], T]) -> Future[T]:
        """As `write`, without waiting. Callbacks of the future run on the writer thread, so they must be short.

        A write whose future is cancelled before it starts is not run.
        """
        write = Write(fn)
        if self._inline:
            self._run_alone(write)
            return write.future
        with self._lock:
            if self._closed:
                raise StoreUnavailable("The database was closed.")
            self._waiting.put(write)
        return write.future

    def close(self) -> None:
        """Finish all waiting writes, then stop. Later writes are refused."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._waiting.put(None)
        if not self._inline:
            self._thread.join()

    def _run(self) -> None:
        while True:
            group, more = self._next_group()
            if group:
                self._commit(group)
            if not more:
                return

    def _next_group(self) -> tuple[list[Write[Any]], bool]:
        """Wait for a write, and take all others that are queued; False after the last group."""
        group, self._deferred = self._deferred, []
        while len(group) < MAX_GROUP_SIZE:
            try:
                write = self._waiting.get(block=not group)
            except Empty:
                break
            if write is None:
                if not group:
                    return group, False
                self._waiting.put(None)  # nothing is queued behind it, but the group may leave writes for a further one
                break
            if write.future.set_running_or_notify_cancel():
                group.append(write)
        return group, True

    def _commit(self, group: list[Write[Any]]) -> None:
        if len(group) == 1:
            self._count_commit(1)
            self._run_alone(group[0])
            return
        last: Tx | None = None
        run = group
        ran_at = perf_counter()

        def run_all(tx: Tx) -> None:
            nonlocal last, run, ran_at
            last = tx
            # A further attempt runs the same writes: they may be committed already, and must find that out.
            limit_s = max(GROUP_S, 2 * self._commit_s) if tx.attempt == 1 else inf
            run = _run_for(limit_s, group if tx.attempt == 1 else run, tx)
            ran_at = perf_counter()

        try:
            self._db.write(run_all)
        except BaseException as error:  # noqa: BLE001 - raised to the callers, not in this thread
            committed = last is not None and last.committed
            self._fail(run, error, final=committed or not _may_succeed_alone(error))
        else:
            self._commit_s = perf_counter() - ran_at
            self._count_commit(len(run))
            for write in run:
                write.resolve()
        self._deferred = group[len(run) :]

    def _count_commit(self, num_writes: int) -> None:
        if self._on_commit:
            self._on_commit(num_writes)

    def _fail(self, group: list[Write[Any]], error: BaseException, *, final: bool) -> None:
        for write in group:
            if final:
                write.future.set_exception(error)
            else:
                self._run_alone(write)

    def _run_alone(self, write: Write[Any]) -> None:
        try:
            result = self._db.write(write.fn)
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            write.future.set_exception(error)
        else:
            write.future.set_result(result)


def _run_for(seconds: float, writes: list[Write[Any]], tx: Tx) -> list[Write[Any]]:
    """Run writes until this time is over; those that were run."""
    until = perf_counter() + seconds
    for number, write in enumerate(writes, 1):
        write.run_in(tx)
        if perf_counter() > until:
            return writes[:number]
    return writes


def _may_succeed_alone(error: BaseException) -> bool:
    """Whether the writes of a failed group may succeed alone: not when the database was retried and gave up."""
    return isinstance(error, Exception) and not isinstance(error, StoreError)
