"""The end of a bot: it stops, reboots, is missing or is deleted.

When a bot stops serving queues, ``handle_lost_capacity`` takes care of tasks that no bot can run any more.
"""

from myrmidon.model.bot import Bot
from myrmidon.model.errors import WrongState
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.task_result import Evidence
from myrmidon.scheduler.bots import lock_bot
from myrmidon.scheduler.outages import dead_at
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import handle_lost_capacity
from myrmidon.scheduler.run_end import end_lost_runs
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, task_queues, task_run


def mark_bot_stopped(
    tx: Tx, bot_id: str, *, session: int, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> None:
    """Mark a bot dead that has shut down for good, without waiting until its heartbeats are missing.

    A bot shuts down after it has delivered all results, so that runs which it still has here never reached it.
    """
    uow = UnitOfWork(tx, now, ids, rules)
    _end_runs_of_session(uow, bot_id, session, why="bot_stopped", message="the bot has ended")
    bot = lock_bot(uow, bot_id)
    if bot.alive and bot.session == session:
        set_dead(uow, bot)


def end_runs_before_reboot(
    tx: Tx, bot_id: str, *, session: int, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> None:
    """End the runs of a bot whose machine is about to reboot: no process survives that."""
    uow = UnitOfWork(tx, now, ids, rules)
    _end_runs_of_session(uow, bot_id, session, why="bot_rebooting", message="the machine of the bot reboots")


def _end_runs_of_session(uow: UnitOfWork, bot_id: str, session: int, *, why: str, message: str) -> None:
    """End all runs of the bot's current session. Tasks are locked here, so the bot must be locked afterwards."""
    bot = bots.read(uow.tx, bot_id)
    mine = task_run.live_of_bot(uow.tx, bot_id) if bot is not None and bot.session == session else []
    if bot is None or not mine:
        return
    tasks = uow.lock(run.task_id for run in mine)
    runs = [run for run in task_run.read(uow.tx, sorted(tasks)) if run.live]
    lost = [run for run in runs if run.bot_id == bot_id and run.session <= session]
    evidence = Evidence(message=message, last_heartbeat=bot.heartbeat, boot_id=bot.boot_id)
    end_lost_runs(uow, lost, runs, why=why, evidence=evidence)
    propagate(uow)


def delete_bot(
    tx: Tx, bot_id: str, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, only_dead: bool = False
) -> None:
    """Delete a bot and end its credentials; a later introduction creates it again. Its runs end with their leases.

    WrongState with ``only_dead`` if the bot is alive.
    """
    if tx.attempt > 1 and bots.read(tx, bot_id) is None:
        return
    uow = UnitOfWork(tx, now, ids, rules)
    bot = lock_bot(uow, bot_id)
    if only_dead and bot.alive:
        raise WrongState(f"the bot {bot_id} is alive: terminate it first, or delete it with force (`--force`)")
    queues = task_queues.unmatch_bot(tx, bot_id)
    bot_event.insert(tx, bot, uow.new_id(), at=now, kind="bot_deleted")
    bots.delete(tx, bot_id)
    handle_lost_capacity(uow, queues)


def mark_bot_dead(uow: UnitOfWork, bot_id: str) -> bool:
    """Mark a bot dead that has sent no heartbeat for ``dead_after`` and for the leases that it holds.

    Otherwise returns False and sets the time of the next check.
    """
    bot = lock_bot(uow, bot_id)
    dead_from = dead_at(uow.tx, bot, uow.rules)
    if not bot.alive or dead_from > uow.now:
        bot.due_at = dead_from if bot.alive else None
        bots.save(uow.tx, bot)
        return False
    bot_event.insert(uow.tx, bot, uow.new_id(), at=uow.now, kind="bot_missing")
    set_dead(uow, bot)
    return True


def set_dead(uow: UnitOfWork, bot: Bot) -> None:
    """Mark a locked bot dead, and take it out of its queues."""
    bot.alive = 0
    bot.due_at = None
    bots.save(uow.tx, bot)
    handle_lost_capacity(uow, task_queues.unmatch_bot(uow.tx, bot.id))
