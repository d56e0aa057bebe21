"""The same promises on three databases: values, lists, counts, retries, and what is refused."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from myrmidon.model.errors import BrokenPromise, StoreBusy, StoreFull, StoreRefused, StoreUnavailable
from myrmidon.store.engine import mariadb, postgresql, sqlite
from myrmidon.store.engine.db import (
    ConnectionLost,
    Db,
    Dialect,
    Insert,
    LostRace,
    LostReply,
    Row,
    RowDelete,
    RowUpdate,
    Tx,
    open_db,
)
from myrmidon.store.engine.sql import json_text
from tests import databases, servers
from tests.deadline import HANG_S

sqlite3: Any = vars(sqlite)["sqlite3"]  # the module that was chosen there
MANY = 5000
NASTY = [
    "", " ", "a ", "a", "Build", "build", "it's", '"quoted"', "back\\slash", "\\'", "\\", "tab\tnew\nline\r",
    "\\N", "100 % %s %(a)s", ":name", "::", "{in:ids}", "{}", "NULL", "null", ",", "é", "e\u0301", "日本語",
    "😀", "\x01\x7f",
]  # fmt: skip
ALL_BYTES = bytes(range(256))
BIG, SMALL = 2**63 - 1, -(2**63)

ITEMS = Insert("item", "id, n, name, body, cost")
CREATE = """
    CREATE TABLE item (
        id {id}, n BIGINT, name VARCHAR(300), body {blob}, cost DOUBLE PRECISION, note {longtext}
    ){table}
"""

Open = Callable[..., Db]
_urls: dict[str, str] = {}


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of this file's own; its tables are created for every test."""
    if dialect == "sqlite":
        files: databases.SqliteFiles = request.getfixturevalue("sqlite_files")
        new = files.new()
        yield new
        files.remove(new)
        return
    if dialect not in _urls:
        _urls[dialect] = servers.new_database(databases.server_url(dialect))
    yield _urls[dialect]


@pytest.fixture
def open_url(url: str, open_test_db: Open) -> Open:
    """Open it with any probe; nothing sleeps."""

    def open_it(**options: Any) -> Db:
        return open_test_db(url, **({"sleep": lambda _: None} | options))

    return open_it


@pytest.fixture
def db(open_url: Open) -> Db:
    """With an empty table `item`."""
    db = open_url()
    db.write(lambda tx: (tx.run("DROP TABLE IF EXISTS item"), tx.run(CREATE)))
    return db


def items(count: int, first: int = 1) -> list[tuple[Any, ...]]:
    return [(i, i * 10, f"name {i}", b"body", i / 4) for i in range(first, first + count)]


def put(db: Db, rows: list[tuple[Any, ...]]) -> None:
    db.write(lambda tx: tx.insert(ITEMS, rows))


def ids(db: Db) -> list[int]:
    return [row[0] for row in db.read(lambda tx: tx.all("SELECT id FROM item ORDER BY id"))]


class Script:
    """A probe that raises at the chosen occurrences of an event, and counts all of them."""

    def __init__(self, event: str = "", error: BaseException | None = None, times: int = 1) -> None:
        self.event, self.error, self.times = event, error, times
        self.seen: list[str] = []

    def __call__(self, event: str, sql: str) -> None:
        self.seen.append(event)
        if event == self.event and self.times:
            self.times -= 1
            assert self.error is not None
            raise self.error


# --- Values ---


@pytest.mark.parametrize("text", NASTY)
def test_text_comes_back_as_it_went_in(db: Db, text: str) -> None:
    row = db.read(lambda tx: tx.one("SELECT :text || ''", text=text))
    put(db, [(1, None, text, None, None)])
    stored = db.read(lambda tx: tx.all("SELECT id, name FROM item WHERE name = :text", text=text))
    assert (row, stored) == ((text,), [(1, text)])


@pytest.mark.parametrize("count", [1, 20])
def test_every_kind_of_value_survives_every_form_of_insert(db: Db, count: int) -> None:
    rows = [
        row
        for first in range(0, count * 4, 4)
        for row in (
            (first, BIG, "text", ALL_BYTES, 0.1),
            (first + 1, SMALL, "it's\\\t\n\r\b\v", b"", -1e300),
            (first + 2, None, None, None, None),
            (first + 3, 0, "", b"\\x41'\0", 1e16),
        )
    ]
    put(db, rows)
    assert db.read(lambda tx: tx.all("SELECT id, n, name, body, cost FROM item ORDER BY id")) == rows


def test_blobs_come_back_as_bytes_through_parameters(db: Db) -> None:
    put(db, items(1))
    assert db.write(lambda tx: tx.run("UPDATE item SET body = :body WHERE id = 1", body=ALL_BYTES)) == 1
    assert db.read(lambda tx: tx.one("SELECT body FROM item WHERE body = :body", body=ALL_BYTES)) == (ALL_BYTES,)


