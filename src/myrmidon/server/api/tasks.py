"""Reading tasks: one task in full, lists, recent tags.

A caller whose token is bound to a resource group sees only that group's tasks; for others it gets NotFound.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from myrmidon.model.secret_masking import SecretForms
from myrmidon.scheduler.silence import Silence, silent_runs
from myrmidon.server.api.notes import show_annotation
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.run_errors import show_error
from myrmidon.server.usecases.tasks import filter_of_query, get_visible_task, parse_path_id, recent_tags
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import notes, task_request, task_run
from myrmidon.store.views import listings, task_details
from myrmidon.store.views.selection import decode_stored
from myrmidon.wire.tasks import RunInfo, TagInfo, TagList, TaskInfo, TaskList, TaskQuery

ROUTES = Routes()

# ---------------------------------------------------------------- one task


@ROUTES.add("GET", "/api/v1/tasks/{id}", READERS, "Get a task")
async def get_task(context: ServerContext, call: Call) -> TaskInfo:
    """A task with its request, its result and all its runs."""
    task_id = parse_path_id(call.params["id"])[0]
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> TaskInfo:
        get_visible_task(tx, task_id, scope)
        secret = task_request.secrets(tx, [task_id]).get(task_id)
        forms = SecretForms(secret) if secret else None
        runs = task_details.runs(tx, task_id)
        silent: Mapping[tuple[int, int], Silence] = {}
        if any(run.ended_at is None for run, _ in runs):
            silent = silent_runs(tx, task_run.read(tx, [task_id]), now=context.now(), rules=context.rules)
        shown = [_shown(run, error, forms, silent.get((task_id, run.number))) for run, error in runs]
        task = task_details.read(tx, task_id, shown, has_secret=secret is not None)
        annotation = show_annotation(notes.read(tx, task_id), forms)
        return structs.replace(task, annotation=annotation) if annotation is not None else task

    return await context.db.read(read)


def _shown(run: RunInfo, error: str | None, forms: SecretForms | None, silence: Silence | None) -> RunInfo:
    """A run with its error, and with the secret of its task masked: texts can repeat output of the task."""
    if error is not None:
        run = structs.replace(run, error=show_error(error, forms))
    if silence is not None:
        run = structs.replace(run, silent_since=silence.since, given_up_at=silence.given_up_at)
    if forms is not None and run.evidence is not None:
        evidence = decode_stored(run.evidence)
        if isinstance(message := evidence.get("message"), str):
            run = structs.replace(run, evidence={**evidence, "message": forms.mask_text(message)})
    return run


# ---------------------------------------------------------------- lists


@ROUTES.add("GET", "/api/v1/tasks", READERS, "List tasks", query=TaskQuery)
async def list_tasks(context: ServerContext, call: Call) -> TaskList:
    """Tasks that match all filters, ordered by time of creation."""
    query: TaskQuery = call.query
    kind = f"tasks {query.sort}"
    cursor = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else None
    task_filter = await filter_of_query(context, call, query)

    found, more = await context.db.read(
        lambda tx: listings.tasks(tx, task_filter, n=query.limit, cursor=cursor, oldest_first=query.sort == "oldest")
    )
    return TaskList(found, show_cursor(context.keys.cursor, kind, str(more)) if more else None)


@ROUTES.add("GET", "/api/v1/tasks/tags", READERS, "List tags of the newest tasks")
async def list_tags(context: ServerContext, call: Call) -> TagList:
    """Tags of the newest tasks that the caller may see."""
    return TagList([TagInfo(key, values) for key, values in (await recent_tags(context, call)).items()])
