"""Deletes files that nothing refers to and that nobody has used for some time: first their rows, then the files.

A file without a row is deleted too: a server was killed between storing the file and recording it, or after the row was
deleted. Several servers may do this at the same time. Each pass looks at a part of all digests, so that it stays short
with millions of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from myrmidon.files.folder import PREFIXES, FileFolder
from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.context import ServerContext
from myrmidon.server.settings import seconds
from myrmidon.store.tables import stored_file

log = structlog.get_logger("background")

PREFIXES_PER_PASS = 16
BATCH = 1000


class FileCollection:
    """The deletion of unused files, and how far it has come."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._next = context.random_int(len(PREFIXES))  # servers begin at different places

    async def run(self) -> int:
        """Handle the next part of the digests; how many files were deleted.

        Nothing is deleted while it is not certain what time it is, or while the folder is not the right one.
        """
        context = self._context
        state = context.state
        if abs(state.clock_skew) > context.rules.max_skew or state.retention_waits_until is not None:
            return 0
        if await context.files.problem():
            return 0
        before = context.now() - seconds(context.settings.files.unused_hours * 3600)
        folder = context.files.folder
        await context.files.run(partial(folder.clean, until=before / SECOND))
        deleted = 0
        for _ in range(PREFIXES_PER_PASS):
            prefix = PREFIXES[self._next]
            self._next = (self._next + 1) % len(PREFIXES)
            await self._delete_rows(prefix, before)
            deleted += await self._delete_files(prefix, before)
        if deleted:
            log.info("unused files deleted", files=deleted)
        return deleted

    async def _delete_rows(self, prefix: str, before: Micros) -> None:
        db = self._context.db
        while digests := await db.read(partial(stored_file.unused, prefix=prefix, before=before, n=BATCH)):
            if not await db.write(partial(stored_file.delete_unused, digests=digests, before=before)):
                return  # all of them are in use again

    async def _delete_files(self, prefix: str, before: Micros) -> int:
        """Delete the files of this prefix that no row names and that were written before the time."""
        files, deleted = self._context.files, 0
        found = await files.run(partial(files.folder.files_of, prefix, until=before / SECOND))
        for start in range(0, len(found), BATCH):
            digests = found[start : start + BATCH]
            known = await self._context.db.read(partial(stored_file.known, digests=digests))
            unknown = [digest for digest in digests if digest not in known]
            deleted += await files.run(partial(_delete_all, files.folder, unknown, before / SECOND))
        return deleted


def _delete_all(folder: FileFolder, digests: Sequence[str], unless_since: float) -> int:
    return sum(folder.delete(digest, unless_since=unless_since) for digest in digests)
