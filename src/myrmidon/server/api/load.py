"""How busy a bot was, and the load of each pool: what waits, how long, and how many bots it would take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import Micros, created_ms
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import percentile
from myrmidon.server.api.overview import STEPS
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.store.engine.db import Tx
from myrmidon.store.views import listings, load
from myrmidon.store.views.load import RunTimes
from myrmidon.wire.load import BotSeries, PoolLoad, PoolLoads
from myrmidon.wire.overview import WindowQuery

ROUTES = Routes()

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


# ---------------------------------------------------------------- pools


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
