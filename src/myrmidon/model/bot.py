"""Bots: processes that run tasks on a machine."""

import re
from typing import Final

from msgspec import Struct

from myrmidon.model.ids import Micros

BOT_ID = re.compile(
    r"(?!\.\.?\Z)(?!\s)"
    r"[^/\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]{1,256}"
    r"(?<!\s)"
)
"""Ids are part of URL paths, so characters that a path cannot hold are excluded. So are invisible characters, those
that change the direction of text, and outer spaces: with them one bot could be taken for another."""
BOT_ID_RULE: Final = (
    "1..256 characters without /, control characters, invisible characters and outer spaces, and not . or .."
)


def is_bot_id(text: str) -> bool:
    return BOT_ID.fullmatch(text) is not None


class Bot(Struct):
    """A bot as stored. ``heartbeat`` is the time of the last heartbeat that was saved.

    ``idle_at`` is when it last became idle: when its process started, or when it reported the end of a run. ``epoch``:
    only credentials of this epoch are valid. ``introducer``: the token of the bot's introduction, 0 for none.
    ``bound_pool``: the pool that this token is bound to.
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
    due_at: Micros | None
    idle_at: Micros | None
    epoch: int = 0
    introducer: int = 0
    bound_pool: str | None = None

    @property
    def unavailable(self) -> str | None:
        """Why the bot gets no tasks: dead, quarantined, maintenance or draining, the first that applies, or None."""
        reasons = {
            "dead": not self.alive,
            "quarantined": self.quarantined is not None,
            "maintenance": self.maintenance is not None,
            "draining": bool(self.draining),
        }
        return next((reason for reason, applies in reasons.items() if applies), None)


class Introduction(Struct, frozen=True):
    """How a bot is introduced without a credential: by which token, and to which pool the token binds it."""

    introducer: int = 0
    pool: str | None = None


class Handshake(Struct, frozen=True, kw_only=True):
    """What a bot sends when its process starts, or when it reconnects.

    ``session`` increases with every start of the bot. ``holds`` are the runs (task id, run number) that it still
    executes or has journalled: all others end. ``begun`` are the tasks whose command an earlier process of the bot
    had started, as far as the bot recorded it. ``introduction`` is None for a bot that has a credential.
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
    introduction: Introduction | None = None
