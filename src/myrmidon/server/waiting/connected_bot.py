"""Seats: a bot as one server knows it, in which line it stands, and what a commit means for those who wait.

Nouns of the waiting room only; who is woken, and when, is in waiting.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from myrmidon.model.ids import Micros


class Woken(Struct, frozen=True):
    """Why a held poll goes on."""

    queue: int = 0
    hops: int = 0
    look: bool = False
    reply: Any = None


TIME_IS_UP = Woken()
LOOK = Woken(look=True)


class Line:
    """The waiting bots that serve exactly the same queues, in the order in which they came."""

    __slots__ = ("num_seats", "queues", "waiting")

    def __init__(self, queues: frozenset[int]) -> None:
        self.queues = queues
        self.waiting: dict[Seat, None] = {}
        self.num_seats = 0


class Seat:
    """A bot as this server knows it since it last looked at the database."""

    __slots__ = (
        "bot_id",
        "caches",
        "claim",
        "config",
        "flushed_at",
        "future",
        "line",
        "looked_at",
        "met_at",
        "nonce",
        "number",
        "order",
        "os",
        "outdated",
        "pace",
        "reserved",
        "seen_at",
        "session",
        "state_at",
        "times_told",
        "told",
        "told_at",
        "version",
        "word",
    )

    def __init__(self, bot_id: str, session: int, line: Line) -> None:
        self.bot_id = bot_id
        self.session = session
        self.line = line
        self.version = ""
        self.config: str | None = None
        """What its group gave it, as the bot says; None for a bot that knows no groups."""
        self.word: tuple[str | None, str | None] | None = None
        """Why it is quarantined or in maintenance, in its own words; None while they were not heard here."""
        self.caches: dict[str, int] | None = None
        """Sizes of named caches after its last runs."""
        self.os = ""
        """The family of its system."""
        self.order: str | None = None
        self.outdated = False
        """Something about the bot has changed: the next poll looks at the database."""
        self.looked_at: Micros = 0
        self.met_at: Micros = 0
        """When this server first heard of this session."""
        self.seen_at: Micros = 0
        self.flushed_at: Micros = 0
        self.told = ""
        """The zip that it was last told to run, or what its group gave it when it was last told to restart."""
        self.told_at: Micros = 0
        """When that was, and how often it was told so far."""
        self.times_told = 0
        self.state_at: Micros = 0
        """When its state was last written down."""
        self.nonce = 0
        """The last claim that is known to have brought something; its answer may be asked for again."""
        self.pace = 0.0
        """Seconds that a run takes on this bot, by its last reports; 0 while nothing is known."""
        self.future: asyncio.Future[Woken] | None = None
        self.number = 0
        self.claim: tuple[int, int] = (0, 0)
        """Nonce and size of the claim that the held poll would make."""
        self.reserved = False
        """A submit is claiming for it: the poll must not end before that is decided."""
