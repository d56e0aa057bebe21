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

LARGE_BYTES = 1 << 20


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
