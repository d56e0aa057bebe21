"""Terminate a bot: submit a task without a command that only this bot can claim.

The task has the best priority, so the bot finishes its current runs, claims the task and reports it as finished. A
quarantined or draining bot gets no other work, but it gets this task.
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
"""The task expires after a day: a bot that comes back later is not terminated."""
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
    """Terminate a bot after its current runs; returns the terminate task, which may exist already.

    Pools and the bot are locked, so that a bot that connects at the same time is matched to the task's queue.
    """
    known = bots.read(tx, bot_id)
    pools = json.decode(known.dimensions, type=dict[str, list[str]]).get("pool", []) if known is not None else []
    pool_order.lock_pools(tx, ["", *pools])
    bot = bots.lock(tx, bot_id)
    if bot is None:
        raise NotFound("bot", bot_id)
    pending = _pending_terminate_task(tx, bot_id, now)
    if pending is not None:
        return pending
    draft = Draft(task_id=task_id, job_id=0, request=_request(bot_id, reason), authenticated=authenticated)
    (answer,) = submit(tx, group_id, [draft], now=now, ids=ids, rules=rules)
    if isinstance(answer, MyrmidonError):
        raise answer
    bot_event.insert(tx, bot, ids.next(now), at=now, kind="bot_terminating", message=reason)
    return answer.task_id


def _pending_terminate_task(tx: Tx, bot_id: str, now: Micros) -> int | None:
    """The terminate task of the bot that is queued or running, if there is one."""
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
