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
from myrmidon.bot.hooks.loader import HookFailed, Hooks
from myrmidon.bot.install.startup_config import StartupConfig
from myrmidon.bot.machine import health
from myrmidon.bot.machine import settings as bot_settings
from myrmidon.bot.machine.named_caches import Caches
from myrmidon.bot.system import dimensions as machine
from myrmidon.bot.system import host

REFRESH_S = float(os.environ.get("MYRMIDON_BOT_REFRESH_S") or 60.0)
REPORT_INTERVAL_S = 900.0
"""How old a state may get that has not changed but for what always changes."""
QUARANTINE_REFRESH_S = 5.0
"""How often a bot that is not well looks again."""
MAX_VALUES = 16
_KEY = re.compile(r"[a-zA-Z\-_.][0-9a-zA-Z\-_.]{0,63}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RESERVED_HEADERS = ("authorization", "host", "content-length", "content-type", "transfer-encoding", "connection")


class BotStatus:
    """``config`` is the version of what the bot's group gives it; None while the server is older than that.

    ``wish`` is what a hook has asked for: reboot or restart, and why.
    """

    def __init__(
        self,
        startup: StartupConfig,
        caches: Caches,
        *,
        session: int,
        version: str,
        post_event: Callable[[str, str], None],
        wake: Callable[[], None],
    ) -> None:
        self.startup = startup
        self.caches = caches
        self.post_event = post_event
        self.wake = wake
        self.started = time.time()
        self.hooks = Hooks(self.report_error)
        self.bot = Bot(
            startup, session=session, version=version, request_action=self.request_action, post_event=post_event
        )
        self.forced: dict[str, list[str]] = {}
        self.group_settings: dict[str, Any] = {}
        self.settings = bot_settings.defaults()
        self.config: str | None = None
        self.script: tuple[str, str] | None = None
        self.handshake_done = False
        self.quarantine_reasons: dict[str, str] = {}
        self.maintenance: str | None = None
        self.dimensions: dict[str, list[str]] = {}
        self.state: dict[str, Any] = {}
        self.reported: tuple[dict[str, list[str]], dict[str, Any]] = ({}, {})
        self.reported_at = 0.0
        self.requested_action: tuple[str, str] | None = None
        self.usd_per_s = 0.0
        self.headers = ""
        self.headers_until = 0.0
        self.refreshed_at = -1e9
        self.seen_cache_changes = 0
        self.on_dimensions: Callable[[dict[str, list[str]]], None] = lambda _: None
        self.host_lock = host.announce(startup.folder)

    def report_error(self, message: str) -> None:
        self.post_event("bot_error", message)

    @property
    def quarantine_reason(self) -> str | None:
        """Why this bot should get no work; None when it is well."""
        return "; ".join(self.quarantine_reasons[source] for source in sorted(self.quarantine_reasons))[:1000] or None

    def health_reasons(self) -> tuple[str | None, str | None]:
        """(quarantined, maintenance): the bot's own word on whether it can work."""
        return self.quarantine_reason, self.maintenance

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
        self.check(host.awake())

    def load_hooks(self) -> None:
        """Those of the zip; they find what is known of the machine."""
        self._read_machine()
        swarming_api.install(self.bot)
        self._set_reason("bot_config", self.hooks.load_zip_hooks(loader.packed_text()))

    def set_up(self) -> None:
        """Let the hook make the machine ready."""
        try:
            if self.hooks.query("setup_bot", self.bot) is False:
                self.request_action("reboot", "setup_bot asks for it")
        except HookFailed as error:
            self.report_error(str(error))

    def _read_settings(self) -> None:
        """Defaults, then what the group says, then what the hook says."""
        problems: list[str] = []
        settings = bot_settings.merge(bot_settings.defaults(), self.group_settings, problems)
        try:
            answer = self.hooks.query("get_settings", self.bot)
            if answer is not None:
                settings = bot_settings.merge(settings, answer, problems, "get_settings")
        except HookFailed as error:
            problems.append(str(error))
        for problem in problems:
            self.report_error(problem)
        self.settings = settings
        self.caches.rules = settings["caches"]["named"]
        self.caches.room = settings["free_partition"]["bot"]

    def refresh_headers(self) -> None:
        """What a proxy in front of the server wants to see, if a hook knows it and it is time to ask."""
        if not self.hooks.has("get_authentication_headers") or time.time() < self.headers_until:
            return
        try:
            self.headers, self.headers_until = parse_headers(self.hooks.query("get_authentication_headers", self.bot))
        except (HookFailed, ValueError) as error:
            self.headers_until = time.time() + REFRESH_S
            self.report_error(str(error))

    # ---------------------------------------------------------------- after a handshake

    def apply_handshake(self, answer: dict[str, Any]) -> None:
        """What the server gives this bot. If that is anything new, it is taken when the bot is idle."""
        self.config = answer.get("config")
        before = (self.forced, self.group_settings, self.hooks.script)
        forced, settings = answer.get("dimensions"), answer.get("settings")
        self.forced = forced if isinstance(forced, dict) else {}
        self.group_settings = settings if isinstance(settings, dict) else {}
        script = answer.get("script") or ""
        if not self.handshake_done or (self.forced, self.group_settings, script) != before:
            self.script = (script, answer.get("script_name") or "the group's script")

    def _apply_group_config(self, script: tuple[str, str]) -> None:
        self.script = None
        changed = self.hooks.load_group_script(*script)
        if changed is not False:
            self._set_reason(
                "script", None if changed else f"the script {script[1]} of this bot's group cannot be loaded"
            )
        self._read_settings()
        self.refresh()
        if changed or not self.handshake_done:
            self.handshake_done = True
            self.hooks.call("on_handshake", self.bot)

    # ---------------------------------------------------------------- while the bot is idle

    def check(self, now: float) -> None:
        """Look at everything that is due. Called often, and does nothing most of the time."""
        self.refresh_headers()
        if self.script is not None:
            self._apply_group_config(self.script)
        if (
            now - self.refreshed_at >= (min(REFRESH_S, QUARANTINE_REFRESH_S) if self.quarantine_reasons else REFRESH_S)
            or self._caches_changed()
        ):
            self.refresh()
        self._set_reason("disk", health.disk_problem(self.startup.folder, self.settings, self.caches))

    def _caches_changed(self) -> bool:
        """Whether caches have come or gone since the last look: the next task may want to follow them."""
        if self.caches.changes == self.seen_cache_changes:
            return False
        self.seen_cache_changes = self.caches.changes
        return set(self.caches.recent(MAX_VALUES)) != set(self.dimensions.get("caches", ()))

    def refresh(self) -> None:
        """Look at the machine, and let the hooks have their say."""
        self.refreshed_at = host.awake()
        self.caches.trim()
        self.seen_cache_changes = self.caches.changes
        self._set_reason("health", health.other_problem(self.startup.folder, self.settings))
        found, machine_state = self._read_machine()
        offered = self._apply_hook(
            "get_dimensions", found, lambda value: dimensions_problem(value, self.startup.bot_id)
        )
        shown = self._apply_hook("get_state", machine_state, state_problem)
        reason = _reason_text(offered.pop("quarantined", None)) or _reason_text(shown.get("quarantined"))
        self._set_reason("hook", reason)
        self.maintenance = _reason_text(shown.get("maintenance"))
        offered = {"pool": [self.startup.pool], **offered, "id": [self.startup.bot_id], **self.forced}
        if offered != self.dimensions:
            self.on_dimensions(offered)
        self.dimensions, self.state = offered, shown
        price = shown.get("cost_usd_hour")
        self.usd_per_s = price / 3600 if isinstance(price, (int, float)) and price > 0 else 0.0
        self.bot.update_snapshot(offered, shown)

    def _read_machine(self) -> tuple[dict[str, list[str]], dict[str, Any]]:
        """What is found without hooks; hooks find it in their bot."""
        startup = self.startup
        found = machine.dimensions(startup.bot_id, startup.pool, startup.extra, self.caches.recent(MAX_VALUES))
        price = self.settings["cost_usd_hour"]
        machine_state = machine.state(startup.folder, self.started, self.caches.sizes(), price)
        if machine.is_device(startup.extra):
            machine_state["host_dimensions"] = machine.host()
        self.bot.update_snapshot({**found, **self.forced}, machine_state)
        return found, machine_state

    def _apply_hook(self, name: str, found: dict[str, Any], problem_of: Callable[[Any], str | None]) -> dict[str, Any]:
        """What the hook makes of what was found; that itself when the hook makes nothing sensible of it."""
        if not self.hooks.has(name):
            self._set_reason(name, None)
            return found
        try:
            answer = self.hooks.query(name, self.bot)
            problem = None if answer is None else problem_of(answer)
            if problem:
                problem = f"{name} returned something wrong: {problem}"
        except HookFailed as error:
            answer, problem = None, str(error)
        if problem:
            self.report_error(problem)
        self._set_reason(name, problem)
        return found if answer is None or problem else dict(answer)

    def _set_reason(self, source: str, reason: str | None) -> None:
        if reason:
            self.quarantine_reasons[source] = reason[:300]
        else:
            self.quarantine_reasons.pop(source, None)

    # ---------------------------------------------------------------- what the server is told

    def handshake_fields(self) -> dict[str, Any]:
        """The part of a handshake that tells what the bot offers and how it is."""
        self._record_report()
        fields = self._health_fields()
        return {"dimensions": self.dimensions, "state": {**self.state, **fields}, **fields}

    def _health_fields(self) -> dict[str, str]:
        """The bot's own word, as a part of what it says: whoever says a state without it is well."""
        fields = zip(("quarantined", "maintenance"), self.health_reasons())
        return {name: reason for name, reason in fields if reason}

    def changes(self) -> dict[str, Any]:
        """What has changed since the server was told; told by this."""
        if self.config is None or not self.has_changes():
            return {}
        reported = self.reported
        self._record_report()
        changes: dict[str, Any] = {"state": {**self.state, **self._health_fields()}}
        if reported[0] != self.dimensions:
            changes["dimensions"] = self.dimensions
        return changes

    def has_changes(self) -> bool:
        """Whether the last look has found something that the server does not know."""
        if self.reported[0] is self.dimensions:  # every look makes new ones
            return False
        now = (self.dimensions, _stable_part(self.state))
        if self.reported != now or host.awake() - self.reported_at > REPORT_INTERVAL_S:
            return True
        self.reported = now
        return False

    def _record_report(self) -> None:
        self.reported = (self.dimensions, _stable_part(self.state))
        self.reported_at = host.awake()

    # ---------------------------------------------------------------- what hooks may ask for

    def request_action(self, action: str, message: str) -> bool:
        """Note a wish; it is carried out when nothing runs. A machine with other bots is not rebooted."""
        if action == "reboot":
            other_bots = host.neighbours(self.startup.folder)
            if other_bots or self.host_lock is None:
                why = (
                    f"another bot lives here in {other_bots[0]}"
                    if other_bots
                    else "it cannot be told who else lives here"
                )
                self.report_error(f"the machine is not rebooted, because {why}; it was asked for because: {message}")
                return False
        self.requested_action = (action, message)
        self.wake()
        return True


# ---------------------------------------------------------------- what hooks may answer


def dimensions_problem(value: Any, bot_id: str) -> str | None:
    """What is wrong with dimensions; None when nothing is."""
    if not isinstance(value, dict):
        return f"dimensions must be a dict, not {value!r:.100}"
    for key, values in value.items():
        if key == "quarantined":
            continue
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            return f"{key!r:.100} is no key of a dimension"
        if not isinstance(values, list) or not values or len(values) > MAX_VALUES or not all(map(_is_value, values)):
            return f"{key} must be a list of 1 to {MAX_VALUES} texts, not {values!r:.100}"
        if len(set(values)) != len(values):
            return f"{key} has a value twice: {values!r:.100}"
    if value.get("id", [bot_id]) != [bot_id]:
        return f"the id must stay {bot_id}, not {value['id']!r:.100}"
    return None


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256 and value == value.strip() and "|" not in value


def state_problem(value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"a state must be a dict, not {value!r:.100}"
    try:
        if len(json.dumps(value, allow_nan=False)) > 1 << 19:
            return "the state is too large"
    except (TypeError, ValueError, RecursionError) as error:
        return f"the state is nothing that JSON can hold: {error}"
    return None


def parse_headers(value: Any) -> tuple[str, float]:
    """(header lines, when to ask again) of what the hook answers; without those that are the bot's own business.

    Raises ValueError.
    """
    if value is None:
        return "", float("inf")
    try:
        headers, expiry = value
        pairs = [(str(name), str(text)) for name, text in dict(headers or {}).items()]
        until = float(expiry) if expiry else float("inf")
    except (TypeError, ValueError) as error:
        raise ValueError(f"get_authentication_headers returned something wrong: {error}") from error
    for name, text in pairs:
        if not _HEADER.fullmatch(name) or not text.isprintable():
            raise ValueError(f"get_authentication_headers returned a header that is not sent: {name!r:.100}")
    return "".join(f"{name}: {text}\r\n" for name, text in pairs if name.lower() not in _RESERVED_HEADERS), until


def _reason_text(value: Any) -> str | None:
    """A reason in words; True counts as one without words."""
    if not value:
        return None
    return "a hook says so" if value is True else str(value)[:300]


def _stable_part(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in machine.VOLATILE}
