"""Logs by range and as they grow, and waiting for tasks; at the context and over real HTTP."""

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
from myrmidon.scheduler import resource_groups
from myrmidon.server.api import logs, tasks
from myrmidon.server.calls import Call, Identity, Role
from myrmidon.server.usecases.logs import RunLog, missing_line, read_range
from myrmidon.store.tables.log import STDOUT
from myrmidon.wire.logs import FollowQuery, LogQuery, Stream
from myrmidon.wire.tasks import Mode, WaitRequest
from tests.deadline import HANG_S, POLL_S
from tests.server.contexts import ADMIN, BotClient, a_server_context, a_task, begun, finish, start, submit, until


@pytest.fixture
def context(db_url, tmp_path):
    with a_server_context(db_url, tmp_path) as opened:
        yield opened


@pytest.fixture
def small_logs(sqlite_url, tmp_path):
    """A log keeps 1 MiB in all, so that its middle is soon cut."""
    with a_server_context(sqlite_url, tmp_path, log_mib=1) as opened:
        yield opened


@pytest.fixture(autouse=True)
def told_at_once(monkeypatch):
    """Nobody looks again by itself before the test has given up: whoever waits must be told."""
    monkeypatch.setattr(logs, "RECHECK_S", POLL_S)
    monkeypatch.setattr(logs, "RECHECK_SHARED_S", POLL_S)
    monkeypatch.setattr(tasks, "RECHECK_S", POLL_S)


def run(story, context):
    async def whole():
        async with begun(context):
            return await asyncio.wait_for(story(), HANG_S)

    return asyncio.run(whole())


async def a_running_task(context, **more):
    bot = BotClient(context)
    await bot.shake()
    (task_id,) = await submit(context, a_task(**more))
    task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
    await bot.exchange(n=0, reports=[start(task)])
    return bot, task, task_id


async def read(context, task_id, **query):
    answer = await logs.get_log(
        context, Call(now=context.now(), who=ADMIN, params={"id": task_id}, query=LogQuery(**query))
    )
    return answer.body, answer.headers


def followed(text: bytes):
    """The events of a stream: (id, event, data)."""
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


async def follow(context, task_id, *, last="", **query):
    call = Call(
        now=context.now(),
        who=ADMIN,
        params={"id": task_id},
        query=FollowQuery(**query),
        headers={"last-event-id": last},
    )
    return (await logs.follow(context, call)).body


def test_only_the_file_of_the_logs_is_made_for_large_values(small_logs):
    pages = [db.read(lambda tx: tx.one("PRAGMA page_size")) for db in (small_logs.db.engine, small_logs.logs.engine)]
    assert pages == [(4096,), (16384,)]


def test_the_log_is_byte_for_byte_what_the_command_wrote(context):
    async def story():
        bot, task, task_id = await a_running_task(context)
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
                body, headers = await read(context, task_id, stream=name, offset=offset, limit=100_000)
                if not body:
                    break
                assert headers["x-log-length"] == str(len(whole))
                got, offset = got + body, int(headers["x-log-next"])
            assert hashlib.sha256(got).digest() == hashlib.sha256(whole).digest()
        both, headers = await read(context, task_id, limit=8 << 20)
        assert hashlib.sha256(both).digest() == hashlib.sha256(out + err).digest()
        across, _ = await read(context, task_id, offset=len(out) - 5, limit=10)
        assert across == out[-5:] + err[:5]

    run(story, context)


def test_a_cut_middle_is_shown(small_logs):
    context = small_logs

    async def story():
        bot, task, task_id = await a_running_task(context)
        for i in range(30):
            await bot.log(task, 0, i << 16, bytes([65 + i]) * 65_536)
        body, headers = await read(context, task_id, stream=Stream.STDOUT, limit=8 << 20)
        low, high = (int(part) for part in headers["x-log-cut"].split("-"))
        assert headers["x-log-length"] == headers["x-log-next"] == str(30 << 16)
        marker = missing_line(high - low)
        head, tail = body.split(marker)
        assert (len(head), len(tail)) == (low, (30 << 16) - high)
        assert (head[:1], tail[-1:]) == (b"A", bytes([65 + 29]))
        await bot.exchange(n=0, reports=[finish(task)])
        told = followed(b"".join([part async for part in await follow(context, task_id)]))
        (cut,) = [data for _, event, data in told if event == "cut"]
        assert (cut["offset"], cut["missing"]) == (low, high - low)

    run(story, context)


