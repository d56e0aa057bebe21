"""What administrators and machines ask of the server itself: health, metrics, tokens, servers, pools and queues."""

from __future__ import annotations

import asyncio
import hmac
from base64 import urlsafe_b64encode
from importlib.metadata import version
from typing import Annotated, Literal

from msgspec import Meta, Struct, json

from myrmidon.model.errors import Conflict, InvalidRequest, NotFound, Problem, StoreError, WrongState
from myrmidon.model.ids import Micros, created_ms
from myrmidon.model.task_to_run import Order
from myrmidon.model.validation import show_value
from myrmidon.scheduler import servers as enroll
from myrmidon.scheduler.policy import SECOND
from myrmidon.scheduler.submit import was_asked
from myrmidon.server.auth.authenticator import digest, new_token, token_text
from myrmidon.server.calls import (
    ADMINS,
    ANYONE,
    READERS,
    Answer,
    Call,
    Role,
    Route,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import api_token as tokens
from myrmidon.store.tables import pool_order, request_key, resource_group
from myrmidon.store.tables.api_token import Token
from myrmidon.store.views import listings
from myrmidon.store.views import metrics as store_metrics

Limit = Annotated[int, Meta(ge=1, le=1000)]
Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+(?!\n)$")]
"""In Python, ``$`` alone would let a last newline through; ``\\Z`` is nothing to those who read the API's document."""
_LAST_ID = (1 << 63) - 1
VERSION = version("myrmidon")
READY_WITHIN_S = 3.0


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of a list."""

    limit: Limit = 100
    cursor: str | None = None


class Done(Struct, frozen=True):
    ok: bool = True


def is_new(tx: Tx, call: Call, verb: str, about: str, *, now: Micros, subject: int = request_key.NO_SUBJECT) -> bool:
    """Whether a call is to be carried out: with a request key only once, or a late copy would undo what came after."""
    if call.request_key is None:
        return True
    key = f"{call.who.name}\n{about}\n{call.request_key}"
    return not was_asked(tx, verb, key, call.body, now=now, subject=subject)


# ---------------------------------------------------------------- health


class Health(Struct, frozen=True):
    ok: bool
    problems: list[str] = []


async def healthz(context: ServerContext, call: Call) -> Health:
    """The process lives. Says nothing of the database: restarting this server would not mend that."""
    return Health(ok=True)


async def readyz(context: ServerContext, call: Call) -> Answer:
    """Whether work should be sent here."""
    problems = await _problems(context)
    status = 503 if problems else 200
    return Answer(status=status, headers={"retry-after": "5"} if problems else {}, body=Health(not problems, problems))


async def _problems(context: ServerContext) -> list[str]:
    problems = []
    if context.state.stopping:
        problems.append("the server is going down")
    if not context.state.ready:
        problems.append("the server is starting")
    if not context.state.enrolled:
        problems.append("the slot of this server was given to another one")
    problems += [f"the disk failed: {db.broken}" for db in (context.db.engine, context.logs.engine) if db.broken]
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            await context.db.read(enroll.list_servers)
            skew = await context.measure_skew()
    except TimeoutError:
        return [*problems, "the database does not answer"]
    except StoreError as error:
        return [*problems, f"the database: {error.code}"]
    if abs(skew) > context.rules.max_skew:
        problems.append(f"this machine's clock differs from the database's by {skew / SECOND:.1f} s")
    return problems


async def metrics(context: ServerContext, call: Call) -> bytes:
    """Prometheus' text format."""
    now = context.now()
    numbers = await context.db.read(lambda tx: store_metrics.gauges(tx, now))
    context.metrics.at_work(context.state.num_calls, context.hub.num_waiting)
    return context.metrics.show(numbers, now=now, skew=context.state.clock_skew)


class ServerInfo(Struct, frozen=True):
    version: str
    time: Micros
    bot_version: str
    public_url: str
    who: str
    role: str
    group: str | None


async def server_info(context: ServerContext, call: Call) -> ServerInfo:
    """Who answers, and whom it takes the caller for."""
    return ServerInfo(
        version=VERSION,
        time=context.now(),
        bot_version=context.hub.wanted,
        public_url=context.settings.public_url,
        who=call.who.name,
        role=call.who.role,
        group=call.who.group,
    )


# ---------------------------------------------------------------- servers, queues, pools


class ServerLine(Struct, frozen=True):
    id: str
    address: str
    port: int
    heartbeat: Micros
    started_at: Micros
    alive: bool
    this: bool


class ServerList(Struct, frozen=True):
    servers: list[ServerLine]


async def list_servers(context: ServerContext, call: Call) -> ServerList:
    """Every server that is or lately was at work; those that are silent are shown as dead."""
    now = context.now()
    found = await context.db.read(enroll.list_servers)
    lines = [
        ServerLine(
            id=f"{one.id:x}",
            address=one.address,
            port=one.port,
            heartbeat=one.heartbeat,
            started_at=created_ms(one.id) * 1000,
            alive=one.heartbeat >= now - context.rules.slot_lease,
            this=one.id == context.server.id,
        )
        for one in found
    ]
    return ServerList(lines)


class QueueInfo(Struct, frozen=True):
    id: str
    group: str
    pool: str
    dimensions: dict[str, list[str]]
    num_ready: int
    oldest_at: Micros | None
    num_bots: int
    used_at: Micros


class QueueList(Struct, frozen=True):
    queues: list[QueueInfo]
    cursor: str | None


async def list_queues(context: ServerContext, call: Call) -> QueueList:
    """What waits for which dimensions, and how many bots could take it."""
    page: Page = call.query
    after = int(read_cursor(context.keys.cursor, "queues", page.cursor)) if page.cursor else 0
    scope = await context.groups.scope_of(call)

    def look(tx: Tx) -> tuple[list[listings.QueueLine], dict[int, str]]:
        found = listings.queues(tx, group_id=scope, after=after, n=page.limit)
        return found, resource_group.names(tx, sorted({line.resource_group_id for line in found}))

    found, names = await context.db.read(look)
    lines = [
        QueueInfo(
            id=f"{one.id:x}",
            group=names.get(one.resource_group_id, ""),
            pool=one.pool,
            dimensions=json.decode(one.dimensions, type=dict[str, list[str]]),
            num_ready=one.num_ready,
            oldest_at=created_ms(one.oldest) * 1000 if one.oldest is not None else None,
            num_bots=one.num_bots,
            used_at=one.used_at,
        )
        for one in found
    ]
    more = show_cursor(context.keys.cursor, "queues", str(found[-1].id)) if len(found) == page.limit else None
    return QueueList(lines, more)


class PoolInfo(Struct, frozen=True):
    name: str
    task_order: str
    ageing: Micros
    num_bots: int


class PoolList(Struct, frozen=True):
    pools: list[PoolInfo]
    cursor: str | None


class PoolSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """``ageing``: microseconds of waiting that are worth one step of priority; none when left out."""

    task_order: Literal["fifo", "lifo"] = "fifo"
    ageing: Annotated[int, Meta(ge=0, le=30 * 86_400_000_000)] | None = None


async def list_pools(context: ServerContext, call: Call) -> PoolList:
    page: Page = call.query
    after = read_cursor(context.keys.cursor, "pools", page.cursor) if page.cursor else ""
    found = await context.db.read(lambda tx: listings.pools(tx, after=after, n=page.limit))
    lines = [PoolInfo(*line) for line in found]
    more = show_cursor(context.keys.cursor, "pools", found[-1][0]) if len(found) == page.limit else None
    return PoolList(lines, more)


async def set_pool(context: ServerContext, call: Call) -> PoolInfo:
    """How a pool orders the tasks that become ready from now on. Saying it twice is the same as once."""
    name, wanted = call.params["name"], call.body
    if not 0 < len(name) <= 256 or not name.isprintable():
        raise InvalidRequest([Problem("name", show_value(name), "1 to 256 printable characters", "length")])
    said, now = Order(wanted.task_order, wanted.ageing or 0), context.now()
    decided = context.state.config.pools.pools.get(name)
    if decided is not None and decided.order is not None:
        raise WrongState(f"How the pool {name} orders its tasks is decided in pools.toml; change it there.")

    def settle(tx: Tx) -> PoolInfo:
        order = said
        if is_new(tx, call, "order of a pool", name, now=now):
            enroll.set_pool(tx, name, order)
        else:
            order = pool_order.of_pool(tx, name)
        return PoolInfo(name, order.task_order, order.ageing, listings.bots_in_pool(tx, name))

    return await context.db.write(settle)


# ---------------------------------------------------------------- tokens


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``group`` is needed for users and viewers; the default group when it is left out. Administrators have all."""

    name: Name
    role: Literal["admin", "user", "viewer", "bot-bootstrap"]
    group: Name | None = None
    expires_in_s: Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)] | None = None


class TokenInfo(Struct, frozen=True, kw_only=True):
    """A token without its secret half; ``token`` is the whole of it, shown once, to who made it."""

    id: str
    name: str
    role: str
    group: str | None
    created_at: Micros
    expires_at: Micros | None
    revoked_at: Micros | None
    token: str | None = None


class TokenList(Struct, frozen=True):
    tokens: list[TokenInfo]
    cursor: str | None


async def create_token(context: ServerContext, call: Call) -> TokenInfo:
    """A new token. Its text is in this answer and nowhere else; a repeated call gets the same one again."""
    wanted: NewToken = call.body
    group = _group_of(context, call)
    if group is not None:
        context.groups.forget(group)  # a token outlives what a server remembers
    group_id = await context.groups.id_of(group) if group else None
    now = context.now()
    expires_at = now + wanted.expires_in_s * SECOND if wanted.expires_in_s else None
    row, text = new_token(wanted.name, Role(wanted.role), group_id, now=now, ids=context.ids, expires_at=expires_at)
    if call.request_key is not None:
        row, text = derived(context, call, row)
    stored = await context.db.write(lambda tx: keep(tx, row))
    return _shown(stored, group, text)


def _group_of(context: ServerContext, call: Call) -> str | None:
    """The resource group that a new token is bound to."""
    wanted: NewToken = call.body
    if Role(wanted.role) is Role.ADMIN and wanted.group is not None:
        told = "none for role admin: administrators have all resource groups"
        raise InvalidRequest([Problem("group", show_value(wanted.group), told, "contradiction")])
    if wanted.group is None and wanted.role not in (Role.USER, Role.VIEWER):
        return None
    return context.groups.name_for(call, wanted.group)


def derived(context: ServerContext, call: Call, row: Token, kind: str = "token") -> tuple[Token, str]:
    """The same token for the same request key of the same caller: a reply that was lost can be asked for again."""
    seed = hmac.digest(context.keys.secret, f"{kind}\n{call.who.name}\n{call.request_key}".encode(), "sha512")
    token_id = int.from_bytes(seed[:8], "big") >> 1 or 1
    secret = _url_safe(seed[8:40])
    return Token(token_id, row.name, digest(secret), *_rest(row)), token_text(token_id, secret)


def _rest(row: Token) -> tuple[str, int | None, Micros, Micros | None, Micros | None]:
    return row.role, row.resource_group_id, row.created_at, row.expires_at, row.revoked_at


def _url_safe(secret: bytes) -> str:
    return urlsafe_b64encode(secret).rstrip(b"=").decode()


def keep(tx: Tx, row: Token) -> Token:
    """Store a token, or find the one that its request key has made, if that is the one wanted and still good."""
    tokens.insert(tx, row)
    stored = tokens.read(tx, row.id)
    if stored is None:
        raise NotFound("token", f"{row.id:x}")
    if _asked_for(stored) != _asked_for(row):
        raise Conflict("The request key was used for another token.")
    if stored.revoked_at is not None:
        raise WrongState("The token that this request key has made was revoked; use a new key for a new token.")
    return stored


def _asked_for(token: Token) -> tuple[str, str, int | None, Micros | None]:
    lasts = None if token.expires_at is None else token.expires_at - token.created_at
    return token.name, token.role, token.resource_group_id, lasts


async def list_tokens(context: ServerContext, call: Call) -> TokenList:
    page: Page = call.query
    before = int(read_cursor(context.keys.cursor, "tokens", page.cursor)) if page.cursor else _LAST_ID

    def look(tx: Tx) -> tuple[list[Token], dict[int, str]]:
        found = tokens.page(tx, before=before, n=page.limit)
        return found, resource_group.names(tx, sorted({t.resource_group_id for t in found if t.resource_group_id}))

    found, names = await context.db.read(look)
    shown = [_shown(token, names.get(token.resource_group_id or 0)) for token in found]
    more = show_cursor(context.keys.cursor, "tokens", str(found[-1].id)) if len(found) == page.limit else None
    return TokenList(shown, more)


async def revoke_token(context: ServerContext, call: Call) -> Done:
    """Put a token out of use: at once here, within half a minute on other servers."""
    text = call.params["id"]
    try:
        token_id = int(text, 16)
    except ValueError:
        raise NotFound("token", text[:40]) from None
    now = context.now()

    def revoke(tx: Tx) -> None:
        if not 0 < token_id <= _LAST_ID or tokens.read(tx, token_id) is None:
            raise NotFound("token", text[:40])
        tokens.revoke(tx, token_id, now)

    await context.db.write(revoke)
    context.on_token_revoked(token_id)
    return Done()


def _shown(token: Token, group: str | None, text: str | None = None) -> TokenInfo:
    return TokenInfo(
        id=f"{token.id:x}",
        name=token.name,
        role=token.role,
        group=group,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        token=text,
    )


ANY_TOKEN = ANYONE - {Role.NOBODY}

ROUTES = (
    Route(method="GET", path="/healthz", call=healthz, who=ANYONE, out=Health, vital=True, summary="Does it live?"),
    Route(method="GET", path="/readyz", call=readyz, who=ANYONE, out=Health, vital=True, summary="Can it work?"),
    Route(
        method="GET",
        path="/metrics",
        call=metrics,
        who=READERS,
        media="text/plain; version=0.0.4; charset=utf-8",
        vital=True,
        summary="Numbers for Prometheus",
    ),
    Route(method="GET", path="/api/v1/server", call=server_info, who=ANY_TOKEN, out=ServerInfo, summary="This server"),
    Route(method="GET", path="/api/v1/servers", call=list_servers, who=READERS, out=ServerList, summary="All servers"),
    Route(
        method="GET",
        path="/api/v1/queues",
        call=list_queues,
        who=READERS,
        query=Page,
        out=QueueList,
        summary="Queues: what waits, and for which dimensions",
    ),
    Route(method="GET", path="/api/v1/pools", call=list_pools, who=READERS, query=Page, out=PoolList, summary="Pools"),
    Route(
        method="PUT",
        path="/api/v1/pools/{name}",
        call=set_pool,
        who=ADMINS,
        body=PoolSettings,
        out=PoolInfo,
        mutates=True,
        summary="How a pool orders its tasks",
    ),
    Route(
        method="GET", path="/api/v1/tokens", call=list_tokens, who=ADMINS, query=Page, out=TokenList, summary="Tokens"
    ),
    Route(
        method="POST",
        path="/api/v1/tokens",
        call=create_token,
        who=ADMINS,
        body=NewToken,
        out=TokenInfo,
        mutates=True,
        summary="A new token",
    ),
    Route(
        method="DELETE",
        path="/api/v1/tokens/{id}",
        call=revoke_token,
        who=ADMINS,
        out=Done,
        mutates=True,
        summary="Revoke a token",
    ),
)