def test_a_boolean_is_stored_as_a_number(db: Db) -> None:
    put(db, [(1, True, None, None, None), (2, False, None, None, None)])
    put(db, [(i, True, None, None, None) for i in range(10, 40)])
    rows = db.read(lambda tx: tx.all("SELECT id, n FROM item WHERE n = :yes ORDER BY id LIMIT 2", yes=True))
    assert rows == [(1, 1), (10, 1)]


def test_enums_are_stored_as_their_values(db: Db) -> None:
    put(db, [(1, None, Dialect.SQLITE, None, None)])
    found = db.read(lambda tx: tx.one("SELECT name FROM item WHERE name = :name", name=Dialect.SQLITE))
    assert found == ("sqlite",)


def test_sums_are_plain_numbers(db: Db) -> None:
    put(db, items(4))
    (row,) = db.read(lambda tx: tx.all("SELECT SUM(n), SUM(cost), COUNT(*), MAX(id) FROM item"))
    assert row == (100, 2.5, 4, 4)
    assert [type(value) for value in row] == [int, float, int, int]


def test_equality_minds_case_and_trailing_space(db: Db) -> None:
    put(db, [(n, None, name, None, None) for n, name in enumerate(NASTY)])

    def find(tx: Tx) -> list[Any]:
        return [tx.all("SELECT id FROM item WHERE name = :name", name=name) for name in NASTY]

    assert db.read(find) == [[(n,)] for n in range(len(NASTY))]


def test_literals_mean_the_same_everywhere(db: Db) -> None:
    sql = r"SELECT 'a\b', '100%', ':x', 'it''s', 7 % 4, 'a' || 'b', '{in:x}'  -- it's a comment :y"
    assert db.read(lambda tx: tx.one(sql)) == ("a\\b", "100%", ":x", "it's", 3, "ab", "{in:x}")


def test_one_gives_none_when_there_is_no_row(db: Db) -> None:
    assert db.read(lambda tx: tx.one("SELECT id FROM item")) is None


def test_a_missing_parameter_is_an_error(db: Db) -> None:
    with pytest.raises((KeyError, sqlite3.ProgrammingError)):
        db.read(lambda tx: tx.one("SELECT id FROM item WHERE id = :id AND n = :n", id=1))


# --- Lists ---


@pytest.mark.parametrize("count", [0, 1, 3, MANY])
def test_in_finds_the_members_of_a_list_of_numbers(db: Db, count: int) -> None:
    put(db, items(MANY))
    wanted = list(range(MANY, MANY - count, -1))
    found = db.read(lambda tx: tx.all("SELECT id FROM item WHERE id {in:ids} ORDER BY id DESC", ids=wanted))
    assert [row[0] for row in found] == wanted
    assert db.write(lambda tx: tx.run("UPDATE item SET n = 0 WHERE id {in:ids}", ids=wanted)) == count
    assert db.write(lambda tx: tx.run("DELETE FROM item WHERE NOT (id {in:ids})", ids=wanted)) == MANY - count


@pytest.mark.parametrize("count", [0, 1, len(NASTY), MANY])
def test_in_text_finds_the_members_of_a_list_of_strings(db: Db, count: int) -> None:
    names = (NASTY + [f"name {n}" for n in range(MANY)])[:MANY]
    put(db, [(n, None, name, None, None) for n, name in enumerate(names)])
    wanted = names[:count]
    found = db.read(lambda tx: tx.all("SELECT id FROM item WHERE name {in_text:names} ORDER BY id", names=wanted))
    assert [row[0] for row in found] == list(range(count))
    left = db.write(lambda tx: tx.run("DELETE FROM item WHERE NOT (name {in_text:names})", names=wanted))
    assert left == MANY - count


@pytest.mark.parametrize("count", [0, 1, MANY])
def test_each_is_a_table_of_numbers(db: Db, count: int) -> None:
    values = [SMALL, *range(count - 2), BIG][-count:] if count else []
    assert db.read(lambda tx: tx.all("SELECT value FROM {each:v} ORDER BY value", v=values)) == [
        (value,) for value in values
    ]
    sql = "SELECT COUNT(*), MIN(q.value) FROM {each:v} q LEFT JOIN item ON item.id = q.value WHERE id IS NULL"
    assert db.read(lambda tx: tx.one(sql, v=values)) == (count, min(values, default=None))


@pytest.mark.parametrize("values", [[], ["a"], NASTY, [f"name {n}" for n in range(MANY)]])
def test_each_text_is_a_table_of_strings(db: Db, values: list[str]) -> None:
    found = db.read(lambda tx: tx.all("SELECT each.value FROM {each_text:v}", v=values))
    assert sorted(found) == sorted((value,) for value in values)


def test_a_list_may_be_any_iterable_and_used_twice(db: Db) -> None:
    put(db, items(5))
    sql = "SELECT id FROM item WHERE id {in:ids} AND n / 10 {in:ids} AND id < :most ORDER BY id"
    assert db.read(lambda tx: tx.all(sql, ids={1, 2, 3}, most=3)) == [(1,), (2,)]
    assert db.read(lambda tx: tx.all(sql, ids=dict.fromkeys((4, 5)), most=9)) == [(4,), (5,)]


