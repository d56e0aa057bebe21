"""The only file that knows the web framework: turns the route table into an ASGI application.

What is the same for every call happens here, once: request id, Host and Origin, who calls and whether they may,
overload, size and pace of the body, decoding, the shape of errors, measuring. Paths without parameters are found
in a dictionary before the framework's router is asked: the calls of bots and submits are among them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from myrmidon.model.errors import (
    BrokenPromise,
    Forbidden,
    InvalidRequest,
    MyrmidonError,
    NotFound,
    Overloaded,
    Problem,
    Stopping,
    StoreError,
    TooLarge,
    TooSlow,
    Unauthorized,
)
from myrmidon.scheduler.submit import check_key
from myrmidon.server.asgi.errors import error_body, style_of
from myrmidon.server.auth.authenticator import Guard, bearer_of
from myrmidon.server.calls import (
    NOBODY,
    Answer,
    Call,
    Identity,
    Role,
    Route,
    Style,
)
from myrmidon.server.context import ServerContext

log = structlog.get_logger("server")

SLOWEST_BYTES_PER_S = 64 << 10
MOST_QUERY_FIELDS = 1000
JSON = "application/json"
ZLIB = "application/json-zlib"
EVENT_STREAM = "text/event-stream"
_NUL = b"\\u0000"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_AT = re.compile(r" - at `\$?\.?(.*)`$", re.DOTALL)
_encode = msgspec.json.Encoder().encode
_SAFE = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class HungUp(Exception):
    """The caller is gone, or does not listen any more: there is nobody to answer."""


class App:
    """The ASGI application of one server."""

    def __init__(self, context: ServerContext, guard: Guard, routes: Sequence[Route]) -> None:
        self.context = context
        self.guard = guard
        self.metrics = context.metrics
        start = os.urandom(5).hex()
        self._ids = (f"{start}-{n:x}" for n in itertools.count(1))
        self._hot: dict[tuple[str, str], Endpoint] = {}
        lines = []
        for route in routes:
            endpoint = Endpoint(self, route)
            if "{" not in route.path:
                self._hot[route.method, route.path] = endpoint
            lines.append(StarletteRoute(route.path, endpoint, methods=[route.method]))
        framework = Starlette(routes=_fixed_first(lines), exception_handlers={HTTPException: self._lost_way})
        framework.router.redirect_slashes = False  # it would lead callers to whatever name they have called
        self._framework: ASGIApp = framework

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        endpoint = self._hot.get((scope["method"], scope["path"]))
        try:
            if endpoint is None and scope["method"] == "OPTIONS" and style_of(scope["path"]) is not Style.OURS:
                await self._before_a_call(scope, send)
            elif endpoint is None:
                await self._framework(scope, receive, send)
            else:
                await endpoint(scope, receive, send)
        except RuntimeError:
            if not _is_closing(scope):
                raise
            await asyncio.sleep(0)  # the transport takes no more; the listener hears why in the next turn of the loop

    def for_pages(self, origin: str) -> list[tuple[bytes, bytes]]:
        """Headers that let a page of another server read an answer, if the settings name that server."""
        if not origin or not self.guard.knows_page(origin):
            return []
        return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]

    async def _before_a_call(self, scope: Scope, send: Send) -> None:
        """A browser asks whether a page may call: dashboards for Swarming live on servers of their own."""
        headers = _headers(scope["headers"])
        fields = self.for_pages(headers.get("origin", "")) if self._unwelcome(headers) is None else []
        if fields:
            fields += [
                (b"access-control-allow-methods", b"GET, POST"),
                (b"access-control-allow-headers", b"authorization, content-type"),
                (b"access-control-max-age", b"3600"),
            ]
        await _send(scope, send, 204 if fields else 403, fields, b"", self.context.settings.body_timeout_s)

    def request_id(self, given: str) -> str:
        """The caller's own id where it is harmless, so that its logs and ours can be laid side by side."""
        return given if _REQUEST_ID.fullmatch(given) else next(self._ids)

    async def _lost_way(self, request: Request, error: Exception) -> Response:
        """Paths and methods that the table does not have."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        path = request.scope["path"]
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        told: Mapping[str, object] = NotFound("page", path[:200]).as_dict()
        if refused := self._unwelcome(_headers(request.scope["headers"])):
            status, told, headers = refused.status, refused.as_dict(), {}
        elif status == 405:
            told = {
                "code": "method_not_allowed",
                "message": f"{request.method} is not what this path understands.",
            }
        body = error_body(style_of(path), status, told)
        headers["x-request-id"] = self.request_id(request.headers.get("x-request-id", ""))
        headers["x-content-type-options"] = "nosniff"
        return Response(_encode(body), status_code=status, media_type=JSON, headers=headers)

    def _unwelcome(self, headers: Mapping[str, str]) -> MyrmidonError | None:
        """Why a call that no endpoint sees is not for us; endpoints ask for themselves."""
        try:
            self.guard.check_host(headers.get("host", ""), "", mutates=False)
        except MyrmidonError as error:
            return error
        return None


def _headers(lines: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """By name; what was said in several lines as if it had been said in one."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in lines}
    if len(headers) == len(lines):
        return headers
    said: dict[str, list[str]] = {}
    for name, value in lines:
        said.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return {name: ",".join(values) for name, values in said.items()}


