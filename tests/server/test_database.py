"""Transactions that the event loop waits for: results, errors, cancelled callers, a database that does not answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myrmidon.model.errors import StoreUnavailable, WrongState
from myrmidon.server import database
from myrmidon.server.database import SchedulingDatabase, start_executor
from myrmidon.server.metrics import Metrics
from myrmidon.store.engine.db import Db, Tx, open_db
from tests.deadline import HANG_S


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Db]:
    db = open_db(f"sqlite:///{tmp_path}/some.db", durable=False)
    yield db
    db.close()


class Watched:
    """A database on SQLite that records what is published, and a write that waits until it may go on."""

    def __init__(self, engine: Db) -> None:
        self.published: list[Any] = []
        self.may_go = threading.Event()
        self.has_begun = threading.Event()
        self.executor = start_executor(engine, lambda _: None)
        self.db = SchedulingDatabase(engine, self.executor, Metrics(), self.published.append)

    def slow(self, _: Tx) -> str:
        self.has_begun.set()
        assert self.may_go.wait(HANG_S)
        return "done"


@pytest.fixture
def watched(engine: Db) -> Iterator[Watched]:
    found = Watched(engine)
    yield found
    found.may_go.set()
    found.executor.close()


def test_a_write_returns_after_its_effects_are_published(watched: Watched) -> None:
    committed: list[str] = []

    async def write() -> tuple[str, int, list[str]]:
        result = await watched.db.write(lambda _: "done", committed.append)
        return result, len(watched.published), list(committed)

    assert asyncio.run(write()) == ("done", 1, ["done"])


def test_a_write_that_fails_raises_its_error_and_publishes_nothing(watched: Watched) -> None:
    def fail(_: Tx) -> None:
        raise WrongState("no")

    with pytest.raises(WrongState):
        asyncio.run(watched.db.write(fail))
    assert watched.published == []


def test_a_write_is_carried_out_and_recorded_although_its_caller_is_cancelled(watched: Watched) -> None:
    recorded = asyncio.Event()

    async def cancel_the_caller() -> None:
        caller = asyncio.create_task(watched.db.write(watched.slow, lambda _: recorded.set()))
        await asyncio.to_thread(watched.has_begun.wait, HANG_S)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        watched.may_go.set()
        await asyncio.wait_for(recorded.wait(), HANG_S)

    asyncio.run(cancel_the_caller())
    assert len(watched.published) == 1


def test_a_caller_is_told_when_the_database_does_not_answer(watched: Watched, monkeypatch: Any) -> None:
    monkeypatch.setattr(database, "DB_TIMEOUT_S", 0.01)
    recorded = asyncio.Event()

    async def give_up() -> None:
        with pytest.raises(StoreUnavailable):
            await watched.db.write(watched.slow, lambda _: recorded.set())
        watched.may_go.set()
        await asyncio.wait_for(recorded.wait(), HANG_S)  # it is still carried out

    asyncio.run(give_up())


def test_a_read_whose_caller_is_cancelled_before_it_begins_is_not_run(watched: Watched) -> None:
    ran: list[int] = []

    async def cancel_a_queued_read() -> None:
        busy = [asyncio.create_task(watched.db.read(watched.slow)) for _ in range(database.READER_THREADS)]
        await asyncio.to_thread(watched.has_begun.wait, HANG_S)
        queued = asyncio.create_task(watched.db.read(lambda _: ran.append(1)))
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        watched.may_go.set()
        assert await asyncio.gather(*busy) == ["done"] * database.READER_THREADS

    asyncio.run(cancel_a_queued_read())
    watched.executor.close()
    assert ran == []
