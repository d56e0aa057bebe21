"""Copies the files of a folder to another one, for backups."""

from __future__ import annotations

from msgspec import Struct

from myrmidon.files.folder import PIECE, PREFIXES, FileFolder
from myrmidon.model.errors import FileDamaged


class CopiedFiles(Struct, frozen=True):
    """The number of files that the target has now, and the digests of those that are damaged in the source."""

    num_files: int
    damaged: list[str]


def copy_files(source: FileFolder, target: FileFolder) -> CopiedFiles:
    """Copy all files that the target lacks. Files may be stored in the source and deleted meanwhile."""
    num_files, damaged = 0, []
    for digest in (digest for prefix in PREFIXES for digest in source.files_of(prefix)):
        try:
            _copy_file(source, target, digest)
        except FileDamaged:
            if source.size_of(digest) is not None:  # otherwise it was deleted since it was listed
                damaged.append(digest)
            continue
        num_files += 1
    return CopiedFiles(num_files, damaged)


def _copy_file(source: FileFolder, target: FileFolder, digest: str) -> None:
    size = source.size_of(digest)
    if size is None or target.has(digest, size):
        return
    with source.open(digest, put_aside=False) as content, target.receive(digest) as copy:
        while piece := content.read(PIECE):
            copy.write(piece)
        copy.complete()
