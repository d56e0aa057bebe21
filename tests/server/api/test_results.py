"""Results of tasks that end by others, and streams of results: whatever ends is sent at once, and nothing is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from myrmidon.model.errors import Overloaded
from myrmidon.model.ids import show_task
from myrmidon.scheduler.extend import extend
from myrmidon.scheduler.report import report
from myrmidon.server.api import results
from myrmidon.server.background import loop
from myrmidon.server.calls import Call, Identity, Role
from myrmidon.wire.values import FollowResults
from tests.server.contexts import sweep, until
from tests.server.functions import finish_with, inline, world_of
from tests.server.inside import BOT, Inside, inside
from tests.world import INT, World, a_function, a_node, constant, output_of

SEVEN = msgspec.msgpack.encode(7)
NEVER_S = 1e6
OWNER = Identity("owner", Role.USER, token_id=1)


@pytest.fixture
def app(tmp_path, db_url):
    with inside(tmp_path, db_url) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


@pytest.fixture
def world(app) -> World:
    return world_of(app)


@pytest.fixture
def only_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not notified is not seen."""
    monkeypatch.setattr(results, "RECHECK_S", NEVER_S)


async def end(app: Inside, world: World, run: Any, **how: Any) -> None:
    """End a run as a bot's exchange does: those who wait are told."""
    item = finish_with(run, **how) if how else finish_with(run, (INT, inline(SEVEN)))
    await app.context.db.write(partial(report, bot_id=BOT, reports=[item], session=1, now=world.now, ids=world.ids))


def waits_for_failures(app: Inside) -> bool:
    """Whether a caller waits for failures in a job."""
    return any(isinstance(key, tuple) for key in app.context.hub._task_ends.waiters)


def results_of(app: Inside, *task_ids: int) -> list[dict[str, Any]]:
    reply = app.post("/api/v1/results", {"task_ids": [show_task(one) for one in task_ids], "wait_s": 0})
    assert reply.status == 200, reply
    found: list[dict[str, Any]] = reply.json["results"]
    return found


# ---------------------------------------------------------------- ends by others


def delegating_to_a_waiting_task(world: World) -> tuple[int, Any]:
    """A task whose output a delegate is to write, and the run for which that one waits; another task goes on."""
    job = world.job({"f": a_node(task=a_function(outputs=(INT,)))})
    run = world.running(BOT)[0]
    more = {
        "inner": a_node(task=a_function(outputs=(INT,))),
        "d": a_node("inner", task=a_function(output_of("inner"), outputs=(INT,))),
        "other": a_node(task=a_function()),
    }
    world.do(extend, job.job_id, {"tasks": more, "delegates": {"d": "f"}}, group_id=world.group, by=run.task_id)
    world.report(msgspec.structs.replace(finish_with(run), delegated=True))
    ids = dict(world.all("SELECT label, task_id FROM task_labels WHERE job_id = :job", job=job.job_id))
    [inner] = [one for one in world.running(BOT, 2) if one.task_id == ids["inner"]]
    return job.task_ids["f"], inner


def test_a_task_whose_delegate_waits_for_a_failed_task_ends_as_that_one(app, world):
    task, inner = delegating_to_a_waiting_task(world)
    assert results_of(app, task) == []
    world.report(finish_with(inner, exit_code=3))
    [result] = results_of(app, task)
    assert (result["task_id"], result["state"], result["exit_code"]) == (show_task(task), "FAILED", 3)
    assert result["ended_by"] == show_task(inner.task_id)


def test_a_task_behind_others_that_wait_for_a_failed_one_ends_as_that_one(app, world):
    job = world.job({"a": a_node(), "b": a_node("a"), "c": a_node("b"), "on": a_node()}, failure_policy="continue")
    runs = {run.task_id: run for run in world.running(BOT, 2)}
    world.report(finish_with(runs[job.task_ids["a"]], exit_code=3))
    assert world.state(job.task_ids["c"]) == "WAITING"
    [result] = results_of(app, job.task_ids["c"])
    assert (result["state"], result["ended_by"]) == ("FAILED", show_task(job.task_ids["a"]))
    assert results_of(app, job.task_ids["on"]) == []


def test_a_task_that_may_still_start_has_not_ended(app, world):
    any_end = a_node("a", requires_policy="all-resolved")
    ours = {"a": a_node(), "b": a_node("x"), "x": a_node(), "after": any_end}
    job = world.job(ours, failure_policy="continue")
    runs = {run.task_id: run for run in world.running(BOT, 2)}
    world.report(finish_with(runs[job.task_ids["a"]], exit_code=3))
    assert results_of(app, job.task_ids["b"], job.task_ids["after"]) == []


