"""A server whose disk is full: it says so, keeps what it has, and goes on when there is space again."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

import urllib3

from myrmidon.model.errors import StoreFull
from myrmidon.store.engine.db import Db, open_db
from tests.bot.test_chaos import a_small_disk
from tests.deadline import HANG_S
from tests.live import live_server
from tests.server.contexts import a_task
from tests.server.wire import wait_for


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


def test_a_server_is_not_ready_while_its_disk_is_full(tmp_path):
    with a_small_disk(tmp_path / "disk", "size=48m") as disk, live_server(folder=disk) as server:
        task = {"tasks": [a_task()]}
        kept = server.post("/api/v1/tasks", task)[1]["tasks"][0]["task_id"]
        for _ in range(2):
            fill(disk / "filler")
            status, told = server.get("/readyz")
            assert (status, told["problems"]) == (503, ["the disk is full"])
            assert server.get(f"/api/v1/tasks/{kept}")[0] == 200
            (disk / "filler").unlink()
            wait_for(lambda: server.get("/readyz")[0] == 200)
            assert server.post("/api/v1/tasks", task)[0] == 200


PAGE = 4096
FRAMES_PER_INDEX = 4062
"""The index of the WAL grows by eight pages when the WAL has so many pages."""


def put(db: Db) -> None:
    """Write a few pages."""
    db.write(lambda tx: tx.run("INSERT INTO t (body) VALUES (:body)", body=bytes(PAGE)))


def test_a_disk_that_is_full_when_the_index_of_the_wal_grows_is_full_and_not_broken(tmp_path: Path):
    """SQLite then reports an I/O error, although it has written the transaction into the WAL."""
    with a_small_disk(tmp_path / "disk", "size=64m") as disk:
        db = open_db(f"sqlite:///{disk}/m.db")
        try:
            db.write(lambda tx: tx.run("CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)"))
            db.write(lambda tx: tx.run("PRAGMA wal_autocheckpoint = 0"))
            while (disk / "m.db-wal").stat().st_size < (FRAMES_PER_INDEX - 10) * (PAGE + 24):
                put(db)
            filler = disk / "filler"
            fill(filler)
            errors: list[str] = []
            while not any("I/O" in error for error in errors):
                try:
                    put(db)
                except StoreFull as error:
                    errors.append(str(error))
                    with filler.open("ab") as file:
                        file.truncate(filler.stat().st_size - PAGE)
            assert (db.disk_error, db.disk_is_full()) == ("", True)
            before = db.read(lambda tx: tx.all("SELECT COUNT(*) FROM t"))[0][0]
            filler.unlink()
            put(db)
            assert db.read(lambda tx: tx.all("SELECT COUNT(*) FROM t"))[0][0] == before + 1
        finally:
            db.close()


def test_a_server_that_cannot_write_although_there_is_space_ends(tmp_path: Path):
    with live_server(f"sqlite:///{tmp_path}/m.db", folder=tmp_path) as server:
        largest = (tmp_path / "m.db-wal").stat().st_size
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (largest, largest))
        statuses: list[int] = []
        with suppress(urllib3.exceptions.HTTPError):
            while len(statuses) < 10_000:
                statuses.append(server.post("/api/v1/tasks", {"tasks": [a_task()]})[0])
        assert server.process is not None
        assert (server.process.wait(HANG_S), set(statuses) <= {200, 503}) == (1, True)
        assert server.log.count("the disk of the database failed") == 1
