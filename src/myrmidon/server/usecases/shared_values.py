"""Shared values: which of them a caller may see, and whose references it may change."""

from __future__ import annotations

from myrmidon.model.errors import Forbidden, NotFound
from myrmidon.model.ids import try_parse_id
from myrmidon.model.value import GroupOwner, JobOwner, Owner
from myrmidon.server.calls import Call, Identity
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import shared_value
from myrmidon.store.views import job_values


def is_visible(tx: Tx, value_id: int, scope: int | None, who: Identity) -> bool:
    """Whether the caller may see a shared value: a group what it references, a run what its job references."""
    if who.job_id is not None:
        return job_values.job_references(tx, value_id, who.job_id)
    if scope is None:
        return True
    referenced = (shared_value.referenced_by_group, shared_value.referenced_in_group)
    return any(value_id in find(tx, [value_id], scope) for find in referenced)


def find_shared(tx: Tx, text: str, scope: int | None, who: Identity) -> int:
    """The id of a shared value that the caller may see; NotFound for any other."""
    parsed = try_parse_id(text)
    value_id = parsed[0] if parsed and not parsed[1] else 0
    if not shared_value.read(tx, [value_id]) or not is_visible(tx, value_id, scope, who):
        raise NotFound("shared value", text[:100])
    return value_id


async def owner_for(context: ServerContext, call: Call, *, group: str | None, job: str | None) -> Owner:
    """Whose reference a call is about: that of the job, else of the resource group. A run has only its own job."""
    if call.who.job_id is not None and job is None:
        if group is not None:
            raise Forbidden("A running task can reference values for its own job only; leave the group out.")
        return JobOwner(await context.groups.id_for(call), call.who.job_id)
    if job is None:
        return GroupOwner(await context.groups.id_for(call, group))
    found = await get_job(context, call, job, group=group)
    return JobOwner(found.resource_group_id, found.id)
