"""Health and metrics of this server, and the list of all servers on the database."""

from __future__ import annotations

import asyncio
import shutil
from importlib.metadata import version

from msgspec import structs

from myrmidon.model.errors import StoreError
from myrmidon.model.ids import Micros, created_ms
from myrmidon.scheduler import maintenance, servers
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import ANY_TOKEN
from myrmidon.server.calls import ANYONE, READERS, Answer, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.pool_policy import visible_pools
from myrmidon.server.settings import seconds
from myrmidon.store.engine.db import Dialect, Tx
from myrmidon.store.tables import sink, stored_file, webhook
from myrmidon.store.views import metrics as store_metrics
from myrmidon.wire.health import Health, ServerInfo, ServerLine, ServerList

ROUTES = Routes()

VERSION = version("myrmidon")
READY_TIMEOUT_S = 3.0
SINK_BEHIND_S = 10.0
"""A sink whose oldest unconfirmed event is older than this is reported."""


@ROUTES.add("GET", "/healthz", ANYONE, "Liveness", vital=True)
async def healthz(context: ServerContext, call: Call) -> Health:
    """Liveness: the process answers. The database is not checked: a restart of this server would not repair it."""
    return Health(ok=True)


@ROUTES.add("GET", "/readyz", ANYONE, "Readiness", out=Health, vital=True)
async def readyz(context: ServerContext, call: Call) -> Answer:
    """Readiness: 200 if this server can do its work, 503 with a list of problems if not.

    A server that is behind with its maintenance but goes on with it is ready: a burst of expiries must not take all
    servers away at once.
    """
    problems, notes = await _problems(context), await _notes(context)
    late, now = await _late(context), context.now()
    moving = {kind for kind, at in context.state.maintained_at.items() if now - at < maintenance.LATE}
    stuck = {kind: delay for kind, delay in late.items() if kind in maintenance.VITAL and kind not in moving}
    problems += _behind(stuck)
    notes += _behind({kind: delay for kind, delay in late.items() if kind not in stuck})
    without_files = await _files_problem(context)
    if without_files and await _uses_files(context):
        problems.append(without_files)
    elif without_files:
        notes.append(without_files)  # commands need no files: such a server does all the work that there is
    status = 503 if problems else 200
    health = Health(not problems, problems, notes)
    return Answer(status=status, headers={"retry-after": "5"} if problems else {}, body=health)


def _sinks(tx: Tx, context: ServerContext) -> list[str]:
    """The names of the sinks that somebody gets messages from."""
    return [*context.settings.sinks, *([webhook.SINK] if webhook.any_stored(tx) else [])]


async def _notes(context: ServerContext) -> list[str]:
    """Sinks that are behind. They make no server unready: sending work elsewhere would not help them."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            lags = await context.db.read(lambda tx: sink.lags(tx, _sinks(tx, context)))
    except (TimeoutError, StoreError):
        return []
    now = context.now()
    behind = [(lag, (now - lag.oldest_at) / SECOND) for lag in lags if lag.oldest_at is not None]
    return [
        f"{lag.name} is {age_s:.0f} s and {lag.num_events} events behind"
        for lag, age_s in behind
        if age_s >= SINK_BEHIND_S
    ]


async def _late(context: ServerContext) -> dict[str, Micros]:
    """The time by which each kind of maintenance is behind, without those that are hardly so or not at all."""
    now = context.now()
    most = max(maintenance.LATE, 2 * seconds(context.settings.sweep_s))
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            overdue = await context.db.read(lambda tx: maintenance.overdue(tx, now, context.rules))
    except (TimeoutError, StoreError):
        return {}
    return {kind: now - at for kind, at in overdue.items() if now - at > most}


def _behind(late: dict[str, Micros]) -> list[str]:
    kinds = ", ".join(f"{_KINDS[kind]} by {delay // SECOND} s" for kind, delay in late.items())
    return [f"maintenance is behind: {kinds}"] if kinds else []


_KINDS = {
    "runs": "ends of leases",
    "slices": "expiries of slices",
    "tasks": "deadlines of tasks",
    "bots": "ends of silent bots",
    "jobs": "retries and deletions of jobs",
    "events": "numbering of events",
    "chunks": "chunked work",
}


async def _problems(context: ServerContext) -> list[str]:
    problems = []
    if context.state.stopping:
        problems.append("the server is shutting down")
    if not context.state.ready:
        problems.append("the server is starting")
    if not context.state.enrolled:
        problems.append("another server has taken over the slot of this server")
    problems += [
        f"the disk failed: {db.disk_error}" for db in (context.db.engine, context.logs.engine) if db.disk_error
    ]
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            if await context.db.run_in_thread(lambda: _is_disk_full(context)):
                problems.append("the disk is full")
            await context.db.read(servers.list_servers)
            skew = await context.measure_skew()
    except TimeoutError:
        return [*problems, "the database does not answer"]
    except StoreError as error:
        return [*problems, f"the database: {error.code}"]
    if abs(skew) > context.rules.max_skew:
        problems.append(_clock_problem(context, skew))
    return problems


async def _files_problem(context: ServerContext) -> str:
    """Why this server can use no files, or store none; empty if it can."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            problem = await context.files.problem()
            if not problem and await context.files.run(context.files.folder.is_full):
                return "the disk of the files is nearly full"
    except TimeoutError:
        problem = "its folder of the files does not answer"
    return f"the server cannot use files: {problem}" if problem else ""


