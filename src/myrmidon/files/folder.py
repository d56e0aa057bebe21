"""Stores files in a local folder, each under the SHA-256 digest of its content.

    <root>/ab/cdef...     a complete file; its digest is abcdef...
    <root>/tmp/           files that are arriving
    <root>/damaged/       files whose content was not that of their digest, for an administrator to look at
    <root>/trash/         files that are being deleted
    <root>/id             a number that tells this folder from others

A file appears under its name only when it is complete and on disk, and never changes afterwards. Its content is
compared with its digest whenever it is read. All functions block. Any number of threads and processes, also on several
machines, may use one folder at the same time.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from myrmidon.model.errors import FileDamaged, FilesUnavailable, InvalidRequest, Problem

DIGEST = re.compile(r"[0-9a-f]{64}")
PREFIXES = tuple(f"{n:02x}" for n in range(256))
"""The names of the subfolders that hold the files."""
PIECE = 1 << 20
"""How much is read and hashed at a time."""
MIN_FREE_BYTES = 64 << 20
"""Less than the largest file, and the disk counts as full."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ID = re.compile(rb"[0-9]{1,19}")


def check_digest(digest: str) -> str:
    """The digest, if it is one; InvalidRequest if not. Nothing else may become part of a path."""
    if DIGEST.fullmatch(digest):
        return digest
    shown = digest if len(digest) <= 80 else f"{digest[:80]}..."
    raise InvalidRequest([Problem("digest", repr(shown), "a SHA-256 digest: 64 digits 0-9 a-f", "digest")])


