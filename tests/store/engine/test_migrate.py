"""Tables are brought up to date once, whoever asks and whatever is killed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import pytest

from myrmidon.model.errors import BrokenPromise, StoreRefused
from myrmidon.store.engine.db import Db, Dialect
from myrmidon.store.engine.migrate import CODE_VERSION, Migration, migrate, parse, shipped, verify
from myrmidon.store.engine.sql import Insert
from tests.deadline import HANG_S

NOW = 1_767_225_600_000_000
FIRST = parse(
    "0001_first.sql",
    """-- oldest code: 1
-- Comments; even with a semicolon and {nonsense} at their end;
CREATE TABLE IF NOT EXISTS item (
    id {id},
    name {text_key} NOT NULL,
    body {blob}
){table};
CREATE INDEX IF NOT EXISTS item_name ON item (name);
ALTER TABLE item {add_column} size BIGINT;

-- only postgresql:
ALTER TABLE item SET (fillfactor = 70);
-- only sqlite:
CREATE TABLE IF NOT EXISTS only_here (id {id});
""",
)
SECOND = parse(
    "0002_second.sql",
    """-- oldest code: 1
CREATE TABLE IF NOT EXISTS other (id {id}){table};
CREATE TABLE IF NOT EXISTS another (id {id}){clustered};
""",
)
BOTH = [FIRST, SECOND]
ROWS = [(1, 1, "0001_first.sql"), (2, 1, "0002_second.sql")]
VERSIONS = "SELECT version, oldest_code, name FROM schema_version ORDER BY version"

Open = Callable[..., Db]


def versions(db: Db) -> list[tuple[Any, ...]]:
    return db.read(lambda tx: tx.all(VERSIONS))


def later(migration: Migration, oldest_code: int) -> Migration:
    return Migration(3, oldest_code, "0003_later.sql", migration.text)


def test_migrations_are_applied_in_order_and_recorded(new_db_url: str, open_test_db: Open) -> None:
    db = open_test_db(new_db_url)
    assert migrate(db, NOW, migrations=BOTH) == ["0001_first.sql", "0002_second.sql"]
    assert versions(db) == ROWS
    assert db.read(lambda tx: tx.one("SELECT applied_at FROM schema_version WHERE version = 2")) == (NOW,)
    for table in ("item", "other", "another"):
        assert db.read(methodcaller("all", f"SELECT id FROM {table}")) == []


def test_a_second_time_nothing_is_left_to_do(new_db_url: str, open_test_db: Open) -> None:
    db = open_test_db(new_db_url)
    migrate(db, NOW, migrations=[FIRST])
    assert migrate(db, NOW, migrations=BOTH) == ["0002_second.sql"]
    assert migrate(db, NOW + 1, migrations=BOTH) == []
    assert versions(db) == ROWS


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches a kill."""


