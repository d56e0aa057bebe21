"""Resource groups: who owns tasks and values, and what tokens are bound to."""

from __future__ import annotations

import hmac

from msgspec import Struct

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import Micros
from myrmidon.scheduler import resource_groups
from myrmidon.server.api.admin import Done, Name, Page
from myrmidon.server.context import ADMINS, READERS, Call, ServerContext, Route, named_groups
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables.job import ResourceGroup


class NewGroup(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class GroupInfo(Struct, frozen=True):
    name: str
    created_at: Micros
    deleting: bool


class GroupList(Struct, frozen=True):
    groups: list[GroupInfo]
    cursor: str | None


def _info(group: ResourceGroup) -> GroupInfo:
    return GroupInfo(group.external_id, group.created_at, bool(group.deleting))


async def list_groups(door: ServerContext, call: Call) -> GroupList:
    """The groups that this caller may work in."""
    page: Page = call.query
    scope = await door.scope(call)
    if scope is not None:
        mine = await door.read(lambda tx: jobs.group_by_id(tx, scope))
        return GroupList([_info(mine)] if mine else [], None)
    after = read_cursor(door.keys.cursor, "groups", page.cursor) if page.cursor else ""
    found = await door.read(lambda tx: resource_groups.list_groups(tx, after=after, n=page.limit))
    more = show_cursor(door.keys.cursor, "groups", found[-1].external_id) if len(found) == page.limit else None
    return GroupList([_info(group) for group in found], more)


async def create_group(door: ServerContext, call: Call) -> GroupInfo:
    """A new group; a call repeated with its request key gets the group that it has made."""
    name, now = call.body.name, door.now()
    group_id = None
    if call.request_key is not None:
        seed = hmac.digest(door.keys.secret, f"group\n{call.who.name}\n{call.request_key}".encode(), "sha256")
        group_id = int.from_bytes(seed[:8], "big") >> 1 or 1
    made = await door.write(lambda tx: resource_groups.create_group(tx, name, now=now, ids=door.ids, group_id=group_id))
    return _info(made)


async def delete_group(door: ServerContext, call: Call) -> Done:
    """Delete a group with everything in it; nothing in it may be under way.

    A call repeated with its request key finds the group gone and is content.
    """
    name, now = call.params["name"], door.now()
    if name in named_groups(door.settings):
        raise WrongState(
            f"The settings name the resource group {name}, as default_group or in allow; change them first."
        )

    def delete(tx: Tx) -> int | None:
        try:
            group = resource_groups.get_group(tx, name)
        except NotFound:
            if call.request_key is None:
                raise
            return None
        resource_groups.delete_group(tx, group.id, now=now, ids=door.ids, rules=door.rules)
        return group.id

    deleted = await door.write(delete)
    door.groups.pop(name, None)
    if deleted is not None:
        door.forget_group(deleted)
    return Done()


ROUTES = (
    Route(
        method="GET", path="/api/v1/groups", call=list_groups, who=READERS, query=Page, out=GroupList, summary="Groups"
    ),
    Route(
        method="POST",
        path="/api/v1/groups",
        call=create_group,
        who=ADMINS,
        body=NewGroup,
        out=GroupInfo,
        mutates=True,
        summary="A new resource group",
    ),
    Route(
        method="DELETE",
        path="/api/v1/groups/{name}",
        call=delete_group,
        who=ADMINS,
        out=Done,
        mutates=True,
        summary="Delete a resource group",
    ),
)
