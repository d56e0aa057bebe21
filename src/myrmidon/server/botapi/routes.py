"""The routes of the bot API."""

from __future__ import annotations

from myrmidon.server.botapi.exchange import exchange
from myrmidon.server.botapi.files import fetch_file, store_output
from myrmidon.server.botapi.handshake import handshake
from myrmidon.server.botapi.heartbeat import event, heartbeat
from myrmidon.server.botapi.logs import MAX_LOG_BYTES, upload_log
from myrmidon.server.botapi.messages import (
    BotEvent,
    EventResponse,
    ExchangeRequest,
    ExchangeResponse,
    HandshakeRequest,
    HandshakeResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LogQuery,
    LogStored,
)
from myrmidon.server.calls import BOTS, INTRODUCERS, Route, StreamedBody
from myrmidon.wire.files import MAX_FILE_BYTES, StoredFile

ROUTES = (
    Route(
        method="POST",
        path="/bot/v1/handshake",
        call=handshake,
        who=INTRODUCERS | BOTS,
        summary="Start or continue a bot's session",
        body=HandshakeRequest,
        out=HandshakeResponse,
        mutates=True,
    ),
    Route(
        method="POST",
        path="/bot/v1/exchange",
        call=exchange,
        who=BOTS,
        summary="Report and get work; held while there is none",
        body=ExchangeRequest,
        out=ExchangeResponse,
        mutates=True,
        waits=True,
        vital=True,
    ),
    Route(
        method="POST",
        path="/bot/v1/heartbeat",
        call=heartbeat,
        who=BOTS,
        summary="Renew the leases of a busy bot's runs; which of them must stop",
        body=HeartbeatRequest,
        out=HeartbeatResponse,
        mutates=True,
        vital=True,
    ),
    Route(
        method="POST",
        path="/bot/v1/log/{run}/{stream}",
        call=upload_log,
        who=BOTS,
        summary="Upload bytes of a run's output at their offset",
        body=bytes,
        query=LogQuery,
        out=LogStored,
        mutates=True,
        body_limit=MAX_LOG_BYTES,
    ),
    Route(
        method="GET",
        path="/bot/v1/runs/{run}/files/{digest}",
        call=fetch_file,
        who=BOTS,
        summary="Fetch a file that a run needs",
        media="application/octet-stream",
    ),
    Route(
        method="PUT",
        path="/bot/v1/runs/{run}/files/{digest}",
        call=store_output,
        who=BOTS,
        summary="Store a file that a run has produced",
        body=StreamedBody,
        out=StoredFile,
        mutates=True,
        body_limit=MAX_FILE_BYTES,
    ),
    Route(
        method="POST",
        path="/bot/v1/event",
        call=event,
        who=BOTS,
        summary="Record an event of a bot for its owner",
        body=BotEvent,
        out=EventResponse,
        mutates=True,
    ),
)
