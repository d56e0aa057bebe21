"""Search by a few characters, for the command palette of the web page: tasks, jobs, bots and tags."""

from __future__ import annotations

import re

from myrmidon.model.ids import first_id_at
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.store.engine.db import Tx
from myrmidon.store.views import search
from myrmidon.wire.search import SearchQuery, SearchResult

ROUTES = Routes()

_HEX = re.compile(r"[0-9a-f]{4,18}")


@ROUTES.add("GET", "/api/v1/search", READERS, "Search tasks, jobs, bots and tags", query=SearchQuery)
async def find(context: ServerContext, call: Call) -> SearchResult:
    """Tasks and jobs by id or name, bots by id, and tags, of what the caller may see."""
    query: SearchQuery = call.query
    text, n = query.q.strip(), query.limit
    scope, visible = await context.groups.scope_of(call), visible_pools(context, call.who)
    ids = id_range(text.lower(), len(f"{first_id_at(context.now()):x}"))

    def read(tx: Tx) -> SearchResult:
        tasks = search.tasks_by_id(tx, *ids, group_id=scope, n=n) if ids else []
        jobs = search.jobs_by_id(tx, *ids, group_id=scope, n=n) if ids else []
        tasks = tasks or search.tasks_by_name(tx, text, group_id=scope, n=n)
        jobs = jobs or search.jobs_by_name(tx, text, group_id=scope, n=n)
        bots = search.bots(tx, text, visible, n=n)
        return SearchResult(tasks=tasks, jobs=jobs, bots=bots, tags=search.tags(tx, text, group_id=scope, n=n))

    if not text:
        return SearchResult(tasks=[], jobs=[], bots=[], tags=[])
    return await context.db.read(read)


def id_range(text: str, digits: int) -> tuple[int, int] | None:
    """The ids, of this many digits, that are shown with this beginning; None if it cannot be one of an id."""
    if not _HEX.fullmatch(text):
        return None
    shown = text[:digits]  # the last two digits of a shown id are the number of the run
    return int(shown.ljust(digits, "0"), 16), int(shown.ljust(digits, "f"), 16) + 1
