"""Callers that wait for tasks to end, or for logs and events to get new data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Self


class Subscriptions:
    """Pending watches by key. A key is anything hashable."""

    __slots__ = ("closed", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Any, set[asyncio.Future[bool]]] = {}
        self.closed = False

    def watch(self, keys: Collection[Any]) -> Watch:
        return Watch(self, keys)

    def notify(self, key: object) -> None:
        """End the watches of this key."""
        for future in self.waiters.pop(key, ()):
            _set_notified(future)

    def notify_all(self) -> None:
        """End all watches as if their key had been notified."""
        self._end_all(_set_notified)

    def close(self) -> None:
        """End all watches with False, and every later one at once."""
        self.closed = True
        self._end_all(_set_expired)

    def _end_all(self, end: Callable[[asyncio.Future[bool]], None]) -> None:
        for futures in list(self.waiters.values()):
            for future in tuple(futures):
                end(future)


class Watch:
    """A subscription to some keys that is active from construction.

    Create it, check the state, then ``wait``: a notification in between is not missed.
    """

    __slots__ = ("_future", "_keys", "_subscriptions")

    def __init__(self, subscriptions: Subscriptions, keys: Collection[Any]) -> None:
        self._subscriptions = subscriptions
        self._keys = keys
        self._future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        for key in keys:
            subscriptions.waiters.setdefault(key, set()).add(self._future)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in self._keys:
            discard(self._subscriptions.waiters, key, self._future)

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification since construction; False after ``seconds``, or when the server stops."""
        if self._subscriptions.closed or seconds <= 0:
            return self._future.done()
        timer = asyncio.get_running_loop().call_later(seconds, _set_expired, self._future)
        try:
            return await self._future
        finally:
            timer.cancel()


def _set_notified(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(True)


def _set_expired(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


def discard(sets: dict[Any, set[Any]], key: Any, member: Any) -> None:
    """Remove a member from the set of a key, and the key with its last member."""
    members = sets.get(key)
    if members is not None:
        members.discard(member)
        if not members:
            del sets[key]
