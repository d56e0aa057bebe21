"""Polls whose connection is lost while they claim: their handler is cancelled, but their transaction is committed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from myrmidon.model.ids import parse_id
from myrmidon.server.botapi import exchange_transaction
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch import claims
from myrmidon.store.tables import task_run
from tests.deadline import HANG_S, POLL_S
from tests.server.contexts import BotClient, a_server_context, a_task, begun, finish, state_of, submit, until


@pytest.fixture
def context(db_url: str, tmp_path: Path) -> Iterator[ServerContext]:
    with a_server_context(db_url, tmp_path) as opened:
        yield opened


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), HANG_S))


class Gate:
    """Stops the next call of a function on the thread of its transaction until the test lets it pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        original = getattr(module, name)
        self._reached, self._opened = threading.Event(), threading.Event()

        def stop(*args: Any, **given: Any) -> Any:
            if not self._reached.is_set():
                self._reached.set()
                assert self._opened.wait(HANG_S)
            return original(*args, **given)

        monkeypatch.setattr(module, name, stop)

    async def reached(self) -> None:
        await until(self._reached.is_set)

    def open(self) -> None:
        self._opened.set()


async def a_known_bot(context: ServerContext, name: str = "b1") -> BotClient:
    bot = BotClient(context, name)
    await bot.shake()
    await bot.exchange(n=0, received=0)
    return bot


async def cancel(poll: asyncio.Future[Any]) -> None:
    """What the server does when the connection of a poll is lost."""
    poll.cancel()
    with suppress(asyncio.CancelledError):
        await poll


def runs_of(answer: Any) -> list[tuple[int, int]]:
    return [parse_id(task["run"]) for task in answer["tasks"]]


async def claimed(context: ServerContext, shown: str) -> None:
    """Wait until the first claim of a task is committed."""
    task_id = parse_id(shown)[0]
    while not await context.db.read(lambda tx: task_run.read(tx, [task_id])):  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)


def test_what_a_lost_poll_has_claimed_is_given_back_with_the_next_request(context, monkeypatch):
    async def story() -> None:
        async with begun(context):
            bot = await a_known_bot(context)
            gate = Gate(monkeypatch, exchange_transaction, "apply_reports_and_claim")
            (shown,) = await submit(context, a_task())
            poll = asyncio.ensure_future(bot.exchange(received=0))
            await gate.reached()
            await cancel(poll)
            gate.open()
            await claimed(context, shown)
            assert runs_of(await bot.exchange(received=0)) == [(parse_id(shown)[0], 2)]

    run(story)


def test_what_a_lost_poll_claims_after_the_next_request_is_given_back_at_once(context, monkeypatch):
    async def story() -> None:
        async with begun(context):
            bot, other = await a_known_bot(context), await a_known_bot(context, "b2")
            gate = Gate(monkeypatch, exchange_transaction, "apply_reports_and_claim")
            (shown,) = await submit(context, a_task())
            poll = asyncio.ensure_future(bot.exchange(received=0))
            await gate.reached()
            await cancel(poll)
            await bot.exchange(n=0, received=0)
            gate.open()
            await claimed(context, shown)
            assert runs_of(await other.exchange(received=0, wait_s=POLL_S)) == [(parse_id(shown)[0], 2)]

    run(story)


def test_what_a_submit_claims_for_a_lost_poll_is_given_back_at_once(context, monkeypatch):
    async def story() -> None:
        async with begun(context):
            bot = await a_known_bot(context)
            await submit(context, a_task())
            await bot.exchange(received=0)  # now the hub knows that the bot serves this queue
            received = bot.nonce
            poll = asyncio.ensure_future(bot.exchange(received=received, wait_s=POLL_S))
            await until(lambda: context.hub.num_waiting == 1)
            gate = Gate(monkeypatch, claims, "claim_with_nonce")
            submitting = asyncio.ensure_future(submit(context, a_task()))
            await gate.reached()
            await cancel(poll)
            await bot.exchange(n=0, received=received)
            gate.open()
            (shown,) = await submitting
            other = await a_known_bot(context, "b2")
            assert runs_of(await other.exchange(received=0, wait_s=POLL_S)) == [(parse_id(shown)[0], 2)]

    run(story)


def test_a_claim_that_arrives_once_more_takes_no_run_from_a_bot_that_has_received_it(context):
    """The copy is late: the bot has made another call since, and may have begun the run."""

    async def story() -> None:
        async with begun(context):
            bot = await a_known_bot(context)
            (shown,) = await submit(context, a_task(retries=0))
            (task,) = (await bot.exchange(received=0))["tasks"]
            received = bot.nonce
            await bot.exchange(n=0, received=received)
            await bot.exchange(nonce=received, received=0)
            assert (await bot.heartbeat(task)).stop == []
            await bot.exchange(n=0, received=received, reports=[finish(task)])
            assert await state_of(context, shown) == "SUCCEEDED"

    run(story)


@pytest.mark.parametrize("holds", [False, True], ids=["without runs", "with another run"])
def test_a_bot_that_comes_to_another_server_names_what_it_has_not_received(context, holds):
    async def story() -> None:
        async with begun(context):
            bot, other = await a_known_bot(context), await a_known_bot(context, "b2")
            held = []
            if holds:
                await submit(context, a_task())
                held = [[task["run"], task["token"]] for task in (await bot.exchange(received=0))["tasks"]]
            received = bot.nonce
            (shown,) = await submit(context, a_task())
            assert len((await bot.exchange(received=received))["tasks"]) == 1  # this answer is lost
            context.hub.forget("b1")
            await bot.exchange(n=0, received=received, holds=held)
            assert runs_of(await other.exchange(received=0, wait_s=POLL_S)) == [(parse_id(shown)[0], 2)]

    run(story)
