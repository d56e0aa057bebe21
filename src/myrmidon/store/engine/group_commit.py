"""Group commit for SQLite: all writes that wait share one transaction and one fsync.

The writer thread takes whatever has gathered while it was busy, runs each write in a savepoint of its own,
and commits once. A write that fails harms no other. Results are given out only after the commit. If the group
fails as a whole, each of its writes is run again alone, so that one of them cannot take the others along.

Not used on PostgreSQL and MariaDB: there a deadlock rolls back the whole transaction, not one savepoint.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from myrmidon.model.errors import StoreError, StoreUnavailable
from myrmidon.store.engine.db import Db, Tx

T = TypeVar("T")

MOST_AT_ONCE = 256
"""Bounds how long the first of a group waits for the last."""


class Write(Generic[T]):
    """A function that waits to be run, and the future its caller waits for."""

    __slots__ = ("error", "fn", "future", "result")

    def __init__(self, fn: Callable[[Tx], T]) -> None:
        self.fn = fn
        self.future: Future[T] = Future()
        self.result: Any = None
        self.error: BaseException | None = None

    def run_in(self, tx: Tx) -> None:
        """Keep result or error for later. Only an error that ended the transaction itself gets out."""
        self.error = None
        try:
            self.result = tx.savepoint(self.fn)
        except Exception as error:
            if tx.is_lost(error):
                raise
            self.error = error

    def answer(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class GroupCommit:
    """Write from many threads. ``inline`` runs every write at once in the caller: no thread, no grouping.

    ``watch`` is told the size of every group that is about to be committed.
    """

    def __init__(self, db: Db, *, inline: bool = False, watch: Callable[[int], None] | None = None) -> None:
        self._db = db
        self._inline = inline
        self._watch = watch
        self._waiting: SimpleQueue[Write[Any] | None] = SimpleQueue()
        self._lock = Lock()
        self._closed = False
        self._thread = Thread(target=self._serve, name="writer", daemon=True)
        if not inline:
            self._thread.start()

    def write(self, fn: Callable[[Tx], T]) -> T:
        """As Db.write; waits for the group's commit."""
        if self._inline:
            return self._db.write(fn)
        return self.submit(fn).result()

    def submit(self, fn: Callable[[Tx], T]) -> Future[T]:
        """As write, without waiting. The future's callbacks run on the writer thread: keep them short.

        A future that is cancelled before its turn comes is not run.
        """
        write = Write(fn)
        if self._inline:
            self._alone(write)
            return write.future
        with self._lock:
            if self._closed:
                raise StoreUnavailable("The database was closed.")
            self._waiting.put(write)
        return write.future

    def close(self) -> None:
        """Finish every write that waits, then stop. Later writes are refused."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._waiting.put(None)
        if not self._inline:
            self._thread.join()

    def _serve(self) -> None:
        while True:
            group, more = self._next_group()
            if group:
                self._commit(group)
            if not more:
                return

    def _next_group(self) -> tuple[list[Write[Any]], bool]:
        """Wait for one write and take all others that are there already; False: this was the last."""
        write = self._waiting.get()
        group: list[Write[Any]] = []
        while write is not None:
            if write.future.set_running_or_notify_cancel():
                group.append(write)
            if len(group) == MOST_AT_ONCE:
                return group, True
            try:
                write = self._waiting.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _commit(self, group: list[Write[Any]]) -> None:
        if self._watch:
            self._watch(len(group))
        if len(group) == 1:
            self._alone(group[0])
            return
        last: Tx | None = None

        def run_all(tx: Tx) -> None:
            nonlocal last
            last = tx
            for write in group:
                write.run_in(tx)

        try:
            self._db.write(run_all)
        except BaseException as error:  # noqa: BLE001 - it belongs to the callers, not to this thread
            done = last is not None and last.committed
            self._failed(group, error, final=done or not _worth_repeating(error))
            return
        for write in group:
            write.answer()

    def _failed(self, group: list[Write[Any]], error: BaseException, *, final: bool) -> None:
        for write in group:
            if final:
                write.future.set_exception(error)
            else:
                self._alone(write)

    def _alone(self, write: Write[Any]) -> None:
        try:
            result = self._db.write(write.fn)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            write.future.set_exception(error)
        else:
            write.future.set_result(result)


def _worth_repeating(error: BaseException) -> bool:
    """A commit refused because of one write's rows is; a store that gave up after its own retries is not."""
    return isinstance(error, Exception) and not isinstance(error, StoreError)
