"""Creating API tokens, the same way for every API."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode

from msgspec import structs

from myrmidon.model.errors import Conflict, NotFound, WrongState
from myrmidon.model.ids import Micros
from myrmidon.server.auth.authenticator import BotBinding, digest, new_token, token_text
from myrmidon.server.calls import Call, Role
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import api_token
from myrmidon.store.tables.api_token import Token


async def create_token(
    context: ServerContext,
    call: Call,
    *,
    name: str,
    role: Role,
    group_id: int | None = None,
    lifetime: Micros | None = None,
    binding: BotBinding | None = None,
    kind: str = "token",
) -> tuple[Token, str]:
    """Store a token; return its row and its text. A call repeated with its request key gets the same token.

    ``kind`` separates the request keys of different kinds of tokens.
    """
    now = context.now()
    expires_at = now + lifetime if lifetime is not None else None
    row, text = new_token(name, role, group_id, now=now, ids=context.ids, expires_at=expires_at, binding=binding)
    if call.request_key is not None:
        row, text = derive_token_from_request_key(context, call, row, kind)
    return await context.db.write(lambda tx: insert_or_get_token(tx, row)), text


def derive_token_from_request_key(context: ServerContext, call: Call, row: Token, kind: str) -> tuple[Token, str]:
    """Replace a token's id and secret by ones that depend on the caller and its request key only.

    The secret is not stored, so this is how a client whose connection broke can get the token again.
    """
    seed = hmac.digest(context.keys.secret, f"{kind}\n{call.who.key}\n{call.request_key}".encode(), "sha512")
    token_id = int.from_bytes(seed[:8], "big") >> 1 or 1
    secret = urlsafe_b64encode(seed[8:40]).rstrip(b"=").decode()
    return structs.replace(row, id=token_id, secret_hash=digest(secret)), token_text(token_id, secret)


def insert_or_get_token(tx: Tx, row: Token) -> Token:
    """Insert a token unless its id exists; then return the stored one if it has the same properties and is valid."""
    api_token.insert(tx, row)
    stored = api_token.read(tx, row.id)
    if stored is None:
        raise NotFound("token", f"{row.id:x}")
    if _properties(stored) != _properties(row):
        raise Conflict("The request key was used for another token; use a new key for a new token.")
    if stored.revoked_at is not None:
        raise WrongState("The token created with this request key was revoked; use a new key for a new token.")
    return stored


def _properties(token: Token) -> tuple[object, ...]:
    """What two calls with one request key must have in common. The uses of the first one's token may have begun."""
    lifetime = None if token.expires_at is None else token.expires_at - token.created_at
    bound = token.bot_pool, token.bot_group, token.bot_ids
    return token.name, token.role, token.resource_group_id, lifetime, *bound
