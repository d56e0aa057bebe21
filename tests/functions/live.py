"""A real server with a real bot for tests of functions, and a client for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from myrmidon import Client
from myrmidon.sdk.transport import Transport
from tests.bot.bots import BotProcess
from tests.bot.test_live import live_bot
from tests.live import LiveServer

POOL = "default"
"""The pool that the SDK uses unless it is told another one."""


@contextmanager
def function_bot(server: LiveServer, folder: Path, *, slots: int = 2) -> Iterator[BotProcess]:
    """A bot that runs functions in this many slots."""
    with live_bot(server, folder, POOL, "--slots", str(slots)) as bot:
        yield bot


@contextmanager
def a_client(server: LiveServer, **options: str) -> Iterator[Client]:
    with Client(Transport(server.url, server.token), **options) as client:
        yield client
