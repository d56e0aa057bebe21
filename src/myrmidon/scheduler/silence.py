"""Runs whose bot sends no heartbeats: since when, and when they are given up."""

from collections.abc import Iterable

from msgspec import Struct

from myrmidon.model.bot import Bot
from myrmidon.model.ids import Micros
from myrmidon.model.task_result import TaskRun
from myrmidon.scheduler.outages import resumed_at
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules, given_up_at
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_run


class Silence(Struct, frozen=True):
    """``since``: the last heartbeat of the run's bot. ``given_up_at``: when the run is lost without another one."""

    since: Micros
    given_up_at: Micros


def silent_runs(
    tx: Tx, runs: Iterable[TaskRun], *, now: Micros, rules: Rules = DEFAULT_RULES
) -> dict[tuple[int, int], Silence]:
    """Those of the runs, by task and number, whose bot is silent."""
    live = [run for run in runs if run.live]
    if not live:
        return {}
    heartbeats = {bot.id: bot.heartbeat for bot in bots.read_many(tx, sorted({run.bot_id for run in live}))}
    resumed = resumed_at(tx)
    silent = {}
    for run in live:
        since = heartbeats.get(run.bot_id, run.claimed_at)  # a deleted bot sends none
        if now - since > rules.silent_after:
            silent[run.task_id, run.run] = Silence(since, given_up_at(run, since, resumed))
    return silent


def dead_at(tx: Tx, bot: Bot, rules: Rules = DEFAULT_RULES) -> Micros:
    """When a bot counts as dead without another heartbeat: not while one of its runs may still be reported."""
    resumed = resumed_at(tx)
    held = [given_up_at(run, bot.heartbeat, resumed) for run in task_run.live_of_bot(tx, bot.id)]
    return max(bot.heartbeat + rules.dead_after, *held, 0)