def test_a_list_of_numbers_takes_no_text(db: Db) -> None:
    if db.dialect is Dialect.SQLITE:
        pytest.skip("SQLite gets the list as a parameter: nothing can be smuggled into the text")
    with pytest.raises(TypeError):
        db.read(lambda tx: tx.all("SELECT id FROM item WHERE id {in:ids}", ids=["1) OR (1 = 1"]))


def test_locking_fragments_run(db: Db) -> None:
    put(db, items(3))
    for sql in (
        "SELECT id FROM item WHERE id = 2 {for_update}",
        "SELECT id FROM item WHERE id = 2 {skip_locked}",
    ):
        assert db.write(methodcaller("all", sql)) == [(2,)]


# --- Many rows ---


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 85, 200, MANY])
def test_insert_of_any_number_of_rows(db: Db, count: int) -> None:
    put(db, items(count))
    assert db.read(lambda tx: tx.all("SELECT id, n, name, body, cost FROM item ORDER BY id")) == items(count)


def test_insert_of_rows_larger_than_a_packet(db: Db) -> None:
    rows = [(n, None, None, ALL_BYTES * 1600, None) for n in range(5)]
    put(db, rows)
    assert db.read(lambda tx: tx.all("SELECT id, n, name, body, cost FROM item ORDER BY id")) == rows


@pytest.mark.parametrize(("there", "given"), [(0, 0), (0, 1), (1, 1), (1, 3), (3, 3), (70, 150), (MANY, MANY + 7)])
def test_insert_new_counts_only_what_was_not_there(db: Db, there: int, given: int) -> None:
    put(db, items(there))
    assert db.write(lambda tx: tx.insert_new(ITEMS, items(given))) == given - there
    assert len(ids(db)) == given


def test_insert_new_leaves_the_old_row_alone(db: Db) -> None:
    put(db, [(1, 1, "old", None, None)])
    db.write(lambda tx: tx.insert_new(ITEMS, [(1, 2, "new", None, None)]))
    db.write(lambda tx: tx.insert_new(ITEMS, [(1, 3, "newer", None, None), (2, 2, "other", None, None)]))
    rows = db.read(lambda tx: tx.all("SELECT id, n, name FROM item ORDER BY id"))
    assert rows == [(1, 1, "old"), (2, 2, "other")]


def test_insert_new_does_not_swallow_other_errors(db: Db) -> None:
    db.write(lambda tx: (tx.run("DROP TABLE item"), tx.run("CREATE TABLE item (id {id}, n INT NOT NULL){table}")))
    for rows in ([(1, None)], [(1, 1), (2, None)]):
        with pytest.raises(Exception, match=r"(?i)null"):
            db.write(methodcaller("insert_new", Insert("item", "id, n"), rows))
    assert ids(db) == []


def test_a_duplicate_in_insert_is_an_error_and_nothing_is_kept(db: Db) -> None:
    put(db, items(1))
    for count in (2, 30):
        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            put(db, items(count)[::-1])
    assert ids(db) == [1]


UPDATE = RowUpdate("item", "id, n", "name, cost, note = 'x' || name", "cost > 0", "bigint, bigint, text, double")


@pytest.mark.parametrize("count", [0, 1, 30, MANY])
def test_update_rows_gives_each_row_its_own_values(db: Db, count: int) -> None:
    put(db, items(MANY))
    rows = [(n, n * 10, NASTY[n % len(NASTY)], None if n % 3 else n / 8) for n in range(1, count + 1)]
    assert db.write(lambda tx: tx.update_rows(UPDATE, rows)) == count
    changed = db.read(lambda tx: tx.all("SELECT id, n, name, cost FROM item WHERE note IS NOT NULL ORDER BY id"))
    assert changed == rows
    notes = db.read(lambda tx: tx.all("SELECT note FROM item WHERE note IS NOT NULL ORDER BY id"))
    assert notes == [(f"xname {n}",) for n in range(1, count + 1)], "made of what was there before"


@pytest.mark.parametrize("count", [1, 30])
def test_update_rows_writes_bytes(db: Db, count: int) -> None:
    put(db, items(count))
    blobs = [bytes(range(256)), b"", None, b"\\x41'\"", b"{NULL,}"]
    rows = [(n, blobs[n % len(blobs)]) for n in range(1, count + 1)]
    assert db.write(lambda tx: tx.update_rows(RowUpdate("item", "id", "body", types="bigint, blob"), rows)) == count
    found = db.read(lambda tx: tx.all("SELECT id, body FROM item ORDER BY id"))
    assert [(n, None if body is None else bytes(body)) for n, body in found] == rows


def test_update_rows_counts_matches_even_when_nothing_changes(db: Db) -> None:
    put(db, items(3))
    update = RowUpdate("item", "id", "n, name", types="bigint, bigint, text")
    rows = [(1, 10, "name 1"), (2, 20, "name 2"), (9, 9, "absent")]
    assert db.write(lambda tx: tx.update_rows(update, rows)) == 2
    assert db.write(lambda tx: tx.run("UPDATE item SET n = n WHERE id < 3")) == 2


