"""Health checks of the machine: free disk space and temporary files. A check returns a problem as text, or None."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

from myrmidon.bot.machine import settings as bot_settings
from myrmidon.bot.system import facts, filesystem, platforms


def disk_problem(folder: str, settings: dict[str, Any], free_space: Callable[[], bool]) -> str | None:
    """Check the free space of the bot's disk, after ``free_space`` has removed something if it is short."""
    limits = settings["free_partition"]["bot"]
    problem = _free_space_problem(folder, "bot's", limits)
    if problem and free_space():
        problem = _free_space_problem(folder, "bot's", limits)
    return problem


def other_problem(folder: str, settings: dict[str, Any]) -> str | None:
    """Check the root partition, if it is another one than the bot's, and the folder for temporary files."""
    if platforms.NAME != "windows" and os.stat("/").st_dev != os.stat(folder).st_dev:
        problem = _free_space_problem("/", "root", settings["free_partition"]["root"])
        if problem:
            return problem
    return temp_problem(tempfile.gettempdir(), int(settings["temp"]["items"]))


def _free_space_problem(path: str, disk: str, limits: dict[str, float]) -> str | None:
    """The reason must not contain the free space: a reason that changes is sent to the server each time."""
    free, total = filesystem.free_disk(path)
    required = bot_settings.required_free(total, limits)
    if free >= required:
        return None
    return f"the {disk} disk is full: less than {required >> 20} of {total >> 20} MiB are free"


def temp_problem(folder: str, limit: int) -> str | None:
    """Check that the folder for temporary files is readable and has at most ``limit`` entries.

    More entries mean that something does not delete its files.
    """
    try:
        count = facts.entries(folder, limit)
    except OSError as error:
        return f"the temporary folder cannot be read: {error}"
    return f"the temporary folder {folder} has more than {limit} entries" if count > limit else None
