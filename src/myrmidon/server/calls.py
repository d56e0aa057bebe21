"""One HTTP call as handlers see it: who calls, what was sent, and the row of the route table that describes it.

No web framework and no database here, so that tests can call handlers directly.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from enum import StrEnum
from inspect import isfunction
from typing import Any, TypeAlias, TypeVar, get_type_hints

from msgspec import Struct, structs

from myrmidon.model.ids import Micros

MIB = 1 << 20


class Role(StrEnum):
    """The role of a caller; the route table says which roles may use a route."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"
    BOOTSTRAP = "bot-bootstrap"
    BOT = "bot"
    RUN = "run"
    """A task that runs, for its own job."""
    NOBODY = "nobody"


ANYONE = frozenset(Role)
ADMINS = frozenset({Role.ADMIN})
WRITERS = frozenset({Role.ADMIN, Role.USER})
READERS = frozenset({Role.ADMIN, Role.USER, Role.VIEWER})
BOTS = frozenset({Role.BOT})
JOB_READERS = READERS | {Role.RUN}
JOB_WRITERS = WRITERS | {Role.RUN}
"""With tasks that run. Handlers of such routes must refuse other jobs: ``Identity.job_id``."""
INTRODUCERS = frozenset({Role.ADMIN, Role.BOOTSTRAP})
"""Roles that may introduce a new bot."""


class ErrorReply(Struct, frozen=True):
    """How a style answers an error."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = {}


def native_error(status: int, details: Mapping[str, Any]) -> ErrorReply:
    """An error as the native API has it."""
    return ErrorReply(status, {"error": details})


class Style(Struct, frozen=True):
    """The conventions of an API for requests and errors. ``OURS`` is the native API's; a facade brings its own."""

    name: str
    prefix: str = ""
    """Where its paths begin: errors of paths below it that have no route are answered in this style."""
    tolerant: bool = False
    """Unknown keys (with a warning), numbers as strings, null and bodies in zlib are accepted."""
    cross_origin: bool = False
    """Pages of the origins in the setting ``cors_origins`` may read its answers."""
    takes_hawk: bool = False
    """Calls may be signed with Hawk."""
    error_reply: Callable[[int, Mapping[str, Any]], ErrorReply] = native_error
    """Takes the status and the details of an error: its code and message, and problems for an invalid request."""


OURS = Style("native")
PAGE = Style("web page", tolerant=True)
"""For browsers. Not in the description of the API."""


class Identity(Struct, frozen=True):
    """An authenticated caller. ``group`` is the resource group it is bound to; None for all groups, or for a bot.

    A token stays bound to ``group_id``, also if another group gets the same name later. ``epoch`` is the one of a bot's
    credential, ``token_id`` is None for callers without a token. A caller with the role RUN is the run ``run`` of
    ``task_id`` and may see only ``job_id``; its name is that of the submitter. ``session`` is the digest of the
    browser's session, if the caller was identified by its cookie.
    """

    name: str
    role: Role
    group: str | None = None
    bot_id: str | None = None
    group_id: int | None = None
    token_id: int | None = None
    epoch: int = 0
    job_id: int | None = None
    task_id: int | None = None
    run: int = 0
    session: str = ""

    @property
    def key(self) -> str:
        """Tells callers apart: names of tokens are not unique. The runs of a job count as one caller."""
        if self.job_id is not None:
            return f"job {self.job_id:x}"
        return f"token {self.token_id:x}" if self.token_id is not None else f"{self.role} {self.name}\n{self.group}"


NOBODY = Identity("nobody", Role.NOBODY)


class StreamedBody:
    """The body of a call that its handler reads while it arrives, instead of having it in memory as a whole.

    Iterating raises TooLarge beyond the limit of the route, and TooSlow.
    """

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def close(self) -> None:
        """End the iteration; the rest of the body is dropped."""
        await self._pieces.aclose()


class Call(Struct, kw_only=True):
    """One decoded request. ``body`` and ``query`` are the structs that the route names."""

    who: Identity
    now: Micros
    """When the call was admitted: its body had arrived."""
    body: Any = None
    body_size: int = 0
    """The size of the body in bytes, before decoding."""
    query: Any = None
    params: dict[str, str] = {}
    request_key: str | None = None
    request_id: str = ""
    address: str = ""
    bearer: str = ""
    """The token that the call was made with."""
    headers: Mapping[str, str] = {}
    warnings: list[str] = []
    """What was accepted without effect: a handler adds to it, and the answer has it in its header."""


