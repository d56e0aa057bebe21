"""Limits how many request bodies of one caller may be arriving at the same time.

A body may take half a minute to arrive, and uses a connection and memory meanwhile. The limit is per caller, so that
one caller with many slow bodies does not block the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from myrmidon.model.errors import Overloaded


class ArrivingBodies:
    """The bodies that are arriving at one server, counted by caller."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: Counter[Hashable] = Counter()

    @contextmanager
    def arriving(self, caller: Hashable) -> Iterator[None]:
        """Count a body while it arrives; Overloaded if the caller has too many of them."""
        if self._counts[caller] >= self._limit:
            raise Overloaded(f"{self._limit} request bodies of this caller are arriving already.")
        self._counts[caller] += 1
        try:
            yield
        finally:
            self._counts[caller] -= 1
            if not self._counts[caller]:
                del self._counts[caller]
