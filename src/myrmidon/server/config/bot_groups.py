"""Parses ``bots.toml``, the configuration of bots by groups, and finds the group of a bot.

    trusted = ["pool"]                      # ignore these dimensions when a bot reports them itself
    asleep = false                          # true: no bot gets a task; running tasks continue

    [[group]]
    name = "lab"
    bots = ["rack{1..12}", "printer"]       # exact ids; {01..12} keeps two digits
    prefixes = ["lab-"]                     # prefixes of ids; no prefix may be the beginning of another
    dimensions = { pool = ["lab"] }         # override what the bot reports for these keys
    owners = ["ann@example.org"]
    script = "lab.py"                       # a file in scripts/, sent to the bot at the handshake
    settings.caches.named.items = 20        # merged into the bot's settings; unknown keys are for the script

    [[group]]
    name = "others"
    default = true                          # every bot that is in no other group

The group of a bot is found by its exact id, then by the id of its host (``rack3--2`` belongs to the group of
``rack3``), then by prefix; otherwise it is the default group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct, json

from myrmidon.model.bot import BOT_ID_RULE, is_bot_id
from myrmidon.model.dimensions import bot_dimensions
from myrmidon.model.shown_input import Path
from myrmidon.model.validation import Checker

MAX_GROUPS = 10_000
MAX_BOTS = 100_000
"""Of all groups together, after ranges are expanded."""
_MAX_CHARS = 256
_TOP_LEVEL_KEYS = frozenset({"trusted", "asleep", "group"})
_GROUP_KEYS = frozenset({"name", "bots", "prefixes", "default", "dimensions", "owners", "script", "settings"})
_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
SCRIPT_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_\-.]*\.py")
_encode = json.Encoder(order="deterministic").encode


class BotGroup(Struct, frozen=True, kw_only=True):
    """One ``[[group]]`` of ``bots.toml``, with its ranges of ids expanded."""

    name: str
    bots: list[str] = []
    prefixes: list[str] = []
    default: bool = False
    dimensions: dict[str, list[str]] = {}
    owners: list[str] = []
    script: str = ""
    settings: dict[str, Any] = {}


class BotGroupConfig(Struct, frozen=True, kw_only=True):
    """What the bots of one group get from it."""

    group: str = ""
    version: str = ""
    """A digest of everything the bot sees of it; empty if there is nothing to send."""
    dimensions: dict[str, list[str]] = {}
    trusted: frozenset[str] = frozenset()
    script: str | None = None
    script_name: str = ""
    settings: dict[str, Any] = {}
    owners: list[str] = []

    def apply(self, reported: Mapping[str, list[str]], bound_pool: str | None = None) -> dict[str, list[str]]:
        """The dimensions of a bot: the reported ones without the trusted keys, overridden by the assigned ones."""
        believed = {key: values for key, values in reported.items() if key not in self.trusted}
        return {**believed, **self.assigned(bound_pool)}

    def assigned(self, bound_pool: str | None = None) -> dict[str, list[str]]:
        """What a bot gets whatever it reports: the pool that its token is bound to, overridden by the group's."""
        return {**({"pool": [bound_pool]} if bound_pool else {}), **self.dimensions}


EMPTY_GROUP_CONFIG = BotGroupConfig()


