"""Shared values: what is kept, how large it is, and who references it."""

from __future__ import annotations

from myrmidon.model.ids import show_task
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.calls import READERS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import resource_group
from myrmidon.store.views import shared_values
from myrmidon.wire.fields import PageQuery
from myrmidon.wire.shared_values import GroupValues, SharedValueInfo, SharedValueList


async def list_values(context: ServerContext, call: Call) -> SharedValueList:
    """Shared values, newest first, and how much each resource group keeps; references of other groups do not count."""
    query: PageQuery = call.query
    before = int(read_cursor(context.keys.cursor, "values", query.cursor)) if query.cursor else LAST_ID
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> SharedValueList:
        lines = shared_values.page(tx, group_id=scope, before=before, n=query.limit)
        totals = shared_values.totals(tx, scope)
        names = resource_group.names(tx, sorted(group for group, _, _ in totals))
        return SharedValueList(
            values=[
                SharedValueInfo(
                    id=show_task(line.id),
                    type=line.type,
                    size=line.size,
                    digest=line.digest,
                    created_at=line.created_at,
                    num_groups=line.num_groups,
                    num_jobs=line.num_jobs,
                )
                for line in lines
            ],
            totals=[
                GroupValues(group=names.get(group, ""), num_values=num, num_bytes=size) for group, num, size in totals
            ],
            cursor=show_cursor(context.keys.cursor, "values", str(lines[-1].id)) if len(lines) == query.limit else None,
        )

    return await context.db.read(read)


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/values",
        call=list_values,
        who=READERS,
        query=PageQuery,
        out=SharedValueList,
        summary="List shared values",
    ),
)
