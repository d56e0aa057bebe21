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
        """Take a link, or wait until one may be used; StoreBusy when none becomes free."""
        turn = None
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                turn = Lock()
                turn.acquire()
                self._waiting.append(turn)
        if turn is not None:
            self._wait(turn)
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return self._new()
        except BaseException:
            self.give_back(None)
            raise

    def give_back(self, link: Link | None) -> None:
        """Return a link that can be used again, if any, and let the thread go on that has waited longest."""
        if link is not None:
            if self._closed:
                link.close()
            else:
                self._idle.append(link)
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1

    def discard(self, link: Link) -> None:
        """Close a link that cannot be used again."""
        with suppress(Exception):
            link.close()
        self.give_back(None)

    def _wait(self, turn: Lock) -> None:
        granted = False
        try:
            granted = turn.acquire(timeout=MAX_WAIT_S)
        finally:
            if not granted:
                self._withdraw(turn)
        if not granted:
            raise StoreBusy(f"No connection became free in {MAX_WAIT_S} s.")

    def _withdraw(self, turn: Lock) -> None:
        """Stop waiting; a permission that arrived at the last moment goes to the next thread."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
        self.give_back(None)

    def close_idle(self) -> None:
        """Close idle links: when one link is lost, the server is gone, and the idle ones are lost too."""
        with suppress(IndexError):  # the list may become empty at any time, because others borrow from it
            while True:
                link = self._idle.pop()
                with suppress(Exception):
                    link.close()

    def close(self) -> None:
        self._closed = True
        self.close_idle()

    def _new(self) -> Link:
        if self._closed:
            raise StoreUnavailable("The database was closed.")
        return self._connect()
