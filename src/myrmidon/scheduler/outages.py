"""Gaps in the time of the service: an outage, a suspended machine, a start under a wrong clock.

Every server stores the time every few seconds (``last_alive``), however long its maintenance takes. If the stored time
is too old, or in the future, all leases start again at the current time (``resumed_at``): bots could not send
heartbeats meanwhile, or the time cannot be compared. Until that is recorded no lease ends and nothing old is deleted.

If the stored time is in the future, a clock that was ahead has been corrected. Heartbeats from its time are set to now:
otherwise their bots would count as alive until then.

After a long gap the deletion of old rows waits (``retention_waits_until``). The gap may be the error of a clock that is
far ahead, and that must be noticed before everything that is kept for 30 days is deleted.
"""

from collections.abc import Iterable

from msgspec import Struct

from myrmidon.model.bot import Bot
from myrmidon.model.ids import Micros
from myrmidon.model.task_result import TaskRun
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules, given_up_at, service_was_away
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import shared_numbers, task_run

_LAST_ALIVE = "last_alive"
_RESUMED_AT = "resumed_at"
_RETENTION_WAITS_UNTIL = "retention_waits_until"


def record_alive(tx: Tx, now: Micros, rules: Rules = DEFAULT_RULES) -> bool:
    """Store that the service is running; True if it was away, so that all leases start again."""
    last = shared_numbers.lock(tx, _LAST_ALIVE)
    was_away = service_was_away(now, last, rules)
    if was_away:
        _put(tx, _RESUMED_AT, now)
    if was_away and now < last:
        bots.correct_heartbeats(tx, now=now, dead_after=rules.dead_after)
    if was_away and now - last > rules.long_gap:
        _put(tx, _RETENTION_WAITS_UNTIL, now + rules.retention_wait)
    if was_away or now > last:
        shared_numbers.put(tx, _LAST_ALIVE, now)
    return was_away


def is_away(tx: Tx, now: Micros, rules: Rules = DEFAULT_RULES) -> bool:
    """Whether the service was away until now and no server has recorded yet that it is back."""
    return service_was_away(now, shared_numbers.read(tx, _LAST_ALIVE) or 0, rules)


def keeps_old(tx: Tx, now: Micros, rules: Rules = DEFAULT_RULES) -> bool:
    """Whether nothing old may be deleted now."""
    return is_away(tx, now, rules) or retention_waits_until(tx, now, rules) is not None


def _put(tx: Tx, name: str, value: int) -> None:
    shared_numbers.lock(tx, name)
    shared_numbers.put(tx, name, value)


def resumed_at(tx: Tx) -> Micros:
    """When the service came back from its last outage; 0 if it had none."""
    return shared_numbers.read(tx, _RESUMED_AT) or 0


def retention_waits_until(tx: Tx, now: Micros, rules: Rules = DEFAULT_RULES) -> Micros | None:
    """When old rows may be deleted again; None if they may be deleted now.

    A time further ahead than the wait itself was stored under a clock that has been corrected since; it is ignored.
    """
    until = shared_numbers.read(tx, _RETENTION_WAITS_UNTIL) or 0
    return until if now < until <= now + rules.retention_wait else None


# ---------------------------------------------------------------- silent bots


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
