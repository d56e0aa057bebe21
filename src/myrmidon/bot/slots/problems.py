"""Why a run cannot go on: its files or its environment cannot be had, or its results cannot be stored."""

from __future__ import annotations

from typing import NamedTuple

from myrmidon.bot.system import filesystem


class Problem(NamedTuple):
    """``kind``: that of the fault; empty if the run itself is to blame."""

    kind: str
    message: str


def problem_of(error: OSError, what: str) -> Problem:
    """The problem of a bot whose disk is full or cannot be used."""
    return Problem("disk_full" if filesystem.disk_is_full(error) else "bot_error", f"{what}: {error}")
