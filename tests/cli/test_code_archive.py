"""Zips of code that other people have made are opened within limits."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import click
import pytest

from myrmidon.cli import code_archive
from myrmidon.cli.code_archive import open_code


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def damaged(method: int) -> bytes:
    data = bytearray(zipped({"a.py": b"x = 1\n" * 100}, method))
    data[40:60] = b"\0" * 20
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (zipped({"a": b"0" * 1001}), "1 files of 1001 bytes"),
        (zipped({str(number): b"" for number in range(11)}), "11 files of 0 bytes"),
        (zipped({"a": b"x"}, zipfile.ZIP_LZMA), "another method"),
        (damaged(zipfile.ZIP_LZMA), "another method"),
        (damaged(zipfile.ZIP_DEFLATED), "not a valid zip"),
        (zipped({"a": b"", "a/b": b""}), "not a valid zip"),
        (b"PK", "not a valid zip"),
    ],
    ids=["size", "number", "method", "damaged lzma", "damaged", "a file and a folder", "no zip"],
)
def test_a_zip_that_is_damaged_or_too_large_is_refused_with_a_reason(
    monkeypatch, tmp_path: Path, data: bytes, told: str
):
    monkeypatch.setattr(code_archive, "MAX_UNPACKED_BYTES", 1000)
    monkeypatch.setattr(code_archive, "MAX_FILES", 10)
    with pytest.raises(click.ClickException, match=told), open_code(data, "0" * 64) as archive:
        archive.extractall(tmp_path)


def test_a_zip_within_the_limits_is_unpacked(tmp_path: Path):
    with open_code(zipped({"p/a.py": b"x = 1\n"}), "0" * 64) as archive:
        archive.extractall(tmp_path)
    assert (tmp_path / "p" / "a.py").read_text() == "x = 1\n"
