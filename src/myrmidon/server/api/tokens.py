"""API tokens: create, list, revoke."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from myrmidon.model.errors import InvalidRequest, NotFound, Problem
from myrmidon.model.ids import Micros
from myrmidon.model.validation import show_value
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import LAST_ID, Done, Name, PageQuery
from myrmidon.server.calls import ADMINS, Call, Role, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases import tokens
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import api_token, resource_group
from myrmidon.store.tables.api_token import Token


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to create. A user's or viewer's ``group`` is the default one if absent; an admin has access to all."""

    name: Name
    role: Literal["admin", "user", "viewer", "bot-bootstrap"]
    group: Name | None = None
    expires_in_s: Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)] | None = None


class TokenInfo(Struct, frozen=True, kw_only=True):
    """A token without its secret. ``token`` is its text, present only in the response that creates it."""

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
    """Create a token. Only this response contains its text; a call repeated with its request key gets it again."""
    body: NewToken = call.body
    group = _group_of(context, call)
    if group is not None:
        context.groups.forget(group)  # a token lives longer than a cached id, which may be a deleted group's
    row, text = await tokens.create_token(
        context,
        call,
        name=body.name,
        role=Role(body.role),
        group_id=await context.groups.id_of(group) if group else None,
        lifetime=body.expires_in_s * SECOND if body.expires_in_s else None,
    )
    return _info(row, group, text)


def _group_of(context: ServerContext, call: Call) -> str | None:
    """The resource group that a new token is bound to."""
    body: NewToken = call.body
    if Role(body.role) is Role.ADMIN and body.group is not None:
        allowed = "none for role admin: administrators have access to all resource groups"
        raise InvalidRequest([Problem("group", show_value(body.group), allowed, "contradiction")])
    if body.group is None and body.role not in (Role.USER, Role.VIEWER):
        return None
    return context.groups.name_for(call, body.group)


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
        token=text,
    )


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/tokens",
        call=list_tokens,
        who=ADMINS,
        query=PageQuery,
        out=TokenList,
        summary="List tokens",
    ),
    Route(
        method="POST",
        path="/api/v1/tokens",
        call=create_token,
        who=ADMINS,
        body=NewToken,
        out=TokenInfo,
        mutates=True,
        summary="Create a token",
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
