"""The folder of the files of servers: one for all servers of a database, or no files at all."""

from __future__ import annotations

import shutil
from hashlib import sha256

import pytest

from myrmidon.server.settings import Files
from tests.bot.test_chaos import a_small_disk
from tests.server.inside import Inside, inside

CONTENT = b"content" * 1000
DIGEST = sha256(CONTENT).hexdigest()
NOT_THE_ONE = (
    "the server cannot use files: its folder of the files is not the one of this database (setting files.folder)"
)


def upload(app: Inside) -> int:
    return app.put(f"/api/v1/files/{DIGEST}", CONTENT).status


def health(app: Inside) -> tuple[int, list[str], list[str]]:
    reply = app.get("/readyz", token="")
    return reply.status, reply.json["problems"], reply.json["notes"]


def test_a_server_creates_its_folder_and_finds_it_again(tmp_path):
    for _ in range(2):
        with inside(tmp_path) as app:
            assert (upload(app), health(app)) == (200, (200, [], []))
    assert (tmp_path / "files" / DIGEST[:2] / DIGEST[2:]).read_bytes() == CONTENT


def test_the_setting_names_another_folder(tmp_path):
    with inside(tmp_path, files=Files(folder=str(tmp_path / "elsewhere"))) as app:
        assert upload(app) == 200
    assert (tmp_path / "elsewhere" / DIGEST[:2]).exists()
    assert not (tmp_path / "files").exists()


def test_a_server_that_sees_another_folder_refuses_files_and_is_not_ready(tmp_path):
    with inside(tmp_path) as app:
        assert upload(app) == 200
    shutil.move(tmp_path / "files", tmp_path / "moved")
    with inside(tmp_path) as app:
        assert health(app) == (503, [NOT_THE_ONE], [])
        reply = app.put(f"/api/v1/files/{DIGEST}", CONTENT)
        assert (reply.status, reply.code) == (503, "files.unavailable")
        assert "not the one of this database" in reply.json["error"]["message"]
        shutil.rmtree(tmp_path / "files", ignore_errors=True)
        shutil.move(tmp_path / "moved", tmp_path / "files")
        assert (upload(app), health(app)) == (200, (200, [], []))


def test_a_server_without_its_folder_is_ready_while_nobody_has_stored_a_file(tmp_path):
    with inside(tmp_path) as app:
        shutil.rmtree(tmp_path / "files")
        assert health(app) == (200, [], [NOT_THE_ONE])


def test_a_folder_with_files_of_another_database_is_not_taken(tmp_path):
    with inside(tmp_path) as app:
        upload(app)
    with inside(tmp_path, f"sqlite:///{tmp_path}/second.db") as app:
        assert upload(app) == 503
        assert health(app) == (200, [], [NOT_THE_ONE])
    with inside(tmp_path) as app:
        assert upload(app) == 200


def test_a_folder_that_cannot_be_created_does_not_keep_the_server_from_starting(tmp_path):
    (tmp_path / "files").write_text("not a folder")
    with inside(tmp_path) as app:
        status, problems, notes = health(app)
        assert (status, problems) == (200, [])
        assert "cannot be used" in notes[0]
        assert upload(app) == 503


def test_a_disk_that_is_nearly_full_is_told(tmp_path):
    with a_small_disk(tmp_path / "disk", "size=65m") as disk, inside(tmp_path, files=Files(folder=str(disk))) as app:
        assert (upload(app), health(app)) == (200, (200, [], []))
        (disk / "filler").write_bytes(b"x" * (2 << 20))
        assert health(app) == (503, ["the disk of the files is nearly full"], [])
        (disk / "filler").unlink()
        assert health(app) == (200, [], [])


def test_servers_of_one_database_share_the_folder_or_refuse_files(db_url, dialect, tmp_path):
    if dialect == "sqlite":
        pytest.skip("one server only")
    shared = Files(folder=str(tmp_path / "shared"))
    with inside(tmp_path / "a", db_url, files=shared) as first, inside(tmp_path / "b", db_url, files=shared) as second:
        assert upload(first) == 200
        body = {"files": [{"digest": DIGEST, "size": len(CONTENT)}]}
        assert second.post("/api/v1/files/missing", body, token=second.token("user")).json == {"missing": []}
        with inside(tmp_path / "c", db_url) as third:
            assert health(third) == (503, [NOT_THE_ONE], [])
            assert upload(third) == 503
