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
def function_bot(server: LiveServer, folder: Path, *flags: str, slots: int = 2) -> Iterator[BotProcess]:
    """A bot that runs functions in this many slots."""
    with live_bot(server, folder, POOL, "--slots", str(slots), *flags) as bot:
        yield bot


@contextmanager
def a_client(server: LiveServer, url: str = "", **options: str) -> Iterator[Client]:
    """A client of a server; ``url`` is another way to it."""
    with Client(Transport(url or server.url, server.token), **options) as client:
        yield client
