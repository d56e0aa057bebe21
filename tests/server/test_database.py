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
from myrmidon.server.database import THREADS, Executor, Purpose, SchedulingDatabase, purpose
from myrmidon.server.metrics import Metrics
from myrmidon.store.engine.db import Db, Tx, open_db
from tests.deadline import HANG_S
from tests.server.contexts import a_task
from tests.server.inside import BOT, inside


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
        self.executor = Executor(engine, lambda _: None)
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

    async def write() -> None:
        await watched.db.write(fail)

    with pytest.raises(WrongState):
        asyncio.run(write())
    assert watched.published == []


def test_a_write_is_carried_out_and_recorded_although_its_caller_is_cancelled(watched: Watched) -> None:
    recorded = asyncio.Event()

    async def cancel_the_caller() -> None:
        caller = asyncio.ensure_future(watched.db.write(watched.slow, lambda _: recorded.set()))
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
        busy = [asyncio.create_task(watched.db.read(watched.slow)) for _ in range(THREADS[Purpose.CHANGES])]
        await asyncio.to_thread(watched.has_begun.wait, HANG_S)
        queued = asyncio.create_task(watched.db.read(lambda _: ran.append(1)))
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        watched.may_go.set()
        assert await asyncio.gather(*busy) == ["done"] * THREADS[Purpose.CHANGES]

    asyncio.run(cancel_a_queued_read())
    watched.executor.close()
    assert ran == []


def test_slow_queries_hold_up_neither_bots_nor_submits_nor_results(tmp_path: Path, db_url: str) -> None:
    """Each of the threads for queries runs one that does not end before the others were answered."""
    may_go, num_begun = threading.Event(), threading.Semaphore(0)

    def slow(tx: Tx) -> str:
        tx.one("SELECT 1")
        num_begun.release()
        assert may_go.wait(HANG_S)
        return "done"

    with inside(tmp_path, db_url) as app:
        app.meet_bot()
        ask = {"session": 1, "nonce": 1, "n": 1, "wait_s": 0}
        credential, admin = app.credential(BOT), app.token("admin")

        async def story() -> None:
            purpose.set(Purpose.QUERIES)
            count = THREADS[Purpose.QUERIES] + 16
            busy = [asyncio.create_task(app.context.db.read(slow)) for _ in range(count)]
            for _ in range(THREADS[Purpose.QUERIES]):
                assert await asyncio.to_thread(num_begun.acquire, timeout=HANG_S)
            query = asyncio.create_task(app.ask("GET", "/api/v1/tasks", token=admin))
            submitted = await app.ask("POST", "/api/v1/tasks", {"tasks": [a_task()]}, token=admin)
            claimed = await app.ask("POST", "/bot/v1/exchange", ask, token=credential)
            ready = await app.ask("GET", "/readyz", token="")
            waits = {"task_ids": [submitted.json["tasks"][0]["task_id"]], "wait_s": 0}
            results = await app.ask("POST", "/api/v1/results", waits, token=admin)
            assert [one.status for one in (submitted, claimed, ready, results)] == [200] * 4
            assert len(claimed.json["tasks"]) == 1
            assert not query.done()
            may_go.set()
            assert await asyncio.gather(*busy) == ["done"] * count
            assert (await query).status == 200

        app.run(story())
