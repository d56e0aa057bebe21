"""Bots that wait on one server for tasks that another server makes ready, in queues that are new to theirs.

Nothing runs in the background here: each test says which server does what, and in which order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from myrmidon.model.errors import StoreError
from myrmidon.model.ids import parse_id
from myrmidon.server.background import loop
from myrmidon.server.background.loop import BackgroundWork
from myrmidon.server.context import ServerContext
from myrmidon.store.tables import task_to_run
from tests.deadline import HANG_S, POLL_S
from tests.server.contexts import BotClient, a_server_context, a_task, start, submit, sweep, until

Pair = tuple[ServerContext, ServerContext]
pytestmark = pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def pair(db_url: str, tmp_path: Path) -> Iterator[Pair]:
    with a_server_context(db_url, tmp_path / "one") as one, a_server_context(db_url, tmp_path / "two") as two:
        yield one, two


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), HANG_S))


@asynccontextmanager
async def started(context: ServerContext) -> AsyncIterator[BackgroundWork]:
    work = BackgroundWork(context)
    await work.start()
    try:
        yield work
    finally:
        context.hub.stop()


async def a_held_poll(bot: BotClient) -> asyncio.Future[Any]:
    """A poll of a bot that has never had work, held by its server."""
    await bot.shake()
    poll = asyncio.ensure_future(bot.exchange(wait_s=POLL_S))
    await until(lambda: bot.context.hub.num_waiting == 1)
    return poll


async def sweep_until_queued(work: BackgroundWork, context: ServerContext, task_id: int) -> None:
    """Sweep until there is a right to start a run of the task."""
    while not await context.db.read(lambda tx: task_to_run.of_tasks(tx, [task_id])):
        await sweep(work)


async def a_slow_run(context: ServerContext) -> int:
    """The first run of a task that may have two instances, on a bot of this server."""
    bot = BotClient(context, "slow")
    await bot.shake()
    (shown,) = await submit(context, a_task(max_instances=2, soft_timeout_s=0.1))
    (task,) = (await bot.exchange())["tasks"]
    await bot.exchange(n=0, reports=[start(task)])
    return parse_id(shown)[0]


def test_an_instance_that_one_server_grants_goes_to_a_bot_that_waits_on_the_other(pair: Pair):
    one, two = pair

    async def story() -> None:
        async with started(one) as first, started(two) as second:
            poll = await a_held_poll(BotClient(two, "idle"))
            task_id = await a_slow_run(one)
            await second.follow_events()  # the task is claimed already, so its queue stays unknown here
            await sweep_until_queued(first, one, task_id)
            await second.follow_events()
            (task,) = (await poll)["tasks"]
            assert parse_id(task["run"]) == (task_id, 2)

    run(story)


def test_a_sweep_finds_tasks_in_a_queue_of_which_its_server_was_never_told(pair: Pair):
    one, two = pair

    async def story() -> None:
        async with started(one), started(two) as second:
            poll = await a_held_poll(BotClient(two, "idle"))
            (shown,) = await submit(one, a_task())
            await sweep(second)
            (task,) = (await poll)["tasks"]
            assert parse_id(task["run"]) == (parse_id(shown)[0], 1)

    run(story)


def test_a_sweep_reads_a_queue_that_it_knows_no_second_time(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    one, two = pair

    async def story() -> None:
        async with started(one), started(two) as second:
            await submit(one, a_task(), a_task(dimensions={"pool": ["default"], "os": ["Mac"]}))
            await sweep(second)
            added: list[int] = []
            monkeypatch.setattr(two.hub, "add_queue", lambda queue, *_, **__: added.append(queue))
            await submit(one, a_task(), a_task(dimensions={"pool": ["default"], "os": ["Windows"]}))
            await sweep(second)
            assert len(added) == 1

    run(story)


def test_events_of_other_servers_are_followed_without_a_pause_while_there_are_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
):
    one, two = pair
    monkeypatch.setattr(loop, "BATCH", 2)

    async def story() -> None:
        async with started(one), started(two) as second:
            await submit(one, *[a_task() for _ in range(5)])
            more = [await second.follow_events() for _ in range(4)]
            assert (more[:2], more[-1]) == ([True, True], False)

    run(story)


def test_events_whose_publication_failed_are_published_again(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    one, two = pair

    def unavailable(*_: Any) -> dict[int, int]:
        raise StoreError("the connection was lost")

    async def story() -> None:
        async with started(one), started(two) as second:
            poll = await a_held_poll(BotClient(two, "idle"))
            await submit(one, a_task())
            with monkeypatch.context() as patch:
                patch.setattr(task_to_run, "queues_of", unavailable)
                with pytest.raises(StoreError):
                    await second.follow_events()
            await second.follow_events()
            assert len((await poll)["tasks"]) == 1

    run(story)
