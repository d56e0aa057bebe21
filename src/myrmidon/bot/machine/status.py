"""The status of a bot: dimensions, state, quarantine and maintenance, as found on the machine and changed by hooks.

It is refreshed while the bot is idle and never while a command runs: hooks may start processes, and the bot kills all
its child processes after a command. Changes since the last report are sent to the server. A hook that fails or returns
an invalid value quarantines the bot until it succeeds again; a quarantined bot stays connected.
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
from myrmidon.bot.machine.environment_cache import EnvironmentOffer
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.protocol import Welcome
from myrmidon.bot.system import clock, host
from myrmidon.bot.system import dimensions as machine

REFRESH_S = float(os.environ.get("MYRMIDON_BOT_REFRESH_S") or 60.0)
REPORT_INTERVAL_S = 900.0
"""A state in which only volatile values have changed is reported this often."""
QUARANTINE_REFRESH_S = 5.0
"""How often a quarantined bot is refreshed."""
MAX_VALUES = 16
MAX_STATE_DEPTH = 24
_KEY = re.compile(r"[a-zA-Z\-_.][0-9a-zA-Z\-_.]{0,63}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RESERVED_HEADERS = ("authorization", "host", "content-length", "content-type", "transfer-encoding", "connection")


class BotStatus:
    """``config``: version of the group's configuration of this bot; None if the server does not send one.

    ``forced``, ``group_settings``: dimensions and settings from the group. ``script``: text and name of a group script
    that is not applied yet. ``quarantine_reasons``: by source of the reason. ``reported``: dimensions and stable state
    as last sent to the server. ``isolation``: how commands are kept away from the bot. ``requested_action``: reboot or
    restart requested by a hook, and why. ``environments``: of functions; set before the start. ``host_lock``: shows
    other bots of this machine that this one runs; None if that is impossible.
    """

    def __init__(
        self,
        startup: StartupConfig,
        caches: NamedCaches,
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
        self.isolation: list[str] = []
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
        self.on_refresh: Callable[[], None] = lambda: None
        self.environments: EnvironmentOffer | None = None
        self.host_lock = host.register_bot(startup.folder)

    def report_error(self, message: str) -> None:
        self.post_event("bot_error", message)

    @property
    def quarantine_reason(self) -> str | None:
        """Why this bot must get no tasks; None when it is healthy."""
        return "; ".join(self.quarantine_reasons[source] for source in sorted(self.quarantine_reasons))[:1000] or None

    def health_reasons(self) -> tuple[str | None, str | None]:
        """(quarantine reason, maintenance reason), each None if it does not apply."""
        return self.quarantine_reason, self.maintenance

    # ---------------------------------------------------------------- start

    def start(self) -> None:
        """Load and call the hooks of the start, and take a first look at the machine. Called before the handshake."""
        self.load_hooks()
        if os.environ.get("SWARMING_EXTERNAL_BOT_SETUP") != "1":
            self.set_up()
        self._read_settings()
        self.refresh_headers()
        self.hooks.call("on_bot_startup", self.bot)
        self.refresh()
        self.check(clock.boottime())

    def load_hooks(self) -> None:
        """Load bot_config.py; `bot.dimensions` and `bot.state` are set before."""
        self._read_machine()
        swarming_api.install(self.bot)
        self._set_reason("bot_config", self.hooks.load_zip_hooks(loader.packed_text()))

    def set_up(self) -> None:
        """Call setup_bot; request a reboot if it returns False."""
        try:
            if self.hooks.query("setup_bot", self.bot) is False:
                self.request_action("reboot", "requested by setup_bot")
        except HookFailed as error:
            self.report_error(str(error))

    def _read_settings(self) -> None:
        """Merge the defaults, the group's settings and those of get_settings."""
        problems: list[str] = []
        settings = bot_settings.merge(bot_settings.defaults(), self.group_settings, problems)
        try:
            answer = self.hooks.query("get_settings", self.bot)
            if answer is not None:
                settings = bot_settings.merge(settings, answer, problems, "get_settings")
        except HookFailed as error:
            problems.append(str(error))
        if self.environments is not None:
            problems += self.environments.configure(settings)
        for problem in problems:
            self.report_error(problem)
        self.settings = settings
        self.caches.rules = settings["caches"]["named"]
        self.caches.free_space_rule = settings["free_partition"]["bot"]

    def refresh_headers(self) -> None:
        """Call get_authentication_headers if the present headers have expired."""
        if not self.hooks.has("get_authentication_headers") or time.time() < self.headers_until:
            return
        try:
            self.headers, self.headers_until = parse_headers(self.hooks.query("get_authentication_headers", self.bot))
        except (HookFailed, ValueError) as error:
            self.headers_until = time.time() + REFRESH_S
            self.report_error(str(error))

    # ---------------------------------------------------------------- handshake

    def apply_handshake(self, answer: Welcome) -> None:
        """Store the group's configuration from a handshake; if it has changed, `check` applies it while idle."""
        self.config = answer.config
        before = (self.forced, self.group_settings, self.hooks.script)
        self.forced, self.group_settings, script = answer.dimensions, answer.settings, answer.script or ""
        if not self.handshake_done or (self.forced, self.group_settings, script) != before:
            self.script = (script, answer.script_name or "the group's script")

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

    # ---------------------------------------------------------------- refresh while idle

    def check(self, now: float) -> None:
        """Refresh what is due. Called often; does nothing but check the free disk space most of the time."""
        self.refresh_headers()
        if self.script is not None:
            self._apply_group_config(self.script)
        interval_s = min(REFRESH_S, QUARANTINE_REFRESH_S) if self.quarantine_reasons else REFRESH_S
        if now - self.refreshed_at >= interval_s or self._caches_changed():
            self.refresh()
        self._set_reason("disk", health.disk_problem(self.startup.folder, self.settings, self._free_space))

    def _free_space(self) -> bool:
        """Remove caches and environments because the disk is short of space; whether there were any."""
        removed: list[Any] = [*self.caches.trim()]
        return bool(removed + (self.environments.cache.trim() if self.environments is not None else []))

    def _caches_changed(self) -> bool:
        """Whether the dimension `caches` is outdated: the next task may prefer a bot with its cache."""
        if self.caches.changes == self.seen_cache_changes:
            return False
        self.seen_cache_changes = self.caches.changes
        return set(self.caches.recent(MAX_VALUES)) != set(self.dimensions.get("caches", ()))

    def refresh(self) -> None:
        """Read the machine's dimensions and state, and apply the hooks and the group's configuration to them."""
        self.refreshed_at = clock.boottime()
        self.on_refresh()
        self.caches.trim()
        if self.environments is not None:
            self.environments.cache.trim()
        self.seen_cache_changes = self.caches.changes
        self._set_reason("health", health.other_problem(self.startup.folder, self.settings))
        found, machine_state = self._read_machine()
        bot_id = self.startup.bot_id
        offered = self._apply_hook("get_dimensions", found, lambda value: dimensions_problem(value, bot_id))
        shown = self._apply_hook("get_state", machine_state, state_problem)
        reason = _reason_text(offered.pop("quarantined", None)) or _reason_text(shown.get("quarantined"))
        self._set_reason("hook", reason)
        self.maintenance = _reason_text(shown.get("maintenance"))
        offered = {"pool": [self.startup.pool], **offered, "id": [bot_id], **self._isolation(), **self.forced}
        if offered != self.dimensions:
            self.on_dimensions(offered)
        self.dimensions, self.state = offered, shown
        price = shown.get("cost_usd_hour")
        self.usd_per_s = price / 3600 if isinstance(price, (int, float)) and price > 0 else 0.0
        self.bot.update_snapshot(offered, shown)

    def _read_machine(self) -> tuple[dict[str, list[str]], dict[str, Any]]:
        """Dimensions and state without hooks; also set as `bot.dimensions` and `bot.state`."""
        startup = self.startup
        found = machine.dimensions(startup.bot_id, startup.pool, startup.extra, self.caches.recent(MAX_VALUES))
        found.update(machine.libraries(startup.library_dirs, MAX_VALUES))
        found.update(self._isolation())
        if self.environments is not None and not machine.is_device(startup.extra):
            found.update({**self.environments.dimensions(MAX_VALUES), **startup.extra})
        price = self.settings["cost_usd_hour"]
        machine_state = machine.state(startup.folder, self.started, self.caches.sizes(), price)
        machine_state["isolation"] = " ".join(self.isolation)
        machine_state["slots"] = startup.slots
        machine_state["environments"] = self.environments.cache.sizes() if self.environments is not None else {}
        if machine.is_device(startup.extra):
            machine_state["host_dimensions"] = machine.host()
        self.bot.update_snapshot({**found, **self.forced}, machine_state)
        return found, machine_state

    def _isolation(self) -> dict[str, list[str]]:
        """The dimension `isolation`, which neither hooks nor the command line may change; empty before it is known."""
        return {"isolation": self.isolation} if self.isolation else {}

    def _apply_hook(self, name: str, found: dict[str, Any], problem_of: Callable[[Any], str | None]) -> dict[str, Any]:
        """The value that a hook returns in place of ``found``; ``found`` if it returns None, fails or is invalid."""
        if not self.hooks.has(name):
            self._set_reason(name, None)
            return found
        try:
            answer = self.hooks.query(name, self.bot)
            problem = None if answer is None else problem_of(answer)
            if problem:
                problem = f"{name} returned an invalid value: {problem}"
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

    # ---------------------------------------------------------------- reports to the server

    def handshake_fields(self) -> dict[str, Any]:
        """Dimensions, state and health for a handshake; marks them as reported."""
        self._record_report()
        fields = self._health_fields()
        return {"dimensions": self.dimensions, "state": {**self.state, **fields}, **fields}

    def _health_fields(self) -> dict[str, str]:
        """The reasons that apply. A reported state without them means that the bot is healthy."""
        fields = zip(("quarantined", "maintenance"), self.health_reasons())
        return {name: reason for name, reason in fields if reason}

    def changes(self) -> dict[str, Any]:
        """State and dimensions for an exchange if they have changed since the last report; marks them as reported."""
        if self.config is None or not self.has_changes():
            return {}
        reported = self.reported
        self._record_report()
        changes: dict[str, Any] = {"state": {**self.state, **self._health_fields()}}
        if reported[0] != self.dimensions:
            changes["dimensions"] = self.dimensions
        return changes

    def has_changes(self) -> bool:
        """Whether the last refresh has found something that was not reported."""
        if self.reported[0] is self.dimensions:  # each refresh creates a new dict
            return False
        now = (self.dimensions, _stable_part(self.state))
        if self.reported != now or clock.boottime() - self.reported_at > REPORT_INTERVAL_S:
            return True
        self.reported = now
        return False

    def _record_report(self) -> None:
        self.reported = (self.dimensions, _stable_part(self.state))
        self.reported_at = clock.boottime()

    # ---------------------------------------------------------------- requests of hooks

    def request_action(self, action: str, message: str) -> bool:
        """Request a reboot or restart when no task runs. False for a reboot of a machine on which other bots run."""
        if action == "reboot":
            other_bots = host.other_bots(self.startup.folder)
            if other_bots or self.host_lock is None:
                why = f"another bot runs in {other_bots[0]}" if other_bots else "other bots on it cannot be detected"
                self.report_error(f"the machine is not rebooted, because {why}; requested because: {message}")
                return False
        self.requested_action = (action, message)
        self.wake()
        return True


