"""The ground the other tests stand on: servers that come back, databases that are empty."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pymysql
import pytest

from tests import databases, servers

on_servers = pytest.mark.parametrize("dialect", servers.KINDS, indirect=True)


@pytest.fixture
def link(dialect):
    """A database with two tables, one of them filled by its migration, and a name that needs quotes."""
    link = databases.connect(servers.new_database(databases.server_url(dialect)))
    for statement in (
        'CREATE TABLE "values" (id INT PRIMARY KEY)',
        "CREATE TABLE shared_numbers (id INT PRIMARY KEY)",
    ):
        link.run(statement)
    link.run("INSERT INTO shared_numbers VALUES (7)")
    yield link
    link.close()


@on_servers
def test_emptying_leaves_exactly_what_the_migration_left(link):
    rows = databases.Rows(link)
    link.run('INSERT INTO "values" VALUES (1), (2)')
    link.run("UPDATE shared_numbers SET id = 8")
    rows.empty()
    assert link.rows('SELECT * FROM "values"') == []
    assert link.rows("SELECT * FROM shared_numbers") == [(7,)]


@on_servers
def test_a_database_with_a_lock_left_behind_is_abandoned(dialect, monkeypatch):
    database = databases.ServerDatabase(databases.server_url(dialect), lambda url: None)
    first = database.emptied()
    error = psycopg.Error if dialect == "postgresql" else pymysql.err.OperationalError

    def locked(self: databases.Rows) -> None:
        raise error("lock timeout")

    monkeypatch.setattr(databases.Rows, "empty", locked)
    assert database.emptied() != first
    database.close()


@pytest.mark.parametrize("kind", servers.KINDS)
def test_a_killed_server_comes_back_with_what_it_held(kind):
    if why := servers.available()[kind]:
        pytest.skip(why)
    server = servers.postgresql() if kind == "postgresql" else servers.mariadb()
    url = server.new_database()
    servers.execute(url, "CREATE TABLE a (id INT PRIMARY KEY)")
    server.kill()
    server.start()
    servers.execute(url, "INSERT INTO a VALUES (1)")
    server.stop()
    assert not server.folder.exists()


@pytest.mark.parametrize("dialect", ["mariadb"], indirect=True)
def test_no_other_server_can_reach_the_temporary_tables(link):
    """MariaDB removes all it finds where it starts, and one that loses a table it has just made crashes."""
    assert link.rows("SELECT CONCAT(@@tmpdir, '/data/') = @@datadir") == [(1,)]


def test_settings_that_a_shell_exports_do_not_reach_the_tests():
    """A bot prefers them to the server in its zip: its tests would call that server."""
    name = "tests/bot/test_main.py::test_a_zip_tells_what_is_in_it_and_whom_it_would_call[this]"
    env = {**os.environ, "MYRMIDON_SERVER": "http://127.0.0.1:9", "MYRMIDON_BOT_DIR": "/nowhere"}
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--databases", "sqlite", "-p", "no:cacheprovider", name]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
