"""Releases of the bot: the bodies, queries and answers of /api/v1/releases and of the bootstrap script."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.wire.fields import Micros


class BootstrapQuery(Struct, frozen=True, kw_only=True):
    """Settings that the script writes to the new bot's folder. ``tok`` is the token for its first handshake.

    A ``dimension`` is ``key:value``. A caller that its network admits needs no token, and neither does its bot.
    """

    tok: str = ""
    pool: str = ""
    bot_id: str = ""
    dimension: Annotated[list[str], Meta(max_length=32)] = []


class ReleaseInfo(Struct, frozen=True, kw_only=True):
    """``state``: active, canary, new, old, or bad. A bad release is not used until an administrator allows it."""

    digest: str
    state: str
    created_at: Micros
    changed_at: Micros
    who: str
    why: str
    num_servers: int
    num_failures: int
    canary_share: int | None


class ReleaseList(Struct, frozen=True):
    releases: list[ReleaseInfo]


class AllowBody(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1024)] = ""


class RevertBody(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1024)] = ""
