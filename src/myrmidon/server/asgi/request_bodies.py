"""Receives the bodies of one route: their size, their pace, what their callers may have in memory, and decoding.

Bodies that arrive, answers that are not read and calls that wait use memory and a connection for as long as their
client likes, and each event wakes every event stream. So what the calls of one caller may take up of a server at the
same time is limited; the limits are per caller, so that one of them does not block the others.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum

from starlette.types import Receive, Scope

from myrmidon.model.errors import InvalidRequest, Overloaded, Problem, TooLarge, TooSlow
from myrmidon.server.asgi.protocol import Disconnected
from myrmidon.server.calls import Route, StreamedBody
from myrmidon.server.context import ServerContext
from myrmidon.server.settings import Settings

MIN_BODY_BYTES_PER_S = 64 << 10
ZLIB = "application/json-zlib"
SMALL_BODY = 64 << 10
"""The number of bodies limits the memory for those up to this size."""


class Limit(StrEnum):
    """What is limited; the values are names of settings."""

    BODIES = "most_bodies"
    BODY_BYTES = "most_body_bytes"
    WAITS = "most_waits"
    EVENT_STREAMS = "most_event_streams"


_TOLD = {
    Limit.BODIES: "request bodies of this caller are arriving already. Send fewer at a time.",
    Limit.BODY_BYTES: "bytes are the most that large bodies and unread answers of this caller may have together. "
    "Make fewer calls at a time.",
    Limit.WAITS: "calls of this caller are waiting already. Wait for many tasks in one call, or use another token.",
    Limit.EVENT_STREAMS: "event streams of this caller are open already. Close some, share one, or use another token.",
}


class CallerLimits:
    """What the callers of one server take up."""

    def __init__(self, settings: Settings) -> None:
        self._most = {limit: getattr(settings, limit) for limit in Limit}
        self._used: Counter[tuple[Limit, str]] = Counter()

    @contextmanager
    def hold(self, limit: Limit, caller: str, number: int = 1) -> Iterator[None]:
        """Count something of a caller until the block ends; Overloaded if that would be too much.

        An answer that is larger than the limit is allowed while there is nothing else.
        """
        key = limit, caller
        if self._used[key] and self._used[key] + number > self._most[limit]:
            raise Overloaded(f"{self._most[limit]} {_TOLD[limit]}", advice="")
        self._used[key] += number
        try:
            yield
        finally:
            self._used[key] -= number
            if not self._used[key]:
                del self._used[key]


class RequestBodies:
    """Receives the bodies of one route."""

    def __init__(self, context: ServerContext, route: Route, limits: CallerLimits) -> None:
        self._context = context
        self._route = route
        self._limits = limits
        settings = context.settings
        is_large = route.body_limit > (1 << 20)
        limit = min(route.body_limit, settings.large_body_limit if is_large else settings.body_limit)
        self._limit = limit + route.extra_body

    async def receive(
        self, scope: Scope, receive: Receive, headers: Mapping[str, str], caller: Callable[[], str], held: ExitStack
    ) -> bytes:
        """The whole body; TooLarge beyond the limit, TooSlow when it arrives below the minimum rate.

        What a large one takes up of its caller's limits is added to ``held``. ``caller`` is not called for a small one
        that is here already, which takes up nothing more.
        """
        size = self._announced(headers)
        connection = scope.get("connection")
        if size <= SMALL_BODY and connection is not None and connection.received is scope:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            data: bytes = message["body"]
        else:
            data = await self._receive_slowly(receive, caller(), size, held)
        if self._route.style.tolerant and headers.get("content-type", "").startswith(ZLIB):
            return self._decompress(data)
        return data

    async def _receive_slowly(self, receive: Receive, caller: str, size: int, held: ExitStack) -> bytes:
        if size > SMALL_BODY:
            held.enter_context(self._limits.hold(Limit.BODY_BYTES, caller, size))
        pieces = [piece async for piece in self._pieces(receive, caller)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def stream(self, receive: Receive, headers: Mapping[str, str], caller: str) -> StreamedBody:
        """A body that its handler receives."""
        self._announced(headers)
        return StreamedBody(self._pieces(receive, caller))

    def _announced(self, headers: Mapping[str, str]) -> int:
        """The size of the body that a call announces, else the largest that it could have."""
        announced = headers.get("content-length", "0" if "transfer-encoding" not in headers else "")
        if not announced.isdigit():
            return self._limit
        if int(announced) > self._limit:
            raise TooLarge(f"The body has {announced} bytes; this call takes {self._limit}.")
        return int(announced)

    async def _pieces(self, receive: Receive, caller: str) -> AsyncGenerator[bytes, None]:
        """The body in pieces. The next one is received when the last one was used, so that few are in memory.

        Until its body is there, the call counts as an arriving body of its caller and not as load.
        """
        clock, state, counts = asyncio.get_running_loop().time, self._context.state, not self._route.waits
        deadline = clock() + self._context.settings.body_timeout_s
        size, more = 0, True
        state.num_calls -= counts
        state.num_bodies += 1
        try:
            with self._limits.hold(Limit.BODIES, caller):
                while more:
                    try:
                        async with asyncio.timeout_at(deadline + size / MIN_BODY_BYTES_PER_S):
                            message = await receive()
                    except TimeoutError:
                        raise TooSlow("The body did not arrive in time.") from None
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    piece, more = message.get("body", b""), bool(message.get("more_body"))
                    size += len(piece)
                    if size > self._limit:
                        raise self._too_large()
                    received_at = clock()
                    yield piece
                    deadline += clock() - received_at  # the client must not pay for a slow disk
        finally:
            state.num_bodies -= 1
            state.num_calls += counts

    def _decompress(self, data: bytes) -> bytes:
        """A body that was sent with zlib."""
        try:
            decompressor = zlib.decompressobj()
            plain = decompressor.decompress(data, self._limit)
        except zlib.error:
            raise InvalidRequest([Problem("body", f"{len(data)} bytes", "zlib data", "zlib")]) from None
        if decompressor.unconsumed_tail:
            raise self._too_large()
        return plain

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The body has more than the {self._limit} bytes that this call takes.")
