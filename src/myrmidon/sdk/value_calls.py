"""Calls about the values of jobs."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

import msgspec

from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.transport import Transport
from myrmidon.wire.values import TYPE_HEADER, ValueList


class ValueContent(NamedTuple):
    """The content of a value in MessagePack, and its type."""

    type: str
    data: bytes


class ValueCalls:
    """Calls one server about values."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def job_values(self, job_id: str, *, limit: int = 100, cursor: str | None = None) -> ValueList:
        """The constants and outputs of the next ``limit`` tasks of a job."""
        query = {"limit": limit, "cursor": cursor}
        reply = self._transport.call("GET", f"/api/v1/jobs/{quote(job_id, safe='')}/values", query=query)
        try:
            return msgspec.json.decode(reply.data, type=ValueList)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CallFailed(f"The response is not the expected one: {error}. Check the server's version.") from None

    def value(self, value_id: str) -> ValueContent:
        """The content of a value that is written."""
        reply = self._transport.call("GET", f"/api/v1/values/{quote(value_id, safe='')}")
        return ValueContent(reply.headers.get(TYPE_HEADER, ""), reply.data)
