"""Backups while the server works, restoring them, and the move from SQLite to a database server."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from myrmidon.model.errors import StoreRefused
from myrmidon.server import backup as backup_module
from myrmidon.server.backup import backup, copy_db, restore
from myrmidon.server.settings import Settings
from myrmidon.store.engine import migrate, table_copy
from myrmidon.store.engine.db import Tx, open_db
from tests import databases, servers
from tests.live import live_server
from tests.server.contexts import a_task
from tests.server.inside import inside

BYTES = bytes(range(256)) * 40


def settings_at(folder: Path, database: str | None = None, log_database: str = "") -> Settings:
    url = database or f"sqlite:///{folder}/myrmidon.db"
    durable = all(one.startswith("sqlite:") for one in (url, log_database) if one)
    return Settings(data_dir=str(folder), database=url, log_database=log_database, durable=durable)


def everything(url: str, log_url: str) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables, in the order of their keys."""
    found = {}
    for address, is_log in ((url, False), (log_url, True)):
        db = open_db(address, durable=False, role="reader")
        for table in table_copy.tables():
            if (table.name in table_copy.LOG_TABLES) == is_log:
                found[table.name] = db.read(partial(rows_of, table=table))
        db.close()
    return found


def rows_of(tx: Tx, table: table_copy.Table) -> list[tuple[object, ...]]:
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
        restore(settings_at(server.folder), tmp_path / "copy")
        for name in ("myrmidon.db", "myrmidon.db-logs"):
            with closing(sqlite3.connect(server.folder / name)) as file:
                assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        server.start()
        assert len(server.get("/api/v1/tasks")[1]["tasks"]) == 5


@pytest.mark.full
def test_what_is_replaced_after_a_kill_is_kept_whole(tmp_path):
    with live_server() as server:
        backup(settings_at(server.folder), tmp_path / "copy")
        server.post("/api/v1/tasks", {"tasks": [a_task()] * 5})
        server.kill()
        restore(settings_at(server.folder), tmp_path / "copy", replace=True)
        with closing(sqlite3.connect(the_old_one(server.folder))) as file:
            assert file.execute("SELECT COUNT(*) FROM task_requests").fetchall() == [(5,)]


def test_what_restores_in_a_row_put_aside_is_kept_apart(installation, tmp_path):
    backup(settings_at(installation), tmp_path / "copy")
    texts = [b"one", b"two", b"three"]
    for text in texts:
        for name in ("myrmidon.db", "myrmidon.db-wal"):
            (installation / name).write_bytes(text)
        restore(settings_at(installation), tmp_path / "copy", replace=True)
    mains = [path for path in installation.glob("myrmidon.db.before-*") if not path.name.endswith(("-wal", "-shm"))]
    assert sorted(path.read_bytes() for path in mains) == sorted(texts)
    for path in mains:
        assert path.with_name(f"{path.name}-wal").read_bytes() == path.read_bytes()


@pytest.mark.full
def test_a_damaged_database_is_replaced(installation, tmp_path):
    backup(settings_at(installation), tmp_path / "copy")
    damage = b"no database " * 1000
    (installation / "myrmidon.db").write_bytes(damage)
    restore(settings_at(installation), tmp_path / "copy", replace=True)
    with inside(installation) as app:
        assert len(app.get("/api/v1/tasks").json["tasks"]) == 5
    assert the_old_one(installation).read_bytes() == damage


