"""Dimensions: the properties of a bot, and the properties that a task requires of its bot.

A task requires ``{"os": ["Linux", "Debian|Ubuntu"], "pool": ["ci"]}``: every value (AND), any alternative of a
value (OR). The canonical text of that set, with everything sorted, identifies the queue. Queues are looked up by a
128-bit digest of the text, and the text itself is compared again before a claim. JSON separates keys and values
unambiguously, so no two sets have the same text.

Which bot serves which queue is stored in store/; this file validates and compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import product
from typing import Final, TypeAlias

import msgspec

from myrmidon.model.limits import Limits
from myrmidon.model.shown_input import Path
from myrmidon.model.validation import NO_RECORD, Checker

Required: TypeAlias = tuple[tuple[str, tuple[frozenset[str], ...]], ...]
"""A parsed canonical text: for each key its values, each a set of alternatives."""

_CACHED_CHARS: Final = 1_024
_KEY = re.compile(r"[a-zA-Z\-_.][0-9a-zA-Z\-_.]*")
_PLAIN_VALUE = re.compile(r"[!-{}~](?:[ -{}~]*[!-{}~])?")
_KEY_RULE: Final = "a key of letters, digits and - _ . that does not start with a digit"
_VALUE_RULE: Final = "text without leading or trailing space"
_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(dict[str, list[str]]).decode


def canonical(dims: Mapping[str, Sequence[str]]) -> str:
    """The canonical text of a set: keys, values and alternatives sorted and unique."""
    given = _encode(dims)
    return _canonical_cached(given) if len(given) <= _CACHED_CHARS else _canonical(given)


def _canonical(given: bytes) -> str:
    return _encode(
        {key: sorted({canonical_value(v) for v in values}) for key, values in _decode(given).items()}
    ).decode()


_canonical_cached = lru_cache(maxsize=4096)(_canonical)


def canonical_value(value: str) -> str:
    """A value with its alternatives sorted and unique."""
    return "|".join(sorted(set(value.split("|")))) if "|" in value else value


def digest(canonical: str) -> str:
    """32 hex characters: the first 128 bits of SHA-256."""
    return sha256(canonical.encode()).hexdigest()[:32]


def matches(canonical: str, bot: Mapping[str, Collection[str]]) -> bool:
    """Whether a bot with these dimensions may run tasks that require that set."""
    for key, values in _required(canonical):
        has = bot.get(key)
        if has is None:
            return False
        for alternatives in values:
            if alternatives.isdisjoint(has):
                return False
    return True


def _required(canonical: str) -> Required:
    return _required_cached(canonical) if len(canonical) <= _CACHED_CHARS else _parse_canonical(canonical)


def _parse_canonical(canonical: str) -> Required:
    return tuple((key, tuple(frozenset(v.split("|")) for v in values)) for key, values in _decode(canonical).items())


_required_cached = lru_cache(maxsize=4096)(_parse_canonical)


def expand(canonical: str) -> list[list[str]]:
    """The set without OR: a sorted list of ``key:value`` for each combination of alternatives, at most 8."""
    choices = [
        [f"{key}:{value}" for value in sorted(alternatives)]
        for key, values in _required(canonical)
        for alternatives in values
    ]
    return [sorted(set(combination)) for combination in product(*choices)]


def flat(dims: Mapping[str, Collection[str]]) -> list[str]:
    """A bot's dimensions as sorted ``key:value``."""
    return sorted(f"{key}:{value}" for key, values in dims.items() for value in values)


def task_dimensions(check: Checker, raw: object, path: Path) -> dict[str, list[str]]:
    """The dimensions that a task requires, checked and in canonical order.

    All counts are checked before anything is expanded, so that many alternatives cannot exhaust memory.
    """
    usual = _usual_dimensions(raw, check.limits)
    return _checked_dimensions(check, raw, path) if usual is None else usual


def _checked_dimensions(check: Checker, raw: object, path: Path) -> dict[str, list[str]]:
    """Like task_dimensions, without the shortcut for common sets."""
    dims = _read(check, raw, path, _task_value)
    if not dims:
        return dims
    _check_single(check, dims, "pool", path, required=True)
    _check_single(check, dims, "id", path, required=False)
    if any("|" in value for value in dims.get("pool", ())):
        check.note((*path, "pool"), dims["pool"][0], "one pool, never alternatives", "pool")
    _check_combinations(check, dims, path)
    return dims


def _usual_dimensions(raw: object, limits: Limits) -> dict[str, list[str]] | None:
    """The checked set if it has one simple value per key; else None, and _checked_dimensions must check it.

    A fleet uses few sets of dimensions, so the results are cached. Callers must not modify the result: all tasks with
    the same set share it.
    """
    if type(raw) is not dict or "pool" not in raw or len(raw) > limits.dimension_keys:
        return None
    pairs = []
    chars = 0
    for key, values in raw.items():
        if type(key) is not str or type(values) is not list or len(values) != 1 or type(values[0]) is not str:
            return None
        value = values[0]
        if len(key) > limits.dimension_key_chars or len(value) > limits.dimension_value_chars:
            return None
        chars += len(key) + len(value)
        pairs.append((key, value))
    return _usual_set(tuple(pairs)) if chars <= _CACHED_CHARS else None


@lru_cache(maxsize=4096)
def _usual_set(pairs: tuple[tuple[str, str], ...]) -> dict[str, list[str]] | None:
    for key, value in pairs:
        if not (_KEY.fullmatch(key) and _PLAIN_VALUE.fullmatch(value)):
            return None
    return {key: [value] for key, value in sorted(pairs)}


