"""Events as a stream: in order, without gaps, from where a listener left off, and to whom they belong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from myrmidon.scheduler import share
from myrmidon.server import events
from myrmidon.server.door import Call, Identity, Role
from myrmidon.server.events import EventsQuery
from tests.deadline import HANG_S, POLL_S
from tests.server.doors import ADMIN, Soldier, a_door, a_task, finish, serving, submit, until


@pytest.fixture
def door(db_url, tmp_path):
    with a_door(db_url, tmp_path) as opened:
        yield opened


def run(story, door):
    async def whole():
        async with serving(door):
            return await asyncio.wait_for(story(), HANG_S)

    return asyncio.run(whole())


class Listener:
    def __init__(self, stream):
        self._stream = stream
        self._ready = []

    async def next(self):
        """The next event: (number, what it says)."""
        while not self._ready:
            for block in (await anext(self._stream)).decode().split("\n\n"):
                fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
                if fields:
                    self._ready.append((int(fields["id"]), json.loads(fields["data"])))
        return self._ready.pop(0)

    async def close(self):
        await self._stream.aclose()


async def listen(door, *, who=ADMIN, last="", **query):
    call = Call(who=who, query=EventsQuery(**query), headers={"last-event-id": last} if last else {})
    listener = Listener((await events.events(door, call)).body)
    assert await anext(listener._stream) == events.STILL_HERE
    return listener


def test_a_listener_hears_of_everything_from_then_on_in_order(door):
    async def story():
        bot = Soldier(door)
        await bot.shake()
        await submit(door, a_task())
        await bot.exchange(wait_s=POLL_S)
        early = await listen(door)
        (task_id,) = await submit(door, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        await bot.exchange(n=0, reports=[finish(task)])
        told: list[Any] = []
        while not told or told[-1][1]["state"] != "SUCCEEDED":
            told.append(await early.next())
        mine = [(said["seq"], said["state"]) for _, said in told if said["id"] == task_id]
        assert mine == [(1, "READY"), (2, "RUNNING"), (3, "SUCCEEDED")]
        numbers = [number for number, _ in told]
        assert numbers == sorted(set(numbers))
        assert told[-1][1]["kind"] == "task"
        assert told[-1][1]["about"]["generation"] == 1
        await early.close()

    run(story, door)


def test_a_listener_that_was_cut_off_goes_on_where_it_was(door):
    async def story():
        for _ in range(5):
            await submit(door, a_task())
        first = await listen(door, after=0)
        heard = [await first.next() for _ in range(3)]
        await first.close()
        for _ in range(2):
            await submit(door, a_task())
        second = await listen(door, last=str(heard[-1][0]))
        heard += [await second.next() for _ in range(4)]
        await second.close()
        assert [number for number, _ in heard] == list(range(1, 8))
        assert len({said["id"] for _, said in heard}) == 7
        assert door.hub.num_streams == 0

    run(story, door)


@pytest.mark.parametrize("ahead", [{"last": "1000000"}, {"after": 1_000_000}])
def test_a_listener_that_is_ahead_of_a_restored_server_hears_what_comes_now(door, ahead):
    async def story():
        first = await listen(door, after=0)
        await submit(door, a_task())
        await first.next()
        await first.close()
        listener = await listen(door, **ahead)
        (task_id,) = await submit(door, a_task())
        number, said = await listener.next()
        assert (number, said["id"]) == (2, task_id)
        await listener.close()

    run(story, door)


@pytest.mark.parametrize("last", ["9" * 5000, "9" * 20, "-1", "x", "²"])
def test_a_number_that_no_event_has_counts_as_none(door, last):
    async def story():
        await submit(door, a_task())
        listener = await listen(door, last=last, after=0)
        assert (await listener.next())[0] == 1
        await listener.close()

    run(story, door)


def test_a_listener_bound_to_a_group_hears_of_that_group_only(door):
    async def story():
        await door.write(lambda tx: share.create_group(tx, "others", now=door.now(), ids=door.ids))
        (mine,) = await submit(door, a_task())
        stranger = await listen(door, who=Identity("stranger", Role.VIEWER, "others"), after=0)
        owner = await listen(door, who=Identity("owner", Role.VIEWER, "default"), after=0)
        assert (await owner.next())[1]["id"] == mine
        waiting = asyncio.ensure_future(stranger.next())
        (more,) = await submit(door, a_task())
        assert (await owner.next())[1]["id"] == more
        (theirs,) = await submit(door, a_task(), group_name="others")
        assert (await waiting)[1]["id"] == theirs, "what is not its own would have come before"
        (last,) = await submit(door, a_task())
        assert (await owner.next())[1]["id"] == last
        await owner.close()
        await stranger.close()

    run(story, door)


def test_a_stop_ends_every_stream(door, monkeypatch):
    monkeypatch.setattr(events, "STILL_HERE_S", POLL_S)

    async def story():
        listener = await listen(door)
        waiting = asyncio.ensure_future(listener.next())
        await until(lambda: door.hub._growing)
        door.hub.stop()
        with pytest.raises(StopAsyncIteration):
            await waiting

    run(story, door)
