"""Connections: uvicorn's HTTP protocol with the limits that it lacks, and the responses that are sent on it.

Adds a deadline and a size limit for request headers, a deadline for clients that do not read their response, a limit on
connections, and a callback for long polls whose connection is lost. Drops trailers, the fields after a chunked body.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Any, cast

from starlette.types import Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from myrmidon.server.calls import accepts

MAX_HEADER_BYTES = 64 << 10
VERSIONS = ("1.1", "1.0")
TLS_HANDSHAKE = b"\x16\x03"
"""How a connection of a client of HTTPS begins."""
MIN_READ_BYTES_PER_S = 16 << 10
"""A client that reads its response more slowly than this is disconnected."""
MAX_JOINED_BYTES = 64 << 10
"""A longer body is not copied to be sent with its head."""
COMPRESS_FROM = 32 << 10
_GZIP = 31  # zlib: the largest window, and the header of gzip


class ResponseTransport:
    """The transport of a connection, which can send the head of a response together with its body.

    uvicorn writes them one after the other, and each write costs a system call here and a wakeup of the client.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.close = transport.close
        self._head = b""
        self.holds_next = False
        """The next write is a head, and its body follows at once."""

    def write(self, data: bytes) -> None:
        if self.holds_next:
            self.holds_next, self._head = False, data
            return
        head, self._head = self._head, b""
        if len(data) > MAX_JOINED_BYTES and head:
            self._transport.write(head)
            self._transport.write(data)
        else:
            self._transport.write(head + data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class HttpProtocol(HttpToolsProtocol):
    """One connection. The limits are class attributes because uvicorn creates the instances."""

    header_timeout_s = 10.0
    body_timeout_s = 30.0
    max_connections = 50_000

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._incomplete_bytes = 0
        """What was received since the request began, or since the last piece of its body."""
        self._in_head = False
        """The head of a request is being received."""
        self.received: Any = None
        """The scope of the last request that is here as a whole."""
        self._too_large = False
        self._current: RequestResponseCycle | None = None
        """The request being answered; uvicorn's ``cycle`` is the last one received, and clients may pipeline."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._responses = ResponseTransport(transport)
        self.transport = cast("asyncio.Transport", self._responses)
        if len(self.connections) > self.max_connections:
            transport.abort()
            return
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the handler of a long poll: nobody is left to receive its response."""
        for timer in (self._header_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        request = self._current
        if request is not None and not request.response_complete:
            request.disconnected = True
            request.message_event.set()
        super().connection_lost(exc)
        on_disconnect = request.scope.get("on_disconnect") if request else None
        if callable(on_disconnect):
            on_disconnect()

    # ------------------------------------------------ receiving

    def data_received(self, data: bytes) -> None:
        if self._current is None and data.startswith(TLS_HANDSHAKE):
            self.logger.warning("A client spoke HTTPS to this port, which speaks HTTP.")
            self.send_400_response("This port speaks HTTP, not HTTPS.")
            return
        self._incomplete_bytes += len(data)
        super().data_received(data)
        if self._incomplete_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            # The parser delivers only complete fields: a header or trailer that never ends is noticed here.
            self._too_large = True
            self.send_400_response("")
        elif self._header_timer is None and (
            # Empty lines or the rest of an ignored body ended the keep-alive timer without starting a request.
            self._in_head
            or (self.timeout_keep_alive_task is None and self.cycle is not None and self.cycle.response_complete)
        ):
            self._start_header_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        self._incomplete_bytes = 0
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Check the size of the head and the version, and begin the request.

        A line without a version ends at a line feed alone for the parser, and elsewhere for a proxy: what follows could
        be a request that the proxy has not seen.

        Trailers, the fields after a chunked body, then arrive in a list that nobody reads: proxies check and replace
        headers only, so a trailer could be forged.
        """
        fields = len(b": \r\n") * len(self.headers)
        for name, value in self.headers:
            fields += len(name) + len(value)
        line = len(self.parser.get_method()) + len(self.url) + len(b"  HTTP/1.1\r\n\r\n")
        if line + fields > MAX_HEADER_BYTES:
            self._too_large = True
            raise ValueError("headers too large")  # ends the parsing; uvicorn then calls send_400_response
        if self.parser.get_http_version() not in VERSIONS:
            raise ValueError("unknown version")
        self._in_head = False
        if self._header_timer is not None:
            self._stop_header_timer()
        super().on_headers_complete()
        self.headers = []
        if not self.pipeline:
            self._current = self.cycle

    def on_body(self, body: bytes) -> None:
        self._incomplete_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._incomplete_bytes = 0
        super().on_message_complete()
        self.received = self.scope
        if self.cycle.response_complete:
            # The response was sent before the body had arrived: only now is the connection idle.
            self._stop_header_timer()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        self.timeout_keep_alive_handler()

    # ------------------------------------------------ sending

    def hold_head(self) -> None:
        """Send the head that is written next together with its body. If writing is paused, others may write first."""
        self._responses.holds_next = not self.flow.write_paused

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._current = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_read_timer()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start_read_timer()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response("The headers are too large." if self._too_large else msg)
        self._start_read_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_read_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_read_timer()
        if self.transport.is_closing():
            self._start_read_timer()

    def _start_read_timer(self) -> None:
        """Abort the connection unless the client reads what is buffered: a close would wait for it for ever."""
        unread = self.transport.get_write_buffer_size()
        if unread and self._read_timer is None:
            timeout_s = self.body_timeout_s + unread / MIN_READ_BYTES_PER_S
            self._read_timer = self.loop.call_later(timeout_s, self.transport.abort)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


# ---------------------------------------------------------------- responses


class Disconnected(Exception):
    """The client has closed the connection or has stopped reading: no response can be sent."""


async def send_response(
    scope: Scope, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: Any, read_timeout_s: float
) -> None:
    """Send bytes, or the pieces of an async iterator as they come."""
    if isinstance(body, AsyncIterator):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await _send_stream(scope, send, body, read_timeout_s)
        return
    body = body or b""
    headers.append((b"content-length", str(len(body)).encode()))
    connection = scope.get("connection")  # an HttpProtocol; tests have none
    if connection is not None and scope["method"] != "HEAD":
        connection.hold_head()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def until_read(scope: Scope) -> None:
    """Return when the client has read most of what was sent to it, or is disconnected."""
    connection = scope.get("connection")
    if connection is not None and connection.flow.write_paused:
        await connection.flow.drain()


async def compress(accepted: str, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    """A large answer of the API, compressed if the client accepts gzip.

    A page shows lists of hundreds of KB again and again while they change. Answers with tokens are smaller than these:
    the size of a compressed answer could tell something of its content. It takes milliseconds, so a thread does it.
    """
    if (b"content-type", b"application/json") not in headers or not accepts(accepted, "gzip"):
        return body
    headers += [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
    return await asyncio.to_thread(zlib.compress, body, 1, _GZIP)


async def _send_stream(scope: Scope, send: Send, body: AsyncIterator[bytes], read_timeout_s: float) -> None:
    """Send pieces until the stream ends, the client stops reading, or its token is no longer valid.

    An idle stream yields a keep-alive every few seconds, so both are noticed there too.
    """
    is_authorized = scope.get("is_authorized")  # only of routes that wait: others end by themselves
    try:
        async for piece in body:
            if is_authorized is not None and not await is_authorized():
                break
            try:
                async with asyncio.timeout(read_timeout_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except TimeoutError:
                await _abort(scope)
                raise Disconnected from None
        await send({"type": "http.response.body", "body": b""})
    finally:
        close = getattr(body, "aclose", None)
        if close is not None:
            await close()


async def _abort(scope: Scope) -> None:
    """Close a connection whose client has stopped reading."""
    connection = scope.get("connection")
    if connection is not None:
        connection.transport.abort()
        await asyncio.sleep(0)  # the protocol's connection_lost runs in the next iteration of the event loop


def is_closing(scope: Scope) -> bool:
    """Whether the transport of this connection is being closed."""
    connection = scope.get("connection")
    return connection is not None and connection.transport.is_closing()