@pytest.mark.parametrize("hole", [95, logs.PIECE * 3])
def test_a_hole_that_nobody_can_fill_any_more_is_told_and_passed(context, hole):
    async def story():
        bot, task, task_id = await a_running_task(context)
        stream = await follow(context, task_id)
        await anext(stream)
        await bot.log(task, 0, 0, b"head\n")
        await bot.log(task, 0, 5 + hole, b"tail after a gap\n")
        (head,) = followed(await anext(stream))
        rest = asyncio.ensure_future(_all(stream))
        await bot.exchange(n=0, reports=[finish(task)])
        cut, tail, end = followed(await rest)
        assert (cut[1], cut[2]["offset"], cut[2]["missing"]) == ("cut", 5, hole)
        assert (tail[1], base64.b64decode(tail[2]["data"])) == ("log", b"tail after a gap\n")
        assert [event for _, event, _ in followed(await _all(await follow(context, task_id, last=head[0])))] == [
            "cut", "log", "end",
        ]  # fmt: skip
        assert end[1] == "end"

    run(story, context)


def test_a_range_that_begins_in_a_hole_says_so_and_goes_on_behind_it(context):
    async def story():
        bot, task, task_id = await a_running_task(context)
        await bot.log(task, 0, 0, b"head\n")
        await bot.log(task, 0, 100, b"tail after a gap\n")
        await bot.log(task, 1, 0, b"stderr")
        for offset, body, after in (
            (50, missing_line(50) + b"tail after", 110),
            (0, b"head\n" + missing_line(95) + b"tail ", 105),
            (110, b" a gap\nstd", 120),
        ):
            got, headers = await read(context, task_id, offset=offset, limit=10)
            assert (got, headers["x-log-next"], headers["x-log-length"]) == (body, str(after), "123")
        shown = await context.logs.read(
            lambda tx: read_range(tx, RunLog(*parse_id(task["run"])), streams=[STDOUT], offset=50, limit=10)
        )
        assert shown.content == missing_line(50) + b"tail after"

    run(story, context)


def test_a_followed_log_grows_until_the_task_ends_and_goes_on_where_it_was_cut(context):
    async def story():
        bot, task, task_id = await a_running_task(context)
        stream = await follow(context, task_id)
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
        rest = followed(b"".join([part async for part in await follow(context, task_id, last=second[0])]))
        assert [event for _, event, _ in rest] == ["log", "end"]
        assert base64.b64decode(rest[0][2]["data"]) == b"two"
        assert (rest[1][2]["state"], rest[1][2]["exit_code"], rest[1][2]["run"]) == ("FAILED", 3, task["run"])
        again = followed(b"".join([part async for part in await follow(context, task_id, last=rest[-1][0])]))
        assert [event for _, event, _ in again] == ["end"]

    run(story, context)


def test_following_goes_on_with_the_next_run_of_the_task(context):
    async def story():
        bot, task, task_id = await a_running_task(context, reruns=1)
        reading = asyncio.ensure_future(_all(await follow(context, task_id)))
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
        only = followed(await _all(await follow(context, task_id, run=1)))
        assert [event for _, event, _ in only] == ["log", "end"]
        assert only[1][2]["state"] == "FAILED"

    run(story, context)


async def _all(stream) -> bytes:
    return b"".join([part async for part in stream])


def test_following_starts_before_the_task_has_a_run(context):
    async def story():
        (task_id,) = await submit(context, a_task())
        reading = asyncio.ensure_future(_all(await follow(context, task_id)))
        bot = BotClient(context)
        await bot.shake()
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        await bot.log(task, 0, 0, b"hello")
        await bot.exchange(n=0, reports=[finish(task)])
        assert [event for _, event, _ in followed(await reading)] == ["log", "end"]

    run(story, context)


def test_a_followed_log_is_kept_alive_while_only_the_other_stream_grows(context, monkeypatch):
    monkeypatch.setattr(logs, "KEEP_ALIVE_S", 0.5)

    async def story():
        bot, task, task_id = await a_running_task(context)
        stream = await follow(context, task_id, stream=Stream.STDOUT)
        assert await anext(stream) == b": follows\n\n"
        waiting = asyncio.ensure_future(anext(stream))
        written = 0
        while not waiting.done():
            await bot.log(task, 1, written, b"e")
            written += 1
        assert await waiting == logs.KEEP_ALIVE
        await stream.aclose()

    run(story, context)


