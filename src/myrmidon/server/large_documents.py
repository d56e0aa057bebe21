"""Large graph documents are handled one at a time, without garbage collection meanwhile.

A document of 64 MiB becomes some millions of objects that live until the job is stored: several at once would need
several GiB, and would occupy all threads that read the database. A full collection visits all of these objects and
stops the whole server for up to a second; since none of them is garbage, it would find nothing.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

LARGE_BYTES = 1 << 20


def free_parts(parts: list[Any] | dict[Any, Any]) -> None:
    """Empty a large collection item by item, on a thread.

    When the last reference to a graph of 100,000 tasks goes, the interpreter frees it in one piece, and no other thread
    runs for 0.1 s.
    """
    while parts:
        if isinstance(parts, dict):
            parts.popitem()
        else:
            parts.pop()


class LargeDocuments:
    """Lets callers with large documents in, one after the other."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    @asynccontextmanager
    async def enter(self, num_bytes: int) -> AsyncIterator[None]:
        """Everything that is done with a document of this size happens inside the ``async with``."""
        if num_bytes < LARGE_BYTES:
            yield
            return
        async with self._one:
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                yield
            finally:
                if was_enabled:
                    gc.enable()
