"""A pool of database connections, first come, first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from myrmidon.model.errors import StoreBusy, StoreUnavailable
from myrmidon.store.engine.driver import Link

MAX_WAIT_S = 60.0
"""How long to wait for a link while all are in use."""


class Pool:
    """Links of one kind. The last used one is reused first, so that an idle server keeps few.

    Waiting threads get links in the order of asking. On SQLite, with its one writer, a thread that writes repeatedly,
    such as a sweep, would otherwise take the link again before any other thread wakes up.
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
        """Return a link that can be used again."""
        if self._closed:
            link.close()
        else:
            self._idle.append(link)
        self._leave()

    def discard(self, link: Link) -> None:
        """Close a link that cannot be used again."""
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
            granted = turn.acquire(timeout=MAX_WAIT_S)
        finally:
            if not granted:
                self._withdraw(turn)
        if not granted:
            raise StoreBusy(f"No connection became free in {MAX_WAIT_S} s.")

    def _leave(self) -> None:
        """Pass the permission to use a link to the thread that has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1

    def _withdraw(self, turn: Lock) -> None:
        """Stop waiting; a permission that arrived at the last moment goes to the next thread."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
        self._leave()

    def close_idle(self) -> None:
        """Close idle links: when one link is lost, the server is gone, and the idle ones are lost too."""
        while link := self._take():
            with suppress(Exception):
                link.close()

    def close(self) -> None:
        self._closed = True
        self.close_idle()

    def _new(self) -> Link:
        if self._closed:
            raise StoreUnavailable("The database was closed.")
        return self._connect()

    def _take(self) -> Link | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None