async def _uses_files(context: ServerContext) -> bool:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            return await context.db.read(stored_file.any_stored)
    except (TimeoutError, StoreError):
        return False


def _is_disk_full(context: ServerContext) -> bool:
    return any(db.disk_is_full() for db in (context.db.engine, context.logs.engine))


def _clock_problem(context: ServerContext, skew: Micros) -> str:
    other = "this machine's clock" if context.db.engine.dialect is Dialect.SQLITE else "the database's clock"
    problem = f"the server's time differs from {other} by {skew / SECOND:.1f} s; nothing expires until they agree"
    if (wait := context.clock.follows_in) is None:
        return problem
    return f"{problem}. If the clock is right, the server follows it in {wait // SECOND} s, or when it is restarted"


@ROUTES.add(
    "GET", "/metrics", READERS, "Metrics for Prometheus", media="text/plain; version=0.0.4; charset=utf-8", vital=True
)
async def metrics(context: ServerContext, call: Call) -> bytes:
    """Metrics in Prometheus' text format; of pools only those that the caller may see."""
    now, visible = context.now(), visible_pools(context, call.who)
    gauges = await context.db.read(lambda tx: store_metrics.gauges(tx, _sinks(tx, context)))
    overdue = await context.db.read(lambda tx: maintenance.overdue(tx, now, context.rules))
    if visible is not None:
        gauges = structs.replace(gauges, pools=[pool for pool in gauges.pools if visible.allows(pool[0])])
    state = context.state
    context.metrics.set_in_progress(state.num_calls, waiting=context.hub.num_waiting, bodies=state.num_bodies)
    return context.metrics.render(
        gauges,
        now=now,
        skew=state.clock_skew,
        overdue=overdue,
        retention_waits_until=state.retention_waits_until,
    )


@ROUTES.add("GET", "/api/v1/server", ANY_TOKEN, "This server")
async def server_info(context: ServerContext, call: Call) -> ServerInfo:
    """This server's version and time, and the caller's name, role and resource group."""
    return ServerInfo(
        version=VERSION,
        time=context.now(),
        bot_version=context.hub.active_release,
        public_url=context.settings.public_url,
        disk_free=_disk_free(context),
        who=call.who.name,
        role=call.who.role,
        group=call.who.group,
        retention_waits_until=context.state.retention_waits_until,
    )


def _disk_free(context: ServerContext) -> int | None:
    try:
        return shutil.disk_usage(context.settings.data_folder).free
    except OSError:
        return None


@ROUTES.add("GET", "/api/v1/servers", READERS, "All servers")
async def list_servers(context: ServerContext, call: Call) -> ServerList:
    """Servers that are running or were recently; ``alive`` is false for those without a recent heartbeat."""
    now = context.now()
    lines = [
        ServerLine(
            id=f"{server.id:x}",
            address=server.address,
            port=server.port,
            heartbeat=server.heartbeat,
            started_at=created_ms(server.id) * 1000,
            alive=server.heartbeat >= now - context.rules.slot_lease,
            this=server.id == context.server.id,
        )
        for server in await context.db.read(servers.list_servers)
    ]
    return ServerList(lines)
