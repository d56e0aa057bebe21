"""Finds the resource group that a call works in, with a cache of ids by name that other servers can make stale."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from myrmidon.model.errors import Forbidden, NotFound
from myrmidon.model.ids import Micros
from myrmidon.scheduler import resource_groups
from myrmidon.server.calls import Call
from myrmidon.server.database import AsyncDatabase
from myrmidon.store.tables import resource_group

T = TypeVar("T")

ID_CACHE_TIME: Micros = 5_000_000
"""The time for which a cached id is used without asking the database: another server may have deleted the group."""


class GroupDirectory:
    """Resource groups by name and by id."""

    def __init__(self, db: AsyncDatabase, default_group: str) -> None:
        self._db = db
        self._default_group = default_group
        self._ids: dict[str, tuple[int, Micros]] = {}
        self._names: dict[int, str] = {}

    async def id_of(self, name: str, now: Micros) -> int:
        """The id of a resource group; NotFound when there is none of this name."""
        group_id, valid_until = self._ids.get(name, (0, 0))
        if valid_until > now:
            return group_id
        group = await self._db.read(lambda tx: resource_groups.get_group(tx, name))
        self._ids[name] = group.id, now + ID_CACHE_TIME
        return group.id

    async def names_of(self, group_ids: Iterable[int]) -> Mapping[int, str]:
        """Names by id, of at least these groups where they exist. A group never changes its name."""
        if missing := set(group_ids) - self._names.keys():
            self._names.update(await self._db.read(lambda tx: resource_group.names(tx, sorted(missing))))
        return self._names

    def forget(self, name: str) -> None:
        """Drop the cached id of a group that was deleted."""
        self._ids.pop(name, None)

    def name_for(self, call: Call, requested: str | None = None) -> str:
        """The group that the call's token is bound to, else the requested one, else the default one."""
        bound = call.who.group
        if bound is not None and requested not in (None, bound):
            raise Forbidden(
                f"This token is bound to the resource group {bound}; leave the group out, or use another token."
            )
        return bound or requested or self._default_group

    async def id_for(self, call: Call, requested: str | None = None) -> int:
        """As ``name_for``, the id."""
        name = self.name_for(call, requested)
        return call.who.group_id or await self.id_of(name, call.now)

    async def scope_of(self, call: Call) -> int | None:
        """The only resource group whose tasks and values the caller may see; None for all."""
        return None if call.who.group is None else await self.id_for(call)

    async def run_in(self, call: Call, name: str, fn: Callable[[int], Awaitable[T]]) -> T:
        """Call fn with the id of a group of the call; once more if the cached id belonged to a deleted group."""
        cached, valid_until = self._ids.get(name, (0, 0))
        if call.who.group_id is not None or valid_until <= call.now:
            cached = call.who.group_id or await self.id_of(name, call.now)
        try:
            return await fn(cached)
        except NotFound as error:
            if error.what != "resource group":
                raise
        self.forget(name)
        current = call.who.group_id or await self.id_of(name, call.now)
        if current == cached:
            raise NotFound("resource group", name)
        return await fn(current)
