"""Tasks run where the data of their shared values is, if a bot there is idle; and nobody waits for such a bot."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from myrmidon.model.ids import parse_id
from tests.server.contexts import until
from tests.server.inside import Inside, inside

SEVEN = {"inline": "Bw=="}
ADDRESSES = [f"10.0.0.{number}" for number in range(1, 5)]


@pytest.fixture
def app(tmp_path, db_url) -> Iterator[Inside]:
    with inside(tmp_path, db_url) as opened:
        yield opened


def name_at(address: str) -> str:
    return f"bot-{address}"


class Bot:
    """A bot at an address, whose polls are held until there is work."""

    def __init__(self, app: Inside, address: str) -> None:
        self.app, self.address, self.name = app, address, name_at(address)
        self.nonce = 0
        self.held: list[Any] = []
        self.poll: asyncio.Task[Any] | None = None

    async def connect(self) -> None:
        dimensions = {"id": [self.name], "pool": ["default"], "os": ["Linux"]}
        hello = {"bot_id": self.name, "session": 1, "dimensions": dimensions}
        reply = await self.app.ask("POST", "/bot/v1/handshake", hello, peer=self.address)
        assert reply.status == 200, reply

    def start(self, n: int = 1) -> None:
        """Report what the bot holds, and poll for more."""
        reports = [
            {"type": "finish", "run": run["run"], "token": run["token"], "exit_code": 0, "duration": 1.0}
            for run in self.held
        ]
        self.held, self.nonce = [], self.nonce + 1
        body = {"session": 1, "nonce": self.nonce, "n": n, "wait_s": 60, "slots": n, "reports": reports}
        token = self.app.credential(self.name)
        self.poll = asyncio.create_task(self.app.ask("POST", "/bot/v1/exchange", body, token=token, peer=self.address))

    async def idle(self) -> None:
        """Until its poll is held."""
        await until(lambda: self.is_waiting)

    @property
    def is_waiting(self) -> bool:
        known = self.app.context.hub.bots.get(self.name)
        return known is not None and known in known.peers.waiting(functions=True)

    async def work(self) -> list[Any]:
        """The runs that end the poll."""
        assert self.poll is not None
        reply = await self.poll
        assert reply.status == 200, reply
        self.held = reply.json["tasks"]
        return self.held


async def connect(app: Inside, *addresses: str, n: int = 1) -> dict[str, Bot]:
    bots = {address: Bot(app, address) for address in addresses}
    for bot in bots.values():
        await bot.connect()
        bot.start(n)
        await bot.idle()
    return bots


def share(app: Inside, *addresses: str) -> str:
    body = {"type": "int64", "payload": SEVEN, "localities": list(addresses)}
    return str(app.post("/api/v1/values", body).json["id"])


def a_function(*value_ids: str) -> dict[str, Any]:
    inputs = [{"kind": "shared", "type": "int64", "shared_value_id": one} for one in value_ids]
    return {
        "name": "f", "function": {"package_name": "lib", "func_name": "lib.f"}, "inputs": inputs, "outputs": [],
        "slices": [{"properties": {"dimensions": {"pool": ["default"]}}}],
    }  # fmt: skip


async def submit(app: Inside, tasks: dict[str, Any]) -> dict[str, str]:
    reply = await app.ask("POST", "/api/v1/jobs", {"job": {"name": "j", "tasks": tasks}})
    assert reply.status == 200, reply
    ids: dict[str, str] = reply.json["task_ids"]
    return ids


async def run_one(bots: dict[str, Bot]) -> str:
    """The address of the bot that gets the only task; it polls again afterwards."""
    polls = {bot.poll: bot for bot in bots.values() if bot.poll is not None}
    done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    [bot] = [polls[poll] for poll in done]
    assert len(await bot.work()) == 1
    bot.start()
    await bot.idle()
    return bot.address


def test_tasks_of_an_idle_local_bot_run_there(app):
    """One after another, each local to another bot, among four idle ones: at least 95 % run where their data is."""
    values = {address: share(app, address) for address in ADDRESSES}

    async def story() -> Counter[bool]:
        bots = await connect(app, *ADDRESSES)
        local: Counter[bool] = Counter()
        for number in range(100):
            wanted = ADDRESSES[number * 7 % 4]
            await submit(app, {"f": {"task": a_function(values[wanted])}})
            local[await run_one(bots) == wanted] += 1
        return local

    assert app.run(story())[True] >= 95


def test_tasks_that_come_together_go_each_to_their_own_bot(app):
    values = {address: share(app, address) for address in ADDRESSES[:3]}

    async def story() -> dict[str, str]:
        bots = await connect(app, *ADDRESSES)
        tasks = {address: {"task": a_function(value)} for address, value in reversed(values.items())}
        ids = await submit(app, {"plain": {"task": a_function()}, **tasks})
        labels = {task_id: label for label, task_id in ids.items()}
        return {bot.address: labels[(await bot.work())[0]["run"][:-2] + "00"] for bot in bots.values()}

    assert app.run(story()) == {**{address: address for address in values}, ADDRESSES[3]: "plain"}


def test_a_task_that_a_report_makes_ready_goes_to_the_idle_local_bot(app):
    """The bot that reports the parent asks for work with the same call, and must leave the child to the other one."""
    value = share(app, ADDRESSES[1])

    async def story() -> Counter[bool]:
        bots = await connect(app, ADDRESSES[0])
        local: Counter[bool] = Counter()
        near = (await connect(app, ADDRESSES[1]))[ADDRESSES[1]]
        far = bots[ADDRESSES[0]]
        for number in range(40):
            pinned = a_function()
            pinned["slices"][0]["properties"]["dimensions"]["id"] = [far.name]
            child = {"requires": ["parent"], "task": a_function(value)}
            await submit(app, {"parent": {"task": pinned}, "child": child})
            assert len(await far.work()) == 1
            far.start()
            waiting = {bot.poll: bot for bot in (near, far) if bot.poll is not None}
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            [bot] = [waiting[poll] for poll in done]
            assert len(await bot.work()) == 1, number
            local[bot is near] += 1
            bot.start()
            await near.idle()
            await far.idle()
        return local

    assert app.run(story())[True] >= 38


def test_nobody_waits_for_a_busy_local_bot(app):
    value = share(app, ADDRESSES[0])

    async def story() -> list[str]:
        bots = await connect(app, *ADDRESSES[:2])
        taken = []
        for wanted in ADDRESSES[:2]:
            await submit(app, {"f": {"task": a_function(value)}})
            taken.append((await bots[wanted].work())[0]["run"])
        waiting = await submit(app, {"f": {"task": a_function(value)}})
        bots[ADDRESSES[1]].start()
        return [*taken, *(run["run"] for run in await bots[ADDRESSES[1]].work()), waiting["f"]]

    first, second, third, task = app.run(story())
    assert len({first, second, third}) == 3
    assert parse_id(third)[0] == parse_id(task)[0], "the bot that is free first takes it, although it is not local"


def test_more_local_tasks_than_the_local_bot_can_take_go_to_others_at_once(app):
    value = share(app, ADDRESSES[0])

    async def story() -> dict[str, int]:
        bots = await connect(app, *ADDRESSES)
        await submit(app, {f"f{number}": {"task": a_function(value)} for number in range(4)})
        return {bot.address: len(await bot.work()) for bot in bots.values()}

    assert app.run(story()) == dict.fromkeys(ADDRESSES, 1)


def test_an_address_where_no_bot_is_does_not_matter(app):
    value = share(app, "192.0.2.1")

    async def story() -> str:
        bots = await connect(app, *ADDRESSES[:2])
        await submit(app, {"f": {"task": a_function(value)}})
        return await run_one(bots)

    assert app.run(story()) == ADDRESSES[0], "who has waited longest"
