"""One route at work: admits a call, runs its handler, and turns the result or the error into a response.

What is the same for every call happens here: Host and Origin, authentication and authorization, overload, the body
(request_bodies.py), error bodies, metrics and the request log.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from myrmidon.model.errors import (
    BrokenPromise,
    Forbidden,
    MyrmidonError,
    NotFound,
    Overloaded,
    Stopping,
    StoreError,
    TooLarge,
    TooSlow,
    Unauthorized,
)
from myrmidon.model.ids import show_run
from myrmidon.scheduler.idempotency import check_key
from myrmidon.server.asgi.decoding import body_decoder, parse_query, query_decoder, read_headers
from myrmidon.server.asgi.protocol import COMPRESS_FROM, Disconnected, compress, send_response, until_read
from myrmidon.server.asgi.request_bodies import SMALL_BODY, CallerLimits, Limit, RequestBodies
from myrmidon.server.auth.authenticator import Authenticator
from myrmidon.server.auth.cookies import session_of
from myrmidon.server.auth.hawk import SignedCall, is_hawk
from myrmidon.server.auth.origins import check_is_json, csrf_token
from myrmidon.server.calls import BOTS, INTRODUCERS, NOBODY, Answer, Call, Identity, Role, Route, StreamedBody
from myrmidon.server.context import ServerContext
from myrmidon.server.database import Purpose, purpose
from myrmidon.server.large_documents import LARGE_BYTES

log = structlog.get_logger("server")

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
SECURITY_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_MAX_WARNING = 4_096
encode_json = msgspec.json.Encoder().encode

Headers = list[tuple[bytes, bytes]]
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIds:
    """An id for each call, by which its lines in the log are found."""

    def __init__(self) -> None:
        self._prefix = os.urandom(5).hex()
        self._numbers = itertools.count(1)

    def of(self, headers: Mapping[str, str]) -> str:
        """The caller's own id where it is harmless, so that its log and ours can be matched; else a new one."""
        proposed = headers.get("x-request-id", "")
        if proposed and _REQUEST_ID.fullmatch(proposed):
            return proposed
        return f"{self._prefix}-{next(self._numbers):x}"


