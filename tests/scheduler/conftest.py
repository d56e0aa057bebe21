"""The world that the stories of this folder are told in; every story ends with a check of all invariants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from myrmidon.model.ids import IdSource
from myrmidon.scheduler import cascade, maintenance, propagate, rerun, submit_job
from tests.builders import World
from tests.conftest import Clock
from tests.invariants import check


@pytest.fixture
def world(db: Any, clock: Clock, ids: IdSource) -> Iterator[World]:
    """A world on each of the three databases."""
    w = World(db, clock, ids)
    yield w
    check(w.db, nothing_removed=not w.removed)


@pytest.fixture
def lite(sqlite_db: Any, clock: Clock, ids: IdSource) -> Iterator[World]:
    """The same on SQLite alone, for stories in which the database has no part."""
    w = World(sqlite_db, clock, ids)
    yield w
    check(w.db, nothing_removed=not w.removed)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """What is done in chunks of a thousand is done in chunks of three."""
    for module in (maintenance, rerun, cascade):
        monkeypatch.setattr(module, "CHUNK", 3)
    for module in (propagate, submit_job, cascade):
        monkeypatch.setattr(module, "WHOLE", 3)
    monkeypatch.setattr(submit_job, "STAGED", 3)
    return 3
