"""The folder of the files as handlers use it: on threads of its own, and only while it is the right folder.

All servers of a database must see the same folder. A random number is in the folder and in the database: a server whose
folder has another one stores and reads no file, because the others would not find it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import structlog

from myrmidon.files.folder import PIECE, FileFolder
from myrmidon.model.errors import FileDamaged, FilesUnavailable
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.tables import shared_numbers

T = TypeVar("T")

log = structlog.get_logger("server")

THREADS = 4
"""More would not make a disk faster; of each file that is read or written at most one piece is in memory."""
SENT_PIECE = 256 << 10
FOLDER_ID = "files_folder"
_MAX_ID = (1 << 63) - 1


class FileStore:
    """The files of an installation. ``folder_id`` is the number in the database."""

    def __init__(self, folder: FileFolder, folder_id: int) -> None:
        self.folder = folder
        self._folder_id = folder_id
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")

    async def run(self, fn: Callable[[], T]) -> T:
        """Run a function that uses the folder on a thread; FilesUnavailable if it is not the right folder."""

        def checked() -> T:
            if problem := self.find_problem():
                raise FilesUnavailable(f"This server cannot use files: {problem}.")
            return fn()

        return await self._in_thread(checked)

    async def _in_thread(self, fn: Callable[[], T]) -> T:
        """Run a function on a thread. A cancelled caller goes on only after it: the caller may then close the file."""
        running = asyncio.wrap_future(self._threads.submit(fn))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    async def problem(self) -> str:
        """Why this server can use no files; empty if it can."""
        return await self._in_thread(self.find_problem)

    def find_problem(self) -> str:
        """As ``problem``, but blocking."""
        try:
            found = self.folder.read_id()
        except FilesUnavailable as error:
            return error.message.partition(". ")[0]
        if found == self._folder_id:
            return ""
        return "its folder of the files is not the one of this database (setting files.folder)"

    async def store(self, digest: str, pieces: AsyncIterator[bytes]) -> tuple[int, bool]:
        """Store a file whose content arrives in pieces; its size, and whether it was written: it is not if it is here.

        InvalidRequest if the content is another.
        """
        joined = _joined(pieces)
        first = await anext(joined, b"")
        if len(first) < PIECE:  # all of it: one change of threads instead of four
            return len(first), await self.run(partial(self.folder.store, digest, first))
        file = await self.run(partial(self.folder.receive, digest))
        try:
            await self._in_thread(partial(file.write, first))
            async for piece in joined:
                await self._in_thread(partial(file.write, piece))
            await self._in_thread(file.complete)
        finally:
            await self._in_thread(file.close)
        return file.size, True

    async def read(self, digest: str) -> tuple[int, bytes | AsyncIterator[bytes]]:
        """The size of a file and its content, in pieces if it is large; verified before the first byte is returned.

        FileDamaged if the file is missing or damaged.
        """
        size, content = await self._verified(_open_or_read, digest)
        return size, content if isinstance(content, bytes) else self._pieces(content)

    async def read_whole(self, digest: str) -> bytes:
        """The content of a file of any size, as ``read``; for readers that bound the size themselves."""
        return await self._verified(FileFolder.read, digest)

    async def _verified(self, read: Callable[[FileFolder, str], T], digest: str) -> T:
        try:
            return await self.run(partial(read, self.folder, digest))
        except FileDamaged as error:
            log.warning("stored file damaged", digest=digest, error=error.message)
            raise

    async def _pieces(self, file: BinaryIO) -> AsyncIterator[bytes]:
        try:
            while piece := await self._in_thread(partial(file.read, SENT_PIECE)):
                yield piece
        finally:
            file.close()

    def close(self) -> None:
        self._threads.shutdown()


def _open_or_read(folder: FileFolder, digest: str) -> tuple[int, bytes | BinaryIO]:
    """The size of a file, and its content if it is small; otherwise the open file."""
    file = folder.open(digest)
    size = os.fstat(file.fileno()).st_size
    if size > PIECE:
        return size, file
    with file:
        return size, file.read()


async def _joined(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Larger pieces: network packets are small, and each piece costs a change of threads."""
    waiting: list[bytes] = []
    size = 0
    async for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if size:
        yield b"".join(waiting)


def open_file_store(root: Path, db: Db) -> FileStore:
    """Open the folder of the files; the first server of a database gives both of them their number.

    A folder that cannot be used does not keep a server from starting: it can do everything else.
    """
    folder = FileFolder(root)
    try:
        known = db.read(partial(shared_numbers.read, name=FOLDER_ID))
        stored = known or db.write(partial(_claim_folder, folder=folder))
    except FilesUnavailable:
        stored = 0
    store = FileStore(folder, stored)
    if problem := store.find_problem():
        log.error("files cannot be used", folder=str(root), problem=problem, expected_id=stored)
    return store


def _claim_folder(tx: Tx, folder: FileFolder) -> int:
    """The number of the database, after the folder and the database got a new one; 0 if the folder is another's."""
    known = shared_numbers.lock(tx, FOLDER_ID)
    number = known or 1 + secrets.randbelow(_MAX_ID)
    if known or not folder.claim(number):
        return known
    shared_numbers.put(tx, FOLDER_ID, number)
    return number
