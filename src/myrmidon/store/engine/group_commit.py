"""Group commit for SQLite: waiting writes share one transaction and one fsync.

The writer thread takes the writes that have arrived meanwhile, runs each in its own savepoint, and commits once. A
write that fails does not affect the others. Results are delivered after the commit. If the group as a whole fails, each
of its writes is run again in its own transaction.

Small writes are run before large ones, each kind in the order of arrival. A call about one task changes a few rows in
less than a millisecond, a chunk of a large graph changes hundreds; in one line, each small write would wait for all
large ones before it. Here it waits for at most one of them, and bulk writes are committed alone. Large writes are never
starved: one is run whenever small ones have taken ``SMALL_TURN_S`` since the last.

Not used on PostgreSQL and MariaDB: there a deadlock rolls back the whole transaction, not one savepoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Any, Generic, TypeVar

from myrmidon.model.errors import StoreError, StoreFull, StoreUnavailable
from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Db, Tx

T = TypeVar("T")

MAX_GROUP_SIZE = 256
GROUP_S = 0.003
"""A group that has taken longer is committed, and the writes that still wait begin the next one.

Where a commit takes long, a group may take twice as long as the last commit: else the disk would set the pace of short
writes.
"""
SMALL = 8
"""How many tasks a small write changes at most: it takes about a millisecond."""
BULK = 50
"""How many tasks a write changes that is committed alone: others would wait longer for it than for a commit."""
SMALL_TURN_S = 0.01
"""How long small writes are run while a large one waits: about as long as two or three large ones take."""


class Write(Generic[T]):
    """A queued function, and the future of its result. ``size`` is about how many tasks it changes."""

    __slots__ = ("error", "fn", "future", "is_bulk", "is_small", "result")

    def __init__(self, fn: Callable[[Tx], T], size: int) -> None:
        self.fn = fn
        self.future: Future[T] = Future()
        self.is_small = size <= SMALL
        self.is_bulk = size >= BULK
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


class WriteQueue:
    """The writes that wait, small and large ones.

    Any thread may call ``put`` and ``close``; all else belongs to the thread that runs the writes.
    """

    def __init__(self) -> None:
        self._arrived: SimpleQueue[Write[Any] | None] = SimpleQueue()
        self.put = self._arrived.put
        self._small: deque[Write[Any]] = deque()
        self._large: deque[Write[Any]] = deque()
        self._small_s = 0.0
        """How long small writes have been run since the last large one."""
        self._is_closed = False

    def close(self) -> None:
        """Let ``take`` stop waiting after the last write. Nothing may be put any more."""
        self._arrived.put(None)

    def __len__(self) -> int:
        """How many writes wait that the thread has received so far."""
        return len(self._small) + len(self._large)

    def take(self, *, wait: bool = False, to_join: bool = False) -> Write[Any] | None:
        """Take the write that is next; None if none waits, or if it cannot join a group and must do so.

        With ``wait`` as soon as there is one; None after the last one. Writes whose futures were cancelled are left
        out.
        """
        while True:
            block = wait and not (self._small or self._large)
            while not self._is_closed:
                try:
                    arrived = self._arrived.get(block)
                except Empty:
                    break
                if arrived is None:
                    self._is_closed = True
                    break
                (self._small if arrived.is_small else self._large).append(arrived)
                block = False
            is_turn_of_large = self._large and (self._small_s > SMALL_TURN_S or not self._small)
            waiting = self._large if is_turn_of_large else self._small
            if not waiting:
                if wait and not self._is_closed:
                    continue
                return None
            if to_join and waiting[0].is_bulk:
                return None
            write = waiting.popleft()
            if write.future.set_running_or_notify_cancel():
                return write

    def record_run(self, write: Write[Any], seconds: float) -> None:
        """Record how long a write was run, so that large ones get their turn."""
        self._small_s = self._small_s + seconds if write.is_small else 0.0


class GroupCommit:
    """Accepts writes from many threads. ``inline`` runs every write in the caller: no thread, no grouping.

    ``on_commit`` is called with the size of every group before it is run.
    """

    def __init__(self, db: Db, *, inline: bool = False, on_commit: Callable[[int], None] | None = None) -> None:
        self._db = db
        self._inline = inline
        self._on_commit = on_commit
        self._queue = WriteQueue()
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

    def submit(self, fn: Callable[[Tx], T], size: int = 1) -> Future[T]:
        """As `write`, without waiting. Callbacks of the future run on the writer thread, so they must be short.

        A write whose future is cancelled before it starts is not run. ``size`` is about how many tasks it changes.
        """
        write = Write(fn, size)
        if self._inline:
            self._run_alone(write)
            return write.future
        with self._lock:
            if self._closed:
                raise StoreUnavailable("The database was closed.")
            self._queue.put(write)
        return write.future

    def close(self) -> None:
        """Finish all waiting writes, then stop. Later writes are refused."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.close()
        if not self._inline:
            self._thread.join()

    def _run(self) -> None:
        while (write := self._queue.take(wait=True)) is not None:
            self._commit(write)

    def _commit(self, first: Write[Any]) -> None:
        """Run a write, and others together with it: at most as many as wait now."""
        num_writes = 1 if first.is_bulk else min(1 + len(self._queue), MAX_GROUP_SIZE)
        if num_writes == 1:
            if self._on_commit:
                self._on_commit(1)
            self._run_alone(first)
            return
        last: Tx | None = None
        run: list[Write[Any]] = []
        ran_at = perf_counter()

        def run_all(tx: Tx) -> None:
            nonlocal last, ran_at
            last = tx
            if run:
                _run_again(run, tx)
            else:
                self._run_group(first, num_writes, tx, run)
            ran_at = perf_counter()

        try:
            self._db.write(run_all)
        except BaseException as error:  # noqa: BLE001 - raised to the callers, not in this thread
            committed = last is not None and last.committed
            self._fail(run or [first], error, final=committed or not _may_succeed_alone(error))
        else:
            self._commit_s = perf_counter() - ran_at
            if self._on_commit:
                self._on_commit(len(run))
            for write in run:
                write.resolve()

    def _run_group(self, first: Write[Any], num_writes: int, tx: Tx, run: list[Write[Any]]) -> None:
        """Run up to so many writes until the time of a group is over; each is added to ``run`` before it is run.

        The next one is the one that is next then, even if it has arrived after the group has begun.
        """
        began = perf_counter()
        limit_s = max(GROUP_S, 2 * self._commit_s)
        write: Write[Any] | None = first
        while write is not None:
            run.append(write)
            elapsed_s = self._run_timed(write, tx) - began
            is_full = len(run) == num_writes or elapsed_s > limit_s
            write = None if is_full else self._queue.take(to_join=True)

    def _run_timed(self, write: Write[Any], tx: Tx) -> float:
        """Run a write of a group; the time when it has ended."""
        began = perf_counter()
        try:
            write.run_in(tx)
        finally:
            ended = perf_counter()
            self._queue.record_run(write, ended - began)
        return ended

    def _fail(self, group: list[Write[Any]], error: BaseException, *, final: bool) -> None:
        for write in group:
            if final:
                write.future.set_exception(error)
            else:
                self._run_alone(write)

    def _run_alone(self, write: Write[Any]) -> None:
        began = perf_counter()
        try:
            result = self._db.write(write.fn)
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            write.future.set_exception(error)
        else:
            write.future.set_result(result)
        self._queue.record_run(write, perf_counter() - began)


class BackgroundWrites:
    """The transactions of background work: each write waits for its turn, and is committed alone."""

    def __init__(self, db: Db, group: GroupCommit) -> None:
        self._db = db
        self._group = group

    def write(self, fn: Callable[[Tx], T], *, patient: bool = True) -> T:  # noqa: ARG002 - no row is ever locked
        """As Db.write. Must not be called on the writer thread."""
        return self._group.submit(fn, size=BULK).result()

    def read(self, fn: Callable[[Tx], T]) -> T:
        return self._db.read(fn)

    def clock(self) -> Micros:
        return self._db.clock()


def _run_again(writes: list[Write[Any]], tx: Tx) -> None:
    """Run the same writes in a further attempt: they may be committed already, and must find that out."""
    for write in writes:
        write.run_in(tx)


def _may_succeed_alone(error: BaseException) -> bool:
    """Whether the writes of a failed group may succeed alone: not when the database was retried and gave up.

    On a full disk the small ones may fit.
    """
    return isinstance(error, StoreFull) or (isinstance(error, Exception) and not isinstance(error, StoreError))
