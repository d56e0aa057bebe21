"""The server in Swarming's API v1: versions, permissions, bootstrap tokens, configuration files, queues, accounts."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.calls import (
    ADMINS,
    READERS,
    WRITERS,
    Call,
    Role,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.bot_zip import bootstrap_script, public_url
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1.encoding import identity, timestamp
from myrmidon.server.swarming_v1.tasks import DEFAULT_LIMIT, check_limit
from myrmidon.server.usecases import tokens
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.tables import settings_version as configs
from myrmidon.store.views import queues as queue_views

VERSION = version("myrmidon")
BOOTSTRAP = "bootstrap.py"
BOT_CONFIG = "bot_config.py"
TOKEN_LIFETIME: Micros = 3600 * SECOND
MAX_POOLS = 10_000


async def details(context: ServerContext, call: Call) -> v1.ServerDetails:
    """The versions of the server and of the bots."""
    return v1.ServerDetails(
        bot_version=context.hub.active_release, display_server_url_template="", server_version=VERSION
    )


class PermissionsQuery(Struct, frozen=True, kw_only=True):
    """Accepted for compatibility: permissions do not depend on the bot, the task or the tags."""

    bot_id: str | None = None
    tags: list[str] = []
    task_id: str | None = None


async def permissions(context: ServerContext, call: Call) -> v1.ClientPermissions:
    """The caller's permissions, from the roles of the route table."""
    role = call.who.role
    writes, admin = role in WRITERS, role in ADMINS
    pools = await context.db.read(lambda tx: queue_views.pools(tx, after="", n=MAX_POOLS)) if role in READERS else []
    visible = visible_pools(context, call.who)
    names = [pool.name for pool in pools if visible is None or visible.allows(pool.name)]
    return v1.ClientPermissions(
        cancel_task=writes,
        cancel_tasks=writes,
        delete_bot=admin,
        delete_bots=admin,
        get_bootstrap_token=admin,
        get_configs=admin,
        list_bots=names,
        list_tasks=names,
        put_configs=False,
        terminate_bot=admin,
    )


async def bootstrap_token(context: ServerContext, call: Call) -> v1.BootstrapToken:
    """Create a bootstrap token that is valid for an hour. A call repeated with its request key gets the same token."""
    _, text = await tokens.create_token(
        context, call, name="bootstrap", role=Role.BOOTSTRAP, lifetime=TOKEN_LIFETIME, kind="bootstrap"
    )
    return v1.BootstrapToken(bootstrap_token=text)


async def get_bootstrap(context: ServerContext, call: Call) -> v1.FileContent:
    """The bootstrap script: the one in the configuration folder, or the default one."""
    default = bootstrap_script(
        server=public_url(context), token="", digest=context.hub.active_release, pool="", bot_id="", now=context.now()
    )
    return await _file(context, BOOTSTRAP, default)


async def get_bot_config(context: ServerContext, call: Call) -> v1.FileContent:
    """The hooks of the bots: those in the configuration folder, or the default ones."""
    return await _file(context, BOT_CONFIG, (files("myrmidon.bot.hooks") / "default_bot_config.py").read_text())


async def _file(context: ServerContext, name: str, default: str) -> v1.FileContent:
    folder = await context.db.read(configs.current)
    file = folder.files.get(name) if folder is not None else None
    if file is None:
        return v1.FileContent(content=default)
    return v1.FileContent(
        content=file.content, version=file.version[:16], when=timestamp(file.created_at), who=file.who
    )


# ---------------------------------------------------------------- queues


class QueuesQuery(Struct, frozen=True, kw_only=True):
    cursor: str | None = None
    limit: int = DEFAULT_LIMIT


async def list_queues(context: ServerContext, call: Call) -> v1.TaskQueueList:
    """Sets of dimensions that tasks have required recently, with the time until each is kept.

    Sets that consist of a bot's id only are omitted.
    """
    query: QueuesQuery = call.query
    n, scope = check_limit(query.limit), await context.groups.scope_of(call)
    after = int(read_cursor(context.keys.cursor, "v1 queues", query.cursor)) if query.cursor else 0
    visible = visible_pools(context, call.who)
    queues = await context.db.read(lambda tx: queue_views.queue_dimensions(tx, group_id=scope, after=after, n=n))
    items: dict[tuple[str, ...], v1.TaskQueue] = {}
    for _, encoded, used_at in queues:
        dimensions = json.decode(encoded, type=dict[str, list[str]])
        if visible is not None and not all(map(visible.allows, dimensions.get("pool", ()))):
            continue
        flat = tuple(sorted(f"{key}:{value}" for key, values in dimensions.items() for value in values))
        until = timestamp(used_at + context.rules.queue_idle)
        listed = items.get(flat)
        if set(dimensions) != {"id"} and (listed is None or listed.valid_until_ts < until):
            items[flat] = v1.TaskQueue(dimensions=list(flat), valid_until_ts=until)
    cursor = show_cursor(context.keys.cursor, "v1 queues", str(queues[-1][0])) if len(queues) == n else None
    return v1.TaskQueueList(items=list(items.values()), now=timestamp(context.now()), cursor=cursor)


# ---------------------------------------------------------------- accounts


async def account(context: ServerContext, call: Call) -> v1.Account:
    """The caller's identity."""
    return v1.Account(identity=identity(call.who))


async def oauth_config(context: ServerContext, call: Call) -> v1.OAuthConfig:
    """An empty OAuth configuration: clients authenticate with API tokens."""
    return v1.OAuthConfig(client_id="", client_not_so_secret="")
