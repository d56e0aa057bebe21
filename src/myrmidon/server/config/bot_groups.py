"""Bot groups: what an administrator has decided for bots by their ids, read from ``bots.toml``.

    trusted = ["pool"]                      # dimensions that never come from the bots themselves
    asleep = false                          # true: no bot gets any task

    [[group]]
    name = "lab"
    bots = ["rack{1..12}", "printer"]       # exact ids; ranges are written out
    prefixes = ["lab-"]                     # none may begin with another one
    dimensions = { pool = ["lab"] }         # replace what the bot says of these keys
    owners = ["ann@example.org"]
    script = "lab.py"                       # a file in scripts/, injected at the handshake
    settings = { caches = { items = 20 } }  # anything; for the bot

    [[group]]
    name = "others"
    default = true                          # every bot that no other group has

A group is chosen by the exact id, then by the host's (``host--2`` is of the group of ``host``), then by prefix, then
the default one. This file only reads and chooses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct, json

from myrmidon.model.dimensions import bot_dimensions
from myrmidon.model.validation import Checker, Path

MAX_GROUPS = 10_000
MAX_BOTS = 100_000
"""Ids that all ranges of all groups may stand for."""
_CHARS = 256
_TOP = frozenset({"trusted", "asleep", "group"})
_FIELDS = frozenset({"name", "bots", "prefixes", "default", "dimensions", "owners", "script", "settings"})
_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
SCRIPT_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_\-.]*\.py")
_encode = json.Encoder(order="deterministic").encode


class BotGroup(Struct, frozen=True, kw_only=True):
    """What bots of one group are given."""

    name: str
    bots: list[str] = []
    prefixes: list[str] = []
    default: bool = False
    dimensions: dict[str, list[str]] = {}
    owners: list[str] = []
    script: str = ""
    settings: dict[str, Any] = {}


class BotGroupConfig(Struct, frozen=True, kw_only=True):
    """What one bot is given by its group. ``config`` names all of it; empty when that is nothing."""

    group: str = ""
    version: str = ""
    dimensions: dict[str, list[str]] = {}
    trusted: frozenset[str] = frozenset()
    script: str | None = None
    script_name: str = ""
    settings: dict[str, Any] = {}
    owners: list[str] = []

    def apply(self, own: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """The dimensions of a bot that says it has ``own``."""
        if not (self.dimensions or self.trusted):
            return dict(own)
        return {**{key: values for key, values in own.items() if key not in self.trusted}, **self.dimensions}


EMPTY_GROUP_CONFIG = BotGroupConfig()


class BotGroups:
    """All groups of a fleet, ready to be asked."""

    def __init__(
        self, groups: Collection[BotGroup], trusted: Collection[str], scripts: Mapping[str, str], *, asleep: bool
    ) -> None:
        self.groups = list(groups)
        self.asleep = asleep
        self._by_id = {bot_id: group for group in groups for bot_id in group.bots}
        self._by_prefix = [(prefix, group) for group in groups for prefix in group.prefixes]
        self._default = next((group for group in groups if group.default), None)
        gives = {group.name: _given(group, frozenset(trusted), scripts) for group in groups}
        self._given = gives

    def config_for(self, bot_id: str) -> BotGroupConfig | None:
        """What a bot is given; None when no group has it, so that it has no business here."""
        group = self._by_id.get(bot_id)
        if group is None and "--" in bot_id:
            group = self._by_id.get(bot_id.partition("--")[0])
        if group is None:
            group = next((group for prefix, group in self._by_prefix if bot_id.startswith(prefix)), self._default)
        return self._given[group.name] if group is not None else None


def _given(group: BotGroup, trusted: frozenset[str], scripts: Mapping[str, str]) -> BotGroupConfig:
    script = scripts.get(group.script) if group.script else None
    told = (group.dimensions, sorted(trusted), group.script, script, group.settings)
    plain = not (group.dimensions or trusted or script or group.settings)
    return BotGroupConfig(
        group=group.name,
        version="" if plain else sha256(_encode(told)).hexdigest()[:32],
        dimensions=group.dimensions,
        trusted=trusted,
        script=script,
        script_name=group.script,
        settings=group.settings,
        owners=group.owners,
    )


# ---------------------------------------------------------------- reading


def read_groups(check: Checker, raw: object, scripts: Mapping[str, str]) -> BotGroups:
    """The groups of a decoded ``bots.toml``; everything that is wrong with it is noted."""
    given = check.record(raw, ())
    check.unknown_keys(given, _TOP, ())
    trusted = check.texts(given, "trusted", (), check.limits.dimension_keys, chars=check.limits.dimension_key_chars)
    if "id" in trusted:
        check.note(("trusted",), "id", "dimensions other than id: that is the bot's own", "contradiction")
    tables = check.listing(given, "group", (), MAX_GROUPS)
    room = [MAX_BOTS]
    groups = [_group(check, table, ("group", i), scripts, room) for i, table in enumerate(tables)]
    _compare(check, groups)
    return BotGroups(groups, trusted, scripts, asleep=check.boolean(given, "asleep", ()))


def _group(check: Checker, raw: object, path: Path, scripts: Mapping[str, str], room: list[int]) -> BotGroup:
    given = check.record(raw, path)
    check.unknown_keys(given, _FIELDS, path)
    patterns = check.texts(given, "bots", path, MAX_BOTS, chars=_CHARS, least_chars=1)
    group = BotGroup(
        name=check.text(given, "name", path, _CHARS, least=1),
        bots=[one for i, text in enumerate(patterns) for one in _ids(check, text, (*path, "bots", i), room)],
        prefixes=check.texts(given, "prefixes", path, MAX_GROUPS, chars=_CHARS, least_chars=1),
        default=check.boolean(given, "default", path),
        dimensions=_dimensions(check, given, path),
        owners=check.texts(given, "owners", path, 100, chars=_CHARS, least_chars=1),
        script=_script(check, given, path, scripts),
        settings=_settings(check, given, path),
    )
    if given and not (patterns or group.prefixes or group.default):
        check.note_shown(
            path, "a group without bots", "bots, prefixes or default = true: it would have no bot", "missing"
        )
    return group


def _ids(check: Checker, text: str, path: Path, room: list[int]) -> list[str]:
    """``vm{1..3}`` is vm1, vm2 and vm3; ``vm{01..12}`` has two digits throughout."""
    found = [text]
    while (one := _RANGE.search(found[0])) is not None:
        first, last = int(one[1]), int(one[2])
        if first > last or (last - first + 1) * len(found) > room[0]:
            allowed = f"ranges that go up, and at most {MAX_BOTS} bots in all"
            check.note(path, text, allowed, "range")
            return []
        width = len(one[1]) if one[1].startswith("0") else 0
        numbers = [str(n).zfill(width) for n in range(first, last + 1)]
        found = [_RANGE.sub(number, each, count=1) for each in found for number in numbers]
    if "{" in found[0] or "}" in found[0]:
        check.note(path, text, "an id, with ranges like {1..9}", "syntax")
        return []
    room[0] -= len(found)
    return found


def _dimensions(check: Checker, given: dict[str, object], path: Path) -> dict[str, list[str]]:
    raw = given.get("dimensions")
    if raw is None:
        return {}
    here = (*path, "dimensions")
    told = check.record(raw, here)
    if "id" in told:
        check.note((*here, "id"), told["id"], "none: a bot's id is its own", "contradiction")
    before = check.count
    probe = Checker(check.limits)
    found = bot_dimensions(probe, {"pool": ["any"], **told, "id": ["any"]}, here)
    for problem in probe.problems:
        check.problems.append(problem)
    return {key: found[key] for key in told if key in found} if check.count == before else {}


def _script(check: Checker, given: dict[str, object], path: Path, scripts: Mapping[str, str]) -> str:
    name = check.text(given, "script", path, 128, pattern=SCRIPT_NAME, allowed="the plain name of a .py file", default="")
    if name and name not in scripts:
        there = ", ".join(sorted(scripts)) or "there is none"
        check.note((*path, "script"), name, f"a file of scripts/: {there}", "unknown")
    return name


def _settings(check: Checker, given: dict[str, object], path: Path) -> dict[str, Any]:
    told = check.mapping(given, "settings", path, 1000)
    try:
        _encode(told)
    except (TypeError, RecursionError):
        check.note((*path, "settings"), told, "what JSON can say: no dates", "type")
        return {}
    return dict(told)


def _compare(check: Checker, groups: list[BotGroup]) -> None:
    """No bot may be of two groups by the same right."""
    _distinct(check, [(group.name, ("group", i, "name")) for i, group in enumerate(groups)], "a name no other has")
    ids = [(bot_id, ("group", i, "bots")) for i, group in enumerate(groups) for bot_id in group.bots]
    _distinct(check, ids, "bots that no other group, and no other range, has")
    prefixes = sorted(
        (prefix, ("group", i, "prefixes", j))
        for i, group in enumerate(groups)
        for j, prefix in enumerate(group.prefixes)
    )
    shorter = ""
    for prefix, where in prefixes:
        if shorter and prefix.startswith(shorter):
            check.note(where, prefix, f"prefixes that do not overlap: {shorter!r} begins it", "overlap")
        else:
            shorter = prefix
    usual = [i for i, group in enumerate(groups) if group.default]
    for i in usual[1:]:
        check.note_shown(("group", i, "default"), "true", f"one default group; group[{usual[0]}] is it", "duplicate")


def _distinct(check: Checker, named: Sequence[tuple[str, Path]], allowed: str) -> None:
    seen: set[str] = set()
    for name, path in named:
        if name and name in seen:
            check.note(path, name, allowed, "duplicate")
        seen.add(name)
