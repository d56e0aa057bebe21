"""Receives the bodies of one route: their size, their pace, what their callers may have in memory, and decoding."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from starlette.types import Receive

from myrmidon.model.errors import InvalidRequest, Problem, TooLarge, TooSlow
from myrmidon.server.asgi.caller_limits import CallerLimits, Limit
from myrmidon.server.asgi.decoding import body_decoder
from myrmidon.server.asgi.sending import Disconnected
from myrmidon.server.calls import Route, StreamedBody, Style
from myrmidon.server.context import ServerContext
from myrmidon.server.large_documents import LARGE_BYTES

MIN_BODY_BYTES_PER_S = 64 << 10
ZLIB = "application/json-zlib"
SMALL_BODY = 64 << 10
"""The number of bodies limits the memory for those up to this size."""


class RequestBodies:
    """Receives and decodes the bodies of one route."""

    def __init__(self, context: ServerContext, route: Route, limits: CallerLimits) -> None:
        self._context = context
        self._route = route
        self._limits = limits
        self._decode = body_decoder(route)
        settings = context.settings
        is_large = route.body_limit > (1 << 20)
        limit = min(route.body_limit, settings.large_body_limit if is_large else settings.body_limit)
        self._limit = limit + route.extra_body

    async def receive(self, receive: Receive, headers: Mapping[str, str], caller: str, held: ExitStack) -> bytes:
        """The whole body; TooLarge beyond the limit, TooSlow when it arrives below the minimum rate.

        What a large one takes up of its caller's limits is added to ``held``.
        """
        size = self._announced(headers)
        if size > SMALL_BODY:
            held.enter_context(self._limits.hold(Limit.BODY_BYTES, caller, size))
        pieces = [piece async for piece in self._pieces(receive, caller)]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._route.style is not Style.OURS and headers.get("content-type", "").startswith(ZLIB):
            return self._decompress(data)
        return data

    def stream(self, receive: Receive, headers: Mapping[str, str], caller: str) -> StreamedBody:
        """A body that its handler receives."""
        self._announced(headers)
        return StreamedBody(self._pieces(receive, caller))

    async def decode(self, data: bytes) -> Any:
        """The body as the route's struct; a large one is decoded on a thread, so that other calls are answered."""
        if len(data) < LARGE_BYTES or self._route.body is bytes:
            return self._decode(data)
        return await self._context.db.run_in_thread(partial(self._decode, data))

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
        """What a client of Swarming's API sent with zlib."""
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