def test_update_rows_minds_key_and_guard(db: Db) -> None:
    put(db, [*items(3), (4, 40, "free", None, 0.0)])
    rows = [(1, 10, "yes", 1.0), (2, 99, "wrong key", 1.0), (4, 40, "guarded", 1.0)]
    assert db.write(lambda tx: tx.update_rows(UPDATE, rows)) == 1
    assert db.read(lambda tx: tx.all("SELECT id FROM item WHERE note IS NOT NULL")) == [(1,)]


@pytest.mark.parametrize("cost", [0.1, -0.0, 1 / 3, 1e300, 5e-324, 123456789.123456789])
def test_update_rows_keeps_numbers_exact(db: Db, cost: float) -> None:
    put(db, items(2))
    update = RowUpdate("item", "id", "n, cost", types="bigint, bigint, double")
    rows = [(1, BIG, cost), (2, SMALL, None)]
    assert db.write(lambda tx: tx.update_rows(update, rows)) == 2
    assert db.read(lambda tx: tx.all("SELECT id, n, cost FROM item ORDER BY id")) == rows


def test_update_rows_may_set_expressions_only(db: Db) -> None:
    put(db, items(3))
    assert db.write(lambda tx: tx.update_rows(RowUpdate("item", "id", "n = n + 1"), [(1,), (3,)])) == 2
    assert db.read(lambda tx: tx.all("SELECT n FROM item ORDER BY id")) == [(11,), (20,), (31,)]


@pytest.mark.parametrize("count", [0, 1, 30])
def test_delete_rows_takes_the_rows_of_these_whole_keys(db: Db, count: int) -> None:
    """The names are as nasty as the ones that an update must bear."""
    put(db, [(n, n * 10, NASTY[n % len(NASTY)], None, 1.0) for n in range(1, 41)])
    delete = RowDelete("item", key="name, id", types="text, bigint")
    keys = [(NASTY[n % len(NASTY)], n) for n in range(1, count + 1)]
    assert db.write(lambda tx: tx.delete_rows(delete, [*keys, ("another name", 40), (NASTY[0], 1000)])) == count
    assert ids(db) == list(range(count + 1, 41))


# --- Transactions ---


def test_what_fn_raises_rolls_back_and_propagates(db: Db) -> None:
    def fail(tx: Tx) -> None:
        tx.insert(ITEMS, items(3))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        db.write(fail)
    assert ids(db) == []
    put(db, items(1))


def test_a_reader_cannot_write(db: Db) -> None:
    with pytest.raises(Exception, match=r"(?i)read.?only"):
        db.read(lambda tx: tx.run("DELETE FROM item"))


def insert_deferred(tx: Tx, rows: list[Row]) -> None:
    tx.insert(ITEMS, rows)


def test_deferred_rows_are_written_together_at_the_end(db: Db) -> None:
    calls: list[int] = []

    def write(tx: Tx, rows: list[Row]) -> None:
        calls.append(len(rows))
        tx.insert(ITEMS, rows)

    def step_by_step(tx: Tx) -> None:
        for number in (1, 2, 3):
            tx.defer(write, items(1, first=number))
        assert not tx.all("SELECT id FROM item")

    db.write(step_by_step)
    assert (ids(db), calls) == ([1, 2, 3], [3])


def test_deferred_rows_are_written_before_a_statement_that_needs_them(db: Db) -> None:
    def whole(tx: Tx) -> None:
        tx.defer(insert_deferred, items(1))
        tx.write_deferred()
        assert len(tx.all("SELECT id FROM item")) == 1

    db.write(whole)
    assert ids(db) == [1]


def test_a_savepoint_that_is_undone_takes_its_deferred_rows_with_it(db: Db) -> None:
    def part(tx: Tx) -> None:
        tx.defer(insert_deferred, items(1, first=2))
        raise KeyError

    def whole(tx: Tx) -> None:
        tx.defer(insert_deferred, items(1))
        with pytest.raises(KeyError):
            tx.savepoint(part)
        tx.savepoint(lambda tx: tx.defer(insert_deferred, items(1, first=3)))
        assert [row[0] for row in tx.all("SELECT id FROM item")] == [3]

    db.write(whole)
    assert ids(db) == [1, 3]


def test_a_savepoint_undoes_only_its_own_work(db: Db) -> None:
    def part(tx: Tx) -> None:
        tx.insert(ITEMS, items(1, first=2))
        raise KeyError

    def nested(tx: Tx) -> None:
        tx.insert(ITEMS, items(1, first=3))
        with pytest.raises(KeyError):
            tx.savepoint(part)

    def whole(tx: Tx) -> None:
        tx.insert(ITEMS, items(1))
        with pytest.raises(KeyError):
            tx.savepoint(part)
        tx.savepoint(nested)

    db.write(whole)
    assert ids(db) == [1, 3]


