"""Logs by range and as they grow, and waiting for tasks; at the door and over real HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
from typing import Any

import pytest

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import parse_id
from myrmidon.scheduler import share
from myrmidon.server import api_logs, api_wait
from myrmidon.server.api_logs import FollowQuery, LogQuery, Stream
from myrmidon.server.api_wait import Mode, WaitRequest
from myrmidon.server.door import Call, Identity, Role
from tests.deadline import HANG_S, POLL_S
from tests.server.doors import ADMIN, Soldier, a_door, a_task, begun, finish, start, submit, until


@pytest.fixture
def door(db_url, tmp_path):
    with a_door(db_url, tmp_path) as opened:
        yield opened


@pytest.fixture
def small_logs(sqlite_url, tmp_path):
    """A log keeps 1 MiB in all, so that its middle is soon cut."""
    with a_door(sqlite_url, tmp_path, log_mib=1) as opened:
        yield opened


@pytest.fixture(autouse=True)
def told_at_once(monkeypatch):
    """Nobody looks again by itself before the test has given up: whoever waits must be told."""
    monkeypatch.setattr(api_logs, "LOOK_AGAIN_S", POLL_S)
    monkeypatch.setattr(api_logs, "OTHER_SERVERS_S", POLL_S)
    monkeypatch.setattr(api_wait, "LOOK_AGAIN_S", POLL_S)


def run(story, door):
    async def whole():
        async with begun(door):
            return await asyncio.wait_for(story(), HANG_S)

    return asyncio.run(whole())


async def a_running_task(door, **more):
    bot = Soldier(door)
    await bot.shake()
    (task_id,) = await submit(door, a_task(**more))
    task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
    await bot.exchange(n=0, reports=[start(task)])
    return bot, task, task_id


async def read(door, task_id, **query):
    answer = await api_logs.log_range(door, Call(who=ADMIN, params={"id": task_id}, query=LogQuery(**query)))
    return answer.body, answer.headers


def followed(text: bytes):
    """The events of a stream: (id, event, data)."""
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


async def follow(door, task_id, *, last="", **query):
    call = Call(who=ADMIN, params={"id": task_id}, query=FollowQuery(**query), headers={"last-event-id": last})
    return (await api_logs.follow(door, call)).body


def test_only_the_file_of_the_logs_is_made_for_large_values(small_logs):
    pages = [db.read(lambda tx: tx.one("PRAGMA page_size")) for db in (small_logs.db, small_logs.log_db)]
    assert pages == [(4096,), (16384,)]


def test_the_log_is_byte_for_byte_what_the_command_wrote(door):
    async def story():
        bot, task, task_id = await a_running_task(door)
        chance = random.Random(7)
        out, err = chance.randbytes(700_000), chance.randbytes(30_000)
        pieces = [(0, i, out[i : i + 65_536]) for i in range(0, len(out), 65_536)]
        pieces += [(1, i, err[i : i + 9_999]) for i in range(0, len(err), 9_999)]
        chance.shuffle(pieces)
        for stream, offset, data in pieces:
            await bot.log(task, stream, offset, data)
            await bot.log(task, stream, offset, data)  # the answer was lost
        for name, whole in ((Stream.STDOUT, out), (Stream.STDERR, err)):
            got, offset = b"", 0
            while True:
                body, headers = await read(door, task_id, stream=name, offset=offset, limit=100_000)
                if not body:
                    break
                assert headers["x-log-length"] == str(len(whole))
                got, offset = got + body, int(headers["x-log-next"])
            assert hashlib.sha256(got).digest() == hashlib.sha256(whole).digest()
        both, headers = await read(door, task_id, limit=8 << 20)
        assert hashlib.sha256(both).digest() == hashlib.sha256(out + err).digest()
        across, _ = await read(door, task_id, offset=len(out) - 5, limit=10)
        assert across == out[-5:] + err[:5]

    run(story, door)


def test_a_cut_middle_is_shown(small_logs):
    door = small_logs

    async def story():
        bot, task, task_id = await a_running_task(door)
        for i in range(30):
            await bot.log(task, 0, i << 16, bytes([65 + i]) * 65_536)
        body, headers = await read(door, task_id, stream=Stream.STDOUT, limit=8 << 20)
        low, high = (int(part) for part in headers["x-log-cut"].split("-"))
        assert headers["x-log-length"] == headers["x-log-next"] == str(30 << 16)
        marker = api_logs.missing_line(high - low)
        head, tail = body.split(marker)
        assert (len(head), len(tail)) == (low, (30 << 16) - high)
        assert (head[:1], tail[-1:]) == (b"A", bytes([65 + 29]))
        await bot.exchange(n=0, reports=[finish(task)])
        told = followed(b"".join([part async for part in await follow(door, task_id)]))
        (cut,) = [data for _, event, data in told if event == "cut"]
        assert (cut["offset"], cut["missing"]) == (low, high - low)

    run(story, door)


@pytest.mark.parametrize("hole", [95, api_logs.PIECE * 3])
def test_a_hole_that_nobody_can_fill_any_more_is_told_and_passed(door, hole):
    async def story():
        bot, task, task_id = await a_running_task(door)
        stream = await follow(door, task_id)
        await anext(stream)
        await bot.log(task, 0, 0, b"head\n")
        await bot.log(task, 0, 5 + hole, b"tail after a gap\n")
        (head,) = followed(await anext(stream))
        rest = asyncio.ensure_future(_all(stream))
        await bot.exchange(n=0, reports=[finish(task)])
        cut, tail, end = followed(await rest)
        assert (cut[1], cut[2]["offset"], cut[2]["missing"]) == ("cut", 5, hole)
        assert (tail[1], base64.b64decode(tail[2]["data"])) == ("log", b"tail after a gap\n")
        assert [event for _, event, _ in followed(await _all(await follow(door, task_id, last=head[0])))] == [
            "cut", "log", "end",
        ]  # fmt: skip
        assert end[1] == "end"

    run(story, door)


def test_a_range_that_begins_in_a_hole_says_so_and_goes_on_behind_it(door):
    async def story():
        bot, task, task_id = await a_running_task(door)
        await bot.log(task, 0, 0, b"head\n")
        await bot.log(task, 0, 100, b"tail after a gap\n")
        await bot.log(task, 1, 0, b"stderr")
        for offset, body, after in (
            (50, api_logs.missing_line(50) + b"tail after", 110),
            (0, b"head\n" + api_logs.missing_line(95) + b"tail ", 105),
            (110, b" a gap\nstd", 120),
        ):
            got, headers = await read(door, task_id, offset=offset, limit=10)
            assert (got, headers["x-log-next"], headers["x-log-length"]) == (body, str(after), "123")
        shown = await door.read_log(
            lambda tx: api_logs.read_output(tx, *parse_id(task["run"]), offset=50, length=10, both=False)
        )
        assert shown == api_logs.missing_line(50) + b"tail after"

    run(story, door)


def test_a_followed_log_grows_until_the_task_ends_and_goes_on_where_it_was_cut(door):
    async def story():
        bot, task, task_id = await a_running_task(door)
        stream = await follow(door, task_id)
        assert await anext(stream) == b": follows\n\n"
        await bot.log(task, 0, 0, b"one ")
        (first,) = followed(await anext(stream))
        assert (first[1], base64.b64decode(first[2]["data"]), first[2]["stream"]) == ("log", b"one ", 0)
        assert first[2]["run"] == task["run"]
        waiting = asyncio.ensure_future(anext(stream))
        await bot.log(task, 1, 0, b"oops")
        (second,) = followed(await waiting)
        assert (second[2]["stream"], second[2]["offset"]) == (1, 0)
        await stream.aclose()
        await bot.log(task, 0, 4, b"two")
        await bot.exchange(n=0, reports=[finish(task, 3)])
        rest = followed(b"".join([part async for part in await follow(door, task_id, last=second[0])]))
        assert [event for _, event, _ in rest] == ["log", "end"]
        assert base64.b64decode(rest[0][2]["data"]) == b"two"
        assert (rest[1][2]["state"], rest[1][2]["exit_code"], rest[1][2]["run"]) == ("FAILED", 3, task["run"])
        again = followed(b"".join([part async for part in await follow(door, task_id, last=rest[-1][0])]))
        assert [event for _, event, _ in again] == ["end"]

    run(story, door)


def test_following_goes_on_with_the_next_run_of_the_task(door):
    async def story():
        bot, task, task_id = await a_running_task(door, reruns=1)
        reading = asyncio.ensure_future(_all(await follow(door, task_id)))
        await bot.log(task, 0, 0, b"first")
        answer = await bot.exchange(reports=[finish(task, 1)], wait_s=POLL_S)
        second = answer["tasks"][0]
        await bot.log(second, 0, 0, b"second")
        await bot.exchange(n=0, reports=[finish(second, 0)])
        told = followed(await reading)
        assert [(data["run"], base64.b64decode(data["data"])) for _, event, data in told if event == "log"] == [
            (task["run"], b"first"),
            (second["run"], b"second"),
        ]
        only = followed(await _all(await follow(door, task_id, run=1)))
        assert [event for _, event, _ in only] == ["log", "end"]
        assert only[1][2]["state"] == "FAILED"

    run(story, door)


async def _all(stream) -> bytes:
    return b"".join([part async for part in stream])


def test_following_starts_before_the_task_has_a_run(door):
    async def story():
        (task_id,) = await submit(door, a_task())
        reading = asyncio.ensure_future(_all(await follow(door, task_id)))
        bot = Soldier(door)
        await bot.shake()
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        await bot.log(task, 0, 0, b"hello")
        await bot.exchange(n=0, reports=[finish(task)])
        assert [event for _, event, _ in followed(await reading)] == ["log", "end"]

    run(story, door)


def test_waiting_for_tasks_ends_with_the_first_or_with_the_last(door):
    async def wait(ids, **more):
        return await api_wait.wait(door, Call(who=ADMIN, body=WaitRequest(task_ids=ids, **more)))

    async def story():
        bot = Soldier(door)
        await bot.shake()
        ids = await submit(door, *[a_task() for _ in range(3)])
        nothing = await wait(ids, wait_s=0)
        assert (nothing.done, [one.state for one in nothing.tasks]) == (False, ["READY"] * 3)
        one = asyncio.ensure_future(wait(ids, mode=Mode.ANY, wait_s=POLL_S))
        every = asyncio.ensure_future(wait(ids, mode=Mode.ALL, wait_s=POLL_S))
        await until(lambda: len(door.hub._watches.get(parse_id(ids[-1])[0], ())) == 2)
        reports: list[Any] = []
        for code in range(3):
            task = (await bot.exchange(reports=reports, wait_s=POLL_S))["tasks"][0]
            assert not every.done()
            reports = [finish(task, code, duration=9.0)]
        first = await one
        assert (first.done, [end.final for end in first.tasks].count(True) >= 1) == (True, True)
        await bot.exchange(n=0, reports=reports)
        last = await every
        assert last.done
        assert [(end.task_id, end.state, end.exit_code) for end in last.tasks] == [
            (ids[0], "SUCCEEDED", 0),
            (ids[1], "FAILED", 1),
            (ids[2], "FAILED", 2),
        ]

    run(story, door)


def test_logs_and_states_of_another_group_do_not_exist(door):
    async def story():
        _, _, task_id = await a_running_task(door)
        await door.write(lambda tx: share.create_group(tx, "others", now=door.now(), ids=door.ids))
        stranger = Identity("stranger", Role.USER, "others")
        for handler, call in [
            (api_logs.log_range, Call(who=stranger, params={"id": task_id}, query=LogQuery())),
            (api_logs.follow, Call(who=stranger, params={"id": task_id}, query=FollowQuery())),
            (api_wait.wait, Call(who=stranger, body=WaitRequest(task_ids=[task_id]))),
        ]:
            with pytest.raises(NotFound):
                await handler(door, call)
        with pytest.raises(NotFound):
            await read(door, task_id, run=5)
        assert parse_id(task_id)[1] == 0
        body, headers = await read(door, task_id)
        assert (body, headers["x-log-length"]) == (b"", "0")

    run(story, door)
