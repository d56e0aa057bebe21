"""The whole route table: what each part of the API can do, joined into one list."""

from __future__ import annotations

from msgspec import structs

from myrmidon.server import api_admin, api_bots, api_groups, api_logs, api_tasks, bot_zip, desk, events, openapi
from myrmidon.server.door import ANYONE, Route


def every_route(*, metrics_open: bool = False) -> tuple[Route, ...]:
    """Every call that this server answers."""
    table: tuple[Route, ...] = (
        *desk.ROUTES,
        *bot_zip.ROUTES,
        *events.ROUTES,
        *api_tasks.ROUTES,
        *api_logs.ROUTES,
        *api_bots.ROUTES,
        *api_groups.ROUTES,
        *api_admin.ROUTES,
    )
    if metrics_open:
        table = tuple(structs.replace(line, who=ANYONE) if line.path == "/metrics" else line for line in table)
    return (*table, *openapi.routes(table))
