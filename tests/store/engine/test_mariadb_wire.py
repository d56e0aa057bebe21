"""Answers of a real MariaDB, brought in pieces of every size."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest

from myrmidon.store.engine.driver import DbErrorKind
from myrmidon.store.engine.mariadb import Mariadb, MariadbLink
from tests import databases, servers

pytestmark = pytest.mark.parametrize("dialect", ["mariadb"], indirect=True)

TABLE = """
    SELECT 1, NULL, 'text', x'00ff', 1.5e0, '' UNION ALL
    SELECT -7, 2, REPEAT('w', 300), NULL, NULL, REPEAT('m', 70000)
"""
ROWS = [(1, None, "text", b"\x00\xff", 1.5, ""), (-7, 2, "w" * 300, None, None, "m" * 70_000)]


@pytest.fixture
def link(dialect: str) -> Iterator[MariadbLink]:
    link = Mariadb(servers.new_database(databases.server_url(dialect)), durable=False).connect(writer=True)
    yield link
    link.close()


def in_pieces(link: MariadbLink, size: int) -> None:
    receive = link.connection._sock.recv
    link.connection._rfile._receive = lambda n: receive(min(n, size))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, 1 << 16])
def test_a_table_is_the_same_however_the_network_cuts_it(link: MariadbLink, size: int) -> None:
    in_pieces(link, size)
    for _ in range(2):  # the second time the columns are known
        assert link.all(TABLE) == ROWS
    assert link.all("SELECT 1 FROM DUAL WHERE 1 = 0") == []


def test_columns_that_begin_alike_are_not_taken_for_each_other(link: MariadbLink) -> None:
    for _ in range(2):
        assert link.one("SELECT 1 AS a, 2 AS b") == (1, 2)
        assert link.one("SELECT 1 AS a, 'two' AS b") == (1, "two")


def test_a_row_too_large_for_one_packet_is_whole(link: MariadbLink) -> None:
    n = (1 << 24) - 6
    assert link.one(f"SELECT REPEAT('x', {n}), 5") == ("x" * n, 5)
    assert link.one("SELECT 6") == (6,)


def test_an_error_among_the_rows_is_told_and_the_next_answer_is_the_next(link: MariadbLink) -> None:
    late = "SELECT IF(seq < 3, seq, (SELECT 1 UNION SELECT seq)) FROM seq_1_to_5"
    with pytest.raises(pymysql.err.Error, match="more than 1 row"):
        link.all(late)
    assert link.one("SELECT 8") == (8,)


def test_a_connection_that_ends_among_the_rows_is_lost(link: MariadbLink) -> None:
    left = [40]
    receive = link.connection._sock.recv

    def cut(n: int) -> bytes:
        piece: bytes = receive(min(n, left[0])) if left[0] else b""
        left[0] -= len(piece)
        return piece

    link.connection._rfile._receive = cut
    with pytest.raises(pymysql.err.OperationalError) as caught:
        link.all(TABLE)
    assert link.error_kind(caught.value) is DbErrorKind.LOST
    assert not link.connection.open
