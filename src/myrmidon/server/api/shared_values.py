"""Shared values: create, list and show them, change who references them and where their data is."""

from __future__ import annotations

from functools import partial

from myrmidon.model.errors import InvalidRequest, NotFound, Problem, WrongState
from myrmidon.model.ids import show_task
from myrmidon.model.task_request import Payload
from myrmidon.model.value import Owner
from myrmidon.scheduler import shared_values as sharing
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.calls import JOB_READERS, JOB_WRITERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.idempotency import answer_call, claim_call_key, subject_of_call
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.shared_values import find_shared, owner_for
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import request_key, resource_group, shared_value
from myrmidon.store.views import shared_values
from myrmidon.wire import shared_values as wire
from myrmidon.wire.fields import Done

ROUTES = Routes()

MAX_REFERENCES = 100
_CREATE, _REF, _UNREF, _MOVE = "share", "reference", "unreference", "locality"
"""What request keys are for."""


# ---------------------------------------------------------------- lists


@ROUTES.add("GET", "/api/v1/values", JOB_READERS, "List shared values", query=wire.SharedValuesQuery)
async def list_values(context: ServerContext, call: Call) -> wire.SharedValueList:
    """Shared values, newest first, and how much each resource group keeps; references of other groups do not count."""
    query: wire.SharedValuesQuery = call.query
    before = int(read_cursor(context.keys.cursor, "values", query.cursor)) if query.cursor else LAST_ID
    scope = await context.groups.scope_of(call)
    if scope is None and query.group is not None:
        scope = await context.groups.id_of(query.group, call.now)
    elif query.group is not None:
        scope = await context.groups.id_for(call, query.group)
    job_id = call.who.job_id
    if query.job is not None:
        job_id = (await get_job(context, call, query.job, group=query.group)).id

    def read(tx: Tx) -> wire.SharedValueList:
        values, last = shared_values.page(tx, group_id=scope, before=before, n=query.limit, job_id=job_id)
        cursor = show_cursor(context.keys.cursor, "values", str(last)) if len(values) == query.limit else None
        totals = shared_values.totals(tx, scope) if job_id is None else []
        return wire.SharedValueList(values=values, totals=totals, cursor=cursor)

    return await context.db.read(read)


# ---------------------------------------------------------------- one value


@ROUTES.add("POST", "/api/v1/values", JOB_WRITERS, "Create a shared value", body=wire.NewSharedValue, mutates=True)
async def create_value(context: ServerContext, call: Call) -> wire.SharedValueInfo:
    """Create a shared value with a reference of the resource group, or of a job. Its content never changes.

    A call repeated with its request key gets the value that the first one created; it is refused if that is deleted.
    """
    body: wire.NewSharedValue = call.body
    payload, now = _payload_of(body.payload), context.now()
    scope, new_id = await context.groups.scope_of(call), context.ids.next(now)
    owner = await owner_for(context, call, group=body.group, job=body.job)

    def create(tx: Tx) -> wire.SharedValueInfo:
        value_id = new_id
        if claim_call_key(tx, call, _CREATE, "", now=now, subject=new_id):
            sharing.create_value(
                tx, owner, body.type, payload, now=now, ids=context.ids, value_id=new_id, addresses=body.localities
            )
        else:
            value_id = subject_of_call(tx, call, _CREATE, "")
            if value_id == request_key.NO_SUBJECT:
                raise WrongState("the value that was created with this request key is deleted; use a new key")
        return _read_info(tx, value_id, scope)

    return await context.db.write(create)


def _payload_of(given: wire.NewPayload) -> Payload:
    """Payload; InvalidRequest unless it is either inline or a file."""
    if given.inline is not None and given.digest is None and given.size in (None, len(given.inline)):
        return Payload(inline=given.inline, size=len(given.inline))
    if given.inline is None and given.digest is not None and given.size is not None:
        return Payload(digest=given.digest, size=given.size)
    allowed = "inline with up to 1,024 bytes in base64, or digest and size of an uploaded file"
    raise InvalidRequest([Problem("payload", "another combination", allowed, "contradiction")])


