"""Is this machine fit for work? A bot that cannot store what a task writes should not take one.

Short of disk, the oldest caches go first. What is found is a reason in words; whoever asks decides what follows.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from myrmidon.bot.machine import settings as bot_settings
from myrmidon.bot.machine.named_caches import Caches
from myrmidon.bot.system import facts, host


def disk_problem(folder: str, settings: dict[str, Any], caches: Caches) -> str | None:
    """Why the bot's own disk is not fit for work; None when it is. One look at the disk, if it is."""
    limits = settings["free_partition"]["bot"]
    problem = _free_space_problem(folder, "of the bot", limits)
    if problem and caches.trim():
        problem = _free_space_problem(folder, "of the bot", limits)
    return problem


def other_problem(folder: str, settings: dict[str, Any]) -> str | None:
    """What else is not as it should be: the system's disk, if it is another one, and the temporary files."""
    if host.NAME != "windows" and os.stat("/").st_dev != os.stat(folder).st_dev:
        problem = _free_space_problem("/", "of the system", settings["free_partition"]["root"])
        if problem:
            return problem
    return temp_problem(tempfile.gettempdir(), int(settings["temp"]["items"]))


def _free_space_problem(path: str, whose: str, limits: dict[str, float]) -> str | None:
    """The reason has no number in it that changes all the time: each new reason is told to the server."""
    free, total = host.free_disk(path)
    required = bot_settings.required_free(total, limits)
    if free >= required:
        return None
    return f"the disk {whose} is full: less than {required >> 20} of its {total >> 20} MiB are free"


def temp_problem(folder: str, limit: int) -> str | None:
    """Too many entries mean that something leaves its files behind; a folder that cannot be read stops most tasks."""
    try:
        count = facts.entries(folder, limit)
    except OSError as error:
        return f"the folder for temporary files cannot be read: {error}"
    return f"the folder for temporary files {folder} has more than {limit} entries" if count > limit else None
