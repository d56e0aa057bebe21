"""The folder of files by digest: complete or absent, verified when read, deleted only if nobody stores it again."""

from __future__ import annotations

import os
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from myrmidon.files.folder import FileFolder, check_digest
from myrmidon.model.errors import FileDamaged, FilesUnavailable, InvalidRequest
from tests.bot.test_chaos import a_small_disk

CONTENT = b"some bytes" * 1000
DIGEST = sha256(CONTENT).hexdigest()
LATER = 1e12


@pytest.fixture
def folder(tmp_path) -> FileFolder:
    return FileFolder(tmp_path / "files")


def files_in(folder: FileFolder) -> set[str]:
    return {str(path.relative_to(folder.root)) for path in folder.root.rglob("*") if path.is_file()}


def test_what_was_stored_is_read_back(folder):
    folder.store(DIGEST, CONTENT)
    assert folder.read(DIGEST) == CONTENT
    assert folder.has(DIGEST, len(CONTENT))
    assert not folder.has(DIGEST, 1)
    assert files_in(folder) == {f"{DIGEST[:2]}/{DIGEST[2:]}"}


def test_content_that_is_stored_already_is_kept_and_counts_as_stored_now(folder):
    assert folder.store(DIGEST, CONTENT)
    path = folder.path_of(DIGEST)
    os.utime(path, (1, 1))
    before = path.stat()
    assert not folder.store(DIGEST, CONTENT)
    assert path.stat().st_ino == before.st_ino
    assert not folder.delete(DIGEST, unless_since=2)


def test_a_damaged_file_of_the_same_size_is_replaced(folder):
    folder.store(DIGEST, CONTENT)
    folder.path_of(DIGEST).write_bytes(b"x" * len(CONTENT))
    assert folder.store(DIGEST, CONTENT)
    assert folder.read(DIGEST) == CONTENT


def test_the_bytes_of_a_damaged_file_are_not_taken_for_those_of_its_digest(folder):
    folder.store(DIGEST, CONTENT)
    folder.path_of(DIGEST).write_bytes(b"x" * len(CONTENT))
    with pytest.raises(InvalidRequest, match="the bytes whose digest is"):
        folder.store(DIGEST, b"x" * len(CONTENT))


def test_an_empty_file_can_be_stored(folder):
    digest = sha256(b"").hexdigest()
    folder.store(digest, b"")
    assert folder.read(digest) == b""


def test_a_file_has_no_name_before_it_is_complete(folder):
    with folder.receive(DIGEST) as file:
        file.write(CONTENT)
        assert not folder.has(DIGEST, len(CONTENT))
        file.complete()
    assert folder.has(DIGEST, len(CONTENT))


def test_other_bytes_than_those_of_the_digest_are_refused_and_nothing_is_left(folder):
    with pytest.raises(InvalidRequest, match=f"the bytes whose digest is {DIGEST}"):
        folder.store(DIGEST, CONTENT[:-1])
    assert files_in(folder) == set()
    folder.store(DIGEST, CONTENT)


def test_an_upload_that_is_cut_off_leaves_nothing(folder):
    with folder.receive(DIGEST) as file:
        file.write(CONTENT)
    assert files_in(folder) == set()


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "/" * 64, "A" * 64, "a" * 63, "a" * 65, f"{'a' * 63}\n"])
def test_only_a_digest_becomes_part_of_a_path(folder, digest):
    for use in (check_digest, folder.path_of, folder.receive):
        with pytest.raises(InvalidRequest, match="a SHA-256 digest"):
            use(digest)


def test_a_damaged_file_is_refused_and_put_aside_and_can_be_stored_again(folder):
    folder.store(DIGEST, CONTENT)
    path = folder.path_of(DIGEST)
    path.write_bytes(b"S" + CONTENT[1:])
    with pytest.raises(FileDamaged, match="is damaged"):
        folder.open(DIGEST)
    assert files_in(folder) == {f"damaged/{DIGEST}"}
    with pytest.raises(FileDamaged, match="is missing"):
        folder.open(DIGEST)
    folder.store(DIGEST, CONTENT)
    assert folder.read(DIGEST) == CONTENT


def test_a_file_that_was_cut_short_is_damaged(folder):
    folder.store(DIGEST, CONTENT)
    os.truncate(folder.path_of(DIGEST), 100)
    with pytest.raises(FileDamaged):
        folder.read(DIGEST)


def test_many_threads_store_and_read_one_file_at_the_same_time(folder):
    failures: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(5):
                folder.store(DIGEST, CONTENT)
                assert folder.read(DIGEST) == CONTENT
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert files_in(folder) == {f"{DIGEST[:2]}/{DIGEST[2:]}"}


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path):
    content = b"x" * (2 << 20)
    with a_small_disk(tmp_path / "disk", "size=1m") as disk:
        folder = FileFolder(Path(disk) / "files")
        with pytest.raises(FilesUnavailable, match="is full"):
            folder.store(sha256(content).hexdigest(), content)
        assert files_in(folder) == set()
        folder.store(DIGEST, CONTENT)


def test_the_number_of_a_folder_changes_only_while_it_is_empty(folder):
    assert folder.read_id() is None
    assert folder.claim(17)
    assert folder.claim(18)
    assert FileFolder(folder.root).read_id() == 18
    assert files_in(folder) == {"id"}
    folder.store(DIGEST, CONTENT)
    assert not folder.claim(19)
    assert folder.claim(18)
    assert folder.read_id() == 18


def test_a_folder_that_cannot_be_created_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    folder = FileFolder(tmp_path / "file")
    for use in (lambda: folder.claim(1), folder.read_id, lambda: folder.store(DIGEST, CONTENT)):
        with pytest.raises(FilesUnavailable, match="cannot be used"):
            use()


# ---------------------------------------------------------------- deleting


def test_an_old_file_is_deleted(folder):
    folder.store(DIGEST, CONTENT)
    assert folder.delete(DIGEST, unless_since=LATER)
    assert files_in(folder) == set()
    assert not folder.delete(DIGEST, unless_since=LATER)


def test_a_file_that_was_just_stored_is_not_deleted(folder):
    folder.store(DIGEST, CONTENT)
    assert not folder.delete(DIGEST, unless_since=0)
    assert folder.read(DIGEST) == CONTENT


def test_a_file_in_the_trash_can_be_read_and_is_given_back(folder):
    """As after a kill between the two steps of a deletion."""
    folder.store(DIGEST, CONTENT)
    (folder.root / "trash").mkdir()
    folder.path_of(DIGEST).rename(folder.root / "trash" / DIGEST)
    assert folder.read(DIGEST) == CONTENT
    folder.clean(until=0)
    assert files_in(folder) == {f"{DIGEST[:2]}/{DIGEST[2:]}"}


def test_parts_of_files_are_removed_when_they_are_old(folder):
    incoming = folder.receive(DIGEST)
    incoming.write(CONTENT)
    folder.clean(until=0)
    assert len(files_in(folder)) == 1
    folder.clean(until=LATER)
    assert files_in(folder) == set()
    incoming.close()


def test_files_are_listed_by_the_beginning_of_their_digest(folder):
    folder.store(DIGEST, CONTENT)
    (folder.path_of(DIGEST).parent / "something else").touch()
    assert folder.files_of(DIGEST[:2], until=LATER) == [DIGEST]
    assert folder.files_of(DIGEST[:2], until=0) == []
    other = "00" if DIGEST[:2] != "00" else "01"
    assert folder.files_of(other, until=LATER) == []