# ---------------------------------------------------------------- validation of hooks' results


def dimensions_problem(value: Any, bot_id: str) -> str | None:
    """Why these dimensions are invalid; None if they are valid."""
    if not isinstance(value, dict):
        return f"dimensions must be a dict, not {value!r:.100}"
    for key, values in value.items():
        if key == "quarantined":
            continue
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            return f"{key!r:.100} is not a valid key of a dimension"
        if not isinstance(values, list) or not values or len(values) > MAX_VALUES or not all(map(_is_value, values)):
            return f"{key} must be a list of 1 to {MAX_VALUES} strings, not {values!r:.100}"
        if len(set(values)) != len(values):
            return f"{key} contains a value twice: {values!r:.100}"
    if value.get("id", [bot_id]) != [bot_id]:
        return f"id must be {bot_id}, not {value['id']!r:.100}"
    return None


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256 and value == value.strip() and "|" not in value


def _is_flat(value: Any, levels: int) -> bool:
    """Whether dicts and lists are nested at most so many levels: the server refuses deep requests."""
    if not isinstance(value, (dict, list, tuple)):
        return True
    items = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_flat(item, levels - 1) for item in items)


def state_problem(value: Any) -> str | None:
    """Why this state is invalid; None if it is valid."""
    if not isinstance(value, dict):
        return f"the state must be a dict, not {value!r:.100}"
    try:
        if len(json.dumps(value, allow_nan=False)) > 1 << 19:
            return "the state is too large"
        if not _is_flat(value, MAX_STATE_DEPTH):
            return f"the state has more than {MAX_STATE_DEPTH} levels"
    except (TypeError, ValueError, RecursionError) as error:
        return f"the state cannot be represented as JSON: {error}"
    return None


def parse_headers(value: Any) -> tuple[str, float]:
    """(header lines, time of expiry) from the result of get_authentication_headers, without reserved headers.

    Raises ValueError.
    """
    if value is None:
        return "", float("inf")
    try:
        headers, expiry = value
        pairs = [(str(name), str(text)) for name, text in dict(headers or {}).items()]
        until = float(expiry) if expiry else float("inf")
    except (TypeError, ValueError) as error:
        raise ValueError(f"get_authentication_headers returned an invalid value: {error}") from error
    for name, text in pairs:
        if not _HEADER.fullmatch(name) or not text.isprintable():
            raise ValueError(f"get_authentication_headers returned an invalid header: {name!r:.100}")
    return "".join(f"{name}: {text}\r\n" for name, text in pairs if name.lower() not in _RESERVED_HEADERS), until


def _reason_text(value: Any) -> str | None:
    """The reason that a hook gives under "quarantined" or "maintenance"; it may be True."""
    if not value:
        return None
    return "set by a hook without a reason" if value is True else str(value)[:300]


def _stable_part(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in machine.VOLATILE}
