"""Bot releases: the stored bot zips, the state of each, and which one the bots must run.

Every running server backs the zip that it brings along. The newest backed release that is not bad becomes the one for
all bots. So servers of two versions do not make bots update back and forth, and when all servers go back to the older
version, so do the bots. One release is ``active``; a newer one may first go to a few bots as a canary.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct, structs

from myrmidon.model.errors import WrongState
from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import shared_numbers


class ReleaseState(StrEnum):
    """The state of a release; a bad one is given to no bot until an administrator allows it."""

    NEW = "new"
    CANARY = "canary"
    GOOD = "good"
    BAD = "bad"


class Release(Struct, frozen=True):
    """One bot zip, named by the digest of its content."""

    digest: str
    created_at: Micros
    active: int
    content: bytes

    def __repr__(self) -> str:
        return f"Release({self.digest[:12]}, active={self.active})"


class ReleaseInfo(Struct, frozen=True):
    """A release without its content."""

    digest: str
    created_at: Micros
    active: int
    state: str
    changed_at: Micros
    who: str
    why: str
    num_servers: int = 0
    num_failures: int = 0


class Choice(Struct, frozen=True):
    """The release for all bots, and the canary for a few of them with the time of its start."""

    active: str
    canary: str = ""
    since: Micros = 0


_CHOICE_LOCK = "bot_release"
_RELEASES = Insert("releases", "digest, created_at, active, canary_percent, content")
_STATES = Insert("release_states", "digest, state, offered_at, changed_at, who, why")
_BACKERS = Insert("release_backers", "server_id, digest, renewed_at")
_FAILURES = Insert("release_failures", "digest, bot_id, failed_at")
READ = "SELECT digest, created_at, active, content FROM releases WHERE digest = :digest"
ACTIVE = "SELECT digest FROM releases WHERE active = 1"
ACTIVATE = "UPDATE releases SET active = CASE WHEN digest = :digest THEN 1 ELSE 0 END"
# Older code stores no state: a release that it gave to all bots counts as good.
ALL = """
    SELECT r.digest, r.created_at, r.active, COALESCE(s.state, 'good'), COALESCE(s.changed_at, r.created_at),
           COALESCE(s.who, ''), COALESCE(s.why, ''),
           (SELECT COUNT(*) FROM release_backers b WHERE b.digest = r.digest AND b.renewed_at > :since),
           (SELECT COUNT(*) FROM release_failures f WHERE f.digest = r.digest)
      FROM releases r LEFT JOIN release_states s ON s.digest = r.digest
     ORDER BY r.created_at DESC, r.digest
