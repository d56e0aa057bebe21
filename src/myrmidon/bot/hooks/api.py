"""The `bot` argument of hooks. All values are copies, and no method waits for the network."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

from myrmidon.bot.install import updater
from myrmidon.bot.install.startup_config import StartupConfig
from myrmidon.bot.system import host

EVENTS = ("bot_error", "bot_log", "bot_rebooting", "bot_shutdown")


class Bot:
    """What a hook can read and request; `default_bot_config.py` documents it for administrators."""

    def __init__(
        self,
        startup: StartupConfig,
        *,
        session: int,
        version: str,
        request_action: Callable[[str, str], bool],
        post_event: Callable[[str, str], None],
    ) -> None:
        self._startup = startup
        self._session = session
        self._version = version
        self._request_action = request_action
        self._post_event = post_event
        self._dimensions: dict[str, list[str]] = {}
        self._state: dict[str, Any] = {}

    def set_session(self, session: int) -> None:
        """Set the session that the server has accepted."""
        self._session = session

    def update_snapshot(self, dimensions: dict[str, list[str]], state: dict[str, Any]) -> None:
        """Set the dimensions and the state that hooks see."""
        self._dimensions = dimensions
        self._state = state

    @property
    def id(self) -> str:
        return self._startup.bot_id

    @property
    def dimensions(self) -> dict[str, list[str]]:
        return copy.deepcopy(self._dimensions)

    @property
    def state(self) -> dict[str, Any]:
        return copy.deepcopy(self._state)

    @property
    def attributes(self) -> dict[str, Any]:
        return {"dimensions": self.dimensions, "state": self.state, "version": self._version}

    @property
    def server(self) -> str:
        return str(self._startup.first_server)

    @property
    def base_dir(self) -> str:
        """The bot's folder."""
        return self._startup.folder

    @property
    def config_dir(self) -> str:
        """The folder in which an administrator can store files for the hooks of all bots of this machine."""
        return host.config_folder()

    @property
    def bot_version(self) -> str:
        return self._version

    @property
    def session_id(self) -> str:
        return str(self._session)

    @property
    def swarming_bot_zip(self) -> str | None:
        """The path of the running zip; None for a bot that was started from a source tree."""
        return updater.own_zip()

    def post_event(self, kind: str, message: str) -> None:
        """Send an event to the server in the background. Raises ValueError for an unknown kind."""
        if kind not in EVENTS:
            raise ValueError(f"the kind of an event must be one of {', '.join(EVENTS)}, not {kind!r:.100}")
        self._post_event(kind, str(message))

    def post_error(self, message: str) -> None:
        """Send a bot_error event; the same message at most once in ten minutes."""
        self._post_event("bot_error", str(message))

    def host_reboot(self, message: str) -> bool:
        """Reboot the machine when no task runs. Reports an error and returns False if another bot runs on it."""
        return self._request_action("reboot", str(message))

    def bot_restart(self, message: str) -> bool:
        """Restart the bot when no task runs. Returns at once."""
        return self._request_action("restart", str(message))

    def get_pseudo_rand(self, width: float) -> float:
        """A number from -width to width that is always the same for this bot, to spread actions of a fleet in time."""
        digest = hashlib.sha256(self.id.encode()).digest()
        return round((int.from_bytes(digest[:4], "big") / 2**31 - 1.0) * width, 3)
