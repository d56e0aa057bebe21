"""Tokens: the bodies and answers of /api/v1/tokens."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from myrmidon.wire.fields import Micros, Name

DAY_S: Final = 86_400
BotIds: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^([^*]+\*?|\*)$")]


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to create. A user's or viewer's ``group`` is the default one if absent; an admin has access to all.

    The other fields are for bot-bootstrap tokens. They introduce ``uses`` bots (1 if absent) within ``expires_in_s`` (a
    day if absent): of the group ``bot_group`` of bots.toml, with ids that match ``bot_ids`` (an id, or the beginning of
    ids and ``*``), in ``bot_pool``. Without a pool and a group, the pool is ``default``; ``*`` stands for any pool.
    """

    name: Name
    role: Literal["admin", "user", "viewer", "bot-bootstrap"]
    group: Name | None = None
    expires_in_s: Annotated[int, Meta(ge=1, le=10 * 365 * DAY_S)] | None = None
    bot_pool: Name | None = None
    bot_group: Name | None = None
    bot_ids: BotIds | None = None
    uses: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    hawk: bool = False
    """Whether the response has credentials for clients that sign their calls with Hawk."""


class HawkCredentials(Struct, frozen=True, kw_only=True):
    """A client id and its key, valid as long as the token that they belong to."""

    client_id: str
    access_key: str


class TokenInfo(Struct, frozen=True, kw_only=True):
    """A token without its secret. ``token`` is its text, present only in the response that creates it."""

    id: str
    name: str
    role: str
    group: str | None
    created_at: Micros
    expires_at: Micros | None
    revoked_at: Micros | None
    bot_pool: str | None = None
    bot_group: str | None = None
    bot_ids: str | None = None
    uses_left: int | None = None
    token: str | None = None
    hawk: HawkCredentials | None = None


class TokenList(Struct, frozen=True):
    tokens: list[TokenInfo]
    cursor: str | None