"""
OLD = "SELECT digest FROM releases WHERE active = 0 ORDER BY created_at DESC, digest LIMIT 1000"
DELETE = "DELETE FROM releases WHERE digest = :digest AND active = 0"
SET_STATE = "UPDATE release_states SET state = :state, changed_at = :now, who = :who, why = :why WHERE digest = :digest"
RENEW = "UPDATE release_backers SET digest = :digest, renewed_at = :now WHERE server_id = :server"
DELETE_OLD_BACKERS = "DELETE FROM release_backers WHERE renewed_at < :before"
NUM_FAILURES = "SELECT COUNT(*) FROM release_failures WHERE digest = :digest"
DELETE_FAILURES = "DELETE FROM release_failures WHERE digest = :digest"
KEPT = 8
"""Inactive releases to keep: a bot may be downloading one. Bad ones are always kept, so that they stay refused."""


def read(tx: Tx, digest: str) -> Release | None:
    row = tx.one(READ, digest=digest)
    return Release(row[0], row[1], row[2], bytes(row[3])) if row else None


def active(tx: Tx) -> str | None:
    row = tx.one(ACTIVE)
    return row[0] if row else None


def read_all(tx: Tx, *, since: Micros) -> list[ReleaseInfo]:
    """All releases, newest first; ``num_servers`` counts the servers that backed it after ``since``."""
    return [ReleaseInfo(*row) for row in tx.all(ALL, since=since)]


def offer(tx: Tx, digest: str, content: bytes, *, server: int, who: str, now: Micros) -> None:
    """Store the zip of a server, and record that the server backs it."""
    shared_numbers.lock(tx, _CHOICE_LOCK)
    if tx.insert_new(_RELEASES, [(digest, now, 0, 0, content)]):
        tx.insert_new(_STATES, [(digest, ReleaseState.NEW, now, now, who, "")])
    renew_backing(tx, digest, server=server, now=now)


def renew_backing(tx: Tx, digest: str, *, server: int, now: Micros) -> None:
    """Record that a running server backs this zip."""
    if not tx.run(RENEW, digest=digest, now=now, server=server):
        tx.insert_new(_BACKERS, [(server, digest, now)])


def current_choice(tx: Tx, *, since: Micros, careful: bool) -> Choice | None:
    """The choice as it is stored; None when it must be changed first, which `choose` does."""
    current, canary = _decide(read_all(tx, since=since), careful=careful)
    if current is None or not current.active or current.state != ReleaseState.GOOD:
        return None
    if canary is None:
        return Choice(current.digest)
    return Choice(current.digest, canary.digest, canary.changed_at) if canary.state == ReleaseState.CANARY else None


def choose(tx: Tx, *, now: Micros, since: Micros, careful: bool) -> Choice:
    """Decide which release is for all bots, and store it. With ``careful`` a new release starts as a canary."""
    shared_numbers.lock(tx, _CHOICE_LOCK)
    current, canary = _decide(read_all(tx, since=since), careful=careful)
    if current is None:
        return Choice(active(tx) or "")
    _activate(tx, current, now)
    if canary is None:
        return Choice(current.digest)
    if canary.state != ReleaseState.CANARY:
        _set_state(tx, canary.digest, ReleaseState.CANARY, now, who=canary.who, why=canary.why)
        return Choice(current.digest, canary.digest, now)
    return Choice(current.digest, canary.digest, canary.changed_at)


def _decide(releases: Sequence[ReleaseInfo], *, careful: bool) -> tuple[ReleaseInfo | None, ReleaseInfo | None]:
    """The release for all bots, and the canary.

    When no running server backs a release, all of them run older code, and the choice stays as it is.
    """
    usable = [one for one in releases if one.state != ReleaseState.BAD]
    current = next((one for one in usable if one.active), None)
    backed = [one for one in usable if one.num_servers]
    best = backed[0] if backed else current or next((one for one in usable if one.state == ReleaseState.GOOD), None)
    best = best or (usable[0] if usable else None)
    if current is None:
        current = next((one for one in usable if one.state == ReleaseState.GOOD), best)
    if best is current or best is None or best.state == ReleaseState.GOOD or not careful:
        return best, None
    return current, best


def _activate(tx: Tx, one: ReleaseInfo, now: Micros) -> str:
    """Make a release the one for all bots, and delete the oldest inactive ones."""
    if one.state != ReleaseState.GOOD:
        _set_state(tx, one.digest, ReleaseState.GOOD, now, who=one.who, why=one.why)
    if not one.active:
        tx.run(ACTIVATE, digest=one.digest)
        bad = {it.digest for it in read_all(tx, since=now) if it.state == ReleaseState.BAD}
        for (old,) in [row for row in tx.all(OLD) if row[0] not in bad][KEPT:]:
            tx.run(DELETE, digest=old)
    return one.digest


def _set_state(tx: Tx, digest: str, state: ReleaseState, now: Micros, *, who: str = "", why: str = "") -> None:
    tx.insert_new(_STATES, [(digest, state, now, now, who, why)])
    tx.run(SET_STATE, digest=digest, state=state, now=now, who=who, why=why)


def promote(tx: Tx, digest: str, *, now: Micros) -> bool:
    """Mark a canary as good, so that it may go to all bots; False when it is not a canary."""
    shared_numbers.lock(tx, _CHOICE_LOCK)
    one = next((it for it in read_all(tx, since=now) if it.digest == digest), None)
    if one is None or one.state != ReleaseState.CANARY:
        return False
    _set_state(tx, digest, ReleaseState.GOOD, now, who=one.who, why=one.why)
    return True


def revert(tx: Tx, digest: str, *, who: str, why: str, now: Micros) -> ReleaseInfo | None:
    """Mark a release as bad, so that no bot gets it again. None when there is no such release.

    WrongState when no other release would be left for the bots.
    """
    shared_numbers.lock(tx, _CHOICE_LOCK)
    known = read_all(tx, since=now)
    one = next((it for it in known if it.digest == digest), None)
    if one is None or one.state == ReleaseState.BAD:
        return one
    if all(it.digest == digest or it.state == ReleaseState.BAD for it in known):
        raise WrongState(
            "there is no other release that bots could go back to; fix this one, which creates a new release"
        )
    _set_state(tx, digest, ReleaseState.BAD, now, who=who, why=why)
    return structs.replace(one, state=ReleaseState.BAD, changed_at=now, who=who, why=why)


def allow(tx: Tx, digest: str, *, who: str, why: str, now: Micros) -> None:
    """Make a bad release new again, and forget its failures."""
    shared_numbers.lock(tx, _CHOICE_LOCK)
    if any(it.digest == digest and it.state == ReleaseState.BAD for it in read_all(tx, since=now)):
        tx.run(DELETE_FAILURES, digest=digest)
        _set_state(tx, digest, ReleaseState.NEW, now, who=who, why=why)


def record_failure(tx: Tx, digest: str, bot_id: str, now: Micros) -> int:
    """Record that a bot rejected this release; how many bots have rejected it."""
    tx.insert_new(_FAILURES, [(digest, bot_id, now)])
    row = tx.one(NUM_FAILURES, digest=digest)
    return row[0] if row else 0


def delete_old_backers(tx: Tx, before: Micros) -> None:
    """Delete the records of servers that last backed a release before a time."""
    tx.run(DELETE_OLD_BACKERS, before=before)


ALIVE = "SELECT id FROM bots WHERE alive = 1"
ALIVE_SINCE = "SELECT id FROM bots WHERE alive = 1 AND first_seen_at < :before"
FAILED = "SELECT bot_id FROM release_failures WHERE digest = :digest"


def alive_bots(tx: Tx) -> Sequence[str]:
    """The ids of all bots that are alive."""
    return [row[0] for row in tx.all(ALIVE)]


def bots_before(tx: Tx, one: ReleaseInfo) -> set[str]:
    """The live bots that existed before a release: only their failures show that it is worse than the previous one."""
    return {row[0] for row in tx.all(ALIVE_SINCE, before=one.created_at)}


def failed_bots(tx: Tx, digest: str) -> set[str]:
    """The bots that have rejected a release."""
    return {row[0] for row in tx.all(FAILED, digest=digest)}