def test_a_swallowed_failure_is_not_committed_as_success(db: Db) -> None:
    put(db, items(1))

    def swallow(tx: Tx) -> None:
        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            tx.insert(ITEMS, items(1))

    if db.dialect is Dialect.POSTGRESQL:
        with pytest.raises(BrokenPromise):
            db.write(swallow)
    else:
        db.write(swallow)
    put(db, items(1, first=2))


def test_the_clock_runs_forward(db: Db) -> None:
    first, second = db.clock(), db.clock()
    assert 1_600_000_000_000_000 < first <= second


def test_a_closed_database_says_so(db: Db) -> None:
    db.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        db.write(lambda tx: None)


def test_many_threads_write_and_none_is_lost(db: Db) -> None:
    put(db, [(1, 0, None, None, None)])

    def add() -> None:
        for _ in range(20):
            db.write(lambda tx: tx.run("UPDATE item SET n = n + 1 WHERE id = 1"))

    in_threads([add] * 6)
    assert db.read(lambda tx: tx.one("SELECT n FROM item")) == (120,)


def test_writers_do_not_overlap_on_sqlite(sqlite_db: Db) -> None:
    inside: list[int] = []

    def alone(tx: Tx) -> None:
        inside.append(1)
        tx.one("SELECT 1")
        assert inside == [1]
        inside.pop()

    in_threads([lambda: [sqlite_db.write(alone) for _ in range(50)]] * 4)


# --- Probes: a failure at every point ---


def test_a_probe_sees_statements_and_both_sides_of_the_commit(open_url: Open, db: Db) -> None:
    probe = Script()
    put(second(open_url, db, probe=probe), items(2))
    assert probe.seen == ["statement", "commit", "committed"]


@pytest.mark.parametrize("event", ["statement", "commit"])
def test_an_error_before_the_commit_leaves_nothing(open_url: Open, db: Db, event: str) -> None:
    other = second(open_url, db, probe=Script(event, KeyError("probe")))
    with pytest.raises(KeyError, match="probe"):
        put(other, items(2))
    assert ids(other) == []


def test_an_error_after_the_commit_reaches_the_caller_but_the_work_is_done(open_url: Open, db: Db) -> None:
    other = second(open_url, db, probe=Script("committed", LostReply()))
    with pytest.raises(LostReply):
        put(other, items(2))
    assert ids(other) == [1, 2]


@pytest.mark.parametrize(("event", "attempts"), [("statement", [1, 1]), ("commit", [1, 1]), ("committed", [1, 2])])
def test_a_lost_connection_runs_fn_again(open_url: Open, db: Db, event: str, attempts: list[int]) -> None:
    """Only when the outcome is unknown does `attempt` rise: fn then looks for its own work first."""
    other = second(open_url, db, probe=Script(event, ConnectionLost()))
    seen: list[int] = []

    def fn(tx: Tx) -> int:
        seen.append(tx.attempt)
        return tx.insert_new(ITEMS, items(2))

    assert other.write(fn) == (0 if event == "committed" else 2)
    assert seen == attempts
    assert ids(other) == [1, 2]


def test_a_connection_lost_every_time_ends_as_unavailable(open_url: Open, db: Db) -> None:
    pauses: list[float] = []
    other = second(open_url, db, probe=Script("commit", ConnectionLost(), times=99), sleep=pauses.append)
    with pytest.raises(StoreUnavailable):
        put(other, items(1))
    assert len(pauses) == 9
    assert all(0 <= pause <= 0.5 for pause in pauses)
    assert db.dialect is Dialect.SQLITE or ids(db) == []


def test_a_lost_reader_is_replaced(open_url: Open, db: Db) -> None:
    other = second(open_url, db, probe=Script("statement", ConnectionLost()))
    assert ids(other) == []


def second(open_url: Open, db: Db, **options: Any) -> Db:
    """Another Db on the same database; SQLite has one owner at a time."""
    if db.dialect is Dialect.SQLITE:
        db.close()
    return open_url(**options)


# --- Real trouble: locks ---


@pytest.fixture
def server_db(db: Db) -> Db:
    if db.dialect is Dialect.SQLITE:
        pytest.skip("SQLite has one writer: there is nobody to wait for")
    return db


def test_a_deadlock_is_run_again(server_db: Db) -> None:
    put(server_db, items(2))
    met = threading.Barrier(2)
    runs: list[int] = []

    def both(first: int) -> Callable[[], None]:
        done: list[int] = []

        def fn(tx: Tx) -> None:
            runs.append(first)
            assert tx.attempt == 1
            tx.run("UPDATE item SET n = n + 1 WHERE id = :id", id=first)
            if not done:
                done.append(1)
                met.wait(HANG_S)
            tx.run("UPDATE item SET n = n + 1 WHERE id = :id", id=3 - first)

        return lambda: server_db.write(fn)

    in_threads([both(1), both(2)])
    assert server_db.read(lambda tx: tx.all("SELECT n FROM item ORDER BY id")) == [(12,), (22,)]
    assert len(runs) >= 3, "nobody was run again"  # the loser may be back so soon that they meet a second time


