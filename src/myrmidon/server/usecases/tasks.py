"""What several APIs need of tasks: visibility, the right to cancel, recent tags."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from myrmidon.model.errors import Forbidden, NotFound
from myrmidon.model.ids import first_id_at, show_task, try_parse_id
from myrmidon.model.task_result import TaskResult
from myrmidon.server.calls import Call, Role
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import task_request, task_result
from myrmidon.store.views import listings, run_details
from myrmidon.store.views.listings import TaskFilter
from myrmidon.wire.tasks import TaskFilterQuery

TAGS_SAMPLE = 2000
"""How many of the newest tasks recent_tags reads."""
MAX_TAG_VALUES = 128


def parse_path_id(text: str) -> tuple[int, int]:
    """(task id, run number) of an id in a URL; the run number is 0 for a task. NotFound if it is malformed."""
    parsed = try_parse_id(text)
    if parsed is None:
        raise NotFound("task", text[:40])
    return parsed


def get_visible_task(tx: Tx, task_id: int, scope: int | None) -> TaskResult:
    """The task, if it is in the resource group ``scope`` or scope is None; else NotFound, as if it did not exist."""
    task = task_result.read(tx, [task_id]).get(task_id)
    if task is None or task.seq == 0 or (scope is not None and task.resource_group_id != scope):
        job = jobs.read(tx, [task_id]).get(task_id)
        is_job = job is not None and not job.staged and scope in (None, job.resource_group_id)
        raise NotFound("task", show_task(task_id), but="job" if is_job else "")
    return task


def cancellable_tasks(tx: Tx, call: Call, task_ids: Sequence[int]) -> list[int]:
    """Those of the tasks that the caller may cancel: tasks that terminate a bot are for administrators only."""
    terminate_tasks = set() if call.who.role is Role.ADMIN else task_request.terminate_tasks(tx, task_ids)
    return [task_id for task_id in task_ids if task_id not in terminate_tasks]


def check_may_cancel(tx: Tx, call: Call, task_id: int) -> None:
    """Forbidden if the caller may not cancel the task; a run may cancel what its task has added to the job."""
    if call.who.role is Role.RUN and jobs.added_by(tx, task_id) != call.who.task_id:
        raise NotFound("task", show_task(task_id))
    if not cancellable_tasks(tx, call, [task_id]):
        raise Forbidden("This task terminates a bot; ask an administrator to cancel it.")


async def recent_tags(context: ServerContext, call: Call) -> dict[str, list[str]]:
    """Tags of the newest tasks that the caller may see, by key; no values for a key that has MAX_TAG_VALUES or more."""
    scope = await context.groups.scope_of(call)
    tag_lists = await context.db.read(lambda tx: run_details.newest_tags(tx, group_id=scope, n=TAGS_SAMPLE))
    values_by_key: dict[str, set[str]] = {}
    for tag_list in set(tag_lists):
        for tag in json.decode(tag_list, type=list[str]):
            key, _, value = tag.partition(":")
            values_by_key.setdefault(key, set()).add(value)
    return {
        key: sorted(values) if len(values) < MAX_TAG_VALUES else [] for key, values in sorted(values_by_key.items())
    }


async def filter_of_query(context: ServerContext, call: Call, query: TaskFilterQuery) -> TaskFilter:
    """The filters of a list or a count, limited to what the caller may see."""
    scope = await context.groups.scope_of(call)
    if query.group is not None:
        scope = await context.groups.id_for(call, query.group)
    return TaskFilter(
        group_id=scope,
        states=list(query.state),
        tags=[*query.tag, *([f"pool:{query.pool}"] if query.pool is not None else [])],
        name=query.name,
        bot_id=query.bot,
        user=query.user,
        submitter=call.who.name if query.mine else None,
        from_id=first_id_at(query.start) if query.start is not None else 0,
        until_id=first_id_at(query.end) if query.end is not None else listings.MAX_ID,
    )
