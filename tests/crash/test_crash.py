"""A server dies, or loses its connection, at every statement of every verb: nothing half done stays.

Dead before COMMIT, the database is as it was; dead after it, as if all had gone well. Whatever happened, the
same call by another server completes, once. A lost connection is repaired inside Db.write, and leaves exactly
what one undisturbed run leaves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from myrmidon.model.errors import MyrmidonError
from myrmidon.scheduler import cascade, maintenance, propagate, rerun, submit_job
from myrmidon.store.engine.db import ConnectionLost
from myrmidon.store.engine.migrate import migrate, verify
from tests import invariants
from tests.crash.verbs import VERBS, Facts, Verb
from tests.snapshot import Rows, Snapshot, difference, named
from tests.world import World

pytestmark = pytest.mark.untraced
SAMPLE = 8
STRIDE = 3
"""On the servers a connection is cut at every third statement only, and around every commit; soak cuts at all."""


class Crash(BaseException):
    """The process is gone: nothing of it may catch this and go on."""


class Bomb:
    """A probe that goes off at the n-th event, once."""

    def __init__(self) -> None:
        self.disarm()
        self.at_commit: Callable[[], None] | None = None

    def disarm(self) -> None:
        self.at, self.commits = -1, 0
        self.seen: list[str] = []
        self.error: BaseException | None = None
        self.armed = False

    def arm(self, at: int, error: BaseException | None) -> None:
        self.disarm()
        self.at, self.error, self.armed = at, error, True

    def __call__(self, event: str, sql: str) -> None:
        if not self.armed:
            return
        self.seen.append(event if event != "statement" else " ".join(sql.split())[:80])
        if event == "committed":
            self.commits += 1
            if self.at_commit:
                self.at_commit()
        if len(self.seen) == self.at and self.error is not None:
            self.armed = False
            raise self.error


NOUGHT = re.compile(r"[|,]'?0'?\)?$")


class Stage:
    """One verb on one database, played again and again from the same moment."""

    def __init__(self, url: str, verb: Verb, open_db: Callable[..., Any]) -> None:
        self.verb = verb
        self.cheap = url.startswith("sqlite:")
        self.bomb = Bomb()
        self.doomed = open_db(probe=self.bomb, sleep=lambda _: None)
        self.shot = Snapshot(url)
        self.world = World(self.doomed).found()
        self.facts: Facts = verb.prepare(self.world)
        self.before = self.shot.keep()
        self.states: list[Rows] = []
        self.final: Rows = {}
        self.expected: Rows = {}
        self.events: list[str] = []

    def close(self) -> None:
        self.shot.close()
        self.doomed.close()

    def rehearse(self) -> None:
        """One undisturbed run: its events, and the state after each of its commits."""
        self.states = [named(self.before)]
        self.bomb.at_commit = self._at_commit
        self.bomb.arm(-1, None)
        self.call()
        self.bomb.at_commit = None
        self.events = list(self.bomb.seen)
        self.bomb.disarm()
        final = self.tidied()
        self.final, self.expected = named(final), self.outcome(final)
        invariants.check(self.doomed)
        self.shot.restore()

    def _at_commit(self) -> None:
        """The invariants hold after every commit; a state that equals this one need not be checked again."""
        self.bomb.armed = False
        self.states.append(named(self.shot.rows()))
        invariants.check(self.doomed)
        self.bomb.armed = True

    def call(self, slot: int = 2) -> Any:
        return self.verb.call(self.world.beside(self.doomed, slot=slot), self.facts)

    def tidied(self) -> Rows:
        self.verb.tidy(self.world.beside(self.doomed, slot=4), self.facts)
        return self.shot.rows()

    def outcome(self, rows: Rows) -> Rows:
        """What must be the same when a client calls twice. A mark of 0 says as much as none."""
        again = {self.verb.told_again, "bot_event_facts"} if self.verb.told_again else set()
        kept = {table: found for table, found in rows.items() if table not in again}
        return named(
            {**kept, "shared_numbers": [text for text in kept.get("shared_numbers", []) if not NOUGHT.search(text)]}
        )

    def crash_at(self, n: int) -> None:
        where = f"{self.verb.name} at event {n} of {len(self.events)}, {self.events[n - 1]}"
        self.bomb.arm(n, Crash())
        with pytest.raises(Crash):
            self.call()
        commits = self.bomb.commits
        self.bomb.disarm()
        rows = self.shot.rows()
        if commits or rows != self.before:
            same(self.states[commits], named(rows), f"after a crash in {where}")
        if self.repeats(n) and (self.verb.repeatable or commits == 0):
            with suppress(*([MyrmidonError] if commits else [])):
                self.call(slot=3)
            rows = self.tidied()
            same(self.expected, self.outcome(rows), f"after a crash in {where}, and the same call again")
        self.shot.restore(rows)

    def repeats(self, n: int) -> bool:
        """Servers are slow, and a state that equals a known one needs no proof: there only some calls are repeated."""
        return self.cheap or n % SAMPLE == 1 or self.commits_at(n)

    def commits_at(self, n: int) -> bool:
        return self.events[n - 1] in ("commit", "committed")

    def lose_connection_at(self, n: int) -> None:
        where = f"{self.verb.name} at event {n} of {len(self.events)}, {self.events[n - 1]}"
        self.bomb.arm(n, ConnectionLost("the cable"))
        self.call()
        self.bomb.disarm()
        rows = self.tidied()
        same(self.final, named(rows), f"after a lost connection in {where}")
        self.shot.restore(rows)


def same(expected: Rows, found: Rows, when: str) -> None:
    if expected != found:
        raise AssertionError(f"The tables differ {when}:\n{difference(expected, found)}")


@pytest.fixture(params=VERBS, ids=lambda verb: verb.name)
def stage(
    request: pytest.FixtureRequest, db_url: str, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    verb: Verb = request.param
    made = Stage(db_url, verb, open_db)
    for module in (maintenance, rerun, cascade, propagate, submit_job):
        for name in ("CHUNK", "WHOLE", "STAGED"):
            monkeypatch.setattr(module, name, verb.chunk, raising=False)
    yield made
    made.close()


def test_neither_a_crash_nor_a_lost_connection_at_any_statement_leaves_anything_half_done(
    stage: Stage, record_property: Any
) -> None:
    stage.rehearse()
    points = range(1, len(stage.events) + 1)
    for n in points:
        stage.crash_at(n)
    cut = [n for n in points if stage.cheap or n % STRIDE == 1 or stage.commits_at(n)]
    for n in cut:
        stage.lose_connection_at(n)
    record_property("points", (len(points), len(cut)))


@pytest.mark.soak
def test_a_connection_lost_at_every_single_statement_changes_nothing(stage: Stage) -> None:
    stage.rehearse()
    for n in range(1, len(stage.events) + 1):
        stage.lose_connection_at(n)


EVERY = 7
"""A migration has a hundred statements; MariaDB needs a while for each, so only some are broken off."""


def test_a_migration_of_the_shipped_tables_broken_off_anywhere_is_completed_by_the_next(
    new_db_url: str, open_test_db: Callable[..., Any]
) -> None:
    bomb = Bomb()
    db = open_test_db(new_db_url, probe=bomb, sleep=lambda _: None)
    at = 1
    while True:
        bomb.arm(at, Crash())
        try:
            migrate(db, now=1)
        except Crash:
            at += EVERY
        else:
            break
    bomb.disarm()
    assert at > EVERY
    assert verify(db) == []
    World(db).found().submit()
    invariants.check(db)
