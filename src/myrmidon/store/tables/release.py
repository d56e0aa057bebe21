"""Bot zips: which ones there are, how each has done, and the one that every bot shall run.

The zip of a server becomes the one for all bots if it is the newest that a living server would hand out and that is
not known to be bad. So servers of two versions side by side never turn the fleet back and forth, and when all servers
go back to the older version, so do the bots. One release is ``active``; a newer one may first go to a few bots.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct, structs

from myrmidon.model.errors import WrongState
from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import shared_numbers


class Fate(StrEnum):
    """How a release has done: not yet for all bots, for a few, for all at some time, or taken back for ever."""

    NEW = "new"
    CANARY = "canary"
    GOOD = "good"
    BAD = "bad"


class Release(Struct, frozen=True):
    """One bot zip, named by the digest of what is in it."""

    digest: str
    created_at: Micros
    active: int
    content: bytes

    def __repr__(self) -> str:
        return f"Release({self.digest[:12]}, active={self.active})"


class Known(Struct, frozen=True):
    """What is known of a release besides its bytes."""

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
    """Which zip is for all bots, and which newer one for a few of them first, since when."""

    active: str
    canary: str = ""
    since: Micros = 0


_CHOICE = "bot_release"
_RELEASES = Insert("releases", "digest, created_at, active, canary_percent, content")
_STATES = Insert("release_states", "digest, state, offered_at, changed_at, who, why")
_BACKERS = Insert("release_backers", "server_id, digest, renewed_at")
_FAILURES = Insert("release_failures", "digest, bot_id, failed_at")
READ = "SELECT digest, created_at, active, content FROM releases WHERE digest = :digest"
ACTIVE = "SELECT digest FROM releases WHERE active = 1"
ACTIVATE = "UPDATE releases SET active = CASE WHEN digest = :digest THEN 1 ELSE 0 END"
# Code of before writes no state: what it has handed out to all bots was good enough for them.
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
FORGET_BACKERS = "DELETE FROM release_backers WHERE renewed_at < :before"
BACKING = "SELECT server_id FROM release_backers"
NUM_FAILURES = "SELECT COUNT(*) FROM release_failures WHERE digest = :digest"
KEPT = 8
"""Older releases stay for a while: a bot may be on its way to one of them. Bad ones stay, to be known again."""


def read(tx: Tx, digest: str) -> Release | None:
    row = tx.one(READ, digest=digest)
    return Release(row[0], row[1], row[2], bytes(row[3])) if row else None


def active(tx: Tx) -> str | None:
    row = tx.one(ACTIVE)
    return row[0] if row else None


def every(tx: Tx, *, since: Micros) -> list[Known]:
    """All releases, newest first; servers count that were heard of since then."""
    return [Known(*row) for row in tx.all(ALL, since=since)]


def offer(tx: Tx, digest: str, content: bytes, *, server: int, who: str, now: Micros) -> None:
    """A server brings its zip along, and backs it from now on."""
    shared_numbers.lock(tx, _CHOICE)
    if tx.insert_new(_RELEASES, [(digest, now, 0, 0, content)]):
        tx.insert_new(_STATES, [(digest, Fate.NEW, now, now, who, "")])
    back(tx, digest, server=server, now=now)


def back(tx: Tx, digest: str, *, server: int, now: Micros) -> None:
    """A server lives and would hand out this zip."""
    if not tx.run(RENEW, digest=digest, now=now, server=server):
        tx.insert_new(_BACKERS, [(server, digest, now)])


def backing(tx: Tx) -> set[int]:
    """The servers that say which zip they would hand out; code of before does not."""
    return {row[0] for row in tx.all(BACKING)}


def look(tx: Tx, *, since: Micros, careful: bool, wait: bool = False) -> Choice | None:
    """Which zip is for whom; None when that has to be settled first, which only ``choose`` can do."""
    known = every(tx, since=since)
    current, canary = _decide(known, careful=careful, wait=wait)
    if current is None or not current.active or current.state != Fate.GOOD:
        return None
    if canary is None:
        return Choice(current.digest)
    return Choice(current.digest, canary.digest, canary.changed_at) if canary.state == Fate.CANARY else None


def choose(tx: Tx, *, now: Micros, since: Micros, careful: bool, wait: bool = False) -> Choice:
    """Settle which zip is for all bots; a release that is new goes to a few first when we are ``careful``.

    ``wait``: it goes to nobody yet, for not every server could tell those few from the others.
    """
    shared_numbers.lock(tx, _CHOICE)
    current, canary = _decide(every(tx, since=since), careful=careful, wait=wait)
    if current is None:
        return Choice(active(tx) or "")
    _activate(tx, current, now)
    if canary is None:
        return Choice(current.digest)
    if canary.state != Fate.CANARY:
        _set_state(tx, canary.digest, Fate.CANARY, now, who=canary.who)
        return Choice(current.digest, canary.digest, now)
    return Choice(current.digest, canary.digest, canary.changed_at)


def _decide(known: Sequence[Known], *, careful: bool, wait: bool) -> tuple[Known | None, Known | None]:
    """The release for all bots, and the one that goes to a few of them first.

    Where no living server says what it would hand out, all of them are code of before, and things stay as they are.
    """
    usable = [one for one in known if one.state != Fate.BAD]
    current = next((one for one in usable if one.active), None)
    backed = [one for one in usable if one.num_servers]
    best = backed[0] if backed else current or next((one for one in usable if one.state == Fate.GOOD), None)
    best = best or (usable[0] if usable else None)
    if current is None:
        current = next((one for one in usable if one.state == Fate.GOOD), best)
    if best is current or best is None or best.state == Fate.GOOD or not careful:
        return best, None
    return current, None if wait else best


def _activate(tx: Tx, one: Known, now: Micros) -> str:
    """Make one of the known zips that of all bots, and forget the oldest others."""
    if one.state != Fate.GOOD:
        _set_state(tx, one.digest, Fate.GOOD, now, who=one.who)
    if not one.active:
        tx.run(ACTIVATE, digest=one.digest)
        bad = {it.digest for it in every(tx, since=now) if it.state == Fate.BAD}
        for (old,) in [row for row in tx.all(OLD) if row[0] not in bad][KEPT:]:
            tx.run(DELETE, digest=old)
    return one.digest


def _set_state(tx: Tx, digest: str, state: Fate, now: Micros, *, who: str = "", why: str = "") -> None:
    tx.insert_new(_STATES, [(digest, state, now, now, who, why)])
    tx.run(SET_STATE, digest=digest, state=state, now=now, who=who, why=why)


def promote(tx: Tx, digest: str, *, now: Micros) -> bool:
    """Bots have shown that a release is good: it may go to all of them. False when it is no canary (any more)."""
    shared_numbers.lock(tx, _CHOICE)
    one = next((it for it in every(tx, since=now) if it.digest == digest), None)
    if one is None or one.state != Fate.CANARY:
        return False
    _set_state(tx, digest, Fate.GOOD, now, who=one.who)
    return True


def revert(tx: Tx, digest: str, *, who: str, why: str, now: Micros) -> Known | None:
    """Take a release back: no bot is ever told to run it again. None when there is no such release.

    The last one that is left stays, whatever is wrong with it: bots must run something. WrongState says so.
    """
    shared_numbers.lock(tx, _CHOICE)
    known = every(tx, since=now)
    one = next((it for it in known if it.digest == digest), None)
    if one is None or one.state == Fate.BAD:
        return one
    if all(it.digest == digest or it.state == Fate.BAD for it in known):
        raise WrongState("there is no other release that bots could go back to; mend this one, which makes a new one")
    _set_state(tx, digest, Fate.BAD, now, who=who, why=why)
    return structs.replace(one, state=Fate.BAD, changed_at=now, who=who, why=why)


def note_failure(tx: Tx, digest: str, bot_id: str, now: Micros) -> int:
    """A bot could not live with this zip; how many bots could not by now."""
    tx.insert_new(_FAILURES, [(digest, bot_id, now)])
    row = tx.one(NUM_FAILURES, digest=digest)
    return row[0] if row else 0


def forget_backers(tx: Tx, before: Micros) -> None:
    """Drop what servers said that are long gone."""
    tx.run(FORGET_BACKERS, before=before)


ALIVE = "SELECT id FROM bots WHERE alive = 1"
NUM_ALIVE = "SELECT COUNT(*) FROM bots WHERE alive = 1"


def living_bots(tx: Tx) -> Sequence[str]:
    """Everyone who might get a new release."""
    return [row[0] for row in tx.all(ALIVE)]


def num_living_bots(tx: Tx) -> int:
    row = tx.one(NUM_ALIVE)
    return row[0] if row else 0
