"""Logins and sessions on every database: used once, ended once."""

from __future__ import annotations

from functools import partial

from myrmidon.store.engine.db import Db
from myrmidon.store.tables import login_flow, session
from myrmidon.store.tables.login_flow import LINK, LoginFlow
from myrmidon.store.tables.session import Session

NOW = 1_767_225_600_000_000


def a_session(name: str, at: int = NOW) -> Session:
    return Session(
        id_hash=name, identity="service:token-1", auth_time=at, created_at=at, seen_at=at, expires_at=at + 100,
        address="::1", agent="a browser",
    )  # fmt: skip


def test_a_flow_is_used_once_and_before_it_expires(db: Db):
    flows = [LoginFlow(state_hash=name, kind=LINK, identity="i", return_to="/", expires_at=NOW + 10) for name in "ab"]
    for flow in flows:
        db.write(partial(login_flow.insert, flow=flow))
    claim = partial(login_flow.claim, kind=LINK)
    assert db.write(partial(claim, state_hash="a", now=NOW)) == flows[0]
    assert db.write(partial(claim, state_hash="a", now=NOW)) is None
    assert db.write(partial(claim, state_hash="b", now=NOW + 10)) is None
    assert db.write(lambda tx: login_flow.claim(tx, "b", "cli", NOW)) is None, "of another kind"
    assert db.write(partial(claim, state_hash="A", now=NOW)) is None
    db.write(partial(login_flow.delete_expired, before=NOW + 11))
    assert db.write(partial(claim, state_hash="b", now=NOW)) is None


def test_sessions_are_read_touched_ended_and_deleted(db: Db):
    for number in range(5):
        db.write(partial(session.insert, session=a_session(f"s{number}", NOW + number)))
    older = partial(session.older, identity="service:token-1", keep=2)
    assert db.read(partial(older, now=NOW)) == ["s2", "s1", "s0"]
    assert db.read(partial(older, now=NOW + 101)) == ["s2"], "expired ones do not count"
    assert db.write(partial(session.revoke, id_hashes=["s0", "s1"], now=NOW + 50)) == 2
    assert db.write(partial(session.revoke, id_hashes=["s0"], now=NOW + 60)) == 0
    assert db.read(partial(older, now=NOW)) == ["s2"]
    db.write(partial(session.touch, id_hash="s2", now=NOW + 60))
    db.write(partial(session.touch, id_hash="s2", now=NOW + 30))
    found = db.read(partial(session.read, id_hash="s2"))
    assert found is not None
    assert (found.seen_at, found.agent, found.revoked_at) == (NOW + 60, "a browser", None)
    db.write(partial(session.delete_expired, before=NOW + 103))
    assert [db.read(partial(session.read, id_hash=f"s{n}")) is None for n in range(5)] == [
        True,
        True,
        True,
        False,
        False,
    ]
