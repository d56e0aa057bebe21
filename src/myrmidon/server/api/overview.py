"""What the web page shows first: is all well, what waits, what does not move, my work; the load, and searches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import Micros, created_ms, first_id_at, show_run
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import LAST_ID, percentile
from myrmidon.server.calls import READERS, Call, Role, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import activity
from myrmidon.store.views import job_details, listings, load, overview, search
from myrmidon.store.views.load import RunTimes
from myrmidon.store.views.pool_filter import PoolFilter
from myrmidon.store.views.selection import decode_stored
from myrmidon.wire.jobs import JobSummary
from myrmidon.wire.load import BotSeries, PoolLoad, PoolLoads
from myrmidon.wire.overview import BotCounts, Overview, StuckItem, TaskSeries, Window, WindowQuery
from myrmidon.wire.queues import QueueInfo
from myrmidon.wire.search import SearchQuery, SearchResult
from myrmidon.wire.tasks import TaskSummary

ROUTES = Routes()

QUEUES: Final = 20
"""Queues that are shown."""
CHECKED_QUEUES: Final = 200
"""Queues that are looked at for tasks that no bot can run."""
STUCK: Final = 20
MINE: Final = 10
MY_JOBS_SCAN: Final = 1_000
NO_BOT_AFTER: Final[Micros] = 60 * SECOND
UNKILLED_AFTER: Final[Micros] = 300 * SECOND
WEBHOOK_FAILURES: Final = 3
_CANCELLED: Final = ("CANCELLED", "KILLED")

STEPS: Final[Mapping[str, tuple[Micros, int]]] = {
    "1h": (60 * SECOND, 60),
    "24h": (900 * SECOND, 96),
    "7d": (7200 * SECOND, 84),
}
"""The length of one step of a chart, and the number of steps."""


@ROUTES.add(
    "GET", "/api/v1/overview", READERS, "Is all well: bots, queues, charts, what is stuck, my work", query=WindowQuery
)
async def get_overview(context: ServerContext, call: Call) -> Overview:
    """The state of all that the caller may see, and the newest work of its own."""
    query: WindowQuery = call.query
    scope, visible, now = await context.groups.scope_of(call), visible_pools(context, call.who), context.now()
    silent_before = now - context.rules.silent_after

    def read(tx: Tx) -> Overview:
        queues = [
            queue
            for queue in overview.deepest_queues(tx, group_id=scope, n=CHECKED_QUEUES)
            if visible is None or visible.allows(queue.pool)
        ]
        stuck = [*_stuck_queues(queues, now), *_stuck_runs(tx, scope, now, silent_before)]
        if call.who.role is not Role.VIEWER:  # who may not list webhooks
            stuck += _stuck_webhooks(tx, scope)
        return Overview(
            now=now,
            bots=overview.bots_by_status(tx, visible, silent_before),
            num_ready=sum(queue.num_ready for queue in queues),
            num_running=overview.num_running(tx, scope),
            queues=queues[:QUEUES],
            series=read_series(tx, query.window, group_id=scope, now=now),
            stuck=stuck[:STUCK],
            my_tasks=_my_tasks(tx, call.who.name, scope),
            my_jobs=_my_jobs(tx, call.who.name, scope),
        )

    return await context.db.read(read)


def read_series(tx: Tx, window: Window, *, group_id: int | None, now: Micros) -> TaskSeries:
    step, num = STEPS[window]
    start = (now // step - num + 1) * step
    sums: dict[str, list[int]] = {"submitted": [], "succeeded": [], "failed": [], "cancelled": []}
    for values in sums.values():
        values += [0] * num
    for at, what, count in activity.series(tx, group_id=group_id, start=start, step=step):
        index = (at - start) // step
        if 0 <= index < num:
            sums[_series_of(what)][index] += count
    return TaskSeries(start=start, step=step, **sums)


def _series_of(what: str) -> str:
    if what in _CANCELLED:
        return "cancelled"
    return {activity.SUBMITTED: "submitted", "SUCCEEDED": "succeeded"}.get(what, "failed")


def _stuck_queues(queues: Sequence[QueueInfo], now: Micros) -> list[StuckItem]:
    return [
        StuckItem(
            kind="queue",
            id=queue.id,
            name=_show_dimensions(decode_stored(queue.dimensions)),
            since=queue.oldest_at,
            summary=_no_bot(queue.num_ready),
        )
        for queue in queues
        if queue.num_bots == 0 and (queue.oldest_at or now) < now - NO_BOT_AFTER
    ]


def _no_bot(num_ready: int) -> str:
    if num_ready == 1:
        return "1 task waits, and no live bot can run it."
    return f"{num_ready} tasks wait, and no live bot can run them."


def _show_dimensions(dimensions: Mapping[str, Sequence[str]]) -> str:
    return " ".join(f"{key}:{value}" for key, values in sorted(dimensions.items()) for value in values)


def _stuck_runs(tx: Tx, scope: int | None, now: Micros, silent_before: Micros) -> list[StuckItem]:
    silent = overview.silent_runs(tx, group_id=scope, before=silent_before, n=STUCK)
    unkilled = overview.unkilled_runs(tx, group_id=scope, before=now - UNKILLED_AFTER, n=STUCK)
    told = [(run, f"Its bot {run.bot_id} sends nothing.") for run in silent]
    told += [(run, f"It was told to stop, and its bot {run.bot_id} has not reported its end.") for run in unkilled]
    return [
        StuckItem(kind="run", id=show_run(run.task_id, run.run), name=run.name, since=run.since, summary=summary)
        for run, summary in told
    ]


def _stuck_webhooks(tx: Tx, scope: int | None) -> list[StuckItem]:
    return [
        StuckItem(
            kind="webhook",
            id=f"{webhook_id:x}",
            name=urlsplit(url).netloc,
            since=None,
            summary=f"Its last {failures} deliveries have failed; {pending} messages wait.",
        )
        for webhook_id, url, failures, pending in overview.failing_webhooks(
            tx, group_id=scope, failures=WEBHOOK_FAILURES, n=STUCK
        )
    ]


def _my_tasks(tx: Tx, name: str, scope: int | None) -> list[TaskSummary]:
    mine = listings.TaskFilter(group_id=scope, submitter=name)
    return listings.tasks(tx, mine, n=MINE, cursor=None, oldest_first=False)[0]


def _my_jobs(tx: Tx, name: str, scope: int | None) -> list[JobSummary]:
    mine = job_details.JobFilter(group_id=scope, submitter=name)
    return job_details.jobs(tx, mine, before=LAST_ID, n=MINE, scan=MY_JOBS_SCAN)[0]


# ---------------------------------------------------------------- bots


@ROUTES.add("GET", "/api/v1/bots/counts", READERS, "Count bots by status and release")
async def count_bots(context: ServerContext, call: Call) -> BotCounts:
    """The number of bots by status and by release."""
    visible: PoolFilter | None = visible_pools(context, call.who)
    silent_before = context.now() - context.rules.silent_after
    return await context.db.read(
        lambda tx: BotCounts(overview.bots_by_status(tx, visible, silent_before), overview.bots_by_version(tx, visible))
    )


# ---------------------------------------------------------------- the load of bots and pools


_NOT_FAILED = ("SUCCEEDED", "CANCELLED", "KILLED")


@ROUTES.add("GET", "/api/v1/bots/{id}/series", READERS, "Get charts of a bot", query=WindowQuery)
async def get_bot_series(context: ServerContext, call: Call) -> BotSeries:
    """Charts of a bot: how busy it was, and how its runs ended."""
    bot_id, now = call.params["id"], context.now()
    visible = visible_pools(context, call.who)
    step, num = STEPS[call.query.window]
    start = (now // step - num + 1) * step

    def read(tx: Tx) -> tuple[list[RunTimes], bool]:
        if not listings.visible_bots(tx, [bot_id], visible):
            raise NotFound("bot", bot_id)
        return load.runs_of_bot(tx, bot_id)

    runs, complete = await context.db.read(read)
    oldest = min((run.claimed_at for run in runs), default=start)
    return BotSeries(
        start=start,
        step=step,
        busy=_busy_shares(runs, start=start, step=step, num=num, now=now),
        succeeded=_count_ends([run for run in runs if run.state == "SUCCEEDED"], start, step, num),
        failed=_count_ends([run for run in runs if run.state not in _NOT_FAILED], start, step, num),
        known_from=None if complete or oldest <= start else oldest,
    )


def _busy_shares(runs: Sequence[RunTimes], *, start: Micros, step: Micros, num: int, now: Micros) -> list[float]:
    """The share of each step that these runs cover; the last step has lasted until now."""
    covered = [0] * num
    for run in runs:
        low, high = max(run.claimed_at, start), min(run.ended_at or now, now)
        while low < high:
            index = (low - start) // step
            until = min(high, start + (index + 1) * step)
            covered[index] += until - low
            low = until
    lengths = [step] * (num - 1) + [max(now - start - (num - 1) * step, 1)]
    return [round(part / length, 4) for part, length in zip(covered, lengths, strict=True)]


def _count_ends(runs: Sequence[RunTimes], start: Micros, step: Micros, num: int) -> list[int]:
    counts = [0] * num
    for run in runs:
        if run.ended_at is not None and 0 <= (index := (run.ended_at - start) // step) < num:
            counts[index] += 1
    return counts


@ROUTES.add("GET", "/api/v1/pools/load", READERS, "List the load of pools")
async def list_pool_loads(context: ServerContext, call: Call) -> PoolLoads:
    """The load of each pool that the caller may see; waiting tasks are those of its own resource group."""
    scope, visible = await context.groups.scope_of(call), visible_pools(context, call.who)

    def read(tx: Tx) -> PoolLoads:
        waits: dict[str, list[float]] = defaultdict(list)
        for wait in load.waits(tx, scope):
            waits[wait.pool].append(wait.wait / SECOND)
        ready = {pool.pool: pool for pool in load.ready_by_pool(tx, scope)}
        bots = load.bots_by_pool(tx)
        names = sorted(name for name in {*waits, *ready, *bots} if name and (visible is None or visible.allows(name)))
        return PoolLoads([_pool_load(name, ready.get(name), bots.get(name, (0, 0)), waits[name]) for name in names])

    return await context.db.read(read)


def _pool_load(name: str, ready: load.PoolReady | None, bots: tuple[int, int], waits: list[float]) -> PoolLoad:
    num_bots, num_busy = bots
    num_ready, ordered = ready.num_ready if ready else 0, sorted(waits)
    return PoolLoad(
        pool=name,
        num_ready=num_ready,
        oldest_at=created_ms(ready.oldest) * 1000 if ready else None,
        num_bots=num_bots,
        num_busy=num_busy,
        wanted_bots=max(num_ready - max(num_bots - num_busy, 0), 0),
        wait_p50_s=percentile(ordered, 50),
        wait_p95_s=percentile(ordered, 95),
    )


# ---------------------------------------------------------------- search


_HEX = re.compile(r"[0-9a-f]{4,18}")


@ROUTES.add("GET", "/api/v1/search", READERS, "Search tasks, jobs, bots and tags", query=SearchQuery)
async def find(context: ServerContext, call: Call) -> SearchResult:
    """Tasks and jobs by id or name, bots by id, and tags, of what the caller may see."""
    query: SearchQuery = call.query
    text, n = query.q.strip(), query.limit
    scope, visible = await context.groups.scope_of(call), visible_pools(context, call.who)
    ids = id_range(text.lower(), len(f"{first_id_at(context.now()):x}"))

    def read(tx: Tx) -> SearchResult:
        tasks = search.tasks_by_id(tx, *ids, group_id=scope, n=n) if ids else []
        jobs = search.jobs_by_id(tx, *ids, group_id=scope, n=n) if ids else []
        tasks = tasks or search.tasks_by_name(tx, text, group_id=scope, n=n)
        jobs = jobs or search.jobs_by_name(tx, text, group_id=scope, n=n)
        bots = search.bots(tx, text, visible, n=n)
        return SearchResult(tasks=tasks, jobs=jobs, bots=bots, tags=search.tags(tx, text, group_id=scope, n=n))

    if not text:
        return SearchResult(tasks=[], jobs=[], bots=[], tags=[])
    return await context.db.read(read)


def id_range(text: str, digits: int) -> tuple[int, int] | None:
    """The ids, of this many digits, that are shown with this beginning; None if it cannot be one of an id."""
    if not _HEX.fullmatch(text):
        return None
    shown = text[:digits]  # the last two digits of a shown id are the number of the run
    return int(shown.ljust(digits, "0"), 16), int(shown.ljust(digits, "f"), 16) + 1