class Fuse:
    """A probe that kills at the n-th event."""

    left = 0

    def __call__(self, event: str, sql: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    def migrate(self, db: Db, migrations: list[Migration]) -> int:
        """Killed one event later each time, until it gets through; how often it was killed."""
        kills = 0
        while True:
            self.left = kills + 1
            try:
                migrate(db, NOW, migrations=migrations)
            except Killed:
                kills += 1
            else:
                self.left = 0
                return kills


def test_a_migration_killed_at_any_statement_is_completed_by_the_next(new_db_url: str, open_test_db: Open) -> None:
    fuse = Fuse()
    db = open_test_db(new_db_url, probe=fuse)
    assert fuse.migrate(db, BOTH) > 10
    assert versions(db) == ROWS
    assert verify(db, migrations=BOTH) == []
    assert db.read(lambda tx: tx.all("SELECT name, body, size FROM item")) == []


ADDS_COLUMNS = parse(
    "0003_columns.sql",
    """-- oldest code: 1
ALTER TABLE item {add_column} weight BIGINT;
ALTER TABLE other {add_column} note BIGINT;
""",
)


def test_columns_join_tables_with_rows_whatever_is_killed_and_code_of_before_goes_on(
    new_db_url: str, open_test_db: Open
) -> None:
    """The statements of the code of before name the columns that it knows."""
    fuse = Fuse()
    db = open_test_db(new_db_url, probe=fuse)
    migrate(db, NOW, migrations=BOTH, code=2)
    items = Insert("item", "id, name, size")
    db.write(lambda tx: tx.insert(items, [(1, "before", 5)]))
    assert fuse.migrate(db, [*BOTH, ADDS_COLUMNS]) > 5
    assert migrate(db, NOW, migrations=BOTH, code=2) == verify(db, migrations=BOTH, code=2) == []
    db.write(lambda tx: tx.insert(items, [(2, "later", 6)]))
    found = db.read(lambda tx: tx.all("SELECT name, size, weight FROM item ORDER BY id"))
    assert found == [("before", 5, None), ("later", 6, None)]
    assert db.read(lambda tx: tx.all("SELECT note FROM other")) == []


def test_two_servers_may_migrate_at_once(new_db_url: str, open_test_db: Open, dialect: str) -> None:
    first = open_test_db(new_db_url)
    other = first if dialect == "sqlite" else open_test_db(new_db_url)
    start = threading.Barrier(2)
    applied: list[str] = []
    errors: list[BaseException] = []

    def run(db: Db) -> None:
        start.wait(HANG_S)
        try:
            applied.extend(migrate(db, NOW, migrations=BOTH))
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(db,)) for db in (first, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert errors == []
    assert sorted(applied) == ["0001_first.sql", "0002_second.sql"]
    assert versions(first) == ROWS


def test_code_that_is_too_old_for_the_tables_is_refused_and_changes_nothing(
    new_db_url: str, open_test_db: Open
) -> None:
    db = open_test_db(new_db_url)
    migrate(db, NOW, migrations=[FIRST, later(SECOND, oldest_code=5)], code=5)
    before = versions(db)
    for ask in (migrate_old, verify_old):
        with pytest.raises(StoreRefused, match=r"0003_later.sql needs code 5"):
            ask(db)
    assert versions(db) == before


def migrate_old(db: Db) -> None:
    migrate(db, NOW, migrations=BOTH, code=4)


def verify_old(db: Db) -> None:
    verify(db, migrations=BOTH, code=4)


def test_the_release_before_runs_on_newer_tables_that_allow_it(new_db_url: str, open_test_db: Open) -> None:
    db = open_test_db(new_db_url)
    migrate(db, NOW, migrations=[*BOTH, later(SECOND, oldest_code=4)], code=5)
    assert migrate(db, NOW, migrations=BOTH, code=4) == []
    assert verify(db, migrations=BOTH, code=4) == []


def test_verify_tells_what_is_missing_and_changes_nothing(new_db_url: str, open_test_db: Open) -> None:
    db = open_test_db(new_db_url)
    assert verify(db, migrations=BOTH) == ["0001_first.sql", "0002_second.sql"]
    assert verify(db, migrations=BOTH) == ["0001_first.sql", "0002_second.sql"]
    migrate(db, NOW, migrations=[FIRST])
    assert verify(db, migrations=BOTH) == ["0002_second.sql"]


def test_statements_are_split_and_chosen_by_database() -> None:
    counts = {dialect: len(FIRST.statements(dialect)) for dialect in Dialect}
    assert counts == {Dialect.SQLITE: 4, Dialect.POSTGRESQL: 4, Dialect.MARIADB: 3}
    assert FIRST.statements(Dialect.MARIADB)[1] == "CREATE INDEX IF NOT EXISTS item_name ON item (name)"


@pytest.mark.parametrize(
    ("name", "text"),
    [("first.sql", "-- oldest code: 1\n"), ("0001_first.sql", "CREATE TABLE t (id {id});\n")],
)
def test_a_file_without_number_or_oldest_code_is_a_broken_promise(name: str, text: str) -> None:
    with pytest.raises(BrokenPromise):
        parse(name, text)


def test_an_unfinished_statement_is_a_broken_promise() -> None:
    with pytest.raises(BrokenPromise):
        parse("0001_first.sql", "-- oldest code: 1\nCREATE TABLE t (id {id})\n").statements(Dialect.SQLITE)


def test_what_is_shipped_is_numbered_without_gaps_and_runs_with_this_code() -> None:
    migrations = shipped()
    assert [it.version for it in migrations] == list(range(1, len(migrations) + 1))
    assert all(it.oldest_code <= CODE_VERSION for it in migrations)


def test_what_is_shipped_can_be_applied_and_found_complete(new_db_url: str, open_test_db: Open) -> None:
    db = open_test_db(new_db_url)
    assert migrate(db, NOW) == [it.name for it in shipped()]
    assert verify(db) == []
