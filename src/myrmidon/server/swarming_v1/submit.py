"""New tasks over Swarming's API v1: read, ruled by their pool, stored as every other, and shown as v1 shows them.

Most answers are made without a further look at the database: all that there is to say was just written.
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
from myrmidon.server.swarming_v1.request_parser import NewTaskBody, deadline_of, native_request, request_key
from myrmidon.server.usecases.submit import draft_task, single_task_key, store_drafts, store_within_quota
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_request

_ANY_BODY = "v1"
"""In place of a digest: a uuid stands for its task whatever else a repeated call says."""


async def new_task(context: ServerContext, call: Call) -> v1.TaskRequestMetadata:
    """Store a task. The same request_uuid gets the same task, whatever else the call says."""
    given: NewTaskBody = call.body
    group, now = context.groups.name_for(call), context.now()
    template = parse_enum(given.pool_task_template, TEMPLATES, "pool_task_template", "AUTO")
    uuid = request_key(given, call.who.name)
    draft = draft_task(
        context,
        call,
        native_request(given),
        group=group,
        key=uuid or single_task_key(call.request_key),
        now=now,
        clamp_priority=True,
        template=template,
        complete=lambda document: {**document, "deadline_s": deadline_of(document["slices"], context.limits)},
    )
    if uuid is not None:
        draft = structs.replace(draft, body_hash=_ANY_BODY)
    [answer] = await store_within_quota(
        context,
        call,
        group,
        num_tasks=1,
        keys=lambda: [draft.request_key],
        store=lambda group_id: store_drafts(context, group_id, [draft], now),
    )
    if isinstance(answer, MyrmidonError):
        raise _as_invalid_parent(answer)
    if not answer.task_id:
        return v1.TaskRequestMetadata(request=await _evaluated(context, draft, now))
    if _is_known_from_draft(draft, answer):
        request = _request_of_draft(draft, now, shown=True)
        return v1.TaskRequestMetadata(request=request, task_id=request.task_id, task_result=_pending_result(request))
    return await context.db.read(lambda tx: _stored(tx, answer.task_id))


async def _evaluated(context: ServerContext, draft: Draft, now: Micros) -> v1.TaskRequest:
    """What would be stored. A task that another one triggers has that one's user."""
    root, parent = None, draft.request.parent
    if parent is not None:
        row = (await context.db.read(lambda tx: task_request.read(tx, [parent[0]])))[parent[0]]
        root = show_task(row.root_task_id or row.id)
        user = row.user_name or draft.request.user
        draft = structs.replace(draft, request=structs.replace(draft.request, user=user))
    return structs.replace(_request_of_draft(draft, now, shown=False), root_task_id=root)


def _as_invalid_parent(error: MyrmidonError) -> MyrmidonError:
    """A parent that is gone is something wrong with the request, not a page that is not there."""
    if isinstance(error, NotFound | WrongState):
        return InvalidRequest([Problem("parent_task_id", "a task", error.message, "parent")])
    return error


def _is_known_from_draft(draft: Draft, answer: Submitted) -> bool:
    """Whether all that is to be said of the task is known without a look at the database."""
    simple = len(draft.request.slices) == 1 and draft.request.parent is None
    return answer.state == TaskState.READY and simple and not answer.repeated


def _request_of_draft(draft: Draft, now: Micros, *, shown: bool) -> v1.TaskRequest:
    request = draft.request
    slices = [show.Wanted(s.properties, s.expiration_s, s.wait_for_capacity) for s in request.slices]
    pieces = [show.show_slice(one, has_secret=request.secret_bytes is not None) for one in slices]
    return v1.TaskRequest(
        authenticated=user_identity(draft.authenticated),
        bot_ping_tolerance_secs=int64(request.lease_s),
        created_ts=timestamp(now),
        expiration_secs=int64(sum(one.expiration_s for one in slices)),
        name=request.name,
        parent_task_id=show_run(*request.parent) if request.parent else None,
        priority=int64(request.priority),
        properties=pieces[0].properties,
        realm=request.metadata.get("realm"),
        service_account=request.service_account,
        tags=automatic_tags(request),
        task_id=show_task(draft.task_id) if shown else None,
        task_slices=pieces,
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