def bot_dimensions(check: Checker, raw: object, path: Path) -> dict[str, list[str]]:
    """The dimensions that a bot reports, checked and sorted: exactly one id, at least one pool, no OR."""
    dims = _read(check, raw, path, _bot_value)
    if not dims:
        return dims
    _check_single(check, dims, "id", path, required=True)
    if "pool" not in dims:
        check.note_shown((*path, "pool"), "nothing", "at least one pool", "missing")
    return dims


def _read(
    check: Checker, raw: object, path: Path, read_value: Callable[[Checker, str, Path], str | None]
) -> dict[str, list[str]]:
    given = check.record(raw, path)
    if not 1 <= len(given) <= check.limits.dimension_keys:
        if given is not NO_RECORD:
            check.note(path, raw, f"1..{check.limits.dimension_keys} keys", "too_many" if given else "missing")
        return {}
    dims = {key: _read_key(check, key, given[key], path, read_value) for key in given}
    return dict(sorted(dims.items()))


def _read_key(
    check: Checker,
    key: str,
    given: object,
    path: Path,
    read_value: Callable[[Checker, str, Path], str | None],
) -> list[str]:
    limits = check.limits
    if not _KEY.fullmatch(key) or len(key) > limits.dimension_key_chars:
        check.note((*path, key), key, f"{_KEY_RULE}, of at most {limits.dimension_key_chars} characters", "key")
    if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= limits.dimension_values:
        check.note((*path, key), given, f"a list of 1..{limits.dimension_values} values", "type")
        return []
    values: list[str] = []
    for i, item in enumerate(given):
        if isinstance(item, str):
            value = read_value(check, item, (*path, key, i))
        else:
            value = check.item(item, (*path, key, i), limits.dimension_value_chars)
        if value is not None:
            values.append(value)
    if len(values) > 1 and len(set(values)) < len(values):
        check.note((*path, key), given, "values that differ", "duplicate")
    return sorted(values)


def _bot_value(check: Checker, value: str, path: Path) -> str | None:
    found = check.item(value, path, check.limits.dimension_value_chars, minimum=1)
    if found is not None and found.strip() != found:
        check.note(path, found, _VALUE_RULE, "space")
    elif found is not None and "|" in found:
        check.note(path, found, "a value without |, which means OR for a task", "or")
    return found


def _task_value(check: Checker, value: str, path: Path) -> str | None:
    limit = check.limits.dimension_value_chars
    if value.count("|") >= check.limits.dimension_alternatives * 2:
        check.note(path, value, f"at most {check.limits.dimension_alternatives} alternatives", "or")
        return None
    for alternative in value.split("|"):
        if check.item(alternative, path, limit, minimum=1) is None:
            return None
        if alternative.strip() != alternative:
            check.note(path, value, _VALUE_RULE, "space")
            return None
    return canonical_value(value)


def _check_single(check: Checker, dims: dict[str, list[str]], key: str, path: Path, *, required: bool) -> None:
    values = dims.get(key)
    if values is None and required:
        check.note_shown((*path, key), "nothing", f"exactly one {key}", "missing")
    elif values is not None and len(values) > 1:
        check.note((*path, key), values, f"exactly one {key}" if required else f"at most one {key}", key)


def _check_combinations(check: Checker, dims: dict[str, list[str]], path: Path) -> None:
    combinations = 1
    for values in dims.values():
        for value in values:
            combinations *= value.count("|") + 1
    if combinations > check.limits.dimension_alternatives:
        shown = f"{combinations if combinations < 10**9 else 'too many'} combinations of alternatives"
        check.note_shown(path, shown, f"at most {check.limits.dimension_alternatives}", "or")


# -- stored texts --------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def bot_sets(has: str) -> dict[str, frozenset[str]]:
    """A bot's stored dimensions as sets, for comparing."""
    return {key: frozenset(values) for key, values in _decode(has).items()}


@lru_cache(maxsize=65536)
def serves(canonical: str, has: str) -> bool:
    """Whether a bot with these stored dimensions may run tasks that require that stored set."""
    return matches(canonical, bot_sets(has))


def narrowest_values(canonical: str) -> list[str]:
    """``key:value`` texts of the most selective key: every bot that matches the set has at least one of them."""
    required = dict(_required(canonical))
    key = "id" if "id" in required else "pool" if "pool" in required else next(iter(required))
    return sorted(f"{key}:{value}" for value in required[key][0])


def pool_of(canonical: str) -> str:
    """The pool of a stored set of dimensions."""
    values = dict(_required(canonical)).get("pool")
    return min(values[0]) if values else ""


def only_bot(canonical: str) -> str:
    """The id of the only bot that can have a stored set of dimensions; empty if there may be several."""
    values = dict(_required(canonical)).get("id")
    return min(values[0]) if values and len(values[0]) == 1 else ""


def split_values(canonical: str) -> list[str]:
    """The set split into one canonical text per required value, the pool first."""
    singles = [(key, value) for key, values in _decode(canonical).items() for value in values]
    return [_encode({key: [value]}).decode() for key, value in sorted(singles, key=lambda s: (s[0] != "pool", s))]


def show_single(single: str) -> str:
    """``key:value`` of a canonical text with one required value."""
    key, values = next(iter(_decode(single).items()))
    return f"{key}:{values[0]}"


_OS_FAMILIES: Final = ("Linux", "Windows", "Mac", "Android", "ChromeOS", "iOS")
_OS_FAMILY_CHARS: Final = 64


def os_family(values: frozenset[str]) -> str:
    """The most general name among a bot's ``os`` values: ``Linux`` for Linux, Debian and Debian-12."""
    for family in _OS_FAMILIES:
        if family in values:
            return family
    return min(values, key=lambda value: (len(value), value), default="")[:_OS_FAMILY_CHARS]