def test_data_and_backups_are_for_their_owner_alone_whatever_the_folder_allows(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with live_server(folder=tmp_path / "open"):
        backup(settings_at(tmp_path / "open"), tmp_path / "copy")
        made = [*(tmp_path / "open").glob("myrmidon.db*"), *(tmp_path / "copy").glob("myrmidon.db*")]
        names = {f"myrmidon.db{part}" for logs in ("", "-logs") for part in (logs, f"{logs}-wal", f"{logs}.lock")}
        assert names <= {path.name for path in made}
        assert {oct(path.stat().st_mode & 0o777) for path in made} == {"0o600"}
    (tmp_path / "new").mkdir(mode=0o755)
    restore(settings_at(tmp_path / "new"), tmp_path / "copy")
    modes = {(path.is_dir(), oct(path.stat().st_mode & 0o777)) for path in (tmp_path / "new").rglob("*")}
    assert modes == {(True, "0o700"), (False, "0o600")}
    (tmp_path / "new" / "myrmidon.db").chmod(0o640)
    with inside(tmp_path / "new"):
        assert (tmp_path / "new" / "myrmidon.db-wal").stat().st_mode & 0o777 == 0o640


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
    main.unlink()
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
    assert files == ["backup.json", "files", "myrmidon.db", "myrmidon.db-logs"]


def test_logs_with_a_database_of_their_own_are_moved_backed_up_and_restored(installation, server_url, tmp_path):
    old = f"sqlite:///{installation}/myrmidon.db"
    before = everything(old, f"{old}-logs")
    elsewhere = f"sqlite:///{tmp_path}/elsewhere"
    (installation / "myrmidon.db-logs").rename(tmp_path / "elsewhere")
    place, log_place = server_url, servers.new_database(server_url)
    copy_db(old, place, from_logs=elsewhere, to_logs=log_place, durable=False)
    assert everything(place, log_place) == before
    backup(settings_at(installation, place, log_place), tmp_path / "copy")
    place, log_place = servers.new_database(server_url), servers.new_database(server_url)
    restore(settings_at(installation, place, log_place), tmp_path / "copy")
    assert everything(place, log_place) == before
    back = f"sqlite:///{tmp_path}/back.db"
    with pytest.raises(StoreRefused, match="not empty"):
        copy_db(place, back, from_logs=log_place, to_logs=elsewhere, durable=False)
    copy_db(place, back, from_logs=log_place, durable=False)
    assert everything(back, f"{back}-logs") == before


def test_a_backup_is_restored_with_its_logs_on_another_kind_of_database(installation, server_url, tmp_path):
    backup(settings_at(installation), tmp_path / "copy")
    old, new = f"sqlite:///{installation}/myrmidon.db", f"sqlite:///{tmp_path}/new/myrmidon.db"
    restore(settings_at(tmp_path / "new", new, server_url), tmp_path / "copy")
    assert everything(new, server_url) == everything(old, f"{old}-logs")
    assert not (tmp_path / "new" / "myrmidon.db-logs").exists()


@pytest.mark.full
def test_logs_that_lie_elsewhere_are_not_left_behind_without_a_word(installation, tmp_path):
    old = f"sqlite:///{installation}/myrmidon.db"
    with inside(installation) as app:
        app.context.db.engine.write(lambda tx: tx.run("UPDATE task_runs SET stdout_size = 1"))
    (installation / "myrmidon.db-logs").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreRefused, match="--from-logs"):
        copy_db(old, f"sqlite:///{tmp_path}/new.db")
    assert not list(tmp_path.glob("new.db*"))
    assert not (installation / "myrmidon.db-logs").exists()
    done = copy_db(old, f"sqlite:///{tmp_path}/new.db", from_logs=f"sqlite:///{tmp_path}/elsewhere")
    assert done["log_chunks"].num_bytes == len(BYTES)


@pytest.mark.full
def test_what_is_not_there_is_neither_moved_nor_backed_up_nor_made(installation, tmp_path):
    old, none = f"sqlite:///{installation}/myrmidon.db", f"sqlite:///{tmp_path}/none.db"
    for source, its_logs in ((none, None), (old, none)):
        with pytest.raises(StoreRefused, match=r"no database .*none\.db"):
            copy_db(source, f"sqlite:///{tmp_path}/new.db", from_logs=its_logs)
    with pytest.raises(StoreRefused, match="no database"):
        backup(settings_at(tmp_path / "none"), tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE something_else (x)")
    with pytest.raises(StoreRefused, match="no installation"):
        copy_db(f"sqlite:///{tmp_path}/other.db", f"sqlite:///{tmp_path}/new.db")
    assert not [path for name in ("none", "new", "copy") for path in tmp_path.glob(f"{name}*")]


def test_a_backup_of_an_earlier_release_is_restored_to_a_server(installation, server_url, tmp_path, monkeypatch):
    """The later release has one more migration, which adds a column."""
    backup(settings_at(installation), tmp_path / "copy")
    adds_column = migrate.parse("9999_later.sql", "-- oldest code: 1\nALTER TABLE bots {add_column} later BIGINT;\n")
    migrations = [*migrate.shipped(), adds_column]
    for module in (migrate, table_copy, backup_module):
        monkeypatch.setattr(module, "shipped", lambda: migrations)
    restore(settings_at(tmp_path / "new", server_url), tmp_path / "copy")
    rows = everything(server_url, server_url)
    assert rows["bots"][0][-1] is None
    assert len(rows["task_requests"]) == 5


def test_a_database_in_use_is_not_moved(installation, tmp_path):
    old = f"sqlite:///{installation}/myrmidon.db"
    with inside(installation), pytest.raises(StoreRefused):
        copy_db(old, f"sqlite:///{tmp_path}/new.db")


def test_the_list_of_tables_is_that_of_the_schema(sqlite_db):
    known = {table.name.strip('"') for table in table_copy.tables()} | table_copy.NOT_COPIED | {"schema_version"}
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    assert {name for (name,) in sqlite_db.read(lambda tx: tx.all(sql))} == known
    for table in table_copy.tables():
        told = sqlite_db.read(lambda tx, table=table: tx.all(f"PRAGMA table_info({table.name})"))
        assert [row[1] for row in told] == list(table.columns)
        assert tuple(row[1] for row in sorted(told, key=lambda row: row[5]) if row[5]) == table.key
