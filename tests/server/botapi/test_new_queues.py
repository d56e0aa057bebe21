"""Queues that are created while a bot is read from the database: the bot gets their tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from tests.deadline import HANG_S, POLL_S
from tests.server.contexts import BotClient, a_server_context, a_task, begun, start, submit, until


@pytest.fixture
def context(db_url: str, tmp_path: Path) -> Iterator[ServerContext]:
    with a_server_context(db_url, tmp_path) as opened:
        yield opened


def run(context: ServerContext, story: Callable[[], Awaitable[None]]) -> None:
    async def told() -> None:
        async with begun(context):
            await story()

    asyncio.run(asyncio.wait_for(told(), HANG_S))


def submit_after_the_next_write(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the next write, a task of a new queue comes before its caller learns the result."""
    original, loop = context.db.executor.write, asyncio.get_running_loop()

    async def settle_late(written: Future[Any], told: Future[Any]) -> None:
        await submit_to_a_new_queue(context)
        told.set_result(written.result())

    def write(fn: Callable[[Tx], Any], size: int = 1) -> Future[Any]:
        monkeypatch.setattr(context.db.executor, "write", original)
        told: Future[Any] = Future()

        def settle(written: Future[Any]) -> None:
            settling.append(asyncio.run_coroutine_threadsafe(settle_late(written, told), loop))

        original(fn, size).add_done_callback(settle)
        return told

    settling: list[Future[None]] = []  # the event loop itself holds no reference
    monkeypatch.setattr(context.db.executor, "write", write)


def submit_after_the_next_read(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a write."""
    original = context.db.read

    async def read(fn: Callable[[Tx], Any]) -> Any:
        monkeypatch.setattr(context.db, "read", original)
        result = await original(fn)
        await submit_to_a_new_queue(context)
        return result

    monkeypatch.setattr(context.db, "read", read)


async def submit_to_a_new_queue(context: ServerContext) -> None:
    before = context.hub.queue_seq
    await submit(context, a_task())
    await until(lambda: context.hub.queue_seq > before)


async def gets_a_task(bot: BotClient, **fields: Any) -> bool:
    return bool((await bot.exchange(wait_s=POLL_S, **fields))["tasks"])


def test_a_queue_that_is_created_during_a_handshake(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bot = BotClient(context)
        submit_after_the_next_write(context, monkeypatch)
        await bot.shake()
        assert await gets_a_task(bot)

    run(context, story)


def test_a_queue_that_is_created_while_an_idle_bot_is_read(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        bot = BotClient(context)
        await bot.shake()
        context.hub.forget(bot.name)  # as after a restart of the server
        submit_after_the_next_read(context, monkeypatch)
        assert await gets_a_task(bot)

    run(context, story)


def test_a_queue_that_is_created_while_a_bot_with_a_run_is_read(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task(dimensions={"pool": ["default"]}))
        (held,) = (await bot.exchange(wait_s=POLL_S))["tasks"]
        await bot.exchange(n=0, reports=[start(held)])
        context.hub.forget(bot.name)
        submit_after_the_next_write(context, monkeypatch)
        assert await gets_a_task(bot, holds=[[held["run"], held["token"]]])

    run(context, story)


def test_a_queue_that_is_created_while_a_bot_changes_its_dimensions(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        bot = BotClient(context)
        await bot.shake()
        submit_after_the_next_write(context, monkeypatch)
        assert await gets_a_task(bot, dimensions={**bot.dimensions, "floor": ["3"]})

    run(context, story)
