"""Is this machine fit for work? A bot that cannot store what a task writes should not take one.

Short of disk, the oldest caches go first. What is found is a reason in words; whoever asks decides what follows.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from myrmidon.bot.machine import settings as limits
from myrmidon.bot.machine.named_caches import Caches
from myrmidon.bot.system import facts, host


def short_of_disk(folder: str, settings: dict[str, Any], caches: Caches) -> str | None:
    """Why the bot's own disk is not fit for work; None when it is. One look at the disk, if it is."""
    rule = settings["free_partition"]["bot"]
    said = _short(folder, "of the bot", rule)
    if said and caches.trim():
        said = _short(folder, "of the bot", rule)
    return said


def other_trouble(folder: str, settings: dict[str, Any]) -> str | None:
    """What else is not as it should be: the system's disk, if it is another one, and the temporary files."""
    if host.NAME != "windows" and os.stat("/").st_dev != os.stat(folder).st_dev:
        said = _short("/", "of the system", settings["free_partition"]["root"])
        if said:
            return said
    return full_temp(tempfile.gettempdir(), int(settings["temp"]["items"]))


def _short(path: str, whose: str, rule: dict[str, float]) -> str | None:
    """The reason has no number in it that changes all the time: each new reason is told to the server."""
    free, total = host.free_disk(path)
    required = limits.required_free(total, rule)
    if free >= required:
        return None
    return f"the disk {whose} is full: less than {required >> 20} of its {total >> 20} MiB are free"


def full_temp(folder: str, most: int) -> str | None:
    """Too many entries mean that something leaves its files behind; a folder that cannot be read stops most tasks."""
    try:
        count = facts.entries(folder, most)
    except OSError as error:
        return f"the folder for temporary files cannot be read: {error}"
    return f"the folder for temporary files {folder} has more than {most} entries" if count > most else None
