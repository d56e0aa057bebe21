"""One text becomes three: parameters, literals, fragments."""

from __future__ import annotations

import pytest

from myrmidon.store.engine.sql import (
    MARIADB_TABLE,
    Bind,
    Dialect,
    Insert,
    RowDelete,
    RowUpdate,
    compiled,
    insert_text,
    row_update_text,
    rows_delete_text,
    rows_update_text,
)

SQLITE, POSTGRESQL, MARIADB = Dialect.SQLITE, Dialect.POSTGRESQL, Dialect.MARIADB


def texts(sql):
    return tuple(compiled(dialect, sql).text for dialect in (SQLITE, POSTGRESQL, MARIADB))


def test_a_parameter_gets_each_drivers_own_style():
    assert texts("SELECT a FROM t WHERE a = :a AND b = :b_2") == (
        "SELECT a FROM t WHERE a = :a AND b = :b_2",
        "SELECT a FROM t WHERE a = $1 AND b = $2",
        "SELECT a FROM t WHERE a = %s AND b = %s",
    )


def test_a_name_used_twice_is_bound_twice():
    statement = compiled(POSTGRESQL, "SELECT :a, :b, :a")
    assert statement.text == "SELECT $1, $2, $3"
    assert statement.binds == (Bind("a", "value"), Bind("b", "value"), Bind("a", "value"))


def test_casts_are_no_parameters():
    assert compiled(POSTGRESQL, "SELECT :a::bigint, '1'::int").text == "SELECT $1::bigint, '1'::int"


@pytest.mark.parametrize("literal", ["':a'", "'it''s :a'", "'{in:a}'", "'-- :a'", '":a"', "'{}'"])
def test_literals_and_quoted_names_survive(literal):
    assert texts(f"SELECT {literal}") == (f"SELECT {literal}",) * 3
    assert compiled(SQLITE, f"SELECT {literal}").binds == ()


def test_percent_signs_are_doubled_only_where_the_text_is_filled_in_by_percent():
    assert texts("SELECT 7 % 2, '100%'")[2] == "SELECT 7 %% 2, '100%%'"
    assert texts("SELECT 7 % 2, '100%'")[:2] == ("SELECT 7 % 2, '100%'",) * 2


def test_a_backslash_in_a_literal_is_a_backslash_on_mariadb_too():
    assert texts(r"SELECT 'a\b'") == (r"SELECT 'a\b'", r"SELECT 'a\b'", r"SELECT 'a\\b'")


def test_comments_are_left_out_with_whatever_they_hold():
    sql = "SELECT 1 -- it's :a {nothing}\n, 2 /* :b ' */ FROM t"
    assert compiled(SQLITE, sql).text.split() == ["SELECT", "1", ",", "2", "FROM", "t"]
    assert compiled(SQLITE, sql).binds == ()


@pytest.mark.parametrize("sql", ["{nothing}", "{in}", "{skip_locked:a}", "{in_blob:a}"])
def test_an_unknown_fragment_is_refused(sql):
    with pytest.raises(ValueError, match="no such fragment"):
        compiled(SQLITE, sql)


def test_locks_are_nothing_on_sqlite():
    assert texts("SELECT a FROM t {skip_locked}") == (
        "SELECT a FROM t",
        "SELECT a FROM t FOR UPDATE SKIP LOCKED",
        "SELECT a FROM t FOR UPDATE SKIP LOCKED",
    )
    assert texts("SELECT a FROM t {for_update}")[1] == "SELECT a FROM t FOR UPDATE"


def test_membership_in_a_list():
    assert texts("WHERE id {in:ids} AND s {in_text:names}") == (
        "WHERE id IN (SELECT value FROM json_each(:ids)) AND s IN (SELECT value FROM json_each(:names))",
        "WHERE id = ANY($1::bigint[]) AND s = ANY($2::text[])",
        "WHERE id IN (%s) AND s IN (%s)",
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("FROM {each:ids}", "FROM unnest($1::bigint[]) AS each(value)"),
        ("FROM {each:ids} q", "FROM unnest($1::bigint[]) AS q(value)"),
        ("FROM {each_text:ids} AS q, t", "FROM unnest($1::text[]) AS q(value), t"),
        ("FROM {each:ids} JOIN t", "FROM unnest($1::bigint[]) AS each(value) JOIN t"),
        ("FROM {each:ids} cross join t", "FROM unnest($1::bigint[]) AS each(value) cross join t"),
        ("FROM {each:ids} q JOIN t", "FROM unnest($1::bigint[]) AS q(value) JOIN t"),
        ("FROM {each:ids} WHERE 1 = 1", "FROM unnest($1::bigint[]) AS each(value) WHERE 1 = 1"),
        ("FROM {each:ids}\n ORDER BY value", "FROM unnest($1::bigint[]) AS each(value)\n ORDER BY value"),
    ],
)
def test_a_list_as_a_table_may_have_an_alias(sql, expected):
    assert compiled(POSTGRESQL, sql).text == expected


