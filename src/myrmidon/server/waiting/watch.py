"""Callers that wait for tasks to end, or for logs and events to get new data."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any, Self


class Subscriptions:
    """Pending watches by key. A key is anything hashable."""

    __slots__ = ("closed", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Any, set[Watch | GrowingWatch]] = {}
        self.closed = False

    def watch(self, keys: Collection[Any]) -> Watch:
        return Watch(self, keys)

    def notify(self, key: object) -> None:
        """End the watches of this key."""
        for watch in self.waiters.pop(key, ()):
            watch.notified(key)

    def close(self) -> None:
        """End all watches with False, and every later one at once."""
        self.closed = True
        for watch in {watch for watches in self.waiters.values() for watch in watches}:
            watch.expire()


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
            subscriptions.waiters.setdefault(key, set()).add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in self._keys:
            discard(self._subscriptions.waiters, key, self)

    def notified(self, _key: object) -> None:
        _set(self._future, value=True)

    def expire(self) -> None:
        _set(self._future, value=False)

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification since construction; False after ``seconds``, or when the server stops."""
        if self._subscriptions.closed or seconds <= 0:
            return self._future.done()
        timer = asyncio.get_running_loop().call_later(seconds, self.expire)
        try:
            return await self._future
        finally:
            timer.cancel()


class GrowingWatch:
    """A watch whose keys can be added to. It collects those that were notified until they are taken.

    A key is notified once; add it again to hear of it again.
    """

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._keys: set[Any] = set()
        self._notified: set[Any] = set()
        self._wakeup: asyncio.Future[bool] | None = None

    def add(self, keys: Iterable[Any]) -> set[Any]:
        """Watch these keys; returns those that were not watched."""
        new = set(keys) - self._keys
        for key in new:
            self._subscriptions.waiters.setdefault(key, set()).add(self)
        self._keys |= new
        return new

    def discard(self, keys: Iterable[Any]) -> None:
        """Stop watching these keys."""
        for key in keys:
            self._keys.discard(key)
            discard(self._subscriptions.waiters, key, self)

    def close(self) -> None:
        self.discard(tuple(self._keys))

    def notified(self, key: Any) -> None:
        self._keys.discard(key)
        self._notified.add(key)
        self.wake()

    def wake(self) -> None:
        """End ``wait``, for a reason of the caller's own."""
        if self._wakeup is not None:
            _set(self._wakeup, value=True)

    expire = wake

    async def wait(self, seconds: float) -> set[Any]:
        """The keys that were notified since the last call; waits for the first one, a ``wake`` or the end of the time.

        Nothing is awaited between the last look and the wait, so that no notification is missed.
        """
        if not self._notified and seconds > 0 and not self._subscriptions.closed:
            loop = asyncio.get_running_loop()
            self._wakeup = loop.create_future()
            timer = loop.call_later(seconds, self.wake)
            try:
                await self._wakeup
            finally:
                timer.cancel()
                self._wakeup = None
        notified, self._notified = self._notified, set()
        return notified


def _set(future: asyncio.Future[bool], *, value: bool) -> None:
    if not future.done():
        future.set_result(value)


def discard(sets: dict[Any, set[Any]], key: Any, member: Any) -> None:
    """Remove a member from the set of a key, and the key with its last member."""
    members = sets.get(key)
    if members is not None:
        members.discard(member)
        if not members:
            del sets[key]