class FileFolder:
    """The files of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # ------------------------------------------------ identity

    def read_id(self) -> int | None:
        """The number of this folder; None if it has none, because it is new or another file system is mounted."""
        text = b""
        with _unavailable_on_error(), suppress(FileNotFoundError):
            text = (self.root / "id").read_bytes().strip()
        return int(text) if _ID.fullmatch(text) else None

    def claim(self, number: int) -> bool:
        """Give the folder this number, and create it; False if it holds files under another number."""
        with _unavailable_on_error():
            if self.read_id() not in (None, number) and not self.is_empty():
                return False
            fresh = self._new_path()
            _write_durably(fresh, f"{number}\n".encode())
            fresh.rename(self.root / "id")
            _fsync(self.root)
        return True

    def is_empty(self) -> bool:
        """Whether the folder holds no file."""
        return not any(self.files_of(prefix) for prefix in PREFIXES)

    def is_full(self) -> bool:
        """Whether hardly any space is left on the disk of the folder."""
        with suppress(OSError):
            return shutil.disk_usage(self.root).free < MIN_FREE_BYTES
        return False

    # ------------------------------------------------ writing

    def receive(self, digest: str) -> IncomingFile:
        """A new file to write the content of this digest to; a context that removes what is not complete."""
        check_digest(digest)
        with _unavailable_on_error():
            return IncomingFile(self, digest, self._new_path())

    def store(self, digest: str, content: bytes) -> bool:
        """Store a whole file; False if the same content was stored already."""
        if self._keep(digest, content):
            return False
        with self.receive(digest) as file:
            file.write(content)
            file.complete()
        return True

    def _keep(self, digest: str, content: bytes) -> bool:
        """Keep a stored file if it has this content, as if it were stored now; False if there is none.

        Its time is renewed before it is looked for once more: a deletion that has not taken it away by then finds it in
        use.
        """
        path = self.path_of(digest)
        with _unavailable_on_error(), suppress(FileNotFoundError), path.open("rb") as file:
            stored = os.fstat(file.fileno())
            if stored.st_size != len(content) or file.read() != content:
                return False
            if hashlib.sha256(content).hexdigest() != digest:
                return False
            os.utime(file.fileno())
            if path.stat().st_ino != stored.st_ino:
                return False
            _fsync(path.parent)  # the writer that has stored it may not have synchronised it yet
            return True
        return False

    def _new_path(self) -> Path:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = self.root / "tmp"
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder / uuid.uuid4().hex

    def adopt(self, path: Path, digest: str) -> None:
        """Give a complete file that is on disk its name. It replaces a file of this name, which may be damaged."""
        target = self.path_of(digest)
        is_new = not target.parent.exists()
        target.parent.mkdir(exist_ok=True, mode=0o700)
        path.rename(target)
        _fsync(target.parent)
        if is_new:
            _fsync(self.root)

    # ------------------------------------------------ reading

    def path_of(self, digest: str) -> Path:
        check_digest(digest)
        return self.root / digest[:2] / digest[2:]

    def has(self, digest: str, size: int) -> bool:
        """Whether there is a file of this digest and size. Its content is not checked."""
        return self.size_of(digest) == size

    def size_of(self, digest: str) -> int | None:
        """The size of a file; None if there is none of this digest."""
        with _unavailable_on_error(), suppress(FileNotFoundError):
            return self.path_of(digest).stat().st_size
        return None

    def open(self, digest: str, *, put_aside: bool = True) -> BinaryIO:
        """Open a file whose whole content was compared with its digest; FileDamaged if it is another or missing.

        A damaged file is put aside: then clients are told that it is missing, and upload it again.
        """
        file = self._open(digest)
        with _unavailable_on_error(), _closed_on_error(file):
            if _digest_of(file) == digest:
                file.seek(0)
                return file
        file.close()
        if put_aside:
            self._put_aside(digest)
        raise FileDamaged(f"The file {digest} is damaged: its content is not that of its digest.")

    def read(self, digest: str) -> bytes:
        """The whole content of a file, as ``open``."""
        with self.open(digest) as file:
            return file.read()

    def _open(self, digest: str) -> BinaryIO:
        path = self.path_of(digest)
        # A file is in the trash for a moment before it is known that nobody has stored it again.
        for candidate in (path, self.root / "trash" / digest, path):
            with _unavailable_on_error(), suppress(FileNotFoundError):
                return candidate.open("rb")
        raise FileDamaged(f"The file {digest} is missing from the folder of the files.")

    def _put_aside(self, digest: str) -> None:
        folder = self.root / "damaged"
        with _unavailable_on_error(), suppress(FileNotFoundError):  # if another reader was faster
            folder.mkdir(exist_ok=True, mode=0o700)
            self.path_of(digest).rename(folder / digest)

    # ------------------------------------------------ deleting

    def delete(self, digest: str, *, unless_since: float) -> bool:
        """Delete a file, unless it was written since this time; whether it was deleted.

        Somebody may store the file again while it is being deleted. It is renamed first, so that what is deleted is
        exactly the file whose time was checked.
        """
        taken = self.root / "trash" / digest
        with _unavailable_on_error():
            taken.parent.mkdir(exist_ok=True, mode=0o700)
            try:
                self.path_of(digest).rename(taken)
            except FileNotFoundError:
                return False
            if taken.stat().st_mtime < unless_since:
                taken.unlink()
                return True
            self._give_back(taken)
        return False

    def _give_back(self, taken: Path) -> None:
        """Undo the renaming of a file in the trash. A file that was stored meanwhile has the same content."""
        path = self.path_of(taken.name)
        with suppress(FileExistsError):
            os.link(taken, path)
        taken.unlink(missing_ok=True)

    def files_of(self, prefix: str, *, until: float = math.inf) -> list[str]:
        """The digests with this beginning of two digits whose files were written before ``until``."""
        found = []
        with _unavailable_on_error(), suppress(FileNotFoundError), os.scandir(self.root / prefix) as entries:
            for entry in entries:
                digest = f"{prefix}{entry.name}"
                if DIGEST.fullmatch(digest) and entry.stat().st_mtime < until:
                    found.append(digest)
        return sorted(found)

    def clean(self, *, until: float) -> None:
        """Remove what processes that were killed have left: parts of files, and files in the trash."""
        with _unavailable_on_error():
            for path in _entries(self.root / "tmp"):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < until:
                        path.unlink()
            for path in _entries(self.root / "trash"):
                if DIGEST.fullmatch(path.name):
                    with suppress(FileNotFoundError):
                        self._give_back(path)


class IncomingFile:
    """A file whose content is arriving."""

    def __init__(self, folder: FileFolder, digest: str, path: Path) -> None:
        self._folder = folder
        self._digest = digest
        self._path = path
        self._hash = hashlib.sha256()
        self.size = 0
        self._file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)  # noqa: PTH123, SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and remove it unless it is complete."""
        self._file.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def write(self, piece: bytes) -> None:
        """Append a piece; FilesUnavailable if the disk is full."""
        self._hash.update(piece)
        self.size += len(piece)
        rest = memoryview(piece)
        with _unavailable_on_error():
            while rest:
                rest = rest[self._file.write(rest) :]

    def complete(self) -> None:
        """Store the file under its digest, if it has the right content; InvalidRequest if not."""
        given = self._hash.hexdigest()
        if given != self._digest:
            allowed = f"the bytes whose digest is {self._digest}"
            raise InvalidRequest([Problem("body", f"{self.size} bytes with the digest {given}", allowed, "digest")])
        with _unavailable_on_error():
            os.fsync(self._file.fileno())
            self._file.close()
            self._folder.adopt(self._path, self._digest)


def _digest_of(file: BinaryIO) -> str:
    found = hashlib.sha256()
    while piece := file.read(PIECE):
        found.update(piece)
    return found.hexdigest()


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _write_durably(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _unavailable_on_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unavailable(error) from error


@contextmanager
def _closed_on_error(file: BinaryIO) -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.close()
        raise


def _unavailable(error: OSError) -> FilesUnavailable:
    if error.errno in _FULL:
        return FilesUnavailable("The disk of the folder of the files is full.")
    return FilesUnavailable(f"The folder of the files cannot be used ({error.strerror}).")
