"""The whole route table: what each part of the API can do, joined into one list."""

from __future__ import annotations

from msgspec import structs

from myrmidon.server.api import (
    bot_history,
    bots,
    config,
    events,
    files,
    function_calls,
    functions,
    health,
    job_actions,
    job_compare,
    job_failures,
    job_history,
    job_outputs,
    job_tasks,
    jobs,
    live,
    load,
    logs,
    notes,
    overview,
    queues,
    releases,
    resource_groups,
    results,
    search,
    shared_values,
    submit,
    task_actions,
    task_selection,
    tasks,
    tokens,
    values,
    wait,
    webhooks,
)
from myrmidon.server.asgi import openapi
from myrmidon.server.botapi import routes as botapi
from myrmidon.server.calls import ANYONE, Route
from myrmidon.server.swarming_v1 import discovery, methods
from myrmidon.server.taskcluster import routes as taskcluster
from myrmidon.server.web import routes as web


def every_route(*, metrics_open: bool = False) -> tuple[Route, ...]:
    """Every call that this server answers."""
    table: tuple[Route, ...] = (
        *botapi.ROUTES,
        *releases.ROUTES,
        *events.ROUTES,
        *submit.ROUTES,
        *tasks.ROUTES,
        *task_actions.ROUTES,
        *logs.ROUTES,
        *jobs.ROUTES,
        *job_tasks.ROUTES,
        *job_outputs.ROUTES,
        *job_compare.ROUTES,
        *job_actions.ROUTES,
        *notes.ROUTES,
        *files.ROUTES,
        *function_calls.ROUTES,
        *values.ROUTES,
        *results.ROUTES,
        *wait.ROUTES,
        *bots.ROUTES,
        *bot_history.ROUTES,
        *config.ROUTES,
        *resource_groups.ROUTES,
        *health.ROUTES,
        *queues.ROUTES,
        *tokens.ROUTES,
        *webhooks.ROUTES,
        *web.API_ROUTES,
        *overview.ROUTES,
        *live.ROUTES,
        *job_history.ROUTES,
        *job_failures.ROUTES,
        *search.ROUTES,
        *functions.ROUTES,
        *task_selection.ROUTES,
        *load.ROUTES,
        *shared_values.ROUTES,
    )
    if metrics_open:
        table = tuple(structs.replace(line, who=ANYONE) if line.path == "/metrics" else line for line in table)
    return (*table, *openapi.routes(table), *methods.ROUTES, *discovery.ROUTES, *taskcluster.ROUTES, *web.PAGE_ROUTES)