@ROUTES.add("GET", "/api/v1/values/{id}/info", JOB_READERS, "Show a shared value and its references")
async def show_value(context: ServerContext, call: Call) -> wire.SharedValueDetails:
    """A shared value: type, size, the machines that have its data, and who references it."""
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> wire.SharedValueDetails:
        value_id = find_shared(tx, call.params["id"], scope, call.who)
        groups, jobs = shared_values.references(tx, value_id, scope, MAX_REFERENCES)
        if call.who.job_id is not None:
            groups, jobs = [], [call.who.job_id]
        names = resource_group.names(tx, groups)
        return wire.SharedValueDetails(
            value=_read_info(tx, value_id, scope),
            groups=sorted(names.values()),
            jobs=[show_task(job) for job in jobs],
        )

    return await context.db.read(read)


def _read_info(tx: Tx, value_id: int, scope: int | None) -> wire.SharedValueInfo:
    found = shared_values.one(tx, value_id, scope)
    if found is None:
        raise NotFound("shared value", show_task(value_id))
    return found


# ---------------------------------------------------------------- references and localities


@ROUTES.add(
    "POST", "/api/v1/values/{id}/ref", JOB_WRITERS, "Reference a shared value", body=wire.RefChange, mutates=True
)
async def add_ref(context: ServerContext, call: Call) -> Done:
    """Reference a shared value, so that it is kept; referencing it again changes nothing.

    A resource group can reference what it or one of its jobs references already. An administrator can reference a value
    for any group, which gives that group access to it.
    """
    body: wire.RefChange = call.body
    scope, now = await context.groups.scope_of(call), context.now()
    owner = await owner_for(context, call, group=body.group, job=body.job)

    def add(tx: Tx) -> None:
        if claim_call_key(tx, call, _REF, call.params["id"], now=now):
            value_id = find_shared(tx, call.params["id"], scope, call.who)
            sharing.ref_value(tx, owner, value_id, for_any_group=scope is None)

    await context.db.write(add)
    return Done()


@ROUTES.add(
    "POST",
    "/api/v1/values/{id}/unref",
    JOB_WRITERS,
    "Drop a reference to a shared value",
    body=wire.RefChange,
    mutates=True,
)
async def drop_ref(context: ServerContext, call: Call) -> wire.Dropped:
    """Drop a reference; the last one deletes the value. Dropping one that is not there changes nothing.

    A job keeps its reference to what its tasks read or wrote until it is deleted itself.
    """
    body: wire.RefChange = call.body
    scope = await context.groups.scope_of(call)
    owner = await owner_for(context, call, group=body.group, job=body.job)
    drop = partial(_drop_ref, call=call, scope=scope, owner=owner, now=context.now())
    return wire.Dropped(await context.db.write(drop))


def _drop_ref(tx: Tx, call: Call, scope: int | None, owner: Owner, now: int) -> bool:
    text = call.params["id"]
    if not claim_call_key(tx, call, _UNREF, text, now=now):
        return bool(request_key.number_of(subject_of_call(tx, call, _UNREF, text)))
    deleted = sharing.unref_value(tx, owner, find_shared(tx, text, scope, call.who))
    answer_call(tx, call, _UNREF, text, int(deleted))
    return deleted


@ROUTES.add("GET", "/api/v1/values/{id}/localities", JOB_READERS, "List the machines that have a shared value's data")
async def list_localities(context: ServerContext, call: Call) -> wire.Localities:
    """The addresses of the machines that have the data of a shared value."""
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> list[str]:
        value_id = find_shared(tx, call.params["id"], scope, call.who)
        return shared_value.localities(tx, [value_id]).get(value_id, [])

    return wire.Localities(await context.db.read(read))


@ROUTES.add(
    "POST",
    "/api/v1/values/{id}/localities",
    JOB_WRITERS,
    "Change the machines that have a shared value's data",
    body=wire.LocalityChange,
    mutates=True,
)
async def change_localities(context: ServerContext, call: Call) -> wire.Localities:
    """Record which machines have the data of a shared value, or have it no longer.

    Tasks that read the value run there if a bot with that address is free; they never wait for it.
    """
    body: wire.LocalityChange = call.body
    scope, now = await context.groups.scope_of(call), context.now()

    def change(tx: Tx) -> list[str]:
        value_id = find_shared(tx, call.params["id"], scope, call.who)
        if not claim_call_key(tx, call, _MOVE, call.params["id"], now=now):
            return shared_value.localities(tx, [value_id]).get(value_id, [])
        return sharing.change_localities(tx, value_id, add=body.add, drop=body.drop)

    return wire.Localities(await context.db.write(change))
