"""API tokens: create, list, revoke."""

from __future__ import annotations

from msgspec import structs

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import Micros
from myrmidon.model.shown_input import show_value
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.auth import hawk
from myrmidon.server.auth.authenticator import BotBinding
from myrmidon.server.calls import ADMINS, Call, Role, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases import tokens
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import api_token, resource_group
from myrmidon.store.tables.api_token import Token
from myrmidon.wire.fields import Done, PageQuery
from myrmidon.wire.tokens import DAY_S, HawkCredentials, NewToken, TokenInfo, TokenList

ROUTES = Routes()

ANY_POOL = "*"


@ROUTES.add("POST", "/api/v1/tokens", ADMINS, "Create a token", body=NewToken, mutates=True)
async def create_token(context: ServerContext, call: Call) -> TokenInfo:
    """Create a token. Only this response contains its text; a call repeated with its request key gets it again."""
    body: NewToken = call.body
    group, binding = _group_of(context, call), _binding_of(body)
    if group is not None:
        context.groups.forget(group)  # a token lives longer than a cached id, which may be a deleted group's
    row, text = await tokens.create_token(
        context,
        call,
        name=body.name,
        role=Role(body.role),
        group_id=await context.groups.id_of(group, call.now) if group else None,
        lifetime=_lifetime_of(body),
        binding=binding,
    )
    info = _info(row, group, text)
    return structs.replace(info, hawk=_hawk_credentials(context, row)) if body.hawk else info


def _hawk_credentials(context: ServerContext, token: Token) -> HawkCredentials:
    return HawkCredentials(client_id=hawk.client_id(token.id), access_key=hawk.access_key(context.keys.hawk, token.id))


def _group_of(context: ServerContext, call: Call) -> str | None:
    """The resource group that a new token is bound to."""
    body: NewToken = call.body
    if Role(body.role) is Role.ADMIN and body.group is not None:
        allowed = "none for role admin: administrators have access to all resource groups"
        raise InvalidRequest([Problem("group", show_value(body.group), allowed, "contradiction")])
    if body.group is None and body.role not in (Role.USER, Role.VIEWER):
        return None
    return context.groups.name_for(call, body.group)


def _lifetime_of(body: NewToken) -> Micros | None:
    default_s = DAY_S if Role(body.role) is Role.BOOTSTRAP else None
    lifetime_s = body.expires_in_s or default_s
    return lifetime_s * SECOND if lifetime_s else None


def _binding_of(body: NewToken) -> BotBinding | None:
    """The bots that a new bootstrap token introduces; one that is bound to nothing would introduce any bot."""
    given = {"bot_pool": body.bot_pool, "bot_group": body.bot_group, "bot_ids": body.bot_ids, "uses": body.uses}
    if Role(body.role) is not Role.BOOTSTRAP:
        allowed = "none: only tokens with the role bot-bootstrap introduce bots"
        problems = [
            Problem(name, show_value(value), allowed, "contradiction") for name, value in given.items() if value
        ]
        if problems:
            raise InvalidRequest(problems)
        return None
    pool = body.bot_pool or ("default" if body.bot_group is None else None)
    return BotBinding(
        pool=None if pool == ANY_POOL else pool, group=body.bot_group, ids=body.bot_ids, uses=body.uses or 1
    )


@ROUTES.add("GET", "/api/v1/tokens", ADMINS, "List tokens", query=PageQuery)
async def list_tokens(context: ServerContext, call: Call) -> TokenList:
    """Tokens, newest first, without their secrets."""
    query: PageQuery = call.query
    before = int(read_cursor(context.keys.cursor, "tokens", query.cursor)) if query.cursor else LAST_ID

    def read(tx: Tx) -> tuple[list[Token], dict[int, str]]:
        rows = api_token.page(tx, before=before, n=query.limit)
        return rows, resource_group.names(tx, sorted({row.resource_group_id for row in rows if row.resource_group_id}))

    rows, group_names = await context.db.read(read)
    infos = [_info(row, group_names.get(row.resource_group_id or 0)) for row in rows]
    cursor = show_cursor(context.keys.cursor, "tokens", str(rows[-1].id)) if len(rows) == query.limit else None
    return TokenList(infos, cursor)


@ROUTES.add("DELETE", "/api/v1/tokens/{id}", ADMINS, "Revoke a token", mutates=True)
async def revoke_token(context: ServerContext, call: Call) -> Done:
    """Revoke a token: immediately on this server, within 30 seconds on others."""
    text = call.params["id"]
    try:
        token_id = int(text, 16)
    except ValueError:
        raise NotFound("token", text[:40]) from None
    now = context.now()

    def revoke(tx: Tx) -> None:
        if not 0 < token_id <= LAST_ID or api_token.read(tx, token_id) is None:
            raise NotFound("token", text[:40])
        api_token.revoke(tx, token_id, now)

    await context.db.write(revoke)
    context.on_token_revoked(token_id)
    return Done()


def _info(token: Token, group: str | None, text: str | None = None) -> TokenInfo:
    return TokenInfo(
        id=f"{token.id:x}",
        name=token.name,
        role=token.role,
        group=group,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        bot_pool=token.bot_pool,
        bot_group=token.bot_group,
        bot_ids=token.bot_ids,
        uses_left=token.uses_left,
        token=text,
    )
