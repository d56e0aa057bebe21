"""Actions on tasks: cancel one, cancel by tags, rerun, explain why one does not run."""

from __future__ import annotations

from functools import partial

from myrmidon.model.ids import show_task
from myrmidon.model.states import TaskState
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
from myrmidon.server.usecases.tasks import check_may_cancel, get_visible_task, parse_path_id
from myrmidon.store.engine.db import Tx
from myrmidon.wire import tasks as wire

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