def test_waiting_for_tasks_ends_with_the_first_or_with_the_last(context):
    async def wait(ids, **more):
        return await tasks.wait(context, Call(now=context.now(), who=ADMIN, body=WaitRequest(task_ids=ids, **more)))

    async def story():
        bot = BotClient(context)
        await bot.shake()
        ids = await submit(context, *[a_task() for _ in range(3)])
        nothing = await wait(ids, wait_s=0)
        assert (nothing.done, [one.state for one in nothing.tasks]) == (False, ["READY"] * 3)
        one = asyncio.ensure_future(wait(ids, mode=Mode.ANY, wait_s=POLL_S))
        every = asyncio.ensure_future(wait(ids, mode=Mode.ALL, wait_s=POLL_S))
        await until(lambda: len(context.hub._task_ends.waiters.get(parse_id(ids[-1])[0], ())) == 2)
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

    run(story, context)


def test_logs_and_states_of_another_group_do_not_exist(context):
    async def story():
        _, _, task_id = await a_running_task(context)
        await context.db.write(
            lambda tx: resource_groups.create_group(tx, "others", now=context.now(), ids=context.ids)
        )
        stranger = Identity("stranger", Role.USER, "others")
        for handler, call in [
            (logs.get_log, Call(now=context.now(), who=stranger, params={"id": task_id}, query=LogQuery())),
            (logs.follow, Call(now=context.now(), who=stranger, params={"id": task_id}, query=FollowQuery())),
            (tasks.wait, Call(now=context.now(), who=stranger, body=WaitRequest(task_ids=[task_id]))),
        ]:
            with pytest.raises(NotFound):
                await handler(context, call)
        with pytest.raises(NotFound):
            await read(context, task_id, run=5)
        assert parse_id(task_id)[1] == 0
        body, headers = await read(context, task_id)
        assert (body, headers["x-log-length"]) == (b"", "0")

    run(story, context)


SECRET = b"correct-horse\nbattery-staple\n"


def test_a_printed_secret_is_masked_in_ranges_and_in_the_stream_while_it_is_written(context):
    async def story():
        bot, task, task_id = await a_running_task(context, secret_bytes=base64.b64encode(SECRET).decode())
        stream = await follow(context, task_id)
        await anext(stream)
        await bot.log(task, 0, 0, b"the password is cor")
        await bot.log(task, 1, 0, b"battery-")
        (first,) = followed(await anext(stream))
        assert base64.b64decode(first[2]["data"]) == b"the password is "
        body, headers = await read(context, task_id)
        assert (body, headers["x-log-next"], headers["x-log-length"]) == (b"the password is ", "16", "16")
        await bot.log(task, 0, 19, b"rect-horse\n")
        await bot.log(task, 1, 8, b"staple\n")
        await bot.exchange(n=0, reports=[finish(task)])
        rest = contents(await _all(stream))
        shown = {0: b"the password is " + rest[0], 1: rest[1]}
        assert shown == {0: b"the password is *************\n", 1: b"**************\n"}
        both, headers = await read(context, task_id)
        assert (both, headers["x-log-length"]) == (shown[0] + shown[1], str(len(both)))
        inside, _ = await read(context, task_id, offset=20, limit=3)
        assert inside == b"***"
        resumed = contents(await _all(await follow(context, task_id, last=f"{int(task['run'][-2:], 16)}:20:3")))
        assert resumed == {0: shown[0][20:], 1: shown[1][3:]}

    run(story, context)


def test_a_message_of_the_bot_that_repeats_output_is_masked_like_it(context):
    async def story():
        bot, task, task_id = await a_running_task(context, secret_bytes=base64.b64encode(SECRET).decode())
        await bot.exchange(n=0, reports=[finish(task, 1, message="no program gr\u00fcn/correct-horse")])
        shown = await tasks.get_task(context, Call(now=context.now(), who=ADMIN, params={"id": task_id}))
        evidence = shown.runs[0].evidence
        assert evidence == {"message": "no program gr\u00fcn/*************"}
        assert shown.request.has_secret

    run(story, context)


def contents(text):
    """The bytes of each stream in the events of a followed log."""
    found = {0: b"", 1: b""}
    for _, event, data in followed(text):
        if event == "log":
            found[data["stream"]] += base64.b64decode(data["data"])
    return found