def test_a_lost_race_is_run_again_and_nothing_of_the_first_try_stays(db: Db) -> None:
    attempts: list[int] = []

    def fn(tx: Tx) -> int:
        attempts.append(tx.attempt)
        tx.insert(ITEMS, items(3 - len(attempts)))
        if len(attempts) == 1:
            raise LostRace("somebody else took the name")
        return len(attempts)

    assert (db.write(fn), attempts, ids(db)) == (2, [1, 1], [1])


def test_skip_locked_leaves_out_what_another_transaction_holds(server_db: Db) -> None:
    put(server_db, items(3))
    take = "SELECT id FROM item WHERE id > 0 ORDER BY id LIMIT 1 {skip_locked}"

    def outer(tx: Tx) -> tuple[Any, Any]:
        return tx.one(take), server_db.write(lambda other: other.one(take))

    assert server_db.write(outer) == ((1,), (2,))


def test_a_busy_read_is_tried_again_on_sqlite(sqlite_url: str, open_test_db: Open) -> None:
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    db = open_test_db(sqlite_url, probe=Script("statement", busy, times=3), sleep=lambda _: None)
    assert db.read(lambda tx: tx.one("SELECT 1")) == (1,)


def test_trouble_that_never_ends_is_busy(sqlite_url: str, open_test_db: Open) -> None:
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    db = open_test_db(sqlite_url, probe=Script("statement", busy, times=99), sleep=lambda _: None)
    with pytest.raises(StoreBusy):
        db.write(lambda tx: tx.one("SELECT 1"))


# --- Who waits for a connection ---


def test_who_waits_for_the_writer_comes_before_one_that_writes_again_and_again(
    sqlite_url: str, open_test_db: Open
) -> None:
    pool = open_test_db(sqlite_url)._writers
    order: list[str] = []

    def use(name: str) -> None:
        link = pool.borrow()
        order.append(name)
        pool.give_back(link)

    link = pool.borrow()
    other = threading.Thread(target=use, args=("the one that waited",))
    other.start()
    while not pool._waiting:
        time.sleep(0.001)
    pool.give_back(link)
    use("the one that was in")
    other.join()
    assert order == ["the one that waited", "the one that was in"]