class BotGroups:
    """All groups of ``bots.toml``, indexed by ids and prefixes."""

    def __init__(
        self, groups: Collection[BotGroup], trusted: Collection[str], scripts: Mapping[str, str], *, asleep: bool
    ) -> None:
        self.groups = list(groups)
        self.asleep = asleep
        self._by_id = {bot_id: group for group in groups for bot_id in group.bots}
        self._by_prefix = [(prefix, group) for group in groups for prefix in group.prefixes]
        self._default = next((group for group in groups if group.default), None)
        self._configs = {group.name: _config_of(group, frozenset(trusted), scripts) for group in groups}

    def config_for(self, bot_id: str) -> BotGroupConfig | None:
        """The configuration of the bot's group; None if the bot is in no group and must be rejected."""
        group, _ = self._find(bot_id)
        return self._configs[group.name] if group is not None else None

    def trusting_prefix(self, bot_id: str) -> str:
        """The prefix, or the host's id and ``--``, by which a group has bots that are not listed; empty for none."""
        return self._find(bot_id)[1]

    def _find(self, bot_id: str) -> tuple[BotGroup | None, str]:
        """The group of a bot; and the beginning of its id that was sufficient for that."""
        if bot_id in self._by_id:
            return self._by_id[bot_id], ""
        host, dashes, _ = bot_id.partition("--")
        if dashes and host in self._by_id:
            return self._by_id[host], host + dashes
        found = ((group, prefix) for prefix, group in self._by_prefix if bot_id.startswith(prefix))
        return next(found, (self._default, ""))


def _config_of(group: BotGroup, trusted: frozenset[str], scripts: Mapping[str, str]) -> BotGroupConfig:
    script = scripts.get(group.script) if group.script else None
    content = (group.dimensions, sorted(trusted), group.script, script, group.settings)
    empty = not (group.dimensions or trusted or script or group.settings)
    return BotGroupConfig(
        group=group.name,
        version="" if empty else sha256(_encode(content)).hexdigest()[:32],
        dimensions=group.dimensions,
        trusted=trusted,
        script=script,
        script_name=group.script,
        settings=group.settings,
        owners=group.owners,
    )


# ---------------------------------------------------------------- parsing


def read_groups(check: Checker, raw: object, scripts: Mapping[str, str]) -> BotGroups:
    """Read a decoded ``bots.toml``; all problems are recorded in ``check``."""
    table = check.record(raw, ())
    check.unknown_keys(table, _TOP_LEVEL_KEYS, ())
    trusted = check.texts(table, "trusted", (), check.limits.dimension_keys, chars=check.limits.dimension_key_chars)
    if "id" in trusted:
        check.note(("trusted",), "id", "any dimension except id, which a bot always sets itself", "contradiction")
    ids_left = [MAX_BOTS]
    groups = [
        _read_group(check, group, ("group", i), scripts, ids_left)
        for i, group in enumerate(check.listing(table, "group", (), MAX_GROUPS))
    ]
    _check_unambiguous(check, groups)
    return BotGroups(groups, trusted, scripts, asleep=check.boolean(table, "asleep", ()))


def _read_group(check: Checker, raw: object, path: Path, scripts: Mapping[str, str], ids_left: list[int]) -> BotGroup:
    table = check.record(raw, path)
    check.unknown_keys(table, _GROUP_KEYS, path)
    patterns = check.texts(table, "bots", path, MAX_BOTS, chars=_MAX_CHARS, fits=is_bot_id, allowed=BOT_ID_RULE)
    group = BotGroup(
        name=check.text(table, "name", path, _MAX_CHARS, minimum=1),
        bots=[
            bot_id
            for i, pattern in enumerate(patterns)
            for bot_id in _expand_ranges(check, pattern, (*path, "bots", i), ids_left)
        ],
        prefixes=check.texts(table, "prefixes", path, MAX_GROUPS, chars=_MAX_CHARS, minimum_chars=1),
        default=check.boolean(table, "default", path),
        dimensions=_read_dimensions(check, table, path),
        owners=check.texts(table, "owners", path, 100, chars=_MAX_CHARS, minimum_chars=1),
        script=_read_script_name(check, table, path, scripts),
        settings=_read_settings(check, table, path),
    )
    if table and not (patterns or group.prefixes or group.default):
        check.note_shown(
            path, "a group that matches no bot", "at least one of bots, prefixes and default = true", "missing"
        )
    return group


