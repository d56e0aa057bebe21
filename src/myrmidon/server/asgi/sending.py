"""Sends responses and event streams, and gives up on clients that do not read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Scope, Send


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
    connection = scope.get("connection")  # the HttpProtocol of asgi/protocol.py; tests have none
    if connection is not None and scope["method"] != "HEAD":
        connection.hold_head()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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
