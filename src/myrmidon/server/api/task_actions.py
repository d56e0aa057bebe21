"""Actions on tasks: cancel, rerun, explain; and the same for many that a filter selects."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import structs

from myrmidon.model.errors import MyrmidonError, WrongState
from myrmidon.model.ids import show_task
from myrmidon.model.states import FINAL, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler import cancel as cancelling
from myrmidon.scheduler import explain as explaining
from myrmidon.scheduler import rerun as rerunning
from myrmidon.server.calls import (
    JOB_WRITERS,
    READERS,
    WRITERS,
    Call,
    Role,
    Routes,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.tasks import check_may_cancel, filter_of_query, get_visible_task, parse_path_id
from myrmidon.store.engine.db import Tx
from myrmidon.store.views import listings
from myrmidon.store.views.listings import TaskFilter
from myrmidon.wire import tasks as wire
from myrmidon.wire.task_selection import BatchDone, CountQuery, SkippedTask, TaskBatch, TaskCounts

ROUTES = Routes()


@ROUTES.add("POST", "/api/v1/tasks/{id}/cancel", JOB_WRITERS, "Cancel a task", body=wire.CancelBody, mutates=True)
async def cancel_task(context: ServerContext, call: Call) -> wire.Cancelled:
    """Cancel a task. A call repeated with its request key does not cancel a rerun that was started in between."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)
    kill, now = call.body.kill_running, context.now()

    def cancel(tx: Tx) -> wire.Cancelled:
        get_visible_task(tx, task_id, scope)
        check_may_cancel(tx, call, task_id)
        if claim_call_key(tx, call, "cancel", show_task(task_id), now=now, subject=task_id):
            cancelling.cancel(tx, [task_id], now=now, ids=context.ids, kill_running=kill, rules=context.rules)
        task = get_visible_task(tx, task_id, scope)
        stopped = task.state in (TaskState.CANCELLED, TaskState.KILLED) or bool(task.killing)
        running = task.state in (TaskState.RUNNING, TaskState.KILLED)
        return wire.Cancelled(show_task(task_id), stopped, task.state, running)

    return await context.db.write(cancel)


@ROUTES.add(
    "POST", "/api/v1/tasks/cancel", WRITERS, "Cancel all tasks with certain tags", body=wire.CancelMany, mutates=True
)
async def cancel_tagged(context: ServerContext, call: Call) -> wire.CancelStarted:
    """Cancel all tasks that have certain tags, in the background."""
    body: wire.CancelMany = call.body
    group_id = await context.groups.id_for(call, body.group)
    cancel = partial(
        cancelling.cancel_tagged,
        tags=body.tags,
        group_id=group_id,
        now=context.now(),
        ids=context.ids,
        start=body.start,
        end=body.end,
        kill_running=body.kill_running,
        terminate_tasks=call.who.role is Role.ADMIN,
        request_key=call.request_key,
        rules=context.rules,
    )
    started = await context.db.write(cancel)
    return wire.CancelStarted(started.num_tasks, complete=started.complete)


@ROUTES.add("POST", "/api/v1/tasks/{id}/rerun", WRITERS, "Rerun a task", body=wire.RerunBody, mutates=True)
async def rerun_task(context: ServerContext, call: Call) -> wire.RerunAnswer:
    """Run an ended task again. A call repeated with its request key does not start another rerun."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)
    body: wire.RerunBody = call.body
    now = context.now()

    def rerun(tx: Tx) -> wire.RerunAnswer:
        get_visible_task(tx, task_id, scope)
        options = {"force": body.force, "cascade": body.cascade}
        if call.request_key is None:
            rerunning.rerun(tx, task_id, now=now, ids=context.ids, rules=context.rules, **options)
        else:
            rerunning.rerun_once(
                tx, task_id, call.request_key, now=now, ids=context.ids, rules=context.rules, **options
            )
        task = get_visible_task(tx, task_id, scope)
        return wire.RerunAnswer(show_task(task_id), task.state, task.generation)

    return await context.db.write(rerun)


@ROUTES.add("GET", "/api/v1/tasks/{id}/why", READERS, "Explain why a task does not run")
async def explain_task(context: ServerContext, call: Call) -> wire.TaskExplanation:
    """Explain why a task does not run now."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)

    def explain(tx: Tx) -> explaining.Explanation:
        get_visible_task(tx, task_id, scope)
        return explaining.explain(tx, task_id, now=context.now(), rules=context.rules)

    explanation = await context.db.read(explain)
    asleep = explanation.state == TaskState.READY and context.state.config.asleep
    return wire.TaskExplanation(
        task_id=show_task(explanation.task_id),
        state=explanation.state,
        summary="No bot gets any task: asleep is set in bots.toml." if asleep else explanation.summary,
        waiting_on=[show_task(parent) for parent in explanation.waiting_on],
        unreachable=explanation.unreachable,
        held=explanation.held,
        dimensions=[wire.DimensionStep(step.dimension, step.removes, step.left) for step in explanation.dimensions],
        num_bots=explanation.num_bots,
        num_serving=explanation.num_serving,
        unavailable=[
            wire.UnavailableBot(bot.bot_id, bot.state, bot.reason, bot.last_seen_at) for bot in explanation.unavailable
        ],
        capacity=explanation.capacity,
        position=explanation.position,
        silent_since=explanation.silent_since,
        given_up_at=explanation.given_up_at,
    )


# ---------------------------------------------------------------- a selection of tasks


AT_ONCE = 20
"""Tasks of a batch that are changed at the same time, each in a transaction of its own."""


@ROUTES.add("GET", "/api/v1/tasks/counts", READERS, "Count tasks by state", query=CountQuery)
async def count_tasks(context: ServerContext, call: Call) -> TaskCounts:
    """The number of tasks that match all filters, by state; of the newest 20,000, if there are more."""
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
