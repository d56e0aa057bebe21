"""One stream for all that a browser shows: topics, frames, whose they are, and what a lost connection costs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw

from myrmidon.model.errors import InvalidRequest
from myrmidon.scheduler import resource_groups
from myrmidon.server.api import jobs, live
from myrmidon.server.calls import Call, Identity, Role
from myrmidon.store.tables import outbox
from myrmidon.wire.jobs import SubmitJob
from myrmidon.wire.live import LiveQuery
from tests.deadline import HANG_S, POLL_S
from tests.server.contexts import ADMIN, BotClient, a_server_context, a_task, finish, serving, submit

BOT = "b1"
A_JOB = {"name": "j", "tasks": {"a": {"task": {"payload": {"command": ["true"]}}}}}


@pytest.fixture
def context(db_url, tmp_path):
    with a_server_context(db_url, tmp_path) as opened:
        yield opened


def run(story, context):
    async def whole():
        async with serving(context):
            return await asyncio.wait_for(story(), HANG_S)

    return asyncio.run(whole())


class Page:
    """What a page has received."""

    def __init__(self, stream):
        self._stream = stream
        self.last_id = ""
        self.frames: list[dict[str, Any]] = []
        self.resets = 0

    async def read(self) -> None:
        for block in (await anext(self._stream)).decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
            if fields:
                self.last_id = fields["id"]
                self.resets += fields["event"] == "reset"
                self.frames += [json.loads(fields["data"])] if fields["event"] == "frame" else []

    async def until(self, is_there) -> None:
        while not is_there(self):
            await self.read()

    def told(self, key: str) -> list[Any]:
        return [item for frame in self.frames for item in frame[key]]

    def states(self, task_id: str) -> list[str]:
        return [change["state"] for change in self.told("tasks") if change["id"] == task_id]

    async def close(self) -> None:
        await self._stream.aclose()


async def watch(context, *topics: str, who=ADMIN, last: str = "", **query) -> Page:
    call = Call(
        now=context.now(),
        who=who,
        query=LiveQuery(topic=list(topics), **query),
        headers={"last-event-id": last} if last else {},
    )
    page = Page((await live.stream(context, call)).body)
    await page.read()
    return page


async def run_task(bot: BotClient) -> None:
    task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
    await bot.exchange(n=0, reports=[finish(task)])


def test_a_page_hears_of_its_topics_and_of_nothing_else(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        [mine] = await submit(context, a_task())
        page, all_tasks = await watch(context, f"task:{mine}"), await watch(context, "tasks")
        await run_task(bot)
        [other] = await submit(context, a_task())
        await run_task(bot)
        await all_tasks.until(lambda page: "SUCCEEDED" in page.states(other))
        await page.until(lambda page: "SUCCEEDED" in page.states(mine))
        [after] = await submit(context, a_task())
        await all_tasks.until(lambda page: page.states(after))
        assert {change["id"] for change in page.told("tasks")} == {mine}
        await page.close()
        await all_tasks.close()

    run(story, context)


def test_many_changes_of_a_task_are_one_in_a_frame(context, monkeypatch):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        page = await watch(context, "tasks")
        position = await context.db.read(outbox.newest)
        [task] = await submit(context, a_task())
        await run_task(bot)
        late = await watch(context, "tasks", after=position)
        await late.until(lambda page: page.states(task))
        await page.until(lambda page: "SUCCEEDED" in page.states(task))
        if context.db.engine.dialect == "sqlite":  # elsewhere positions come later, and so may the last state
            assert late.states(task) == ["SUCCEEDED"], "the frame has the last of three"
        await page.close()
        await late.close()

    run(story, context)


def test_frames_are_at_least_half_a_second_apart(context):
    async def story():
        clock = asyncio.get_running_loop().time
        page = await watch(context, "tasks")
        times = []
        for _ in range(3):
            [task] = await submit(context, a_task())
            await page.until(lambda page, task=task: page.states(task))
            times.append(clock())
        assert min(times[1] - times[0], times[2] - times[1]) >= live.FRAME_S * 0.9
        await page.close()

    run(story, context)


def test_a_job_is_followed_with_its_tasks(context):
    async def story():
        body = SubmitJob(job=Raw(json.dumps(A_JOB).encode()))
        call = Call(now=context.now(), who=ADMIN, body=body, params={}, body_size=10)
        first, second = [await jobs.submit_job(context, call) for _ in range(2)]
        page = await watch(context, f"job:{first.job_id}")
        bot = BotClient(context)
        await bot.shake()
        await run_task(bot)
        await run_task(bot)
        await page.until(lambda page: "SUCCEEDED" in [change["state"] for change in page.told("jobs")])
        assert {change["id"] for change in page.told("jobs")} == {first.job_id}
        assert {change["id"] for change in page.told("tasks")} == set(first.task_ids.values())
        assert second.job_id not in json.dumps(page.frames)
        await page.close()

    run(story, context)


def test_changes_of_bots_are_told(context):
    async def story():
        page, other = await watch(context, "bots"), await watch(context, "bot:nobody", "tasks")
        bot = BotClient(context)
        await bot.shake()
        await page.until(lambda page: BOT in page.told("bots"))
        num = len(page.told("bots"))
        [task] = await submit(context, a_task())
        await run_task(bot)
        await page.until(lambda page: len(page.told("bots")) > num)
        await other.until(lambda page: "SUCCEEDED" in page.states(task))
        assert other.told("bots") == []
        await page.close()
        await other.close()

    run(story, context)


def test_a_log_that_grows_is_told_with_its_length(context):
    async def story():
        bot = BotClient(context)
        await bot.shake()
        await submit(context, a_task())
        task = (await bot.exchange(wait_s=POLL_S))["tasks"][0]
        page = await watch(context, f"log:{task['run']}")
        await page.until(lambda page: page.told("logs"))
        assert page.told("logs") == [{"run": task["run"], "stdout": 0, "stderr": 0}]
        await bot.log(task, 0, 0, b"hello")
        await page.until(lambda page: len(page.told("logs")) > 1)
        assert page.told("logs")[1] == {"run": task["run"], "stdout": 5, "stderr": 0}
        await page.close()

    run(story, context)


def test_a_page_that_connects_again_misses_nothing(context):
    async def story():
        [first] = await submit(context, a_task())
        page = await watch(context, "tasks", after=0)
        await page.until(lambda page: page.states(first))
        await page.close()
        [second] = await submit(context, a_task())
        again = await watch(context, "tasks", "bots", last=page.last_id)
        await again.until(lambda page: page.states(second))
        assert again.states(first) == []
        await again.close()

    run(story, context)


def test_a_page_that_has_missed_too_much_is_told_to_read_again(context, monkeypatch):
    async def story():
        [task] = await submit(context, a_task())
        probe = await watch(context, "tasks", after=0)
        await probe.until(lambda page: page.states(task))
        await probe.close()
        restored = await watch(context, "tasks", after=10**9)
        assert restored.resets == 1
        monkeypatch.setattr(live, "MAX_BEHIND", 0)
        behind = await watch(context, "tasks", after=0)
        assert behind.resets == 1
        monkeypatch.setattr(live, "BATCH", 1)
        monkeypatch.setattr(live, "MAX_BATCHES", 1)
        monkeypatch.setattr(live, "MAX_BEHIND", 1000)
        flooded = await watch(context, "tasks", after=0)
        await flooded.until(lambda page: page.frames)
        assert flooded.frames[0]["more"]
        for page in (restored, behind, flooded):
            await page.close()

    run(story, context)


def test_nobody_hears_of_another_group(context):
    async def story():
        other = await context.db.write(
            lambda tx: resource_groups.create_group(tx, "other", now=context.now(), ids=context.ids)
        )
        stranger = Identity("stranger", Role.USER, "other", group_id=getattr(other, "id", other))
        [theirs] = await submit(context, a_task())
        page = await watch(context, f"task:{theirs}", f"log:{theirs}", "tasks", "jobs", "bot:b", who=stranger)
        [mine] = await submit(context, a_task(), group_name="other")
        await page.until(lambda page: page.states(mine))
        assert {change["id"] for change in page.told("tasks")} == {mine}
        assert page.told("unknown") == [f"task:{theirs}", f"log:{theirs}"], "as if they did not exist"
        await page.close()

    run(story, context)


@pytest.mark.parametrize("topic", ["", "nope", "task", "value:1", "tasks:1"])
def test_a_topic_that_is_none_is_refused(context, topic):
    async def story():
        with pytest.raises(InvalidRequest):
            await watch(context, topic)

    run(story, context)


@pytest.mark.parametrize("topic", ["task:nope", "task:", "job:nope", "log:123456789abcdef0", "task:é"])
def test_a_topic_that_does_not_exist_is_named_and_the_others_go_on(context, topic):
    async def story():
        page = await watch(context, topic, "tasks")
        [task] = await submit(context, a_task())
        await page.until(lambda page: page.states(task))
        assert page.told("unknown") == [topic]
        await page.close()

    run(story, context)
