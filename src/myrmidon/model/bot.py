"""Bots: processes that obey orders on one machine."""

import re
from typing import Final

from msgspec import Struct

from myrmidon.model.ids import Micros

BOT_ID = re.compile(r"(?!\.\.?\Z)[^/\x00-\x1f\x7f-\x9f\u2028\u2029]{1,256}")
"""Ids stand in paths: what would not come through one is no id."""
BOT_ID_RULE: Final = "1..256 characters without / and control characters, and not . or .."


class Bot(Struct):
    """What the server knows of a bot. ``heartbeat`` is the last sign of life that was written down.

    ``idle_at`` is when it last became idle: when its process began, or when it told of the end of a run.
    """

    id: str
    session: int
    nonce: int
    address: str
    boot_id: str
    version: str
    authenticated: str
    dimensions: str
    state: str
    alive: int
    serving: int
    draining: int
    quarantined: str | None
    maintenance: str | None
    first_seen_at: Micros
    heartbeat: Micros
    matched_at: Micros
    num_quick_failures: int
    quick_failure_at: Micros | None
    alarm_at: Micros | None
    idle_at: Micros | None


class Handshake(Struct, frozen=True, kw_only=True):
    """What a bot says of itself at a handshake.

    ``session`` grows with every start of the bot; ``holds`` are the runs (task id,
    run number) that it still works on or has journalled: all others end. ``begun``
    are tasks that it had begun, as far as it knows, when an earlier process of it ended.
    """

    bot_id: str
    session: int
    dimensions: dict[str, list[str]]
    state: str = "{}"
    address: str = ""
    boot_id: str = ""
    version: str = ""
    authenticated: str = ""
    quarantined: str | None = None
    maintenance: str | None = None
    holds: list[tuple[int, int]] = []
    begun: list[int] = []