def _expand_ranges(check: Checker, pattern: str, path: Path, ids_left: list[int]) -> list[str]:
    """``vm{1..3}`` becomes vm1, vm2 and vm3; ``vm{01..12}`` has two digits throughout.

    ``ids_left[0]`` is how many ids the file may still have: a short range could stand for more than fit into memory.
    """
    ids = [pattern]
    while (match := _RANGE.search(ids[0])) is not None:
        first, last = int(match[1]), int(match[2])
        if first > last or (last - first + 1) * len(ids) > ids_left[0]:
            allowed = f"ascending ranges such as {{1..9}}, and at most {MAX_BOTS} bots in the whole file"
            check.note(path, pattern, allowed, "range")
            return []
        width = len(match[1]) if match[1].startswith("0") else 0
        numbers = [str(n).zfill(width) for n in range(first, last + 1)]
        ids = [_RANGE.sub(number, bot_id, count=1) for bot_id in ids for number in numbers]
    if "{" in ids[0] or "}" in ids[0]:
        check.note(path, pattern, "a bot id; braces only in ranges such as {1..9}", "syntax")
        return []
    ids_left[0] -= len(ids)
    return ids


def _read_dimensions(check: Checker, table: dict[str, object], path: Path) -> dict[str, list[str]]:
    raw = table.get("dimensions")
    if raw is None:
        return {}
    here = (*path, "dimensions")
    values = check.record(raw, here)
    if "id" in values:
        check.note((*here, "id"), values["id"], "no value: a bot always sets its id itself", "contradiction")
    before = check.count
    probe = Checker(check.limits)
    # A group need not set the two dimensions that every bot must have.
    dimensions = bot_dimensions(probe, {"pool": ["any"], **values, "id": ["any"]}, here)
    check.problems.extend(probe.problems)
    return {key: dimensions[key] for key in values if key in dimensions} if check.count == before else {}


def _read_script_name(check: Checker, table: dict[str, object], path: Path, scripts: Mapping[str, str]) -> str:
    name = check.text(
        table, "script", path, 128, pattern=SCRIPT_NAME, allowed="the name of a .py file, without a folder", default=""
    )
    if name and name not in scripts:
        existing = ", ".join(sorted(scripts)) or "there are none"
        check.note((*path, "script"), name, f"a file in scripts/ ({existing})", "unknown")
    return name


def _read_settings(check: Checker, table: dict[str, object], path: Path) -> dict[str, Any]:
    settings = check.mapping(table, "settings", path, 1000)
    try:
        _encode(settings)
    except (TypeError, RecursionError):
        check.note((*path, "settings"), settings, "values that JSON has; write dates and times as text", "type")
        return {}
    return dict(settings)


def _check_unambiguous(check: Checker, groups: list[BotGroup]) -> None:
    """Record ids, prefixes and defaults that would put a bot into two groups."""
    names = [(group.name, ("group", i, "name")) for i, group in enumerate(groups)]
    _check_distinct(check, names, "a name that no other group has")
    ids = [(bot_id, ("group", i, "bots")) for i, group in enumerate(groups) for bot_id in group.bots]
    _check_distinct(check, ids, "each bot id only once in the whole file")
    prefixes = sorted(
        (prefix, ("group", i, "prefixes", j))
        for i, group in enumerate(groups)
        for j, prefix in enumerate(group.prefixes)
    )
    shorter = ""
    for prefix, where in prefixes:
        if shorter and prefix.startswith(shorter):
            check.note(where, prefix, f"a prefix that does not begin with another one ({shorter!r})", "overlap")
        else:
            shorter = prefix
    defaults = [i for i, group in enumerate(groups) if group.default]
    for i in defaults[1:]:
        allowed = f"at most one default group; group[{defaults[0]}] is the default"
        check.note_shown(("group", i, "default"), "true", allowed, "duplicate")


def _check_distinct(check: Checker, names: Sequence[tuple[str, Path]], allowed: str) -> None:
    seen: set[str] = set()
    for name, path in names:
        if name and name in seen:
            check.note(path, name, allowed, "duplicate")
        seen.add(name)
