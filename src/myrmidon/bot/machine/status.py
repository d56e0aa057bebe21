"""What a bot offers and how it is: dimensions, state, quarantine, maintenance; and what its hooks have to say to it.

Everything is looked at from time to time while the bot is idle, never while a command runs: hooks may start programs,
and whatever is found below a bot after a command is killed. What has changed since the server was told is news. A hook
that fails or answers nonsense puts the bot into quarantine until it answers well again; the bot goes on talking.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

from myrmidon.bot.hooks import loader, swarming_api
from myrmidon.bot.hooks.api import Bot
from myrmidon.bot.hooks.loader import Failed, Hooks
from myrmidon.bot.install.startup_config import Orders
from myrmidon.bot.machine import health
from myrmidon.bot.machine import settings as limits
from myrmidon.bot.machine.named_caches import Caches
from myrmidon.bot.system import dimensions as machine
from myrmidon.bot.system import host

REFRESH_S = float(os.environ.get("MYRMIDON_BOT_REFRESH_S") or 60.0)
TELL_AGAIN_S = 900.0
"""How old a state may get that has not changed but for what always changes."""
ILL_S = 5.0
"""How often a bot that is not well looks again."""
MOST_VALUES = 16
_KEY = re.compile(r"[a-zA-Z\-_.][0-9a-zA-Z\-_.]{0,63}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_THEIRS = ("authorization", "host", "content-length", "content-type", "transfer-encoding", "connection")


class Standing:
    """``config`` is the version of what the bot's group gives it; None while the server is older than that.

    ``wish`` is what a hook has asked for: reboot or restart, and why.
    """

    def __init__(
        self,
        orders: Orders,
        caches: Caches,
        *,
        session: int,
        version: str,
        tell: Callable[[str, str], None],
        wake: Callable[[], None],
    ) -> None:
        self.orders = orders
        self.caches = caches
        self.tell = tell
        self.wake = wake
        self.started = time.time()
        self.hooks = Hooks(self.complain)
        self.bot = Bot(orders, session=session, version=version, ask=self.ask_for, tell=tell)
        self.forced: dict[str, list[str]] = {}
        self.group_settings: dict[str, Any] = {}
        self.settings = limits.defaults()
        self.config: str | None = None
        self.script: tuple[str, str] | None = None
        self.greeted = False
        self.ills: dict[str, str] = {}
        self.maintenance: str | None = None
        self.dimensions: dict[str, list[str]] = {}
        self.state: dict[str, Any] = {}
        self.told: tuple[dict[str, list[str]], dict[str, Any]] = ({}, {})
        self.told_at = 0.0
        self.wish: tuple[str, str] | None = None
        self.usd_per_s = 0.0
        self.headers = ""
        self.headers_until = 0.0
        self.refreshed_at = -1e9
        self.seen_changes = 0
        self.on_dimensions: Callable[[dict[str, list[str]]], None] = lambda _: None
        self.lodged = host.announce(orders.folder)

    def complain(self, message: str) -> None:
        self.tell("bot_error", message)

    @property
    def ill(self) -> str | None:
        """Why this bot should get no work; None when it is well."""
        return "; ".join(self.ills[source] for source in sorted(self.ills))[:1000] or None

    def word(self) -> tuple[str | None, str | None]:
        """(quarantined, maintenance): the bot's own word on whether it can work."""
        return self.ill, self.maintenance

    # ---------------------------------------------------------------- at the start

    def start(self) -> None:
        """Before the first word to the server."""
        self.load_hooks()
        if os.environ.get("SWARMING_EXTERNAL_BOT_SETUP") != "1":
            self.set_up()
        self._read_settings()
        self.refresh_headers()
        self.hooks.call("on_bot_startup", self.bot)
        self.refresh()
        self.look(host.awake())

    def load_hooks(self) -> None:
        """Those of the zip; they find what is known of the machine."""
        self._see()
        swarming_api.install(self.bot)
        self._note("bot_config", self.hooks.load_general(loader.packed_text()))

    def set_up(self) -> None:
        """Let the hook make the machine ready."""
        try:
            if self.hooks.ask("setup_bot", self.bot) is False:
                self.ask_for("reboot", "setup_bot asks for it")
        except Failed as error:
            self.complain(str(error))

    def _read_settings(self) -> None:
        """Defaults, then what the group says, then what the hook says."""
        problems: list[str] = []
        settings = limits.laid_over(limits.defaults(), self.group_settings, problems)
        try:
            given = self.hooks.ask("get_settings", self.bot)
            if given is not None:
                settings = limits.laid_over(settings, given, problems, "get_settings")
        except Failed as error:
            problems.append(str(error))
        for problem in problems:
            self.complain(problem)
        self.settings = settings
        self.caches.rules = settings["caches"]["named"]
        self.caches.room = settings["free_partition"]["bot"]

    def refresh_headers(self) -> None:
        """What a proxy in front of the server wants to see, if a hook knows it and it is time to ask."""
        if not self.hooks.has("get_authentication_headers") or time.time() < self.headers_until:
            return
        try:
            self.headers, self.headers_until = read_headers(self.hooks.ask("get_authentication_headers", self.bot))
        except (Failed, ValueError) as error:
            self.headers_until = time.time() + REFRESH_S
            self.complain(str(error))

    # ---------------------------------------------------------------- after a handshake

    def welcome(self, answer: dict[str, Any]) -> None:
        """What the server gives this bot. If that is anything new, it is taken when the bot is idle."""
        self.config = answer.get("config")
        before = (self.forced, self.group_settings, self.hooks.script)
        forced, settings = answer.get("dimensions"), answer.get("settings")
        self.forced = forced if isinstance(forced, dict) else {}
        self.group_settings = settings if isinstance(settings, dict) else {}
        script = answer.get("script") or ""
        if not self.greeted or (self.forced, self.group_settings, script) != before:
            self.script = (script, answer.get("script_name") or "the group's script")

    def _settle_in(self, script: tuple[str, str]) -> None:
        self.script = None
        changed = self.hooks.inject(*script)
        if changed is not False:
            self._note("script", None if changed else f"the script {script[1]} of this bot's group cannot be loaded")
        self._read_settings()
        self.refresh()
        if changed or not self.greeted:
            self.greeted = True
            self.hooks.call("on_handshake", self.bot)

    # ---------------------------------------------------------------- while the bot is idle

    def look(self, now: float) -> None:
        """Look at everything that is due. Called often, and does nothing most of the time."""
        self.refresh_headers()
        if self.script is not None:
            self._settle_in(self.script)
        if now - self.refreshed_at >= (min(REFRESH_S, ILL_S) if self.ills else REFRESH_S) or self._other_caches():
            self.refresh()
        self._note("disk", health.short_of_disk(self.orders.folder, self.settings, self.caches))

    def _other_caches(self) -> bool:
        """Whether caches have come or gone since the last look: the next task may want to follow them."""
        if self.caches.changes == self.seen_changes:
            return False
        self.seen_changes = self.caches.changes
        return set(self.caches.recent(MOST_VALUES)) != set(self.dimensions.get("caches", ()))

    def refresh(self) -> None:
        """Look at the machine, and let the hooks have their say."""
        self.refreshed_at = host.awake()
        self.caches.trim()
        self.seen_changes = self.caches.changes
        self._note("health", health.other_trouble(self.orders.folder, self.settings))
        found, seen = self._see()
        offered = self._ask_hook("get_dimensions", found, lambda value: bad_dimensions(value, self.orders.bot_id))
        shown = self._ask_hook("get_state", seen, bad_state)
        reason = _word(offered.pop("quarantined", None)) or _word(shown.get("quarantined"))
        self._note("hook", reason)
        self.maintenance = _word(shown.get("maintenance"))
        offered = {"pool": [self.orders.pool], **offered, "id": [self.orders.bot_id], **self.forced}
        if offered != self.dimensions:
            self.on_dimensions(offered)
        self.dimensions, self.state = offered, shown
        price = shown.get("cost_usd_hour")
        self.usd_per_s = price / 3600 if isinstance(price, (int, float)) and price > 0 else 0.0
        self.bot.know(offered, shown)

    def _see(self) -> tuple[dict[str, list[str]], dict[str, Any]]:
        """What is found without hooks; hooks find it in their bot."""
        orders = self.orders
        found = machine.dimensions(orders.bot_id, orders.pool, orders.extra, self.caches.recent(MOST_VALUES))
        price = self.settings["cost_usd_hour"]
        seen = machine.state(orders.folder, self.started, self.caches.sizes(), price)
        if machine.is_device(orders.extra):
            seen["host_dimensions"] = machine.host()
        self.bot.know({**found, **self.forced}, seen)
        return found, seen

    def _ask_hook(self, name: str, found: dict[str, Any], bad: Callable[[Any], str | None]) -> dict[str, Any]:
        """What the hook makes of what was found; that itself when the hook makes nothing sensible of it."""
        if not self.hooks.has(name):
            self._note(name, None)
            return found
        try:
            given = self.hooks.ask(name, self.bot)
            problem = None if given is None else bad(given)
            if problem:
                problem = f"{name} returned something wrong: {problem}"
        except Failed as error:
            given, problem = None, str(error)
        if problem:
            self.complain(problem)
        self._note(name, problem)
        return found if given is None or problem else dict(given)

    def _note(self, source: str, reason: str | None) -> None:
        if reason:
            self.ills[source] = reason[:300]
        else:
            self.ills.pop(source, None)

    # ---------------------------------------------------------------- what the server is told

    def hello(self) -> dict[str, Any]:
        """The part of a handshake that tells what the bot offers and how it is."""
        self._told_now()
        words = self._words()
        return {"dimensions": self.dimensions, "state": {**self.state, **words}, **words}

    def _words(self) -> dict[str, str]:
        """The bot's own word, as a part of what it says: whoever says a state without it is well."""
        words = zip(("quarantined", "maintenance"), self.word())
        return {name: word for name, word in words if word}

    def news(self) -> dict[str, Any]:
        """What has changed since the server was told; told by this."""
        if self.config is None or not self.has_news():
            return {}
        told = self.told
        self._told_now()
        news: dict[str, Any] = {"state": {**self.state, **self._words()}}
        if told[0] != self.dimensions:
            news["dimensions"] = self.dimensions
        return news

    def has_news(self) -> bool:
        """Whether the last look has found something that the server does not know."""
        if self.told[0] is self.dimensions:  # every look makes new ones
            return False
        now = (self.dimensions, _lasting(self.state))
        if self.told != now or host.awake() - self.told_at > TELL_AGAIN_S:
            return True
        self.told = now
        return False

    def _told_now(self) -> None:
        self.told = (self.dimensions, _lasting(self.state))
        self.told_at = host.awake()

    # ---------------------------------------------------------------- what hooks may ask for

    def ask_for(self, what: str, message: str) -> bool:
        """Note a wish; it is carried out when nothing runs. A machine with other bots is not rebooted."""
        if what == "reboot":
            others = host.neighbours(self.orders.folder)
            if others or self.lodged is None:
                why = f"another bot lives here in {others[0]}" if others else "it cannot be told who else lives here"
                self.complain(f"the machine is not rebooted, because {why}; it was asked for because: {message}")
                return False
        self.wish = (what, message)
        self.wake()
        return True


