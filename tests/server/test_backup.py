"""Backups while the server works, restoring them, and the move from SQLite to a database server."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from myrmidon.model.errors import StoreRefused
from myrmidon.server.backup import backup, copy_db, restore
from myrmidon.server.settings import Settings
from myrmidon.store import copying
from myrmidon.store.db import Tx, open_db
from tests import databases, servers
from tests.live import live_server
from tests.server.doors import a_task
from tests.server.inside import inside

BYTES = bytes(range(256)) * 40


def settings_at(folder: Path, database: str | None = None) -> Settings:
    url = database or f"sqlite:///{folder}/myrmidon.db"
    return Settings(data_dir=str(folder), database=url, durable=url.startswith("sqlite:"))


def everything(url: str, log_url: str) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables, in the order of their keys."""
    found = {}
    for address, is_log in ((url, False), (log_url, True)):
        db = open_db(address, durable=False, role="reader")
        for table in copying.tables():
            if (table.name in copying.LOG_TABLES) == is_log:
                found[table.name] = db.read(partial(rows_of, table=table))
        db.close()
    return found


def rows_of(tx: Tx, table: copying.Table) -> list[tuple[object, ...]]:
    sql = f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {', '.join(table.key)}"
    return [tuple(row) for row in tx.all(sql)]


def the_old_one(folder: Path) -> Path:
    """What a restore has moved away; beside it may lie what SQLite kept for it."""
    (found,) = [path for path in folder.glob("myrmidon.db.before-*") if not path.name.endswith(("-wal", "-shm"))]
    return found


@pytest.fixture
def installation(tmp_path):
    """An SQLite installation that has lived: tasks, secrets, a bot, a run with a log of odd bytes."""
    folder = tmp_path / "old"
    folder.mkdir()
    with inside(folder) as app:
        (folder / "admin.token").write_text(app.token("admin"))
        app.token("user")
        app.meet_bot()
        app.submit(a_task(), a_task("echo", secret_bytes="c2VjcmV0"), *[a_task(name) for name in ("ä", "b'", 'c"\\')])
        bot = {"token": app.token("bot")}
        got = app.post("/bot/v1/exchange", {"session": 1, "nonce": 1, "n": 1}, **bot).json["tasks"][0]
        path = f"/bot/v1/log/{got['run']}/0?offset=0"
        assert app.post(path, BYTES, headers={"X-Run-Token": got["token"]}, **bot).status == 200
    return folder


def test_a_backup_made_while_the_server_works_is_of_one_moment(tmp_path):
    with live_server() as server:
        stop, count = threading.Event(), 0

        def submit_on() -> None:
            nonlocal count
            while not stop.is_set():
                server.post("/api/v1/tasks", {"tasks": [a_task()] * 5})
                count += 5

        writer = threading.Thread(target=submit_on)
        writer.start()
        try:
            for number in range(3):
                backup(settings_at(server.folder), tmp_path / f"copy{number}")
        finally:
            stop.set()
            writer.join()
    for number in range(3):
        restore(settings_at(tmp_path / f"new{number}"), tmp_path / f"copy{number}")
        url = f"sqlite:///{tmp_path}/new{number}/myrmidon.db"
        rows = everything(url, f"{url}-logs")
        assert len(rows["task_requests"]) == len(rows["task_results"]) == len(rows["task_to_run"])
        assert len(rows["task_requests"]) % 5 == 0


def test_a_restored_server_goes_on_where_the_backup_was(installation, tmp_path):
    backup(settings_at(installation), tmp_path / "copy")
    with live_server(folder=installation) as server:
        server.post("/api/v1/tasks", {"tasks": [a_task()]})
        assert server.stop() == 0
    with pytest.raises(StoreRefused):
        restore(settings_at(installation), tmp_path / "copy")
    restore(settings_at(installation), tmp_path / "copy", replace=True)
    with inside(installation) as app:
        assert len(app.get("/api/v1/tasks").json["tasks"]) == 5
        assert app.get("/api/v1/tasks", token=app.token("user")).status == 200
    assert list(installation.glob("myrmidon.db.before-*"))


def test_a_running_server_is_not_restored_over(installation, tmp_path):
    backup(settings_at(installation), tmp_path / "copy")
    with inside(installation), pytest.raises(StoreRefused):
        restore(settings_at(installation), tmp_path / "copy", replace=True)


def test_what_a_killed_server_left_is_not_read_into_what_is_restored(tmp_path):
    with live_server() as server:
        server.post("/api/v1/tasks", {"tasks": [a_task()] * 5})
        backup(settings_at(server.folder), tmp_path / "copy")
        server.post("/api/v1/tasks", {"tasks": [a_task()] * 200})
        server.kill()
        for name in ("myrmidon.db", "myrmidon.db-logs"):
            (server.folder / name).unlink()
        assert (server.folder / "myrmidon.db-wal").stat().st_size
        with pytest.raises(StoreRefused, match=r"myrmidon\.db-wal is there already"):
            restore(settings_at(server.folder), tmp_path / "copy")
        restore(settings_at(server.folder), tmp_path / "copy", replace=True)
        for name in ("myrmidon.db", "myrmidon.db-logs"):
            with closing(sqlite3.connect(server.folder / name)) as file:
                assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        server.start()
        assert len(server.get("/api/v1/tasks")[1]["tasks"]) == 5


