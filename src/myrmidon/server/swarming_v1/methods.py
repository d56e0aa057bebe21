"""Every method of Swarming's API v1, in one table: the routes and the discovery document are made from it."""

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
from myrmidon.server.swarming_v1 import bots, server, submit, tasks
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1.request_parser import NewTaskBody

ROOTS = {Style.V1: "/_ah/api/", Style.V1_OLD: "/api/"}
SERVICE = "swarming/v1/"
ANY_TOKEN = ANYONE - {Role.NOBODY}


class Method(Struct, frozen=True, kw_only=True):
    """One method: its name in the document, its path behind both prefixes, and what it takes and gives."""

    name: str
    http: str
    path: str
    call: Handler
    out: Any
    who: frozenset[Role] = READERS
    query: Any = None
    needs: tuple[str, ...] = ()
    """What must stand in the query."""
    body: Any = None
    """What the body is decoded into, with tolerance."""
    told: Any = None
    """The message that the document describes the body as."""
    about: str
    quiet: bool = False

    @property
    def resource(self) -> str:
        return self.name.partition(".")[0]

    @property
    def short(self) -> str:
        return self.name.partition(".")[2]


def _get(name: str, path: str, call: Handler, out: Any, about: str, **more: Any) -> Method:
    return Method(name=name, http="GET", path=path, call=call, out=out, about=about, **more)


def _post(name: str, path: str, call: Handler, out: Any, about: str, **more: Any) -> Method:
    return Method(name=name, http="POST", path=path, call=call, out=out, about=about, **more)


class IgnoredBody(Struct, frozen=True):
    """A body that says nothing, or nothing that is listened to."""


METHODS = (
    _get(
        "bot.get", "bot/{bot_id}/get", bots.get_bot, v1.BotInfo,
        "One bot in full; one that was deleted as it last was",
    ),
    _get(
        "bot.events", "bot/{bot_id}/events", bots.bot_events, v1.BotEvents,
        "What happened to a bot, newest first", query=bots.EventsQuery,
    ),
    _get(
        "bot.tasks", "bot/{bot_id}/tasks", bots.bot_tasks, v1.BotTasks,
        "What a bot has run", query=bots.BotTasksQuery,
    ),
    _post(
        "bot.delete", "bot/{bot_id}/delete", bots.delete_bot, v1.DeletedResponse,
        "Forget a bot; its history stays", who=ADMINS, body=IgnoredBody,
    ),
    _post(
        "bot.terminate", "bot/{bot_id}/terminate", bots.terminate_bot, v1.TerminateResponse,
        "Let a bot finish what it has, and end", who=ADMINS, body=bots.TerminateBody,
    ),
    _get("bots.list", "bots/list", bots.list_bots, v1.BotList, "Bots by what they are like", query=bots.BotsQuery),
    _get("bots.count", "bots/count", bots.count_bots, v1.BotsCount, "How many bots there are", query=bots.BotsQuery),
    _get(
        "bots.dimensions", "bots/dimensions", bots.bots_dimensions, v1.BotsDimensions,
        "Every dimension that some bot has", query=bots.DimensionsQuery,
    ),
    _get(
        "queues.list", "queues/list", server.list_queues, v1.TaskQueueList,
        "What tasks have asked for lately", query=server.QueuesQuery,
    ),
    _get("server.details", "server/details", server.details, v1.ServerDetails, "Versions of server and bots"),
    _get(
        "server.permissions", "server/permissions", server.permissions, v1.ClientPermissions,
        "What the caller may do", query=server.PermissionsQuery, who=ANY_TOKEN,
    ),
    _post(
        "server.token", "server/token", server.bootstrap_token, v1.BootstrapToken,
        "A token for new bots, good for an hour", who=ADMINS, body=IgnoredBody,
    ),
    _get(
        "server.get_bootstrap", "server/get_bootstrap", server.get_bootstrap, v1.FileContent,
        "The script that brings a bot to a machine", who=ADMINS,
    ),
    _get(
        "server.get_bot_config", "server/get_bot_config", server.get_bot_config, v1.FileContent,
        "The hooks of every bot", who=ADMINS,
    ),
    _get(
        "task.result", "task/{task_id}/result", tasks.task_result_of, v1.TaskResult,
        "What became of a task, or of a run", query=tasks.ResultQuery,
    ),
    _get("task.request", "task/{task_id}/request", tasks.task_request_of, v1.TaskRequest, "What was asked for"),
    _get(
        "task.stdout", "task/{task_id}/stdout", tasks.task_output, v1.TaskOutput,
        "What the command wrote", query=tasks.OutputQuery,
    ),
    _post(
        "task.cancel", "task/{task_id}/cancel", tasks.cancel_task, v1.CancelResponse,
        "Cancel a task; kill it if that is asked for", who=WRITERS, body=tasks.CancelBody, told=v1.TaskCancelRequest,
    ),
    _post(
        "tasks.new", "tasks/new", submit.new_task, v1.TaskRequestMetadata,
        "Submit a task", who=WRITERS, body=NewTaskBody, told=v1.NewTaskRequest, quiet=True,
    ),
    _post(
        "tasks.cancel", "tasks/cancel", tasks.cancel_tasks, v1.TasksCancelResponse,
        "Cancel the tasks that carry certain tags", who=WRITERS, body=tasks.CancelManyBody, told=v1.TasksCancelRequest,
    ),
    _get("tasks.list", "tasks/list", tasks.list_tasks, v1.TaskList, "Tasks by state and tags", query=tasks.TasksQuery),
    _get(
        "tasks.requests", "tasks/requests", tasks.list_requests, v1.TaskRequests,
        "What was asked for, of the same tasks", query=tasks.TasksQuery,
    ),
    _get(
        "tasks.count", "tasks/count", tasks.count_tasks, v1.TasksCount,
        "How many there are", query=tasks.CountQuery, needs=("start",),
    ),
    _get(
        "tasks.get_states", "tasks/get_states", tasks.get_states, v1.TaskStates,
        "The states of tasks", query=tasks.StatesQuery, needs=("task_id",),
    ),
    _get("tasks.tags", "tasks/tags", tasks.list_tags, v1.TasksTags, "The tags of the newest tasks"),
)  # fmt: skip


def _route(method: Method, style: Style) -> Route:
    return Route(
        method=method.http,
        path=f"{ROOTS[style]}{SERVICE}{method.path}",
        call=method.call,
        who=method.who,
        summary=method.about,
        body=method.body,
        query=method.query,
        out=method.out,
        mutates=method.http == "POST",
        body_limit=MIB,
        quiet=method.quiet,
        style=style,
    )


ACCOUNTS = (
    Route(
        method="GET",
        path="/auth/api/v1/accounts/self",
        call=server.account,
        who=ANYONE,
        asks_who=True,
        out=v1.Account,
        style=Style.V1_OLD,
        summary="Whom the server takes the caller for",
    ),
    Route(
        method="GET",
        path="/auth/api/v1/server/oauth_config",
        call=server.oauth_config,
        who=ANYONE,
        out=v1.OAuthConfig,
        style=Style.V1_OLD,
        summary="There is no OAuth here",
    ),
)
ROUTES = (*(_route(method, style) for style in ROOTS for method in METHODS), *ACCOUNTS)
