"""Events as a stream: in order, without gaps, from where a listener left off, and to whom they belong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import show_run, show_task
from myrmidon.scheduler import resource_groups, submit_job
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.server.api import events
from myrmidon.server.calls import Call, Identity, Role
from myrmidon.server.waiting import event_feed
from myrmidon.server.waiting.event_feed import StreamedEvent
from myrmidon.store.tables import outbox
from myrmidon.store.tables.outbox import Event, JobBody, TaskBody, body_of
from myrmidon.wire.events import EventsQuery
from tests.deadline import HANG_S, POLL_S
from tests.server.contexts import ADMIN, BotClient, a_server_context, a_task, finish, serving, submit, until

TASK = 0x5CEE48800881


@pytest.fixture
def context(db_url, tmp_path):
    with a_server_context(db_url, tmp_path) as opened:
        yield opened


def run(story, context):
    async def whole():
        async with serving(context):
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


async def listen(context, *, who=ADMIN, last="", **query):
    call = Call(now=context.now(), who=who, query=EventsQuery(**query), headers={"last-event-id": last} if last else {})
    listener = Listener((await events.events(context, call)).body)
    assert await anext(listener._stream) == events.KEEP_ALIVE
    return listener


def test_a_listener_hears_of_everything_from_then_on_in_order(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        await bot.exchange(wait_s=POLL_S)
        early = await listen(context)
        (task_id,) = await submit(context, a_task())
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
        assert [said["about"].get("run") for _, said in told if said["id"] == task_id] == [None, *[task["run"]] * 2]
        await early.close()

    run(story, context)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (
            TaskBody(1, job=TASK + 16, run=2, bot="b1"),
            {"job": show_task(TASK + 16), "run": show_run(TASK, 2), "bot": "b1"},
        ),
        (TaskBody(1), {}),
        (JobBody("blocked", "blocked", blocked_by=TASK + 16), {"blocked_by": show_task(TASK + 16)}),
    ],
)
def test_ids_in_events_have_the_form_that_every_call_takes(body, shown):
    kind = "job" if isinstance(body, JobBody) else "task"
    text = StreamedEvent(Event(7, TASK, 1, 0, kind, "RUNNING", body_of(body)), None, None).shown.decode()
    said = json.loads(text.split("data: ")[1])
    about = {key: value for key, value in said["about"].items() if key not in ("generation", "view", "what")}
    assert (said["id"], about) == (show_task(TASK), shown)


def test_a_listener_that_was_cut_off_goes_on_where_it_was(context):
    async def story():
        for _ in range(5):
            await submit(context, a_task())
        first = await listen(context, after=0)
        heard = [await first.next() for _ in range(3)]
        await first.close()
        for _ in range(2):
            await submit(context, a_task())
        second = await listen(context, last=str(heard[-1][0]))
        heard += [await second.next() for _ in range(4)]
        await second.close()
        assert [number for number, _ in heard] == list(range(1, 8))
        assert len({said["id"] for _, said in heard}) == 7
        assert context.hub.num_event_streams == 0

    run(story, context)


@pytest.mark.parametrize("ahead", [{"last": "1000000"}, {"after": 1_000_000}])
def test_a_listener_that_is_ahead_of_a_restored_server_hears_what_comes_now(context, ahead):
    async def story():
        first = await listen(context, after=0)
        await submit(context, a_task())
        await first.next()
        await first.close()
        listener = await listen(context, **ahead)
        (task_id,) = await submit(context, a_task())
        number, said = await listener.next()
        assert (number, said["id"]) == (2, task_id)
        await listener.close()

    run(story, context)


@pytest.mark.parametrize("last", ["9" * 5000, "9" * 20, "-1", "x", "²"])
def test_a_number_that_no_event_has_counts_as_none(context, last):
    async def story():
        await submit(context, a_task())
        listener = await listen(context, last=last, after=0)
        assert (await listener.next())[0] == 1
        await listener.close()

    run(story, context)


def test_a_listener_bound_to_a_group_hears_of_that_group_only(context):
    async def story():
        await context.db.write(
            lambda tx: resource_groups.create_group(tx, "others", now=context.now(), ids=context.ids)
        )
        (mine,) = await submit(context, a_task())
        stranger = await listen(context, who=Identity("stranger", Role.VIEWER, "others"), after=0)
        owner = await listen(context, who=Identity("owner", Role.VIEWER, "default"), after=0)
        assert (await owner.next())[1]["id"] == mine
        waiting = asyncio.ensure_future(stranger.next())
        (more,) = await submit(context, a_task())
        assert (await owner.next())[1]["id"] == more
        (theirs,) = await submit(context, a_task(), group_name="others")
        assert (await waiting)[1]["id"] == theirs, "what is not its own would have come before"
        (last,) = await submit(context, a_task())
        assert (await owner.next())[1]["id"] == last
        await owner.close()
        await stranger.close()

    run(story, context)


def test_a_stop_ends_every_stream(context, monkeypatch):
    monkeypatch.setattr(events, "KEEP_ALIVE_S", POLL_S)

    async def story():
        listener = await listen(context)
        waiting = asyncio.ensure_future(listener.next())
        await until(lambda: context.hub._updates.waiters)
        context.hub.stop()
        with pytest.raises(StopAsyncIteration):
            await waiting

    run(story, context)


def test_a_stream_is_kept_alive_while_only_events_of_others_flow_past(context, monkeypatch):
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.5)

    async def story():
        await context.db.write(
            lambda tx: resource_groups.create_group(tx, "others", now=context.now(), ids=context.ids)
        )
        stranger = await listen(context, who=Identity("stranger", Role.VIEWER, "others"))
        waiting = asyncio.ensure_future(anext(stranger._stream))
        while not waiting.done():  # faster than a keep-alive comes by itself
            await submit(context, a_task())
        assert await waiting == events.KEEP_ALIVE
        await stranger.close()

    run(story, context)


async def run_one(context, bot):
    (task_id,) = await submit(context, a_task())
    task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
    await bot.exchange(n=0, reports=[finish(task)])
    return task_id


async def heard(listener, n):
    return [(await listener.next())[1] for _ in range(n)]


def test_a_stream_of_tasks_has_the_events_of_these_tasks_only(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        ended = [await run_one(context, bot) for _ in range(3)]
        listener = await listen(context, after=0, task=[ended[0], ended[2]])
        told = await heard(listener, 6)
        assert {said["id"] for said in told} == {ended[0], ended[2]}
        assert [said["state"] for said in told] == ["READY", "RUNNING", "SUCCEEDED"] * 2
        await listener.close()

    run(story, context)


def test_a_stream_of_a_job_has_its_events_and_those_of_its_tasks(context):
    async def story():
        await submit(context, a_task())
        document = {"name": "j", "tasks": {label: {"task": a_task()} for label in ("a", "b")}, "external_id": "mine"}
        group = await context.groups.id_of("default", context.now())
        draft = draft_job(document, now=context.now(), ids=context.ids, rules=context.rules)
        for step in submit_job.submit_steps(group, draft, now=context.now(), ids=context.ids, rules=context.rules):
            stored = await context.db.write(step)
        await submit(context, a_task())
        for name in (show_task(stored.job_id), "mine"):
            listener = await listen(context, after=0, job=name)
            told = await heard(listener, 3)
            assert {said["id"] for said in told} == {show_task(i) for i in (stored.job_id, *stored.task_ids.values())}
            await listener.close()
        tasks = await listen(context, after=0, job="mine", kind=["task"])
        assert {said["kind"] for said in await heard(tasks, 2)} == {"task"}
        await tasks.close()

    run(story, context)


@pytest.mark.parametrize(
    ("kinds", "states"),
    [
        (["task-completed"], ["SUCCEEDED", "SUCCEEDED"]),
        (["task-pending", "task-running"], ["READY", "RUNNING", "READY", "RUNNING"]),
        (["task"], ["READY", "RUNNING", "SUCCEEDED"] * 2),
        (["job", "task-completed"], ["SUCCEEDED", "SUCCEEDED"]),
    ],
)
def test_a_stream_of_kinds_has_the_events_of_these_kinds_only(context, kinds, states):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        for _ in range(2):
            await run_one(context, bot)
        listener = await listen(context, after=0, kind=kinds)
        assert [said["state"] for said in await heard(listener, len(states))] == states
        await listener.close()

    run(story, context)


@pytest.mark.parametrize("query", [{"job": "never"}, {"task": ["7c05e1b88c0000100"]}, {"task": ["x"]}])
def test_a_stream_of_what_does_not_exist_is_refused(context, query):
    async def story():
        with pytest.raises(NotFound):
            await listen(context, **query)

    run(story, context)


def test_a_stream_of_another_groups_task_is_refused(context):
    async def story():
        await context.db.write(
            lambda tx: resource_groups.create_group(tx, "others", now=context.now(), ids=context.ids)
        )
        (mine,) = await submit(context, a_task())
        with pytest.raises(NotFound):
            await listen(context, who=Identity("stranger", Role.VIEWER, "others"), task=[mine])

    run(story, context)


def counting_reads(context, monkeypatch) -> list[int]:
    """The positions after which events are read from now on."""
    read, positions = event_feed._read_events, []

    def counted(tx, position, *, with_kinds):
        positions.append(position)
        return read(tx, position, with_kinds=with_kinds)

    monkeypatch.setattr(event_feed, "_read_events", counted)
    return positions


def test_streams_at_the_same_position_share_one_read(context, monkeypatch):
    async def story():
        listeners = [await listen(context) for _ in range(30)]
        reads = counting_reads(context, monkeypatch)
        (task_id,) = await submit(context, a_task())
        told = await asyncio.gather(*(listener.next() for listener in listeners))
        assert {said["id"] for _, said in told} == {task_id}
        assert len(reads) <= 5, "two of each would be sixty"
        for listener in listeners:
            await listener.close()

    run(story, context)


def test_who_asks_after_a_notification_does_not_get_an_earlier_read(context, monkeypatch):
    async def story():
        position = await context.events.newest()
        began, may_end, read = asyncio.Event(), asyncio.Event(), context.events._read

        async def held(fn):
            found = await read(fn)
            began.set()
            await may_end.wait()
            return found

        monkeypatch.setattr(context.events, "_read", held)
        early = asyncio.create_task(context.events.after(position))
        await began.wait()
        monkeypatch.setattr(context.events, "_read", read)
        (task_id,) = await submit(context, a_task())
        await until(lambda: context.db.engine.read(outbox.newest) > position)
        context.hub.notify("events")
        assert [show_task(item.event.subject) for item in await context.events.after(position)] == [task_id]
        may_end.set()
        assert await early == []

    run(story, context)


def test_a_shared_read_goes_on_when_the_stream_that_began_it_ends(context, monkeypatch):
    async def story():
        (task_id,) = await submit(context, a_task())
        await until(lambda: context.db.engine.read(outbox.newest) > 0)
        until_read, read = asyncio.Event(), context.events._read

        async def held(fn):
            await until_read.wait()
            return await read(fn)

        monkeypatch.setattr(context.events, "_read", held)
        first = asyncio.create_task(context.events.after(0))
        await asyncio.sleep(0)
        second = asyncio.create_task(context.events.after(0))
        await asyncio.sleep(0)
        first.cancel()
        until_read.set()
        assert [show_task(item.event.subject) for item in await second] == [task_id]

    run(story, context)
