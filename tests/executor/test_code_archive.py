"""Zips of the code of functions, which other people have made, are opened and unpacked within limits."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from myrmidon.executor import code_archive
from myrmidon.executor.code_archive import BadCode, open_code, unpack


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_zip_within_the_limits_is_unpacked(tmp_path: Path):
    with open_code(zipped({"p/a.py": b"x = 1\n"})) as archive:
        unpack(archive, str(tmp_path / "code"))
    assert (tmp_path / "code" / "p" / "a.py").read_text() == "x = 1\n"


def test_a_zip_that_would_be_too_large_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(code_archive, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(BadCode, match="unpacked it would have 1001 bytes"), open_code(zipped({"a": b"0" * 1001})):
        pass


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("a", "a/"), ("a/b/c/d", "a/b")])
def test_a_file_and_a_folder_of_one_name_are_refused(names: tuple[str, str]):
    with pytest.raises(BadCode, match="as a file and as a folder"):
        code_archive.check_entries([zipfile.ZipInfo(name) for name in names], 100)


def test_folders_that_are_only_parts_of_paths_are_counted():
    deep = [zipfile.ZipInfo(f"{number}/" + "d/" * 150 + "file") for number in range(200)]
    with pytest.raises(BadCode, match="more than 20000 files and folders"):
        code_archive.check_entries(deep, 100)
    with pytest.raises(BadCode, match="longer than 255 bytes"):
        code_archive.check_entries([zipfile.ZipInfo("\u00e9" * 128)], 100)


def test_a_zip_with_too_many_entries_is_refused_before_its_list_is_read():
    with pytest.raises(BadCode, match="more than 20000 files"):
        code_archive.check_size(b"PK\x01\x02" * (code_archive.MAX_FILES + 1))
    with pytest.raises(BadCode, match="at most"):
        code_archive.check_size(bytes(code_archive.MAX_ZIP_BYTES + 1))


@pytest.mark.parametrize("name", ["..", "a/../b", "./a", "a//b", "a\\b", "c:/a", "/a", "", "a\nb", "a" * 500])
def test_names_that_are_no_paths_inside_a_zip_are_refused(name: str):
    entry = zipfile.ZipInfo("x")
    entry.filename = name
    with pytest.raises(BadCode, match="not a path inside"):
        code_archive.check_entries([entry], 100)


def test_links_duplicates_and_too_many_files_are_refused():
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with pytest.raises(BadCode, match="neither a file nor a folder"):
        code_archive.check_entries([link], 100)
    with pytest.raises(BadCode, match="twice"):
        code_archive.check_entries([zipfile.ZipInfo("a"), zipfile.ZipInfo("a")], 100)
    with pytest.raises(BadCode, match="more than"):
        code_archive.check_entries([zipfile.ZipInfo(f"{number}") for number in range(code_archive.MAX_FILES + 1)], 100)
