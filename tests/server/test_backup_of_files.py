"""Backups contain the folder of the files, and a restored server can use them."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from myrmidon.files.folder import FileFolder
from myrmidon.model.errors import StoreRefused
from myrmidon.server.backup import backup, restore
from myrmidon.server.settings import Settings
from tests.server.inside import Inside, inside

CONTENT = b"content" * 1000
DIGEST = sha256(CONTENT).hexdigest()
BODY = {"files": [{"digest": DIGEST, "size": len(CONTENT)}]}


def settings_at(folder: Path) -> Settings:
    return Settings(data_dir=str(folder))


def upload(app: Inside, content: bytes = CONTENT) -> None:
    assert app.put(f"/api/v1/files/{sha256(content).hexdigest()}", content).status == 200


@pytest.fixture
def installation(tmp_path) -> Path:
    folder = tmp_path / "old"
    folder.mkdir()
    with inside(folder) as app:
        upload(app)
    return folder


def assert_has_file(folder: Path) -> None:
    with inside(folder) as app:
        assert app.post("/api/v1/files/missing", BODY).json == {"missing": []}
        assert app.context.files.folder.read(DIGEST) == CONTENT
        assert app.get("/readyz").json == {"ok": True, "problems": [], "notes": []}


def test_a_restored_server_has_the_files(installation, tmp_path):
    made = backup(settings_at(installation), tmp_path / "backup")
    assert (made.num_files, made.damaged_files) == (1, [])
    restore(settings_at(tmp_path / "new"), tmp_path / "backup")
    assert_has_file(tmp_path / "new")


def test_a_restore_over_the_same_installation_keeps_the_files_and_adds_lost_ones(installation, tmp_path):
    backup(settings_at(installation), tmp_path / "backup")
    with inside(installation) as app:
        upload(app, b"later")
        app.context.files.folder.path_of(DIGEST).unlink()
    restore(settings_at(installation), tmp_path / "backup", replace=True)
    assert_has_file(installation)
    assert FileFolder(installation / "files").has(sha256(b"later").hexdigest(), 5)


def test_a_restore_over_another_installation_needs_replace_and_keeps_its_files_under_another_name(
    installation, tmp_path
):
    backup(settings_at(installation), tmp_path / "backup")
    other = tmp_path / "other"
    other.mkdir()
    with inside(other) as app:
        upload(app, b"other")
    with pytest.raises(StoreRefused, match="files of another installation"):
        restore(settings_at(other), tmp_path / "backup")
    assert FileFolder(other / "files").has(sha256(b"other").hexdigest(), 5)
    restore(settings_at(other), tmp_path / "backup", replace=True)
    assert_has_file(other)
    (kept,) = other.glob("files.before-*")
    assert FileFolder(kept).has(sha256(b"other").hexdigest(), 5)


def test_a_damaged_file_is_named_and_left_out(installation, tmp_path):
    path = FileFolder(installation / "files").path_of(DIGEST)
    path.write_bytes(b"damaged")
    made = backup(settings_at(installation), tmp_path / "backup")
    assert (made.num_files, made.damaged_files) == (0, [DIGEST])
    assert path.exists()


def test_a_backup_on_a_machine_without_the_folder_says_that_it_has_no_files(installation, tmp_path):
    shutil.rmtree(installation / "files")
    made = backup(settings_at(installation), tmp_path / "backup")
    assert (made.num_files, (tmp_path / "backup" / "files").exists()) == (None, False)
    restore(settings_at(tmp_path / "new"), tmp_path / "backup")
