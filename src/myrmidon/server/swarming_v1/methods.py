"""The table of all methods of Swarming's API v1; routes and the discovery document are generated from it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from myrmidon.server.calls import (
    ADMINS,
    ANYONE,
    MIB,
    READERS,
    WRITERS,
    Handler,
    Role,
    Route,
    Style,
)
from myrmidon.server.swarming_v1 import bots, server, tasks, tasks_new
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1.request_parser import NewTaskBody
from myrmidon.server.swarming_v1.style import V1, V1_OLD

ROOTS = {V1: "/_ah/api/", V1_OLD: "/api/"}
SERVICE = "swarming/v1/"
ANY_TOKEN = ANYONE - {Role.NOBODY, Role.RUN}


class Method(Struct, frozen=True, kw_only=True):
    """One method: its name in the discovery document, its path after the prefix, its parameters and messages."""

    name: str
    http: str
    path: str
    call: Handler
    out: Any
    who: frozenset[Role] = READERS
    query: Any = None
    required_query: tuple[str, ...] = ()
    """Query parameters that must be present."""
    body: Any = None
    """The struct that the body is decoded into."""
    request_message: Any = None
    """The message that describes the body in the discovery document."""
    summary: str
    quiet: bool = False

    @property
    def resource(self) -> str:
        return self.name.partition(".")[0]

    @property
    def short(self) -> str:
        return self.name.partition(".")[2]


def _get(name: str, path: str, call: Handler, out: Any, summary: str, **more: Any) -> Method:
    return Method(name=name, http="GET", path=path, call=call, out=out, summary=summary, **more)


def _post(name: str, path: str, call: Handler, out: Any, summary: str, **more: Any) -> Method:
    return Method(name=name, http="POST", path=path, call=call, out=out, summary=summary, **more)


class IgnoredBody(Struct, frozen=True):
    """An empty body, or one whose fields are ignored."""


METHODS = (
    _get(
        "bot.get", "bot/{bot_id}/get", bots.get_bot, v1.BotInfo,
        "Get a bot; a deleted one as it was last",
    ),
    _get(
        "bot.events", "bot/{bot_id}/events", bots.bot_events, v1.BotEvents,
        "List events of a bot, newest first", query=bots.EventsQuery,
    ),
    _get(
        "bot.tasks", "bot/{bot_id}/tasks", bots.bot_tasks, v1.BotTasks,
        "List runs of a bot", query=bots.BotTasksQuery,
    ),
    _post(
        "bot.delete", "bot/{bot_id}/delete", bots.delete_bot, v1.DeletedResponse,
        "Delete a bot; its events are kept", who=ADMINS, body=IgnoredBody,
    ),
    _post(
        "bot.terminate", "bot/{bot_id}/terminate", bots.terminate_bot, v1.TerminateResponse,
        "Let a bot finish its runs and exit", who=ADMINS, body=bots.TerminateBody,
    ),
    _get("bots.list", "bots/list", bots.list_bots, v1.BotList, "List bots", query=bots.BotsQuery),
    _get("bots.count", "bots/count", bots.count_bots, v1.BotsCount, "Count bots", query=bots.BotsQuery),
    _get(
        "bots.dimensions", "bots/dimensions", bots.bots_dimensions, v1.BotsDimensions,
        "List all dimensions of bots", query=bots.DimensionsQuery,
    ),
    _get(
        "queues.list", "queues/list", server.list_queues, v1.TaskQueueList,
        "List dimensions that tasks have required recently", query=server.QueuesQuery,
    ),
    _get("server.details", "server/details", server.details, v1.ServerDetails, "Get the versions of server and bots"),
    _get(
        "server.permissions", "server/permissions", server.permissions, v1.ClientPermissions,
        "Get the caller's permissions", query=server.PermissionsQuery, who=ANY_TOKEN,
    ),
    _post(
        "server.token", "server/token", server.bootstrap_token, v1.BootstrapToken,
        "Create a bootstrap token that is valid for an hour", who=ADMINS, body=IgnoredBody,
    ),
    _get(
        "server.get_bootstrap", "server/get_bootstrap", server.get_bootstrap, v1.FileContent,
        "Get the bootstrap script", who=ADMINS,
    ),
    _get(
        "server.get_bot_config", "server/get_bot_config", server.get_bot_config, v1.FileContent,
        "Get bot_config.py, the hooks of the bots", who=ADMINS,
    ),
    _get(
        "task.result", "task/{task_id}/result", tasks.task_result_of, v1.TaskResult,
        "Get the result of a task or run", query=tasks.ResultQuery,
    ),
    _get("task.request", "task/{task_id}/request", tasks.task_request_of, v1.TaskRequest, "Get the request of a task"),
    _get(
        "task.stdout", "task/{task_id}/stdout", tasks.task_output, v1.TaskOutput,
        "Get the output of a task or run", query=tasks.OutputQuery,
    ),
    _post(
        "task.cancel", "task/{task_id}/cancel", tasks.cancel_task, v1.CancelResponse,
        "Cancel a task; kill it if kill_running is set",
        who=WRITERS, body=tasks.CancelBody, request_message=v1.TaskCancelRequest,
    ),
    _post(
        "tasks.new", "tasks/new", tasks_new.new_task, v1.TaskRequestMetadata,
        "Submit a task", who=WRITERS, body=NewTaskBody, request_message=v1.NewTaskRequest, quiet=True,
    ),
    _post(
        "tasks.cancel", "tasks/cancel", tasks.cancel_tasks, v1.TasksCancelResponse,
        "Cancel tasks with certain tags", who=WRITERS, body=tasks.CancelManyBody, request_message=v1.TasksCancelRequest,
    ),
    _get("tasks.list", "tasks/list", tasks.list_tasks, v1.TaskList, "List tasks", query=tasks.TasksQuery),
    _get(
        "tasks.requests", "tasks/requests", tasks.list_requests, v1.TaskRequests,
        "List requests of tasks", query=tasks.TasksQuery,
    ),
    _get(
        "tasks.count", "tasks/count", tasks.count_tasks, v1.TasksCount,
        "Count tasks", query=tasks.CountQuery, required_query=("start",),
    ),
    _get(
        "tasks.get_states", "tasks/get_states", tasks.get_states, v1.TaskStates,
        "Get the states of tasks", query=tasks.StatesQuery, required_query=("task_id",),
    ),
    _get("tasks.tags", "tasks/tags", tasks.list_tags, v1.TasksTags, "List tags of the newest tasks"),
)  # fmt: skip


def _route(method: Method, style: Style) -> Route:
    return Route(
        method=method.http,
        path=f"{ROOTS[style]}{SERVICE}{method.path}",
        call=method.call,
        who=method.who,
        summary=method.summary,
        body=method.body,
        query=method.query,
        out=method.out,
        mutates=method.http == "POST",
        body_limit=MIB,
        quiet=method.quiet,
        style=style,
    )


ROUTES = (
    *(_route(method, style) for style in ROOTS for method in METHODS),
    Route(
        "GET", "/auth/api/v1/accounts/self", server.account, ANYONE, "Get the caller's identity",
        asks_who=True, out=v1.Account, style=V1_OLD,
    ),
    Route(
        "GET", "/auth/api/v1/server/oauth_config", server.oauth_config, ANYONE,
        "Get the OAuth configuration, which is empty", out=v1.OAuthConfig, style=V1_OLD,
    ),
)  # fmt: skip