def test_a_task_of_a_job_that_will_be_retried_has_not_ended(app, world):
    job = world.job({"a": a_node(), "b": a_node("a"), "on": a_node()}, failure_policy="continue", max_num_retries=1)
    runs = {run.task_id: run for run in world.running(BOT, 2)}
    world.report(finish_with(runs[job.task_ids["a"]], exit_code=3))
    assert results_of(app, job.task_ids["b"]) == []


def test_a_caller_that_waits_is_woken_by_the_failure_that_decides(app, world, only_notified):
    task, inner = delegating_to_a_waiting_task(world)

    async def story():
        body = {"task_ids": [show_task(task)], "wait_s": 100}
        asking = asyncio.create_task(app.ask("POST", "/api/v1/results", body))
        await until(lambda: waits_for_failures(app))
        await end(app, world, inner, exit_code=3)
        return await asking

    assert [one["state"] for one in app.run(story()).json["results"]] == ["FAILED"]


# ---------------------------------------------------------------- streams


class Stream:
    """A stream of results, as a client reads it."""

    def __init__(self, app: Inside, who: Identity) -> None:
        self.app = app
        self.who = who
        self.id = ""

    async def open(self, *task_ids: int) -> Stream:
        answer = await results.stream_results(self.app.context, self.call(*task_ids))
        self._events = answer.body
        name, data = await self.next()
        assert name == "open"
        self.id = data["stream"]
        return self

    def call(self, *task_ids: int, **params: str) -> Call:
        body = FollowResults(task_ids=[show_task(one) for one in task_ids])
        return Call(who=self.who, now=self.app.context.now(), body=body, params=params)

    async def follow(self, *task_ids: int) -> int:
        followed = await results.follow_results(self.app.context, self.call(*task_ids, id=self.id))
        return followed.num_tasks

    async def next(self) -> tuple[str, Any]:
        piece = (await anext(self._events)).decode()
        name, data = (line.partition(": ")[2] for line in piece.splitlines()[:2])
        return name, msgspec.json.decode(data)

    async def ended(self) -> list[str]:
        name, data = await self.next()
        assert name == "results"
        return [one["task_id"] for one in data["results"]]

    async def over(self) -> None:
        """The server ends the stream."""
        async for piece in self._events:
            assert piece.startswith(b"event: idle")

    async def close(self) -> None:
        await self._events.aclose()


def test_a_stream_sends_each_result_when_it_is_there(app, world, only_notified):
    job = world.job({name: a_node(task=a_function()) for name in "abc"})
    ids = job.task_ids
    runs = {run.task_id: run for run in world.running(BOT, 3)}

    async def story():
        stream = await Stream(app, OWNER).open(ids["a"])
        assert await stream.follow(ids["b"], ids["c"]) == 3
        for name in "bac":
            await end(app, world, runs[ids[name]])
            assert await stream.ended() == [show_task(ids[name])]
        await stream.close()

    app.run(story())
    assert app.context.hub.result_streams == {}
    assert app.context.hub._task_ends.waiters == {}


def test_what_has_ended_before_is_sent_first(app, world, only_notified):
    job = world.job({"a": a_node(task=a_function(outputs=(INT,)))})
    world.report(finish_with(world.running(BOT)[0], (INT, inline(SEVEN))))

    async def story():
        stream = await Stream(app, OWNER).open(job.task_ids["a"])
        assert await stream.ended() == [show_task(job.task_ids["a"])]
        await stream.follow(job.task_ids["a"])  # a client that has lost the answer asks again
        assert await stream.ended() == [show_task(job.task_ids["a"])]
        await stream.close()

    app.run(story())


def test_a_stream_is_woken_by_the_failure_that_decides(app, world, only_notified):
    task, inner = delegating_to_a_waiting_task(world)

    async def story():
        stream = await Stream(app, OWNER).open(task)
        coming = asyncio.create_task(stream.next())
        await until(lambda: waits_for_failures(app))
        await end(app, world, inner, exit_code=3)
        _, data = await coming
        await stream.close()
        return data["results"]

    [result] = app.run(story())
    assert (result["task_id"], result["ended_by"]) == (show_task(task), show_task(inner.task_id))


def test_large_changes_of_other_jobs_are_no_reason_to_read_all_results_again(app, world):
    """Each chunk would otherwise delay the results of everybody who waits for many."""
    mine = world.job({"a": a_node(task=a_function())}).task_ids["a"]
    other = world.job({"b": a_node(task=a_function())})

    async def story():
        with app.context.hub.open_result_stream("s", "c") as stream:
            stream.add([mine])
            assert await stream.next(10, 0) == [mine]
            assert (await app.ask("POST", f"/api/v1/jobs/{show_task(other.job_id)}/hold")).status == 200
            await sweep(loop.BackgroundWork(app.context), timed=False)
            assert "chunks" in app.context.state.maintained_at
            assert await stream.next(10, 0) == []

    app.run(story())