class Endpoint:
    """Answers the calls of one route."""

    def __init__(
        self,
        context: ServerContext,
        authenticator: Authenticator,
        route: Route,
        request_ids: RequestIds,
        limits: CallerLimits,
    ) -> None:
        self._context = context
        self._authenticator = authenticator
        self._route = route
        self._request_ids = request_ids
        self._limits = limits
        self._bodies = RequestBodies(context, route, limits)
        self._decode_body = body_decoder(route)
        self._decode_query = query_decoder(route.query, tolerant=route.style.tolerant)
        self._purpose = _purpose(route)
        self._takes_cookie = route.takes_cookie
        self._is_public = Role.NOBODY in route.who and not route.asks_who
        self._fields: Headers = [(b"content-type", route.media.encode()), *SECURITY_HEADERS]
        self._timers: dict[int, Callable[[float], None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call; every error becomes a response.

        The call counts as load only until its response is made, and not while its body arrives: clients that send or
        read slowly must not block others. ``held`` is what it takes up of its caller's limits, until the response is
        read.
        """
        context, route = self._context, self._route
        purpose.set(self._purpose)
        started = time.perf_counter()
        headers = read_headers(scope["headers"])
        request_id = self._request_ids.of(headers)
        counts = not route.waits
        try:
            with ExitStack() as held:
                context.state.num_calls += counts
                try:
                    call = await self._admit(scope, receive, headers, request_id, held)
                    try:
                        status, fields, body = self._build_response(await route.call(context, call))
                        if isinstance(body, bytes) and len(body) > SMALL_BODY and not route.mutates:
                            caller = _caller(call.who, call.address)
                            held.enter_context(self._limits.hold(Limit.BODY_BYTES, caller, len(body)))
                        if call.warnings:
                            fields.append(_warning(call.warnings))
                    finally:
                        if isinstance(call.body, StreamedBody):
                            await call.body.close()
                except Disconnected:
                    raise
                except Exception as error:  # noqa: BLE001 - logged under the request id that the caller gets
                    status, fields, body = self._build_error(error, request_id, scope.get("identity", NOBODY))
                finally:
                    context.state.num_calls -= counts
                if isinstance(body, bytes) and len(body) >= COMPRESS_FROM:
                    body = await compress(headers.get("accept-encoding", ""), fields, body)
                fields.append((b"x-request-id", request_id.encode()))
                if route.style.cross_origin:
                    fields += cors_headers(self._authenticator, headers.get("origin", ""))
                await send_response(scope, send, status, fields, body, context.settings.body_timeout_s)
                seconds = time.perf_counter() - started
                await until_read(scope)
        except Disconnected:
            return
        except asyncio.CancelledError:
            if "on_disconnect" in scope:
                return  # a long poll whose client has disconnected
            raise
        self._record(status, seconds, request_id, scope.get("identity"))

    async def _admit(
        self, scope: Scope, receive: Receive, headers: Mapping[str, str], request_id: str, held: ExitStack
    ) -> Call:
        """Check everything that must hold before a handler sees the call, and decode it."""
        context, authenticator, route = self._context, self._authenticator, self._route
        now = context.now()
        address = self._check_address(scope, headers)
        query = parse_query(scope["query_string"]) if scope["query_string"] else {}
        params = scope.get("path_params") or {}
        if params and any("\x00" in value for value in params.values()):
            raise NotFound("page", "with NUL in its name")
        bearer, cookie, signed = self._credentials(scope, headers, query, address)
        # Public routes are not authenticated: health must be answered without the database.
        if self._is_public:
            identity = NOBODY
        elif signed is not None:
            identity = await authenticator.identify_signed(signed, address, now)
        else:
            known = authenticator.recognize(bearer, now) if bearer else None
            identity = known or await authenticator.identify(bearer, address, cookie, now)
        scope["identity"] = identity
        if identity.role not in route.who:
            raise _not_allowed(identity, route)
        if route.from_page or (identity.session and route.mutates):
            self._check_page(identity, headers)
        self._check_load()
        key = headers.get("idempotency-key")
        if key is not None:
            check_key(key)
        if route.waits:
            self._hold_wait(scope, held, _caller(identity, address))
            scope["is_authorized"] = partial(authenticator.is_still_valid, identity, bearer, address, cookie)
        body, data, warnings = None, b"", list[str]()
        if route.body is StreamedBody:
            body = self._bodies.stream(receive, headers, _caller(identity, address))
        elif route.body is not None:
            data = await self._bodies.receive(scope, receive, headers, partial(_caller, identity, address), held)
            self._check_load()
            if len(data) >= LARGE_BYTES and route.body is not bytes:
                # On a thread, so that other calls are answered; and one at a time, because it may take much memory.
                async with context.large_documents.enter(len(data)):
                    body, warnings = await context.db.run_in_thread(partial(self._decode_body, data))
            else:
                body, warnings = self._decode_body(data)
            now = context.now()  # it may have taken minutes to arrive and to be decoded
        if signed is not None:
            signed.check_payload(data, headers.get("content-type", ""))
        return Call(
            who=identity,
            now=now,
            body=body,
            body_size=len(data),
            query=self._decode_query(query) if route.query is not None else None,
            params=params,
            request_key=key,
            request_id=request_id,
            address=address,
            bearer=bearer,
            headers=headers,
            warnings=warnings,
        )

    def _check_address(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Check which host a call is meant for and which page has sent it; the address of the client."""
        authenticator, mutates = self._authenticator, self._route.mutates
        host, origin = headers.get("host", ""), headers.get("origin", "")
        if host not in authenticator.origins.known or (origin and mutates):
            authenticator.origins.check_host(host, origin, mutates=mutates)
        peer: str = scope["client"][0] if scope.get("client") else ""
        forwarded = headers.get("x-forwarded-for")
        return authenticator.address_of(peer, forwarded) if forwarded is not None else peer

    def _hold_wait(self, scope: Scope, held: ExitStack, caller: str) -> None:
        """Count a call that waits, and let it end when its connection is lost."""
        held.enter_context(self._limits.hold(Limit.WAITS, caller))
        if self._route.streams_events:
            held.enter_context(self._limits.hold(Limit.EVENT_STREAMS, caller))
        if task := asyncio.current_task():
            scope["on_disconnect"] = task.cancel  # called by asgi/protocol.py

    def _credentials(
        self, scope: Scope, headers: Mapping[str, str], query: Mapping[str, list[str]], address: str
    ) -> tuple[str, str, SignedCall | None]:
        """The bearer token, the session's cookie and what a Hawk header signs, as far as the route takes them.

        A call with an Authorization header is judged by that alone.
        """
        route, authorization = self._route, headers.get("authorization", "")
        scheme, _, token = authorization.partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        if not bearer and route.query_token:
            bearer = query.get("tok", [""])[-1]
        if authorization and route.style.takes_hawk and is_hawk(authorization):
            return bearer, "", self._signed_call(scope, headers, authorization)
        takes_cookie = self._takes_cookie and "authorization" not in headers
        return bearer, session_of(self._context.settings, headers, address) if takes_cookie else "", None

    def _signed_call(self, scope: Scope, headers: Mapping[str, str], authorization: str) -> SignedCall:
        """What a Hawk header signs."""
        query = scope["query_string"].decode("latin-1")
        return SignedCall(
            authorization=authorization,
            method=scope["method"],
            resource=scope["raw_path"].decode("latin-1") + (f"?{query}" if query else ""),
            host=headers.get("host", ""),
        )

    def _check_page(self, identity: Identity, headers: Mapping[str, str]) -> None:
        """Refuse what another site may have made a browser send; for calls from pages, and changes by cookie."""
        route, origins = self._route, self._authenticator.origins
        if route.from_page:
            origins.check_same_origin(headers)
            check_is_json(headers)
        if identity.session and route.mutates:
            expected = csrf_token(self._context.keys.csrf, identity.session)
            origins.check_change_by_cookie(headers, expected, has_body=route.body is not None)

    def _check_load(self) -> None:
        if self._route.vital:
            return
        state = self._context.state
        if state.stopping:
            raise Stopping("This server is stopping.")
        if state.num_calls > self._context.settings.most_calls:
            raise Overloaded(f"{state.num_calls} calls are being answered already.")

    def _build_response(self, result: Any) -> tuple[int, Headers, Any]:
        """Status, headers and body for what a handler returned."""
        if isinstance(result, Answer):
            return self._build_answer(result)
        if isinstance(result, AsyncIterator):
            return self._build_answer(Answer(body=result))
        return 200, self._fields.copy(), result if result is None or isinstance(result, bytes) else encode_json(result)

    def _build_answer(self, answer: Answer) -> tuple[int, Headers, Any]:
        """As _build_response, for a response with its own status or headers."""
        body, media = answer.body, self._route.media
        fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
        names = {name for name, _ in fields}
        if isinstance(body, AsyncIterator):
            media = EVENT_STREAM if media == JSON else media
        elif body is not None and not isinstance(body, bytes):
            body = encode_json(body)
        usual = [(b"content-type", media.encode()), *SECURITY_HEADERS]
        return answer.status, fields + [(name, value) for name, value in usual if name not in names], body

    def _build_error(self, error: Exception, request_id: str, who: Identity) -> tuple[int, Headers, bytes]:
        """The response for an error. Unexpected errors are logged and reported without details."""
        if isinstance(error, (ExceptionGroup, TimeoutError)) or not isinstance(error, MyrmidonError):
            log.error("handler failed", path=self._route.path, request_id=request_id, exc_info=error)
            error = BrokenPromise(f"Internal error. The server's log has details under request id {request_id}.")
        elif isinstance(error, StoreError):
            log.warning("database error", code=error.code, request_id=request_id, error=str(error))
            if who.role is not Role.ADMIN:  # messages of drivers name hosts, ports and files
                error = type(error)(
                    f"The database is unavailable. The server's log has details under request id {request_id}."
                )
        elif error.status >= 500 and not error.retry_after_s:
            log.error("handler failed", path=self._route.path, request_id=request_id, exc_info=error)
        self._context.metrics.call_failed(error.code)
        fields = [(b"content-type", JSON.encode()), *SECURITY_HEADERS]
        if error.retry_after_s:
            fields.append((b"retry-after", str(error.retry_after_s).encode()))
        if isinstance(error, Unauthorized):
            fields.append((b"www-authenticate", b"Hawk" if self._route.style.takes_hawk else b"Bearer"))
        if isinstance(error, (TooLarge, TooSlow)):
            fields.append((b"connection", b"close"))
        reply = self._route.style.error_reply(error.status, error.as_dict())
        fields += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()]
        return reply.status, fields, encode_json(reply.body)

    def _record(self, status: int, seconds: float, request_id: str, who: Identity | None) -> None:
        """Count the call; log changes made by people and everything that failed."""
        route = self._route
        if not route.waits:
            timer = self._timers.get(status)
            if timer is None:
                timer = self._timers[status] = self._context.metrics.requests(route.method, route.path, status)
            timer(seconds)
        by_person = route.mutates and not route.quiet and who is not None and who.role is not Role.BOT
        if by_person or status >= 400:
            # A run has the name of its submitter.
            via = {"via": show_run(who.task_id, who.run)} if who is not None and who.task_id is not None else {}
            log.info(
                "request",
                method=route.method,
                path=route.path,
                status=status,
                ms=round(seconds * 1000, 1),
                who=who.name if who else None,
                request_id=request_id,
                **via,
            )


def _purpose(route: Route) -> Purpose:
    if route.who <= INTRODUCERS | BOTS:
        return Purpose.BOTS
    if route.mutates or route.vital:
        return Purpose.CHANGES
    return Purpose.WAITS if route.waits else Purpose.QUERIES


def _caller(identity: Identity, address: str) -> str:
    """The caller against whose limits a call counts."""
    return identity.key if identity.role is not Role.NOBODY else address


def _warning(warnings: list[str]) -> tuple[bytes, bytes]:
    """The header for what was accepted without effect; ASCII only, because texts of the caller are in it."""
    text = "; ".join(dict.fromkeys(warnings)).encode("ascii", "backslashreplace")
    return b"myrmidon-warning", text if len(text) <= _MAX_WARNING else text[: _MAX_WARNING - 3] + b"..."


def cors_headers(authenticator: Authenticator, origin: str) -> Headers:
    """Headers that let a page of another origin read the response, if the settings allow that origin."""
    if not origin or not authenticator.origins.allows_origin(origin):
        return []
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]


def _not_allowed(who: Identity, route: Route) -> MyrmidonError:
    if who.role is Role.NOBODY:
        return Unauthorized("This needs a token.", reason="missing")
    roles = ", ".join(role for role in Role if role in route.who)
    message = f"A {who.role} token may not {route.method} {route.path}; use a token with the role {roles}."
    return Forbidden(message, reason="role")
