"""Logging in to the web page: the bodies and answers of /auth and /api/v1/session."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from myrmidon.wire.fields import Micros

LINK_S = 60
FIRST_LINK_S = 600

Target = Annotated[str, Meta(max_length=4096)]


class SessionInfo(Struct, frozen=True, kw_only=True):
    """The caller. ``csrf_token`` must be sent as ``X-CSRF-Token`` with every change that is made by cookie."""

    name: str
    role: str
    group: str | None
    via: Literal["session", "token", "address"]
    csrf_token: str | None
    expires_at: Micros | None
    server_time: Micros
    version: str


class LogIn(Struct, frozen=True, forbid_unknown_fields=True):
    """``to``: the path of the page to open afterwards."""

    to: Target = "/"


class LoggedIn(Struct, frozen=True):
    """``to``: the path to open; the first page if the requested one is not a path of this server."""

    to: str


class UseLink(Struct, frozen=True, forbid_unknown_fields=True):
    """``code``: what follows ``#`` in the link."""

    code: Annotated[str, Meta(max_length=4096)]


class LogOut(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing needs to be said."""


class NewLink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link that opens the page ``to``, usable for ``lifetime_s`` seconds."""

    to: Target = "/"
    lifetime_s: Annotated[int, Meta(ge=1, le=FIRST_LINK_S)] = LINK_S


class LinkInfo(Struct, frozen=True):
    """``path`` is to be appended to the URL of the server; it can be used once."""

    path: str
    expires_at: Micros
