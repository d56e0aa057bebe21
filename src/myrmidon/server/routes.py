"""The whole route table: what each part of the API can do, joined into one list."""

from __future__ import annotations

from msgspec import structs

from myrmidon.server import (
    api_admin,
    api_bot_story,
    api_bots,
    api_config,
    api_groups,
    api_logs,
    api_releases,
    api_submit,
    api_tasks,
    api_verbs,
    api_wait,
    desk,
    events,
    openapi,
    v1_discovery,
    v1_methods,
)
from myrmidon.server.door import ANYONE, Route


def every_route(*, metrics_open: bool = False) -> tuple[Route, ...]:
    """Every call that this server answers."""
    table: tuple[Route, ...] = (
        *desk.ROUTES,
        *api_releases.ROUTES,
        *events.ROUTES,
        *api_submit.ROUTES,
        *api_tasks.ROUTES,
        *api_verbs.ROUTES,
        *api_logs.ROUTES,
        *api_wait.ROUTES,
        *api_bots.ROUTES,
        *api_bot_story.ROUTES,
        *api_config.ROUTES,
        *api_groups.ROUTES,
        *api_admin.ROUTES,
    )
    if metrics_open:
        table = tuple(structs.replace(line, who=ANYONE) if line.path == "/metrics" else line for line in table)
    return (*table, *openapi.routes(table), *v1_methods.ROUTES, *v1_discovery.ROUTES)
