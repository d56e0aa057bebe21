"""tasks/new of Swarming's API v1: converts the task to a native request, stores it like any other, and renders it.

Most responses are built from the draft, without reading the task back from the database.
"""

from __future__ import annotations

from msgspec import structs

from myrmidon.model.errors import InvalidRequest, MyrmidonError, NotFound, Problem, WrongState
from myrmidon.model.ids import Micros, show_run, show_task
from myrmidon.model.states import TaskState
from myrmidon.model.task_request import automatic_tags
from myrmidon.scheduler.submit import Draft, Submitted
from myrmidon.server.calls import Call
from myrmidon.server.context import ServerContext
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1 import render as show
from myrmidon.server.swarming_v1.encoding import TEMPLATES, int64, parse_enum, timestamp, user_identity
from myrmidon.server.swarming_v1.request_parser import (
    NewTaskBody,
    deadline_of,
    native_request,
    problems_in_v1,
    request_key,
)
from myrmidon.server.usecases.submit import draft_task, single_task_key, store_drafts, store_within_quota
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_request

_TEMPLATE_TAG = "swarming.pool.template:"
_ANY_BODY = "v1"
"""In place of the body's hash: v1 identifies a repeated call by request_uuid alone, with any other body."""


async def new_task(context: ServerContext, call: Call) -> v1.TaskRequestMetadata:
    """Store a task. A call with the same request_uuid gets the same task, whatever else it contains."""
    body: NewTaskBody = call.body
    group, now = context.groups.name_for(call), context.now()
    template = parse_enum(body.pool_task_template, TEMPLATES, "pool_task_template", "AUTO")
    uuid_key = request_key(body, call.who.key)
    with problems_in_v1(body):
        draft = draft_task(
            context,
            call,
            native_request(body),
            group=group,
            key=uuid_key or single_task_key(call.request_key),
            now=now,
            clamp_priority=True,
            template=template,
            complete=lambda document: {**document, "deadline_s": deadline_of(document["slices"], context.limits)},
        )
    draft = _with_tags(context, draft)
    if uuid_key is not None:
        draft = structs.replace(draft, body_hash=_ANY_BODY)
    [result] = await store_within_quota(
        context,
        call,
        group,
        num_tasks=1,
        keys=lambda: [draft.request_key],
        store=lambda group_id: store_drafts(context, group_id, [draft], now),
    )
    if isinstance(result, MyrmidonError):
        raise _as_invalid_parent(result)
    if not result.task_id:
        return v1.TaskRequestMetadata(request=await _evaluated(context, draft, now))
    if _is_known_from_draft(draft, result):
        request = _request_of_draft(draft, now, with_id=True)
        return v1.TaskRequestMetadata(request=request, task_id=request.task_id, task_result=_pending_result(request))
    return await context.db.read(lambda tx: _stored(tx, result.task_id))


async def _evaluated(context: ServerContext, draft: Draft, now: Micros) -> v1.TaskRequest:
    """The request that would be stored. A task with a parent inherits the parent's user."""
    parent = draft.request.parent
    if parent is not None:
        row = (await context.db.read(lambda tx: task_request.read(tx, [parent[0]])))[parent[0]]
        user = row.user_name or draft.request.user
        draft = structs.replace(draft, request=structs.replace(draft.request, user=user))
    return _request_of_draft(draft, now, with_id=False)


def _with_tags(context: ServerContext, draft: Draft) -> Draft:
    """Add the tags that every task of v1 has. They do not count towards the limit of a request's own tags."""
    request = draft.request
    tags = {
        *request.tags,
        f"authenticated:{user_identity(draft.authenticated)}",
        f"realm:{request.metadata.get('realm', 'none')}",
    }
    if not any(tag.startswith(_TEMPLATE_TAG) for tag in request.tags):
        version = context.state.config.pools.version or "none"
        tags |= {f"{_TEMPLATE_TAG}no_config", f"swarming.pool.version:{version}"}
    return structs.replace(draft, request=structs.replace(request, tags=sorted(tags)))


def _as_invalid_parent(error: MyrmidonError) -> MyrmidonError:
    """Report a parent that is missing or in the wrong state as an invalid field of the request, not as a 404 or 409."""
    if isinstance(error, NotFound | WrongState):
        return InvalidRequest([Problem("parent_task_id", "a task", error.message, "parent")])
    return error


def _is_known_from_draft(draft: Draft, result: Submitted) -> bool:
    """Whether the stored task can be rendered from its draft."""
    simple = len(draft.request.slices) == 1 and draft.request.parent is None
    return result.state == TaskState.READY and simple and not result.repeated


def _request_of_draft(draft: Draft, now: Micros, *, with_id: bool) -> v1.TaskRequest:
    request = draft.request
    slices = [show.show_slice(one, has_secret=request.secret_bytes is not None) for one in request.slices]
    return v1.TaskRequest(
        authenticated=user_identity(draft.authenticated),
        bot_ping_tolerance_secs=int64(request.lease_s),
        created_ts=timestamp(now),
        expiration_secs=int64(sum(one.expiration_s for one in request.slices)),
        name=request.name,
        parent_task_id=show_run(*request.parent) if request.parent else None,
        priority=int64(request.priority),
        properties=slices[0].properties,
        realm=request.metadata.get("realm"),
        service_account=request.service_account,
        tags=automatic_tags(request),
        task_id=show_task(draft.task_id) if with_id else None,
        task_slices=slices,
        user=request.user,
    )


def _pending_result(request: v1.TaskRequest) -> v1.TaskResult:
    return v1.TaskResult(
        created_ts=request.created_ts,
        current_task_slice="0",
        failure=False,
        internal_failure=False,
        modified_ts=request.created_ts,
        name=request.name,
        state="PENDING",
        tags=request.tags,
        task_id=request.task_id,
        user=request.user,
    )


def _stored(tx: Tx, task_id: int) -> v1.TaskRequestMetadata:
    [request], [result] = show.requests(tx, [task_id]), show.results(tx, [task_id], stats=False)
    return v1.TaskRequestMetadata(request=request, task_id=show_task(task_id), task_result=result)
