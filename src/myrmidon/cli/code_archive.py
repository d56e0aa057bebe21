"""Opens zips of the code of functions, which other people have made."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

MAX_FILES: Final = 20_000
MAX_UNPACKED_BYTES: Final = 512 << 20
"""The limits of bots."""


@contextmanager
def open_code(data: bytes, digest: str) -> Iterator[zipfile.ZipFile]:
    """The zip; ClickException if it is damaged, or would fill the disk or the memory when it is unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if len(entries) > MAX_FILES or size > MAX_UNPACKED_BYTES:
                found, allowed = f"{len(entries)} files of {size} bytes", f"{MAX_FILES} of {MAX_UNPACKED_BYTES}"
                raise click.ClickException(f"The code {digest[:12]} has {found}; at most {allowed} are unpacked.")
            if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
                raise click.ClickException(f"The code {digest[:12]} is compressed with another method than deflate.")
            yield archive
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, LookupError, RuntimeError, ValueError) as error:
        raise click.ClickException(f"The code {digest[:12]} is not a valid zip: {error}") from None