def test_an_end_that_nobody_has_told_of_is_found(app, world, monkeypatch):
    monkeypatch.setattr(results, "RECHECK_S", 0.01)
    job = world.job({"a": a_node(task=a_function())})
    [run] = world.running(BOT)

    async def story():
        stream = await Stream(app, OWNER).open(job.task_ids["a"])
        assert (await stream.next())[0] == "idle"
        world.report(finish_with(run))  # as another server does, whose notification is lost
        while (event := await stream.next())[0] == "idle":
            pass
        await stream.close()
        return event[1]["results"]

    assert [one["task_id"] for one in app.run(story())] == [show_task(job.task_ids["a"])]


def test_tasks_that_do_not_exist_or_are_not_ones_own_are_missing(app, world):
    other = world_of(app, "other").job({"f": a_node(task=a_function())})
    bound = Identity("bound", Role.USER, "default")
    ids = [other.task_ids["f"], world.ids.next(world.now)]

    async def story():
        stream = await Stream(app, bound).open(*ids)
        _, found = await stream.next()
        await stream.close()
        return found

    found = app.run(story())
    assert (found["results"], set(found["missing"])) == ([], {show_task(one) for one in ids})


def a_job_of_one(stream: str) -> dict[str, Any]:
    task = a_function(constant(), properties={"dimensions": {"pool": ["default"]}})
    return {"job": {"name": "j", "tasks": {"f": {"task": task}}}, "stream": stream}


def test_a_submit_names_the_stream_that_gets_its_results(app, world, only_notified):
    reply = app.post("/api/v1/jobs", a_job_of_one("unknown"))
    assert "followed" not in reply.json, "as if it were open on another server"
    who = app.run(identity_of(app))

    async def story():
        stream = await Stream(app, who).open()
        submitted = (await app.ask("POST", "/api/v1/jobs", a_job_of_one(stream.id))).json
        assert submitted["followed"]
        [run] = [one for one in world.claim(BOT, 2) if show_task(one.task_id) in submitted["task_ids"].values()]
        await end(app, world, run)
        assert await stream.ended() == list(submitted["task_ids"].values())
        refused = await app.ask("POST", "/api/v1/jobs", {"job": {"name": "j", "tasks": {}}, "stream": stream.id})
        assert refused.status == 400
        await stream.close()

    app.run(story())
    assert app.context.hub._task_ends.waiters == {}


async def identity_of(app: Inside) -> Identity:
    """The administrator that calls unless a test says otherwise."""
    seen: list[Identity] = []

    def note(_: Any, call: Call, *_given: Any) -> None:
        seen.append(call.who)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "find_stream", note)
        assert (await app.ask("POST", "/api/v1/results/streams/none", {})).status == 404
    return seen[0]


def test_a_repeated_submit_gets_its_results_too(app, world):
    key = {"Idempotency-Key": "k"}
    first = app.post("/api/v1/jobs", a_job_of_one(""), headers=key).json
    who = app.run(identity_of(app))
    world.report(finish_with(world.running(BOT)[0], (INT, inline(SEVEN))))

    async def story():
        stream = await Stream(app, who).open()
        again = (await app.ask("POST", "/api/v1/jobs", a_job_of_one(stream.id), headers=key)).json
        assert (again["job_id"], again["repeated"], again["followed"]) == (first["job_id"], True, True)
        assert await stream.ended() == list(first["task_ids"].values())
        await stream.close()

    app.run(story())


def test_a_stream_is_its_callers_own(app, world):
    job = world.job({"a": a_node(task=a_function())})

    async def story():
        stream = await Stream(app, OWNER).open()
        stranger = Stream(app, Identity("stranger", Role.USER, token_id=2))
        stranger.id = stream.id
        with pytest.raises(Exception, match="no stream of results"):
            await stranger.follow(job.task_ids["a"])
        await stream.close()
        with pytest.raises(Exception, match="no stream of results"):
            await stream.follow(job.task_ids["a"])

    app.run(story())


def test_the_streams_of_a_caller_wait_for_as_many_tasks_as_its_calls_could(tmp_path):
    with inside(tmp_path, most_waits=1) as app:
        ids = [app.context.ids.next(app.context.now()) for _ in range(1_001)]

        async def story():
            with pytest.raises(Overloaded, match="waits for too many results"):
                await Stream(app, OWNER).open(*ids)

        app.run(story())


def test_a_stream_ends_when_the_server_stops_or_nothing_was_followed_for_long(app, monkeypatch):
    monkeypatch.setattr(results, "RECHECK_S", 0.01)

    async def story():
        stream = await Stream(app, OWNER).open()
        app.context.hub.stop()
        await stream.over()
        app.context.hub.stopping = False
        monkeypatch.setattr(results, "IDLE_S", 0.0)
        stream = await Stream(app, OWNER).open()
        await stream.over()

    app.run(story())
