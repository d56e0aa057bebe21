"""Many tasks at once: how many there are in each state, and cancelling or running again a selection of them."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import structs

from myrmidon.model.errors import MyrmidonError, WrongState
from myrmidon.model.ids import show_task
from myrmidon.model.states import FINAL, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler import cancel as cancelling
from myrmidon.scheduler import rerun as rerunning
from myrmidon.server.calls import READERS, WRITERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.tasks import check_may_cancel, filter_of_query, get_visible_task, parse_path_id
from myrmidon.store.engine.db import Tx
from myrmidon.store.views import listings
from myrmidon.store.views.listings import TaskFilter
from myrmidon.wire.task_selection import BatchDone, CountQuery, SkippedTask, TaskBatch, TaskCounts

ROUTES = Routes()

AT_ONCE = 20
"""Tasks of a batch that are changed at the same time, each in a transaction of its own."""


# ---------------------------------------------------------------- counts


@ROUTES.add("GET", "/api/v1/tasks/counts", READERS, "Count tasks by state", query=CountQuery)
async def count_tasks(context: ServerContext, call: Call) -> TaskCounts:
    """How many tasks match all filters, by state; of the newest 20,000, if there are more."""
    query: CountQuery = call.query
    task_filter = await filter_of_query(context, call, query)
    counts, complete = await context.db.read(partial(_count, filters=task_filter))
    return TaskCounts(counts=counts, total=sum(counts.values()), complete=complete)


def _count(tx: Tx, filters: TaskFilter) -> tuple[dict[str, int], bool]:
    """Counted from the first tag or, if that one is frequent, from another one."""
    counts, complete = listings.count_tasks(tx, filters)
    for tag in filters.tags[1:]:
        if not complete:
            tags = [tag, *(other for other in filters.tags if other != tag)]
            counts, complete = listings.count_tasks(tx, structs.replace(filters, tags=tags))
    return counts, complete


# ---------------------------------------------------------------- changing a selection


@ROUTES.add("POST", "/api/v1/tasks/batch", WRITERS, "Cancel tasks or run them again", body=TaskBatch, mutates=True)
async def change_tasks(context: ServerContext, call: Call) -> BatchDone:
    """Cancel tasks or run them again, each by itself: one that cannot be changed does not keep the others from it."""
    body: TaskBatch = call.body
    shown = list(dict.fromkeys(body.task_ids))
    scope = await context.groups.scope_of(call)
    skipped: list[SkippedTask] = []
    for start in range(0, len(shown), AT_ONCE):
        part = shown[start : start + AT_ONCE]
        errors = await asyncio.gather(*(_change(context, call, text, scope) for text in part))
        skipped += [SkippedTask(text, why) for text, why in zip(part, errors, strict=True) if why]
    return BatchDone(num_tasks=len(shown), num_changed=len(shown) - len(skipped), skipped=skipped)


async def _change(context: ServerContext, call: Call, text: str, scope: int | None) -> str:
    """Change one task; why it was not changed, or nothing."""
    body: TaskBatch = call.body
    try:
        task_id = parse_path_id(text)[0]
        change = _cancel if body.action == "cancel" else _rerun
        if body.dry_run:
            await context.db.read(lambda tx: _check(get_visible_task(tx, task_id, scope), body))
        else:
            await context.db.write(lambda tx: change(tx, context, call, task_id=task_id, scope=scope))
    except MyrmidonError as error:
        if error.status >= 500:
            raise
        return error.message
    return ""


def _check(task: TaskResult, body: TaskBatch) -> None:
    """WrongState if the task would not be changed."""
    if body.action == "cancel":
        if task.state in FINAL:
            raise WrongState(f"the task has ended already: {task.state}")
        if task.state == TaskState.RUNNING and not body.kill_running:
            raise WrongState("the task is running; cancel it with kill_running")
        return
    if task.state not in FINAL:
        raise WrongState(f"the task has not ended: {task.state}")
    if task.state == TaskState.SUCCEEDED and not body.force:
        raise WrongState("the task has succeeded; run it again with force")


def _cancel(tx: Tx, context: ServerContext, call: Call, *, task_id: int, scope: int | None) -> None:
    body: TaskBatch = call.body
    task, now = get_visible_task(tx, task_id, scope), context.now()
    check_may_cancel(tx, call, task_id)
    if not claim_call_key(tx, call, "cancel in a batch", show_task(task_id), now=now, subject=task_id):
        return
    _check(task, body)
    cancelling.cancel(tx, [task_id], now=now, ids=context.ids, kill_running=body.kill_running, rules=context.rules)


def _rerun(tx: Tx, context: ServerContext, call: Call, *, task_id: int, scope: int | None) -> None:
    body: TaskBatch = call.body
    get_visible_task(tx, task_id, scope)
    now = context.now()
    if claim_call_key(tx, call, "rerun in a batch", show_task(task_id), now=now, subject=task_id):
        rerunning.rerun(tx, task_id, now=now, ids=context.ids, force=body.force, rules=context.rules)