def test_each_is_quoted_on_mariadb_where_it_is_a_reserved_word():
    text = compiled(MARIADB, "SELECT each.value FROM {each:ids}").text
    assert text.startswith('SELECT "each".value FROM JSON_TABLE(%s')
    assert text.endswith('AS "each"')


def test_types_of_columns():
    assert texts("CREATE TABLE t (id {id}, b {blob}, l {longtext}){clustered}") == (
        "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, b BLOB, l TEXT) WITHOUT ROWID",
        "CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, b BYTEA, l TEXT)",
        "CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, b LONGBLOB, l LONGTEXT)" + MARIADB_TABLE,
    )


def test_a_column_is_added_where_it_may_be_there_already():
    assert texts("ALTER TABLE t {add_column} at BIGINT") == (
        "ALTER TABLE t ADD COLUMN at BIGINT",
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS at BIGINT",
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS at BIGINT",
    )


def test_insert_of_several_rows():
    insert = Insert("t", "a, b")
    assert insert_text(SQLITE, insert, 2, only_new=False) == "INSERT INTO t (a, b) VALUES (?, ?), (?, ?)"
    assert insert_text(POSTGRESQL, insert, 2, only_new=True) == (
        "INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4) ON CONFLICT DO NOTHING"
    )


def test_update_with_values_per_row():
    update = RowUpdate("t", "id, seq", "a, n = coalesce(n, 0) + 1, b", "c IS NULL", "bigint, int, text, double")
    assert row_update_text(SQLITE, update) == (
        "UPDATE t SET a = ?3, n = coalesce(n, 0) + 1, b = ?4 WHERE t.id = ?1 AND t.seq = ?2 AND (c IS NULL)"
    )
    assert row_update_text(POSTGRESQL, update) == (
        "UPDATE t SET a = $3::text, n = coalesce(n, 0) + 1, b = $4::double precision"
        " WHERE t.id = $1::bigint AND t.seq = $2::int AND (c IS NULL)"
    )
    assert row_update_text(MARIADB, update) == (
        "UPDATE t SET t.a = {3}, n = coalesce(n, 0) + 1, t.b = {4} WHERE t.id = {1} AND t.seq = {2} AND (c IS NULL)"
    )
    assert rows_update_text(POSTGRESQL, update) == (
        "UPDATE t SET a = v.c3, n = coalesce(n, 0) + 1, b = v.c4"
        " FROM unnest($1::bigint[], $2::int[], $3::text[], $4::double precision[]) AS v(c1, c2, c3, c4)"
        " WHERE t.id = v.c1 AND t.seq = v.c2 AND (c IS NULL)"
    )


def test_delete_of_single_rows():
    delete = RowDelete("t", "tag, id", "text, bigint")
    assert rows_delete_text(SQLITE, delete) == "DELETE FROM t WHERE t.tag = ?1 AND t.id = ?2"
    assert rows_delete_text(POSTGRESQL, delete) == (
        "DELETE FROM t USING unnest($1::text[], $2::bigint[]) AS v(c1, c2) WHERE t.tag = v.c1 AND t.id = v.c2"
    )
    assert rows_delete_text(MARIADB, delete) == (
        "DELETE t FROM (%s) AS v STRAIGHT_JOIN t WHERE t.tag = v.c1 AND t.id = v.c2"
    )


@pytest.mark.parametrize("types", ["bigint", "bigint, bool", "bigint, int, int"])
def test_an_update_with_wrong_types_is_refused_where_it_is_written(types):
    with pytest.raises(ValueError, match="types must name"):
        RowUpdate("t", "id", "a", types=types)
