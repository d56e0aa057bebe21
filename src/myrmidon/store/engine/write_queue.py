"""The order in which waiting writes are run: small ones before large ones, each kind in the order of arrival.

A call about one task changes a few rows in less than a millisecond, a chunk of a large graph changes hundreds. In one
line, each small write would wait for all large ones before it. Here it waits for at most one of them. Large writes are
never starved: one is run whenever small ones have taken ``SMALL_TURN_S`` since the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from myrmidon.store.engine.db import Tx

T = TypeVar("T")

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
    """Any thread may call ``put`` and ``close``; all else belongs to the thread that runs the writes."""

    def __init__(self) -> None:
        self._arrived: SimpleQueue[Write[Any] | None] = SimpleQueue()
        self._small: deque[Write[Any]] = deque()
        self._large: deque[Write[Any]] = deque()
        self._small_s = 0.0
        """How long small writes have been run since the last large one."""
        self._is_closed = False

    def put(self, write: Write[Any]) -> None:
        self._arrived.put(write)

    def close(self) -> None:
        """Let `wait` return None after the last write. Nothing may be put any more."""
        self._arrived.put(None)

    def __len__(self) -> int:
        """How many writes wait that the thread has received so far."""
        return len(self._small) + len(self._large)

    def wait(self) -> Write[Any] | None:
        """Take the write that is next, as soon as there is one; None after the last one."""
        while True:
            self._receive(block=not len(self))
            if not len(self):
                return None
            if (write := self.take()) is not None:
                return write

    def take(self, *, to_join: bool = False) -> Write[Any] | None:
        """Take the write that is next; None if none waits, or if it cannot join a group and must do so.

        Writes whose futures were cancelled are left out.
        """
        self._receive(block=False)
        while waiting := self._next_kind():
            if to_join and waiting[0].is_bulk:
                return None
            write = waiting.popleft()
            if write.future.set_running_or_notify_cancel():
                return write
        return None

    def record_run(self, write: Write[Any], seconds: float) -> None:
        """Record how long a write was run, so that large ones get their turn."""
        self._small_s = self._small_s + seconds if write.is_small else 0.0

    def _next_kind(self) -> deque[Write[Any]]:
        if self._large and (self._small_s > SMALL_TURN_S or not self._small):
            return self._large
        return self._small

    def _receive(self, *, block: bool) -> None:
        """Sort the writes that have arrived by kind."""
        while not self._is_closed:
            try:
                write = self._arrived.get(block=block)
            except Empty:
                return
            if write is None:
                self._is_closed = True
                return
            (self._small if write.is_small else self._large).append(write)
            block = False