class Answer(Struct, kw_only=True):
    """A response with its own status or headers; the body is a struct, bytes or an async iterator of bytes.

    An iterator whose total size is known has it in the header ``content-length``.
    """

    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None


Handler: TypeAlias = Callable[[Any, Call], Awaitable[Any]]
"""Takes the ServerContext and the call; returns a struct, bytes, an async iterator of bytes (an event stream) or an
Answer; raises MyrmidonError."""
H = TypeVar("H", bound=Handler)


class Route(Struct, frozen=True):
    """One row of the route table. Router, authorization, OpenAPI document and route tests use it.

    The struct of the response is the one that the handler is annotated to return, unless ``out`` names another.
    """

    method: str
    path: str
    call: Handler
    who: frozenset[Role]
    summary: str
    body: Any = None
    """The struct that the body is decoded into; ``bytes`` for the raw body, ``StreamedBody`` for a large raw one."""
    query: Any = None
    out: Any = None
    """The struct of the response; None for bytes, text and streams, whose type is ``media``."""
    mutates: bool = False
    body_limit: int = MIB
    extra_body: int = 0
    """Bytes that the body may have beyond the setting ``body_limit``, for a field that is large by itself."""
    media: str = "application/json"
    vital: bool = False
    """Answered even when the server is overloaded or stopping: heartbeats and health."""
    waits: bool = False
    """A long poll or a stream: it does not count as load."""
    streams_events: bool = False
    """A stream that every event wakes."""
    quiet: bool = False
    """Called too often to be logged each time."""
    query_token: bool = False
    """The token may be in the query as ``tok``, for commands that people paste."""
    asks_who: bool = False
    """Public, but the caller is authenticated if it sends a token."""
    from_page: bool = False
    """Only for pages of this server: another site must not be able to log a browser in."""
    style: Style = OURS

    def __post_init__(self) -> None:
        if self.out is None:
            structs.force_setattr(self, "out", _answer_of(self.call))

    @property
    def takes_cookie(self) -> bool:
        """Whether a browser's session counts here: not for bots, metrics and the APIs of other systems."""
        return self.style is OURS and self.path.startswith(("/api/v1/", "/auth/"))


def accepts(header: str, encoding: str) -> bool:
    """Whether an Accept-Encoding header names a content encoding, and not with the weight 0."""
    parts = (part.partition(";") for part in header.lower().split(","))
    return any(
        name.strip() == encoding and weight.strip().removeprefix("q=") not in ("0", "0.0", "0.00", "0.000")
        for name, _, weight in parts
    )


class Routes(list[Route]):
    """The routes of a module: ``@ROUTES.add(...)`` stands before each handler."""

    def add(self, method: str, path: str, who: frozenset[Role], summary: str, **more: Any) -> Callable[[H], H]:
        """Add the decorated handler; ``more`` are the other fields of its Route."""

        def add(handler: H) -> H:
            self.append(Route(method, path, handler, who, summary, **more))
            return handler

        return add


def _answer_of(handler: Handler) -> type[Struct] | None:
    """The struct that a handler is annotated to return; None for an Answer, bytes or a stream."""
    kind = get_type_hints(handler).get("return") if isfunction(handler) else None
    return kind if isinstance(kind, type) and issubclass(kind, Struct) and kind is not Answer else None


class Facade(Struct, frozen=True):
    """An API for the clients of another system: a package whose ``register()`` returns this (server/facades.py)."""

    routes: tuple[Route, ...]
    styles: tuple[Style, ...]


def joined_message(details: Mapping[str, Any]) -> str:
    """Every problem of an error in one sentence, for clients that show the message only."""
    problems = details.get("problems") or []
    if len(problems) < 2:
        return str(details["message"])
    listed = "; ".join(f"{p['path'] or 'request'}: got {p['value']}; allowed: {p['allowed']}" for p in problems)
    return f"{len(problems)} problems: {listed}"
