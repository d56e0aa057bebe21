"""A pool of database connections, first come, first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from myrmidon.model.errors import StoreBusy, StoreUnavailable
from myrmidon.store.engine.driver import Link

LONGEST_WAIT_S = 60.0
"""How long to wait for a connection that others use."""


class Pool:
    """Links of one kind, the last used first, so that a quiet server needs few.

    Who waits gets the next one that comes back, in the order of asking: on SQLite, where there is one writer, a thread
    that writes again and again, such as a sweep, would otherwise take it again before any other woke up.
    """

    def __init__(self, connect: Callable[[], Link], size: int) -> None:
        self._connect = connect
        self._idle: list[Link] = []
        self._lock = Lock()
        self._free = size
        self._waiting: deque[Lock] = deque()
        self._closed = False

    def borrow(self) -> Link:
        self._enter()
        try:
            return self._take() or self._new()
        except BaseException:
            self._leave()
            raise

    def give_back(self, link: Link) -> None:
        if self._closed:
            link.close()
        else:
            self._idle.append(link)
        self._leave()

    def discard(self, link: Link) -> None:
        with suppress(Exception):
            link.close()
        self._leave()

    def _enter(self) -> None:
        """Wait until a link may be used; StoreBusy when none becomes free."""
        turn = Lock()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn.acquire()
            self._waiting.append(turn)
        granted = False
        try:
            granted = turn.acquire(timeout=LONGEST_WAIT_S)
        finally:
            if not granted:
                self._withdraw(turn)
        if not granted:
            raise StoreBusy(f"No connection became free in {LONGEST_WAIT_S} s.")

    def _leave(self) -> None:
        """Let the one in that has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1

    def _withdraw(self, turn: Lock) -> None:
        """Stop waiting; a turn that came at the last moment goes to the next one."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
        self._leave()

    def forget_idle(self) -> None:
        """One lost link means that the server went away, and the idle ones with it."""
        while link := self._take():
            with suppress(Exception):
                link.close()

    def close(self) -> None:
        self._closed = True
        self.forget_idle()

    def _new(self) -> Link:
        if self._closed:
            raise StoreUnavailable("The database was closed.")
        return self._connect()

    def _take(self) -> Link | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None
