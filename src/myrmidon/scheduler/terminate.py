"""A bot is told to end: a task without a command that only this bot can take.

It goes through the queues like any other, before everything else, so the bot finishes what it has, takes it, and
reports that it is done. A bot that is put aside gets no work, but this it gets.
"""

from msgspec import json

from myrmidon.model.errors import MyrmidonError, NotFound
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.task_request import Properties, Slice, TaskRequest
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.submit import Draft, submit
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, pool_order, task_queues, task_request, task_run, task_to_run

EXPIRES_S = 86_400
"""A bot that does not come back within a day was not meant to hear of it any more."""
TAG = "swarming.terminate:1"


def terminate_bot(
    tx: Tx,
    bot_id: str,
    group_id: int,
    *,
    task_id: int,
    reason: str,
    authenticated: str,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
) -> int:
    """Tell a bot to finish what it has and end; the task that tells it so, which may be there already.

    The bot is locked, so that one that is just coming back finds the queue of its order, or is found by it.
    """
    known = bots.read(tx, bot_id)
    pools = json.decode(known.dimensions, type=dict[str, list[str]]).get("pool", []) if known is not None else []
    pool_order.lock_pools(tx, ["", *pools])
    bot = bots.lock(tx, bot_id)
    if bot is None:
        raise NotFound("bot", bot_id)
    waiting = _pending_terminate_task(tx, bot_id, now)
    if waiting is not None:
        return waiting
    draft = Draft(task_id=task_id, job_id=0, request=_request(bot_id, reason), authenticated=authenticated)
    (answer,) = submit(tx, group_id, [draft], now=now, ids=ids, rules=rules)
    if isinstance(answer, MyrmidonError):
        raise answer
    bot_event.insert(tx, bot, ids.next(now), at=now, kind="bot_terminating", message=reason)
    return answer.task_id


def _pending_terminate_task(tx: Tx, bot_id: str, now: Micros) -> int | None:
    """The order that the bot has not carried out yet."""
    queues = task_queues.own_queues(tx, bot_id)
    for queue in queues:
        for row in task_to_run.first(tx, queue, 1, bot_id=bot_id, now=now):
            return row.task_id
    runs = task_run.live_of_bot(tx, bot_id) if queues else []
    todo = task_request.work(tx, sorted({run.task_id for run in runs})) if runs else {}
    return next((task_id for (task_id, _), work in todo.items() if work.queue in queues), None)


def _request(bot_id: str, reason: str) -> TaskRequest:
    properties = Properties(dimensions={"id": [bot_id]}, command=[])
    return TaskRequest(
        name=f"Terminate {bot_id}" + (f": {reason}" if reason else ""),
        slices=[Slice(properties=properties, expiration_s=EXPIRES_S, wait_for_capacity=True)],
        priority=0,
        tags=[TAG],
        retries=0,
    )