def test_what_is_replaced_after_a_kill_is_kept_whole(tmp_path):
    with live_server() as server:
        backup(settings_at(server.folder), tmp_path / "copy")
        server.post("/api/v1/tasks", {"tasks": [a_task()] * 5})
        server.kill()
        restore(settings_at(server.folder), tmp_path / "copy", replace=True)
        with closing(sqlite3.connect(the_old_one(server.folder))) as file:
            assert file.execute("SELECT COUNT(*) FROM task_requests").fetchall() == [(5,)]


def test_a_damaged_database_is_replaced(installation, tmp_path):
    backup(settings_at(installation), tmp_path / "copy")
    damage = b"no database " * 1000
    (installation / "myrmidon.db").write_bytes(damage)
    restore(settings_at(installation), tmp_path / "copy", replace=True)
    with inside(installation) as app:
        assert len(app.get("/api/v1/tasks").json["tasks"]) == 5
    assert the_old_one(installation).read_bytes() == damage


def test_what_is_no_backup_is_refused_and_nothing_is_touched(installation, tmp_path):
    backup(settings_at(installation), tmp_path / "copy")
    with pytest.raises(StoreRefused):
        backup(settings_at(installation), tmp_path / "copy")
    with pytest.raises(StoreRefused):
        restore(settings_at(tmp_path / "new"), tmp_path)
    main = tmp_path / "copy" / "myrmidon.db"
    main.write_bytes(main.read_bytes()[:4096] + b"x" * 8192)
    with pytest.raises(StoreRefused):
        restore(settings_at(tmp_path / "new"), tmp_path / "copy")
    assert not (tmp_path / "new").exists()


@pytest.fixture
def server_url(dialect):
    if dialect == "sqlite":
        pytest.skip("moves from SQLite to a server")
    return servers.new_database(databases.server_url(dialect))


def test_a_move_to_a_server_loses_nothing_and_work_goes_on(installation, server_url):
    old = f"sqlite:///{installation}/myrmidon.db"
    before = everything(old, f"{old}-logs")
    done = copy_db(old, server_url, durable=False)
    assert {name: copied.rows for name, copied in done.items()} == {name: len(rows) for name, rows in before.items()}
    assert done["log_chunks"].num_bytes == len(BYTES)
    assert everything(server_url, server_url) == before
    with live_server(server_url, folder=installation) as server:
        assert len(server.get("/api/v1/tasks")[1]["tasks"]) == 5
        assert server.stop() == 0
    with pytest.raises(StoreRefused, match="not empty"):
        copy_db(old, server_url, durable=False)


def test_a_server_is_backed_up_and_restored_as_of_one_moment(installation, server_url, tmp_path):
    old = f"sqlite:///{installation}/myrmidon.db"
    copy_db(old, server_url, durable=False)
    backup(settings_at(installation, server_url), tmp_path / "copy")
    other = servers.new_database(server_url)
    restore(settings_at(tmp_path / "new", other), tmp_path / "copy")
    assert everything(other, other) == everything(server_url, server_url)
    files = sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert files == ["backup.json", "myrmidon.db", "myrmidon.db-logs"]


def test_a_backup_of_an_earlier_release_is_restored_to_a_server(installation, server_url, tmp_path):
    backup(settings_at(installation), tmp_path / "copy")
    for name in ("myrmidon.db", "myrmidon.db-logs"):
        with closing(sqlite3.connect(tmp_path / "copy" / name)) as file:
            file.executescript("""
                ALTER TABLE bots DROP COLUMN idle_at;
                ALTER TABLE task_runs DROP COLUMN idle_since;
                DELETE FROM schema_version WHERE version = 3;
            """)
    restore(settings_at(tmp_path / "new", server_url), tmp_path / "copy")
    rows = everything(server_url, server_url)
    assert [rows[table][0][-1] for table in ("bots", "task_runs")] == [None, None]
    assert len(rows["task_requests"]) == 5


def test_a_database_in_use_is_not_moved(installation, tmp_path):
    old = f"sqlite:///{installation}/myrmidon.db"
    with inside(installation), pytest.raises(StoreRefused):
        copy_db(old, f"sqlite:///{tmp_path}/new.db")


def test_the_list_of_tables_is_that_of_the_schema(sqlite_db):
    known = {table.name.strip('"') for table in copying.tables()} | copying.NOT_COPIED | {"schema_version"}
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    assert {name for (name,) in sqlite_db.read(lambda tx: tx.all(sql))} == known
    for table in copying.tables():
        told = sqlite_db.read(lambda tx, table=table: tx.all(f"PRAGMA table_info({table.name})"))
        assert [row[1] for row in told] == list(table.columns)
        assert tuple(row[1] for row in sorted(told, key=lambda row: row[5]) if row[5]) == table.key