# ---------------------------------------------------------------- what hooks may answer


def bad_dimensions(value: Any, bot_id: str) -> str | None:
    """What is wrong with dimensions; None when nothing is."""
    if not isinstance(value, dict):
        return f"dimensions must be a dict, not {value!r:.100}"
    for key, values in value.items():
        if key == "quarantined":
            continue
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            return f"{key!r:.100} is no key of a dimension"
        if not isinstance(values, list) or not values or len(values) > MOST_VALUES or not all(map(_is_value, values)):
            return f"{key} must be a list of 1 to {MOST_VALUES} texts, not {values!r:.100}"
        if len(set(values)) != len(values):
            return f"{key} has a value twice: {values!r:.100}"
    if value.get("id", [bot_id]) != [bot_id]:
        return f"the id must stay {bot_id}, not {value['id']!r:.100}"
    return None


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256 and value == value.strip() and "|" not in value


def bad_state(value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"a state must be a dict, not {value!r:.100}"
    try:
        if len(json.dumps(value, allow_nan=False)) > 1 << 19:
            return "the state is too large"
    except (TypeError, ValueError, RecursionError) as error:
        return f"the state is nothing that JSON can hold: {error}"
    return None


def read_headers(value: Any) -> tuple[str, float]:
    """(header lines, when to ask again) of what the hook answers; without those that are the bot's own business.

    Raises ValueError.
    """
    if value is None:
        return "", float("inf")
    try:
        headers, expiry = value
        given = [(str(name), str(text)) for name, text in dict(headers or {}).items()]
        until = float(expiry) if expiry else float("inf")
    except (TypeError, ValueError) as error:
        raise ValueError(f"get_authentication_headers returned something wrong: {error}") from error
    for name, text in given:
        if not _HEADER.fullmatch(name) or not text.isprintable():
            raise ValueError(f"get_authentication_headers returned a header that is not sent: {name!r:.100}")
    return "".join(f"{name}: {text}\r\n" for name, text in given if name.lower() not in _NOT_THEIRS), until


def _word(value: Any) -> str | None:
    """A reason in words; True counts as one without words."""
    if not value:
        return None
    return "a hook says so" if value is True else str(value)[:300]


def _lasting(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in machine.VOLATILE}