def test_who_gives_up_waiting_for_a_connection_takes_none_away(
    sqlite_url: str, open_test_db: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("myrmidon.store.engine.pool.MAX_WAIT_S", 0.01)
    db = open_test_db(sqlite_url)
    link = db._writers.borrow()
    with pytest.raises(StoreBusy):
        db.write(lambda tx: tx.one("SELECT 1"))
    db._writers.give_back(link)
    assert [db.write(lambda tx: tx.one("SELECT 1")) for _ in range(2)] == [(1,), (1,)]


# --- Real trouble: connections and servers ---


def test_a_connection_killed_by_the_server_is_replaced(server_db: Db, url: str) -> None:
    """Between two writes, and in the middle of one."""
    runs: list[int] = []

    def fn(tx: Tx) -> None:
        runs.append(tx.attempt)
        tx.insert(ITEMS, items(1))
        if len(runs) == 1:
            end_connection(tx, url)
        tx.insert(ITEMS, items(1, first=2))

    server_db.write(fn)
    server_db.write(lambda tx: tx.dialect)
    assert (runs, ids(server_db)) == ([1, 1], [1, 2])


def end_connection(tx: Tx, url: str) -> None:
    if tx.dialect is Dialect.POSTGRESQL:
        (pid,) = tx.one("SELECT pg_backend_pid()") or (0,)
        servers.execute(url, f"SELECT pg_terminate_backend({pid}, {HANG_S * 1000:.0f})")
    else:
        (pid,) = tx.one("SELECT CONNECTION_ID()") or (0,)
        servers.execute(url, f"KILL {pid}")


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def own_server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    if why := servers.available()[request.param]:
        pytest.skip(why)
    server = getattr(servers, request.param)()
    yield server
    server.stop()


def test_a_server_that_dies_and_comes_back_is_found_again(own_server: servers.Server, open_test_db: Open) -> None:
    db = open_test_db(own_server.new_database(), sleep=lambda _: None)
    db.write(lambda tx: tx.run(CREATE))
    put(db, items(1))
    assert ids(db) == [1]

    own_server.kill()
    with pytest.raises(StoreUnavailable):
        put(db, items(1, first=2))
    with pytest.raises(StoreUnavailable):
        ids(db)

    own_server.start()
    put(db, items(1, first=3))
    assert ids(db) == [1, 3]

    own_server.kill()
    own_server.start()
    put(db, items(1, first=4))
    assert ids(db) == [1, 3, 4]


def test_a_server_killed_during_the_commit_leaves_all_or_nothing(
    own_server: servers.Server, open_test_db: Open
) -> None:
    url = own_server.new_database()
    events: list[str] = []

    def kill_once(event: str, sql: str) -> None:
        if event == "commit" and "killed" not in events:
            events.append("killed")
            own_server.kill()
            own_server.start()

    open_test_db(url).write(lambda tx: tx.run(CREATE))
    db = open_test_db(url, probe=kill_once, sleep=lambda _: None)
    attempts: list[int] = []

    def fn(tx: Tx) -> int:
        attempts.append(tx.attempt)
        return tx.insert_new(ITEMS, items(2))

    assert db.write(fn) == 2
    assert (attempts, ids(db)) == ([1, 2], [1, 2])


def test_nobody_there_is_unavailable() -> None:
    for url in (
        "postgresql://nobody@127.0.0.1:1/x",
        "mysql://nobody@127.0.0.1:1/x",
        "sqlite:////no/such/folder/x.db",
    ):
        with pytest.raises(StoreUnavailable):
            open_db(url)


# --- SQLite alone ---


def test_a_second_process_on_an_sqlite_file_is_refused(sqlite_db: Db, sqlite_url: str) -> None:
    code = f"from myrmidon.store.engine.db import open_db; open_db({sqlite_url!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "StoreRefused: Another server uses" in done.stderr
    with pytest.raises(StoreRefused, match="stop the other one"):
        open_db(sqlite_url)


def test_an_sqlite_file_is_free_again_after_close(sqlite_url: str) -> None:
    open_db(sqlite_url).close()
    open_db(sqlite_url).close()


def test_a_reader_may_look_into_a_file_in_use_but_not_write(sqlite_db: Db, sqlite_url: str, open_test_db: Open) -> None:
    sqlite_db.write(lambda tx: tx.run(CREATE))
    reader = open_test_db(sqlite_url, role="reader")
    assert ids(reader) == []
    with pytest.raises(StoreRefused):
        put(reader, items(1))


def test_a_database_in_memory_shows_readers_what_was_written() -> None:
    db = open_db("sqlite:///:memory:")
    db.write(lambda tx: tx.run(CREATE))
    put(db, items(3))
    assert ids(db) == [1, 2, 3]
    db.close()


def test_an_sqlite_reader_sees_one_moment(sqlite_db: Db) -> None:
    sqlite_db.write(lambda tx: tx.run(CREATE))

    def twice(tx: Tx) -> list[Any]:
        before = tx.one("SELECT COUNT(*) FROM item")
        put(sqlite_db, items(2))
        return [before, tx.one("SELECT COUNT(*) FROM item")]

    assert sqlite_db.read(twice) == [(0,), (0,)]
    assert ids(sqlite_db) == [1, 2]


def test_an_sqlite_session_is_durable_and_checks_foreign_keys(tmp_path: Any) -> None:
    db = open_db(f"sqlite:///{tmp_path / 'x.db'}")
    settings = [
        db.write(methodcaller("one", f"PRAGMA {name}"))
        for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    ]
    db.close()
    assert settings == [("wal",), (2,), (1,), (5000,)]


@pytest.mark.parametrize(("bulk", "size"), [(True, 16384), (False, 4096)])
def test_an_sqlite_file_made_for_large_values_has_large_pages_and_keeps_them(
    tmp_path: Any, *, bulk: bool, size: int
) -> None:
    for number, later in enumerate((bulk, not bulk)):
        db = open_db(f"sqlite:///{tmp_path / 'x.db'}", bulk=later)
        if number == 0:
            db.write(lambda tx: tx.run(CREATE))
        put(db, items(1, number))
        assert db.read(methodcaller("one", "PRAGMA page_size")) == (size,)
        db.close()


def test_a_disk_that_fails_stops_all_writing(tmp_path: Any) -> None:
    """The real thing: the file may not grow, so the commit fails with an I/O error."""
    db = open_db(f"sqlite:///{tmp_path / 'x.db'}")
    db.write(lambda tx: tx.run(CREATE))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StoreUnavailable):
            put(db, items(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(StoreUnavailable, match="disk failed"):
        put(db, items(1))
    assert ids(db) == []
    db.close()


# --- Refused servers ---

GOOD = {"version": "10.11.6-MariaDB-0+deb12u1", "wsrep_on": "OFF", "innodb_flush_log_at_trx_commit": "1"}


@pytest.mark.parametrize(
    ("change", "durable", "said"),
    [
        ({}, True, None),
        ({"wsrep_on": "ON"}, True, "Galera"),
        ({"wsrep_on": "ON"}, False, "Galera"),
        ({"innodb_flush_log_at_trx_commit": "2"}, True, "must be 1"),
        ({"innodb_flush_log_at_trx_commit": "0"}, False, None),
        ({"version": "10.5.1-MariaDB"}, True, "10.6"),
        ({"version": "8.0.36"}, True, "10.6"),
        ({"version": "11.4.2-MariaDB"}, True, None),
    ],
)
def test_unsafe_mariadb_settings_are_refused(change: dict[str, str], durable: bool, said: str | None) -> None:
    why = mariadb.why_refused(GOOD | change, durable=durable)
    assert (why is None) if said is None else (why and said in why)


@pytest.mark.parametrize(
    ("settings", "durable", "said"),
    [
        (("on", "on", "UTF8", False), True, None),
        (("off", "on", "UTF8", False), True, "fsync"),
        (("on", "off", "UTF8", False), True, "full_page_writes"),
        (("off", "off", "UTF8", False), False, None),
        (("on", "on", "SQL_ASCII", False), False, "encoding"),
        (("on", "on", "UTF8", True), False, "standby"),
    ],
)
def test_unsafe_postgresql_settings_are_refused(settings: Any, durable: bool, said: str | None) -> None:
    why = postgresql.why_refused(*settings, durable=durable)
    assert (why is None) if said is None else (why and said in why)


def test_a_real_server_that_may_lose_commits_is_refused(own_server: servers.Server) -> None:
    """The tests' PostgreSQL runs without fsync; MariaDB is told to flush less."""
    if own_server.kind == "mariadb":
        servers.execute(own_server.url, "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    try:
        with pytest.raises(StoreRefused, match=r"fsync|innodb_flush_log_at_trx_commit"):
            open_db(own_server.url)
        open_db(own_server.url, durable=False).close()
    finally:
        if own_server.kind == "mariadb":
            servers.execute(own_server.url, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")


@pytest.mark.parametrize("url", ["oracle://x", "x", "mysql://root@127.0.0.1:1/x?colour=red"])
def test_a_url_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(StoreRefused):
        open_db(url)


def in_threads(work: list[Callable[[], Any]]) -> None:
    """Run all at once; the first error is raised here."""
    errors: list[BaseException] = []

    def guarded(fn: Callable[[], Any]) -> None:
        try:
            fn()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(fn,)) for fn in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    if errors:
        raise errors[0]


def test_a_limit_of_another_size_needs_no_new_preparation() -> None:
    link = sqlite.Sqlite(":memory:", durable=False).connect(writer=True)
    link.run("CREATE TABLE t (id INTEGER PRIMARY KEY, a INT)")
    link.run("INSERT INTO t (a) VALUES (1), (1), (1)")
    prepared: list[object] = []

    def note(*what: object) -> int:
        prepared.append(what)
        return int(sqlite3.SQLITE_OK)

    link.connection.set_authorizer(note)

    def found(n: int) -> int:
        prepared.clear()
        return len(link.all("SELECT id FROM t WHERE a = :a ORDER BY a, id LIMIT :n", a=1, n=n))

    assert (found(1), bool(prepared)) == (1, True)
    assert (found(2), bool(prepared)) == (2, False)
    assert (found(3), bool(prepared)) == (3, False)
    link.close()


def test_a_database_without_space_is_full_until_a_write_succeeds(tmp_path: Path) -> None:
    db = open_db(f"sqlite:///{tmp_path}/small.db")
    try:
        db.write(lambda tx: tx.run("CREATE TABLE t (body BLOB)"))
        assert not db.disk_is_full()
        db.write(lambda tx: tx.run("PRAGMA max_page_count = 20"))
        with pytest.raises(StoreFull, match="full"):
            db.write(lambda tx: tx.run("INSERT INTO t VALUES (:body)", body=b"x" * 1_000_000))
        assert db.disk_is_full()
        db.write(lambda tx: tx.run("INSERT INTO t VALUES (:body)", body=b"x"))
        assert not db.disk_is_full()
    finally:
        db.close()


# --- Lists of one value on SQLite ---


@pytest.mark.parametrize(
    ("sql", "lists", "text"),
    [
        ("SELECT a FROM t WHERE id {in:ids}", {"ids": {7}}, "SELECT a FROM t WHERE id = :ids"),
        ("DELETE FROM t WHERE NOT (s {in_text:s})", {"s": ["x"]}, "DELETE FROM t WHERE NOT (s = :s)"),
    ],
)
def test_a_list_of_one_value_is_compared_with_the_value_itself(sql: str, lists: dict[str, Any], text: str) -> None:
    params = dict(lists)
    assert sqlite.bind(sql, params) == text
    assert params == {name: next(iter(values)) for name, values in lists.items()}


@pytest.mark.parametrize(
    ("sql", "lists"),
    [
        ("SELECT a FROM t WHERE id {in:ids}", {"ids": [7, 8]}),
        ("SELECT a FROM t WHERE id {in:ids}", {"ids": []}),
        ("SELECT a FROM t WHERE id {in:ids} AND s {in_text:names}", {"ids": [7], "names": ["x"]}),
        ("SELECT value FROM {each:ids} WHERE value {in:ids}", {"ids": [7]}),
    ],
)
def test_other_lists_are_passed_as_json(sql: str, lists: dict[str, Any]) -> None:
    params = dict(lists)
    assert "json_each" in sqlite.bind(sql, params)
    assert params == {name: json_text(values) for name, values in lists.items()}
