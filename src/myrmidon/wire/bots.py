"""Bots: the bodies, queries and answers of /api/v1/bots."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from myrmidon.wire.fields import Limit, Micros, TaskId


class BotQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters; all must match. A ``dimension`` is ``key:value``."""

    dimension: Annotated[list[str], Meta(max_length=16)] = []
    state: Literal["alive", "dead", "silent", "quarantined", "maintenance", "draining", "busy", "idle"] | None = None
    limit: Limit = 100
    cursor: str | None = None


class BotTask(Struct, frozen=True):
    """A task that a bot works on: the id of its run, and its name."""

    run: str
    name: str


class BotSummary(Struct, frozen=True, kw_only=True):
    """``status`` is dead, silent, quarantined, maintenance, draining, busy or idle: the first that applies.

    A silent bot has missed heartbeats. It is dead after ``dead_after_s``, and not before its runs are given up.
    """

    bot_id: str
    status: str
    alive: bool
    draining: bool
    quarantined: str | None
    maintenance: str | None
    dimensions: dict[str, list[str]]
    version: str
    address: str
    first_seen_at: Micros
    last_seen_at: Micros
    runs: list[str]
    """The ids of ``tasks``."""
    tasks: list[BotTask] = []
    """What the bot works on, as far as the caller may see it."""


class BotInfo(BotSummary, frozen=True, kw_only=True):
    """A bot in full. ``state`` is what the bot reports about itself; ``group`` is its group in bots.toml."""

    state: dict[str, Any]
    session: int
    boot_id: str
    authenticated: str
    num_quick_failures: int
    group: str | None
    owners: list[str]


class BotList(Struct, frozen=True):
    bots: list[BotSummary]
    cursor: str | None


class QuarantineBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``reason``: why the bot is quarantined; an empty one keeps the reason that it has, null ends the quarantine."""

    reason: Annotated[str, Meta(max_length=1024)] | None


class DrainBody(Struct, frozen=True, forbid_unknown_fields=True):
    draining: bool = True


class TerminateBody(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1000)] = ""


class BotChanged(Struct, frozen=True):
    bot_id: str
    alive: bool
    draining: bool
    quarantined: str | None
    task_id: str | None = None
    """The task that terminates the bot."""


class DeleteQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """``force``: delete a bot that is alive, too."""

    force: bool = False


class BotEventInfo(Struct, frozen=True):
    """``run`` is set for events of a run."""

    at: Micros
    kind: str
    message: str
    run: str | None = None
    version: str | None = None


class BotEventList(Struct, frozen=True):
    events: list[BotEventInfo]
    cursor: str | None


class BotRun(Struct, frozen=True):
    task_id: TaskId
    run: str
    name: str
    state: str
    reason: str
    claimed_at: Micros
    started_at: Micros | None
    ended_at: Micros | None
    exit_code: int | None
    duration: float | None


class BotRunList(Struct, frozen=True):
    runs: list[BotRun]
    cursor: str | None


class DimensionsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``pool`` limits the count to the bots of one pool."""

    pool: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class DimensionInfo(Struct, frozen=True):
    """A dimension, and the number of bots for each of its values."""

    key: str
    values: dict[str, int]


class DimensionList(Struct, frozen=True):
    dimensions: list[DimensionInfo]
    counted_at: Micros
