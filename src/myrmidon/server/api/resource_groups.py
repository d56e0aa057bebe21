"""Resource groups, which own tasks and values and which tokens are bound to: list, create, delete."""

from __future__ import annotations

import hmac

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.scheduler import resource_groups
from myrmidon.server.calls import (
    ADMINS,
    READERS,
    Call,
    Routes,
)
from myrmidon.server.context import ServerContext, named_groups
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import resource_group
from myrmidon.store.tables.resource_group import ResourceGroup
from myrmidon.store.views import resource_groups as group_views
from myrmidon.wire.fields import Done, PageQuery
from myrmidon.wire.resource_groups import DeleteGroupQuery, GroupDetails, GroupInfo, GroupList, NewGroup

ROUTES = Routes()


def _info(group: ResourceGroup) -> GroupInfo:
    return GroupInfo(group.external_id, group.created_at, bool(group.deleting))


@ROUTES.add("GET", "/api/v1/groups", READERS, "Groups", query=PageQuery)
async def list_groups(context: ServerContext, call: Call) -> GroupList:
    """Resource groups that the caller has access to."""
    query: PageQuery = call.query
    scope = await context.groups.scope_of(call)
    if scope is not None:
        own = await context.db.read(lambda tx: resource_group.read(tx, scope))
        return GroupList([_info(own)] if own else [], None)
    after = read_cursor(context.keys.cursor, "groups", query.cursor) if query.cursor else ""
    groups = await context.db.read(lambda tx: resource_groups.list_groups(tx, after=after, n=query.limit))
    cursor = show_cursor(context.keys.cursor, "groups", groups[-1].external_id) if len(groups) == query.limit else None
    return GroupList([_info(group) for group in groups], cursor)


@ROUTES.add("GET", "/api/v1/groups/{name}", READERS, "Show a resource group and what it owns")
async def show_group(context: ServerContext, call: Call) -> GroupDetails:
    """A resource group with the numbers of what it owns."""
    name, scope = call.params["name"], await context.groups.scope_of(call)

    def read(tx: Tx) -> GroupDetails:
        group = resource_groups.get_group(tx, name)
        if scope not in (None, group.id):
            raise NotFound("resource group", name)
        return group_views.in_full(tx, group)

    return await context.db.read(read)


@ROUTES.add("POST", "/api/v1/groups", ADMINS, "Create a resource group", body=NewGroup, mutates=True)
async def create_group(context: ServerContext, call: Call) -> GroupInfo:
    """Create a resource group. A call repeated with its request key gets the group that the first one created."""
    name, now = call.body.name, context.now()
    group_id = None
    if call.request_key is not None:
        seed = hmac.digest(context.keys.secret, f"group\n{call.who.key}\n{call.request_key}".encode(), "sha256")
        group_id = int.from_bytes(seed[:8], "big") >> 1 or 1
    created = await context.db.write(
        lambda tx: resource_groups.create_group(tx, name, now=now, ids=context.ids, group_id=group_id)
    )
    return _info(created)


@ROUTES.add("DELETE", "/api/v1/groups/{name}", ADMINS, "Delete a resource group", query=DeleteGroupQuery, mutates=True)
async def delete_group(context: ServerContext, call: Call) -> Done:
    """Delete a resource group with its jobs, tasks, files, webhooks and references. WrongState if one of its tasks has
    not ended, unless ``force`` is given: then they are cancelled, and the group is gone when the last one has ended.

    With a request key, deleting a group that does not exist succeeds.
    """
    query: DeleteGroupQuery = call.query
    name, now = call.params["name"], context.now()
    if name in named_groups(context.settings):
        raise WrongState(
            f"The server's settings use the resource group {name}, as default_group or in allow; change them first."
        )

    def delete(tx: Tx) -> int | None:
        try:
            group = resource_groups.get_group(tx, name)
        except NotFound:
            if call.request_key is None:
                raise
            return None
        resource_groups.delete_group(tx, group.id, now=now, ids=context.ids, force=query.force, rules=context.rules)
        return group.id

    deleted = await context.db.write(delete)
    context.groups.forget(name)
    if deleted is not None:
        context.on_group_deleted(deleted)
    return Done()
