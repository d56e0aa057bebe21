"""Files that nothing refers to are deleted some time after their last use, and no others."""

from __future__ import annotations

import os
from functools import partial
from hashlib import sha256

import pytest

from myrmidon.files.folder import PREFIXES, FileFolder
from myrmidon.model.ids import show_task
from myrmidon.server.background.file_collection import PREFIXES_PER_PASS, FileCollection
from myrmidon.store.tables import stored_file
from tests.server.functions import stored_constant, world_of
from tests.server.inside import BOT, Inside, inside
from tests.world import a_function, a_node, finish

CONTENT = b"content" * 1000
DIGEST = sha256(CONTENT).hexdigest()
HOUR = 3_600_000_000


@pytest.fixture
def app(tmp_path, db_url):
    with inside(tmp_path, db_url) as opened:
        yield opened


def upload(app: Inside, content: bytes = CONTENT) -> str:
    digest = sha256(content).hexdigest()
    assert app.put(f"/api/v1/files/{digest}", content).status == 200
    return digest


def later(app: Inside, hours: float) -> None:
    now = app.context.now() + int(hours * HOUR)
    app.context.now = lambda: now


def collect(app: Inside) -> int:
    """One round over all digests; how many files were deleted."""
    collection = FileCollection(app.context)
    return sum(app.run(collection.run()) for _ in range(len(PREFIXES) // PREFIXES_PER_PASS))


def folder_of(app: Inside) -> FileFolder:
    return app.context.files.folder


def rows(app: Inside) -> list[str]:
    return [row[0] for row in app.context.db.engine.read(lambda tx: tx.all("SELECT digest FROM stored_files"))]


def exists(app: Inside) -> tuple[bool, bool]:
    """Whether there is a row, and a file."""
    return DIGEST in rows(app), folder_of(app).has(DIGEST, len(CONTENT))


def test_a_file_that_nobody_uses_is_deleted_after_a_day(app):
    upload(app)
    later(app, 23)
    assert (collect(app), exists(app)) == (0, (True, True))
    later(app, 2)
    assert (collect(app), exists(app)) == (1, (False, False))
    assert collect(app) == 0


def test_asking_for_a_file_keeps_it_for_another_day(app):
    upload(app)
    later(app, 20)
    body = {"files": [{"digest": DIGEST, "size": len(CONTENT)}]}
    assert app.post("/api/v1/files/missing", body).json == {"missing": []}
    later(app, 20)
    assert (collect(app), exists(app)) == (0, (True, True))
    later(app, 5)
    assert (collect(app), exists(app)) == (1, (False, False))
    assert app.post("/api/v1/files/missing", body).json == {"missing": [DIGEST]}


def test_a_file_that_a_value_refers_to_is_kept_until_its_job_is_deleted(app):
    upload(app)
    world = world_of(app)
    job = world.job({"f": a_node(task=a_function(stored_constant(DIGEST, len(CONTENT))))})
    world.report(finish(world.running(BOT)[0], b"\x01"))
    later(app, 100)
    assert (collect(app), exists(app)) == (0, (True, True))
    assert app.delete(f"/api/v1/jobs/{show_task(job.job_id)}").status == 200
    app.settle(show_task(job.job_id))
    assert (collect(app), exists(app)) == (1, (False, False))


def test_the_code_of_a_job_is_kept_until_the_job_is_deleted(app):
    upload(app)
    world = world_of(app)
    function = {"package_name": "lib", "func_name": "f", "code": DIGEST}
    job = world.job({"f": a_node(task={**a_function(), "function": function})})
    world.report(finish(world.running(BOT)[0], b"\x01"))
    later(app, 100)
    assert (collect(app), exists(app)) == (0, (True, True))
    app.delete(f"/api/v1/jobs/{show_task(job.job_id)}")
    app.settle(show_task(job.job_id))
    assert (collect(app), exists(app)) == (1, (False, False))


def test_a_file_is_kept_for_the_group_that_still_has_it(app):
    app.post("/api/v1/groups", {"name": "other"})
    upload(app)
    later(app, 20)
    app.put(f"/api/v1/files/{DIGEST}?group=other", CONTENT)
    later(app, 10)
    assert collect(app) == 0
    assert (rows(app), exists(app)) == ([DIGEST], (True, True))


def test_a_file_without_a_row_is_deleted_when_it_is_old(app):
    folder_of(app).store(DIGEST, CONTENT)
    assert (collect(app), exists(app)) == (0, (False, True))
    os.utime(folder_of(app).path_of(DIGEST), (0, 0))
    assert (collect(app), exists(app)) == (1, (False, False))


def test_a_file_that_is_stored_again_meanwhile_is_kept(app, monkeypatch):
    """The row is there again after the collection has looked for it."""
    upload(app)
    later(app, 25)
    known = stored_file.known

    def stored_again(tx, digests):
        found = known(tx, digests)
        folder_of(app).store(DIGEST, CONTENT)
        os.utime(folder_of(app).path_of(DIGEST), (2e12, 2e12))
        app.context.db.engine.write(
            partial(stored_file.insert, digest=DIGEST, group_id=1, size=len(CONTENT), now=app.context.now())
        )
        return found

    monkeypatch.setattr(stored_file, "known", stored_again)
    assert (collect(app), exists(app)) == (0, (True, True))


def test_a_reference_that_is_added_while_rows_are_deleted_wins(app, monkeypatch):
    upload(app)
    later(app, 25)
    unused = stored_file.unused

    def used_again(tx, prefix, *, before, n):
        found = unused(tx, prefix, before=before, n=n)
        if found:
            group = app.context.db.engine.read(lambda tx: tx.one("SELECT resource_group_id FROM stored_files"))[0]
            renew = partial(stored_file.renew, digests=[DIGEST], group_id=group, now=app.context.now())
            app.context.db.engine.write(renew)
        return found

    monkeypatch.setattr(stored_file, "unused", used_again)
    assert (collect(app), exists(app)) == (0, (True, True))


def test_nothing_is_deleted_while_the_time_is_uncertain(app):
    upload(app)
    later(app, 25)
    app.context.state.clock_skew = 2 * app.context.rules.max_skew
    assert collect(app) == 0
    app.context.state.clock_skew, app.context.state.retention_waits_until = 0, app.context.now() + HOUR
    assert collect(app) == 0
    app.context.state.retention_waits_until = None
    assert collect(app) == 1


def test_nothing_is_deleted_in_a_folder_of_another_database(app):
    upload(app)
    later(app, 25)
    (folder_of(app).root / "id").write_text("1")
    assert (collect(app), exists(app)) == (0, (True, True))


def test_parts_of_uploads_of_killed_servers_are_removed(app):
    (folder_of(app).root / "tmp" / "part").write_bytes(b"part")
    collect(app)
    assert os.listdir(folder_of(app).root / "tmp") == ["part"]
    later(app, 25)
    collect(app)
    assert os.listdir(folder_of(app).root / "tmp") == []
