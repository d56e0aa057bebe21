"""Zips of the code of functions, opened and unpacked within limits: a zip comes from a user, also one of another group.

Before anything is written, everything that could fill the disk, lead out of the folder or not be unpacked is refused.
Whatever is wrong with a zip is an error of the user.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import zipfile
from collections.abc import Iterator

MAX_ZIP_BYTES = 64 << 20
MAX_FILES = 20_000
"""Files and folders together, also folders that are only parts of paths."""
MAX_UNPACKED_BYTES = 512 << 20
MAX_RATIO = 200
"""Of a zip of more than MIN_BOMB_BYTES: Python source shrinks to a fifth, and never to a two-hundredth."""
MIN_BOMB_BYTES = 16 << 20
_MAX_NAME_CHARS = 400
_MAX_PART_BYTES = 255
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENTRY_SIGNATURE = b"PK\x01\x02"


class BadCode(Exception):
    """The zip cannot be used; the message says why."""


@contextlib.contextmanager
def open_code(zipped: bytes) -> Iterator[zipfile.ZipFile]:
    """A zip that may be unpacked. BadCode for whatever is wrong with it, also while it is read; OSError of the disk."""
    try:
        check_size(zipped)
        with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
            check_entries(archive.infolist(), len(zipped))
            yield archive
    except (BadCode, OSError):
        raise
    except Exception as error:  # the modules for zips raise many kinds
        raise BadCode(f"it is not a valid zip: {error}") from error


def unpack(archive: zipfile.ZipFile, folder: str) -> None:
    """Unpack a zip into a folder that does not exist."""
    _make_folder(folder)
    for entry in archive.infolist():
        _extract(archive, entry, folder)


def check_size(zipped: bytes) -> None:
    """Refuse a zip that is too large, before its list of files is read. Raises BadCode."""
    if len(zipped) > MAX_ZIP_BYTES:
        raise BadCode(f"it has {len(zipped)} bytes; at most {MAX_ZIP_BYTES}")
    if zipped.count(_ENTRY_SIGNATURE) > MAX_FILES:
        raise BadCode(f"it has more than {MAX_FILES} files")


def check_entries(entries: list[zipfile.ZipInfo], zipped_bytes: int) -> None:
    """Refuse what must not be unpacked, before it is. Raises BadCode."""
    files: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        _check_entry(entry)
        path = entry.filename.rstrip("/")
        if path in files and not entry.is_dir():
            raise BadCode(f"it contains {path!r:.100} twice")
        (folders if entry.is_dir() else files).add(path)
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        if len(files) + len(folders) > MAX_FILES:
            raise BadCode(f"it has more than {MAX_FILES} files and folders")
    for path in files & folders:
        raise BadCode(f"it contains {path!r:.100} as a file and as a folder")
    size = sum(entry.file_size for entry in entries)
    if size > MAX_UNPACKED_BYTES:
        raise BadCode(f"unpacked it would have {size} bytes; at most {MAX_UNPACKED_BYTES}")
    if size > MIN_BOMB_BYTES and size > MAX_RATIO * zipped_bytes:
        raise BadCode(f"unpacked it would be {size // max(1, zipped_bytes)} times as large; at most {MAX_RATIO} times")


def _check_entry(entry: zipfile.ZipInfo) -> None:
    name = entry.filename
    parts = name.rstrip("/").split("/")
    is_outside = name.startswith("/") or "\\" in name or ":" in parts[0] or not {"", ".", ".."}.isdisjoint(parts)
    if is_outside or not name.isprintable() or len(name) > _MAX_NAME_CHARS:
        raise BadCode(f"{name!r:.100} is not a path inside of it")
    if any(len(os.fsencode(part)) > _MAX_PART_BYTES for part in parts):
        raise BadCode(f"a name in {name!r:.100} is longer than {_MAX_PART_BYTES} bytes")
    if entry.compress_type not in _METHODS:
        raise BadCode(f"{name!r:.100} is neither stored nor deflated; pack it without other methods of compression")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadCode(f"{name!r:.100} is neither a file nor a folder")


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: str) -> None:
    path = os.path.join(folder, *entry.filename.rstrip("/").split("/"))
    if entry.is_dir():
        _make_folder(path)
        return
    _make_folder(os.path.dirname(path))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with archive.open(entry) as source, os.fdopen(handle, "wb") as target:
        shutil.copyfileobj(source, target)
        os.fchmod(target.fileno(), 0o644)


def _make_folder(path: str) -> None:
    """Create a folder, with those above it, that the user of functions may read, whatever the umask of the bot is."""
    if not os.path.isdir(path):
        _make_folder(os.path.dirname(path))
        os.mkdir(path)
        os.chmod(path, 0o755)  # noqa: S103 - only who may pass through the bot's folders gets here
