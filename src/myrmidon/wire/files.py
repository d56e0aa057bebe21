"""Stored files: the bodies and answers of /api/v1/files, and of the bots' calls for files."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.wire.fields import Name

MAX_FILE_BYTES = 64 << 20
MAX_FILES_PER_CALL = 1_000
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}(?!\n)$", examples=["0" * 64])]


class FileRef(Struct, frozen=True, forbid_unknown_fields=True):
    """A file: the SHA-256 digest of its content in hexadecimal digits, and its size in bytes."""

    digest: Digest
    size: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]


class FindMissing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of these files has the resource group not stored? Those that it has are kept for another day."""

    files: Annotated[list[FileRef], Meta(max_length=MAX_FILES_PER_CALL)]
    group: Name | None = None


class MissingFiles(Struct, frozen=True):
    """The digests of the files that must be uploaded before anything may refer to them."""

    missing: list[str]


class FileQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The resource group that gets the file; default: that of the token."""

    group: Name | None = None


class StoredFile(Struct, frozen=True):
    """A file that is stored, with its size in bytes."""

    digest: str
    size: int
