"""One HTTP call as handlers see it: who calls, what was sent, and the row of the route table that describes it.

No web framework and no database here, so that tests can call handlers directly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct

MIB = 1 << 20


class Role(StrEnum):
    """What a caller is; the route table says what each may do."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"
    BOOTSTRAP = "bot-bootstrap"
    BOT = "bot"
    NOBODY = "nobody"


ANYONE = frozenset(Role)
ADMINS = frozenset({Role.ADMIN})
WRITERS = frozenset({Role.ADMIN, Role.USER})
READERS = frozenset({Role.ADMIN, Role.USER, Role.VIEWER})
BOTS = frozenset({Role.BOT})
INTRODUCERS = frozenset({Role.ADMIN, Role.BOOTSTRAP})
"""Who may bring a new bot in."""


class Style(StrEnum):
    """How a route reads what it is sent and says what is wrong with it."""

    OURS = "ours"
    V1 = "swarming v1"
    """Tolerant: unknown keys, numbers as texts, null for nothing. Errors as Google's clients know them."""
    V1_OLD = "swarming v1, older prefix"


class Identity(Struct, frozen=True):
    """Who calls. ``group`` is the resource group it is bound to; None means all, or none for a bot.

    A token is bound to the group with this id, not to whichever has its name later.
    """

    name: str
    role: Role
    group: str | None = None
    bot_id: str | None = None
    group_id: int | None = None


NOBODY = Identity("nobody", Role.NOBODY)


class Call(Struct, kw_only=True):
    """One request, decoded. ``body`` and ``query`` are what the route asks for."""

    who: Identity
    body: Any = None
    body_size: int = 0
    """How many bytes it had, however it was sent."""
    query: Any = None
    params: dict[str, str] = {}
    request_key: str | None = None
    request_id: str = ""
    address: str = ""
    headers: Mapping[str, str] = {}


class Answer(Struct, kw_only=True):
    """A reply that is more than a struct: a status, headers, bytes or a stream of them."""

    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None


Handler: TypeAlias = Callable[[Any, Call], Awaitable[Any]]
"""Takes the ServerContext and the call; returns a struct, bytes, an async iterator of bytes (an event stream) or an
Answer; raises MyrmidonError."""


class Route(Struct, frozen=True, kw_only=True):
    """One line of the route table; the router, the authorizer, OpenAPI and the route tests are made from it."""

    method: str
    path: str
    call: Handler
    who: frozenset[Role]
    summary: str
    body: Any = None
    """The struct that the body is decoded into; ``bytes`` for the raw body."""
    query: Any = None
    out: Any = None
    """The struct of the answer; None for bytes, text and streams, whose type ``media`` names."""
    mutates: bool = False
    body_limit: int = MIB
    media: str = "application/json"
    vital: bool = False
    """Answered even when the server is overloaded: heartbeats, and whatever tells of its health."""
    waits: bool = False
    """A long poll or a stream: not counted among the calls that keep the server busy."""
    quiet: bool = False
    """Called too often to be written to the log each time."""
    query_token: bool = False
    """The token may stand in the query as ``tok``, for commands that people paste."""
    asks_who: bool = False
    """Anybody may call, and who it is matters all the same."""
    style: Style = Style.OURS
