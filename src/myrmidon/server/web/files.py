"""The built files of the web page, read into memory with their compressed forms.

``make ui`` writes them to ``static/``. They are read again when ``index.html`` has changed, so a new build shows
without a restart. Files in ``assets/`` have a digest in their names and never change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from myrmidon.server.calls import accepts

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
ASSETS: Final = "assets/"
_ENCODINGS: Final = (("br", ".br"), ("gzip", ".gz"))
_MEDIA: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".ico": "image/x-icon",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
}
"""Files with another ending are not served."""


class PageFile(Struct, frozen=True):
    """One file: its content by content encoding; the empty encoding is the plain content."""

    media: str
    etag: str
    contents: dict[str, bytes]

    def best(self, accepted: str) -> tuple[str, bytes]:
        """The encoding and content for an Accept-Encoding header."""
        found = (name for name, _ in _ENCODINGS if name in self.contents and accepts(accepted, name))
        encoding = next(found, "")
        return encoding, self.contents[encoding]


class PageFiles:
    """The files of one folder by their path in it; none if the page was not built."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._built_at: int | None = None
        self._files: dict[str, PageFile] = {}

    def get(self, name: str) -> PageFile | None:
        """A file of the present build."""
        built_at = self._index_time()
        if built_at != self._built_at:
            self._files = self._read() if built_at is not None else {}
            self._built_at = built_at
        return self._files.get(name)

    def _index_time(self) -> int | None:
        try:
            return (self._folder / INDEX).stat().st_mtime_ns
        except OSError:
            return None

    def _read(self) -> dict[str, PageFile]:
        found: dict[str, PageFile] = {}
        for path in sorted(self._folder.rglob("*")):
            if (media := _MEDIA.get(path.suffix)) and path.is_file():
                found[path.relative_to(self._folder).as_posix()] = _read_file(path, media)
        return found


def _read_file(path: Path, media: str) -> PageFile:
    plain = path.read_bytes()
    contents = {"": plain}
    for encoding, ending in _ENCODINGS:
        compressed = path.with_name(path.name + ending)
        if compressed.is_file():
            contents[encoding] = compressed.read_bytes()
    return PageFile(media, f'"{hashlib.sha256(plain).hexdigest()[:32]}"', contents)
