"""Servers lease slots; pools are told how to order their tasks."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.model.errors import StoreRefused
from myrmidon.model.ids import SLOTS, IdSource
from myrmidon.scheduler.servers import list_servers, register, renew, unregister
from myrmidon.store.tables.log import log_url


def test_servers_get_slots_of_their_own(db: Any, clock: Any) -> None:
    first = db.write(lambda tx: register(tx, "10.0.0.1", 8080, now=clock.now))
    second = db.write(lambda tx: register(tx, "10.0.0.2", 8080, now=clock.now))
    assert first.slot != second.slot
    assert [s.address for s in db.read(list_servers)] == ["10.0.0.1", "10.0.0.2"]


def test_a_silent_server_loses_its_slot_to_the_next_one(db: Any, clock: Any) -> None:
    silent = db.write(lambda tx: register(tx, "10.0.0.1", 8080, now=clock.now))
    clock.advance(3600)
    heir = db.write(lambda tx: register(tx, "10.0.0.2", 8080, now=clock.now))
    assert [server.id for server in db.read(list_servers)] == [heir.id]
    assert not db.write(lambda tx: renew(tx, silent, now=clock.now))
    assert db.write(lambda tx: renew(tx, heir, now=clock.now))


def test_a_server_with_signs_of_life_keeps_its_slot(db: Any, clock: Any) -> None:
    alive = db.write(lambda tx: register(tx, "10.0.0.1", 8080, now=clock.now))
    clock.advance(100)
    assert db.write(lambda tx: renew(tx, alive, now=clock.now))
    clock.advance(100)
    other = db.write(lambda tx: register(tx, "10.0.0.2", 8080, now=clock.now))
    assert other.slot != alive.slot


def test_an_heir_of_a_slot_never_makes_an_id_of_its_predecessor(db: Any, clock: Any) -> None:
    silent = db.write(lambda tx: register(tx, "10.0.0.1", 8080, now=clock.now))
    last = IdSource(silent.slot).block(50_000, clock.now)[-1]
    clock.advance(3600)
    heir = db.write(lambda tx: register(tx, "10.0.0.2", 8080, now=clock.now))
    assert IdSource(heir.slot).next(clock.now) > last


def test_a_leaving_server_frees_its_slot_at_once(db: Any, clock: Any) -> None:
    server = db.write(lambda tx: register(tx, "10.0.0.1", 8080, now=clock.now))
    db.write(lambda tx: unregister(tx, server))
    assert db.read(list_servers) == []


def test_more_servers_than_slots_are_refused(sqlite_db: Any, clock: Any) -> None:
    for n in range(SLOTS):
        sqlite_db.write(lambda tx, n=n: register(tx, f"10.0.0.{n}", 8080, now=clock.now))
    with pytest.raises(StoreRefused):
        sqlite_db.write(lambda tx: register(tx, "10.0.1.1", 8080, now=clock.now))


def test_a_server_that_is_the_only_one_starts_again_after_any_number_of_kills(sqlite_db: Any, clock: Any) -> None:
    last = 0
    for _ in range(SLOTS + 2):
        server = sqlite_db.write(lambda tx: register(tx, "10.0.0.1", 8080, now=clock.now, is_only_server=True))
        assert IdSource(server.slot, server.id).next(clock.now) != last
        last = IdSource(server.slot, server.id).next(clock.now)
    assert len(sqlite_db.read(list_servers)) == 1


@pytest.mark.parametrize(
    ("url", "logs"),
    [
        ("sqlite:///var/m.db", "sqlite:///var/m.db-logs"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("postgresql://h/m", "postgresql://h/m"),
    ],
)
def test_logs_lie_beside_the_file_of_sqlite_and_inside_other_databases(url: str, logs: str) -> None:
    assert log_url(url) == logs
