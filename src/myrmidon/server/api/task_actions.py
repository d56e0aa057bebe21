"""Actions on tasks: cancel one, cancel by tags, rerun, explain why one does not run."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.model.ids import Micros, show_task
from myrmidon.model.states import TaskState
from myrmidon.scheduler import cancel as canceling
from myrmidon.scheduler import explain as explaining
from myrmidon.scheduler import rerun as rerunning
from myrmidon.server.calls import (
    JOB_WRITERS,
    READERS,
    WRITERS,
    Call,
    Role,
    Route,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.tasks import check_may_cancel, get_visible_task, parse_path_id
from myrmidon.store.engine.db import Tx
from myrmidon.wire.fields import Moment, Name


class CancelBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A running task is killed only if ``kill_running`` is true."""

    kill_running: bool = False


class Cancelled(Struct, frozen=True):
    """``ok``: the task was canceled or killed, or is being killed. Repeated calls get the same response."""

    task_id: str
    ok: bool
    state: str
    was_running: bool


async def cancel_task(context: ServerContext, call: Call) -> Cancelled:
    """Cancel a task. A call repeated with its request key does not cancel a rerun that was started in between."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)
    kill, now = call.body.kill_running, context.now()

    def cancel(tx: Tx) -> Cancelled:
        get_visible_task(tx, task_id, scope)
        check_may_cancel(tx, call, task_id)
        if claim_call_key(tx, call, "cancel", show_task(task_id), now=now, subject=task_id):
            canceling.cancel(tx, [task_id], now=now, ids=context.ids, kill_running=kill, rules=context.rules)
        task = get_visible_task(tx, task_id, scope)
        stopped = task.state in (TaskState.CANCELED, TaskState.KILLED) or bool(task.killing)
        running = task.state in (TaskState.RUNNING, TaskState.KILLED)
        return Cancelled(show_task(task_id), stopped, task.state, running)

    return await context.db.write(cancel)


class CancelMany(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks that have all these tags and were created between ``start`` and ``end``, or until now."""

    tags: Annotated[list[Annotated[str, Meta(max_length=321)]], Meta(min_length=1, max_length=16)]
    start: Moment | None = None
    end: Moment | None = None
    kill_running: bool = False
    group: Name | None = None


class CancelStarted(Struct, frozen=True):
    """The cancellation is on disk and runs in the background; ``num_tasks`` unfinished tasks had the tags."""

    num_tasks: int
    ok: bool = True


async def cancel_tagged(context: ServerContext, call: Call) -> CancelStarted:
    """Cancel all tasks that have certain tags, in the background."""
    body: CancelMany = call.body
    group_id = await context.groups.id_for(call, body.group)
    cancel = partial(
        canceling.cancel_tagged,
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
    return CancelStarted(started.num_tasks)


class RerunBody(Struct, frozen=True, forbid_unknown_fields=True):
    force: bool = False
    cascade: bool = False


class RerunAnswer(Struct, frozen=True):
    """The task after the call. Each rerun starts a new generation."""

    task_id: str
    state: str
    generation: int


async def rerun_task(context: ServerContext, call: Call) -> RerunAnswer:
    """Run an ended task again. A call repeated with its request key does not start another rerun."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)
    body: RerunBody = call.body
    now = context.now()

    def rerun(tx: Tx) -> RerunAnswer:
        get_visible_task(tx, task_id, scope)
        options = {"force": body.force, "cascade": body.cascade}
        if call.request_key is None:
            rerunning.rerun(tx, task_id, now=now, ids=context.ids, rules=context.rules, **options)
        else:
            rerunning.rerun_once(
                tx, task_id, call.request_key, now=now, ids=context.ids, rules=context.rules, **options
            )
        task = get_visible_task(tx, task_id, scope)
        return RerunAnswer(show_task(task_id), task.state, task.generation)

    return await context.db.write(rerun)


class DimensionStep(Struct, frozen=True):
    """One dimension applied as a filter: ``removes`` bots do not have it, ``left`` bots remain."""

    dimension: str
    removes: int
    left: int


class UnavailableBot(Struct, frozen=True):
    """A bot that has the required dimensions but gets no tasks: its state, and the reason if one was given."""

    bot_id: str
    state: str
    reason: str | None
    last_seen_at: Micros


class TaskExplanation(Struct, frozen=True, kw_only=True):
    """Why a task does not run now: ``summary`` in one sentence, and the facts behind it.

    ``capacity`` is what the fleet has for a task that waits for a bot or has found none; ``unavailable`` has the first
    20 bots that would match but get no tasks.
    """

    task_id: str
    state: str
    summary: str
    waiting_on: list[str]
    unreachable: bool
    held: bool
    dimensions: list[DimensionStep]
    num_bots: int
    num_serving: int
    unavailable: list[UnavailableBot]
    capacity: str | None
    position: int | None
    silent_since: Micros | None
    """The last heartbeat of the bot that runs the task, if the bot is silent."""
    given_up_at: Micros | None
    """When the run ends as lost if the bot stays silent."""


async def explain_task(context: ServerContext, call: Call) -> TaskExplanation:
    """Explain why a task does not run now."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)

    def explain(tx: Tx) -> explaining.Explanation:
        get_visible_task(tx, task_id, scope)
        return explaining.explain(tx, task_id, now=context.now(), rules=context.rules)

    explanation = await context.db.read(explain)
    asleep = explanation.state == TaskState.READY and context.state.config.asleep
    return TaskExplanation(
        task_id=show_task(explanation.task_id),
        state=explanation.state,
        summary="No bot gets any task: asleep is set in bots.toml." if asleep else explanation.summary,
        waiting_on=[show_task(parent) for parent in explanation.waiting_on],
        unreachable=explanation.unreachable,
        held=explanation.held,
        dimensions=[DimensionStep(step.dimension, step.removes, step.left) for step in explanation.dimensions],
        num_bots=explanation.num_bots,
        num_serving=explanation.num_serving,
        unavailable=[
            UnavailableBot(bot.bot_id, bot.state, bot.reason, bot.last_seen_at) for bot in explanation.unavailable
        ],
        capacity=explanation.capacity,
        position=explanation.position,
        silent_since=explanation.silent_since,
        given_up_at=explanation.given_up_at,
    )


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/tasks/{id}/why",
        call=explain_task,
        who=READERS,
        out=TaskExplanation,
        summary="Explain why a task does not run",
    ),
    Route(
        method="POST",
        path="/api/v1/tasks/{id}/cancel",
        call=cancel_task,
        who=JOB_WRITERS,
        body=CancelBody,
        out=Cancelled,
        mutates=True,
        summary="Cancel a task",
    ),
    Route(
        method="POST",
        path="/api/v1/tasks/cancel",
        call=cancel_tagged,
        who=WRITERS,
        body=CancelMany,
        out=CancelStarted,
        mutates=True,
        summary="Cancel all tasks with certain tags",
    ),
    Route(
        method="POST",
        path="/api/v1/tasks/{id}/rerun",
        call=rerun_task,
        who=WRITERS,
        body=RerunBody,
        out=RerunAnswer,
        mutates=True,
        summary="Rerun a task",
    ),
)