def _fixed_first(lines: list[StarletteRoute]) -> list[StarletteRoute]:
    """Fixed paths before those with parameters, so that ``tasks/wait`` is never taken for a task's id."""
    return sorted(lines, key=lambda line: line.path.count("{"))


class Endpoint:
    """One line of the route table at work."""

    def __init__(self, app: App, route: Route) -> None:
        self._app = app
        self._route = route
        self._decode = _decoder(route)
        self._query = _query_reader(route.query, tolerant=route.style is not Style.OURS)
        self._limit = min(route.body_limit, app.context.settings.large_body_limit)
        if route.body_limit <= (1 << 20):
            self._limit = min(route.body_limit, app.context.settings.body_limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, route = self._app, self._route
        began = time.perf_counter()
        headers = _headers(scope["headers"])
        request_id = app.request_id(headers.get("x-request-id", ""))
        try:
            status, fields, body = await self._answer(scope, receive, headers, request_id)
            fields.append((b"x-request-id", request_id.encode()))
            if route.style is not Style.OURS:
                fields += app.for_pages(headers.get("origin", ""))
            await _send(scope, send, status, fields, body, app.context.settings.body_timeout_s)
        except HungUp:
            return
        except asyncio.CancelledError:
            if "gone" in scope:
                return  # the caller has hung up while it waited: nobody is left to answer
            raise
        self._note(status, time.perf_counter() - began, request_id, scope.get("who"))

    async def _answer(
        self, scope: Scope, receive: Receive, headers: Mapping[str, str], request_id: str
    ) -> tuple[int, list[tuple[bytes, bytes]], Any]:
        """Status, headers and body; whatever goes wrong, the caller gets an answer in the one shape.

        Only until then it counts as work: who does not take an answer keeps nobody else from getting one.
        """
        context, counted = self._app.context, not self._route.waits
        context.state.num_calls += counted
        try:
            call = await self._admit(scope, receive, headers, request_id)
            return self._dressed(await self._route.call(context, call))
        except HungUp:
            raise
        except Exception as error:  # noqa: BLE001 - it is told in the log, under the id that the caller gets
            return self._failed(error, request_id, scope.get("who", NOBODY))
        finally:
            context.state.num_calls -= counted

    async def _admit(self, scope: Scope, receive: Receive, headers: Mapping[str, str], request_id: str) -> Call:
        """Everything that has to be right before a handler sees a call."""
        app, route = self._app, self._route
        app.guard.check_host(headers.get("host", ""), headers.get("origin", ""), mutates=route.mutates)
        client = scope.get("client")
        address = app.guard.address_of(client[0] if client else "", headers.get("x-forwarded-for"))
        asked = _asked(scope["query_string"])
        params = scope.get("path_params") or {}
        if any("\x00" in value for value in params.values()):
            raise NotFound("page", "with NUL in its name")
        bearer = bearer_of(headers) or (asked.get("tok", [""])[-1] if route.query_token else "")
        # Who may be anybody is not asked: health must be told without a look at the database.
        unasked = Role.NOBODY in route.who and not route.asks_who
        who = scope["who"] = NOBODY if unasked else await app.guard.identify(bearer, address)
        if who.role not in route.who:
            raise _refusal(who, route)
        if not route.vital:
            self._check_load()
        key = headers.get("idempotency-key")
        if key is not None:
            check_key(key)
        if route.waits and (task := asyncio.current_task()):
            # The listener calls it when the connection is lost: nobody then waits for an answer any more.
            scope["gone"] = task.cancel
            scope["welcome"] = partial(app.guard.still_knows, who, bearer, address)
        sent = await self._sent(receive, headers) if route.body is not None else b""
        return Call(
            who=who,
            body=self._decode(sent) if route.body is not None else None,
            body_size=len(sent),
            query=self._query(asked),
            params=params,
            request_key=key,
            request_id=request_id,
            address=address,
            headers=headers,
        )

    def _check_load(self) -> None:
        context = self._app.context
        if context.state.stopping:
            raise Stopping("This server is going down.")
        if context.state.num_calls > context.settings.most_calls:
            raise Overloaded(f"{context.state.num_calls} calls are being answered already.")

    async def _sent(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        """The body as it was before a client packed it; only clients of v1 do."""
        data = await self._body(receive, headers)
        if self._route.style is Style.OURS or not headers.get("content-type", "").startswith(ZLIB):
            return data
        try:
            unpacking = zlib.decompressobj()
            plain = unpacking.decompress(data, self._limit)
        except zlib.error:
            raise InvalidRequest([Problem("body", f"{len(data)} bytes", "what zlib has packed", "zlib")]) from None
        if unpacking.unconsumed_tail:
            raise TooLarge(f"The body has more than the {self._limit} bytes that this call takes.")
        return plain

    async def _body(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        """The whole body, which must neither be too large nor trickle in."""
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._limit:
            raise TooLarge(f"The body has {announced} bytes; this call takes {self._limit}.")
        loop = asyncio.get_running_loop()
        start = loop.time() + self._app.context.settings.body_timeout_s
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout_at(start) as pace:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HungUp
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > self._limit:
                        raise TooLarge(f"The body has more than the {self._limit} bytes that this call takes.")
                    chunks.append(chunk)
                    if not message.get("more_body"):
                        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
                    pace.reschedule(start + size / SLOWEST_BYTES_PER_S)
        except TimeoutError:
            raise TooSlow("The body did not arrive in time.") from None

    def _dressed(self, answer: Any) -> tuple[int, list[tuple[bytes, bytes]], Any]:
        """Status, headers and body of what a handler returned."""
        status, extra, body = 200, {}, answer
        if isinstance(answer, Answer):
            status, extra, body = answer.status, answer.headers, answer.body
        fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in extra.items()]
        named = {name for name, _ in fields}
        media = self._route.media
        if isinstance(body, AsyncIterator):
            media = EVENT_STREAM if media == JSON else media
        elif body is not None and not isinstance(body, bytes):
            body = _encode(body)
        if b"content-type" not in named:
            fields.append((b"content-type", media.encode()))
        fields += [(name, value) for name, value in _SAFE if name not in named]
        return status, fields, body

    def _failed(self, error: Exception, request_id: str, who: Identity) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        if isinstance(error, (ExceptionGroup, TimeoutError)) or not isinstance(error, MyrmidonError):
            log.error("handler failed", path=self._route.path, request_id=request_id, exc_info=error)
            error = BrokenPromise(f"Something went wrong inside; the server's log tells more under {request_id}.")
        elif isinstance(error, StoreError):
            log.warning("the database failed", code=error.code, request_id=request_id, error=str(error))
            if who.role is not Role.ADMIN:  # drivers name hosts, ports and files
                error = type(error)(f"The database cannot do it now; the server's log tells why under {request_id}.")
        elif error.status >= 500 and not error.retry_after_s:
            log.error("handler failed", path=self._route.path, request_id=request_id, exc_info=error)
        self._app.metrics.refused(error.code)
        fields = [(b"content-type", JSON.encode()), *_SAFE]
        if error.retry_after_s:
            fields.append((b"retry-after", str(error.retry_after_s).encode()))
        if isinstance(error, Unauthorized):
            fields.append((b"www-authenticate", b"Bearer"))
        if isinstance(error, (TooLarge, TooSlow)):
            fields.append((b"connection", b"close"))
        return error.status, fields, _encode(error_body(self._route.style, error.status, error.as_dict()))

    def _note(self, status: int, seconds: float, request_id: str, who: Identity | None) -> None:
        app, route = self._app, self._route
        if not route.waits:
            app.metrics.answered(route.method, route.path, status, seconds)
        by_hand = route.mutates and not route.quiet and who is not None and who.role is not Role.BOT
        if by_hand or status >= 400:
            log.info(
                "request",
                method=route.method,
                path=route.path,
                status=status,
                ms=round(seconds * 1000, 1),
                who=who.name if who else None,
                request_id=request_id,
            )


def _refusal(who: Identity, route: Route) -> MyrmidonError:
    if who.role is Role.NOBODY:
        return Unauthorized("This needs a token.")
    return Forbidden(f"A {who.role} token may not {route.method} {route.path}.")


# ---------------------------------------------------------------- sending


async def _send(
    scope: Scope, send: Send, status: int, fields: list[tuple[bytes, bytes]], body: Any, patience_s: float
) -> None:
    if isinstance(body, AsyncIterator):
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await _stream(scope, send, body, patience_s)
        return
    body = body or b""
    fields.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def _stream(scope: Scope, send: Send, body: AsyncIterator[bytes], patience_s: float) -> None:
    """Pass pieces on as they come; a reader that takes none for too long, or may read no more, is let go.

    A stream in which nothing happens says so every few seconds, so that this is seen there too.
    """
    welcome = scope["welcome"]
    try:
        async for piece in body:
            if not await welcome():
                break
            try:
                async with asyncio.timeout(patience_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except TimeoutError:
                await _hang_up(scope)
                raise HungUp from None
        await send({"type": "http.response.body", "body": b""})
    finally:
        close = getattr(body, "aclose", None)
        if close is not None:
            await close()


async def _hang_up(scope: Scope) -> None:
    """End a connection whose other side has stopped reading; the listener has said how."""
    hang_up = scope.get("hang_up")
    if hang_up is not None:
        hang_up()
        await asyncio.sleep(0)  # the listener hears of it in the next turn of the loop


def _is_closing(scope: Scope) -> bool:
    asked = scope.get("is_closing")
    return asked is not None and asked()


# ---------------------------------------------------------------- decoding


def _decoder(route: Route) -> Callable[[bytes], Any]:
    if route.body is bytes or route.body is None:
        return lambda data: data
    tolerant = route.style is not Style.OURS
    decoder = msgspec.json.Decoder(route.body, strict=not tolerant)
    by_people = tolerant or route.path.startswith("/api/")

    def decode(data: bytes) -> Any:
        if by_people and _NUL in data:
            # No database can store it. Bots may say it: what they tell of commands is not theirs to choose.
            raise InvalidRequest([Problem("body", "a text with \\u0000", "text without it", "text")])
        try:
            return decoder.decode(data if data.strip() not in (b"", b"null") else b"{}" if tolerant else data or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest([_problem(str(error), "body")]) from None

    return decode


def _query_reader(kind: Any, *, tolerant: bool = False) -> Callable[[dict[str, list[str]]], Any]:
    if kind is None:
        return _ignored
    lists = {name for name, hint in get_type_hints(kind).items() if get_origin(hint) is list}

    def read(asked: dict[str, list[str]]) -> Any:
        if tolerant:
            # An empty value is none, and of several the last one counts.
            asked = {name: kept for name, values in asked.items() if (kept := [text for text in values if text])}
            asked = {name: values if name in lists else values[-1:] for name, values in asked.items()}
        given = {name: values if name in lists or len(values) > 1 else values[0] for name, values in asked.items()}
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequest([_problem(str(error), "query")]) from None

    return read


def _ignored(asked: dict[str, list[str]]) -> None:
    return None


def _asked(query: bytes) -> dict[str, list[str]]:
    asked: dict[str, list[str]] = {}
    if not query:
        return asked
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_QUERY_FIELDS)
    except ValueError:
        raise InvalidRequest([Problem("query", "too many fields", f"at most {MOST_QUERY_FIELDS}", "length")]) from None
    for name, value in pairs:
        if "\x00" in value:
            raise InvalidRequest([Problem(name, "a text with NUL", "text without it", "text")])
        asked.setdefault(name, []).append(value)
    return asked


def _problem(message: str, where: str) -> Problem:
    """What the decoder says, as the one shape of a problem."""
    found = _AT.search(message)
    path = found[1] if found else ""
    return Problem(path or where, "something else", _AT.sub("", message), "type")
