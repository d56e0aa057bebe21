"""Statements by name on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from myrmidon.store.engine import postgresql
from myrmidon.store.engine.postgresql import Postgresql, PostgresqlLink
from tests import databases, servers

pytestmark = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)


@pytest.fixture
def link(dialect: str) -> Iterator[PostgresqlLink]:
    link = Postgresql(servers.new_database(databases.server_url(dialect)), durable=False).connect(writer=True)
    yield link
    link.close()


def known(link: PostgresqlLink) -> int:
    found = link.connection.execute("SELECT COUNT(*) FROM pg_prepared_statements").fetchone()
    return int(found[0]) if found else 0


def test_a_statement_gets_its_name_when_it_is_said_again(link: PostgresqlLink) -> None:
    names = []
    for n in range(3):
        assert link.one("SELECT CAST(:n AS BIGINT) + 1", n=n) == (n + 1,)
        names.append(known(link))
    assert names == [0, 1, 1]


def test_a_value_of_another_type_is_another_statement(link: PostgresqlLink) -> None:
    for value in (1, None, 2, None, 3):
        assert link.one("SELECT CAST(:n AS BIGINT)", n=value) == (value,)
    assert known(link) == 2


def test_a_connection_that_knows_too_many_statements_forgets_them_all(
    link: PostgresqlLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "MAX_PREPARED", 5)
    for _ in range(4):
        for n in range(4, 8):
            assert link.one(f"SELECT {n}") == (n,)
    for n in range(20):
        for _ in range(2):
            assert link.one(f"SELECT {n} + 100") == (n + 100,)
    assert 0 < known(link) <= 5
