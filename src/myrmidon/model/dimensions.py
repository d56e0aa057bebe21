"""Dimensions: what a bot has and what a task wants.

A task wants ``{"os": ["Linux", "Debian|Ubuntu"], "pool": ["ci"]}``: every value (AND), any alternative of a
value (OR). The canonical text of that, with everything sorted, *is* the queue; its digest has 128 bits and
the text is compared again before a claim. JSON keeps keys and values apart, so no two sets share a text.

Which bot serves which queue is stored elsewhere; this file only compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import product
from typing import Final, TypeAlias

import msgspec

from myrmidon.model.checks import NOTHING, Checker, Limits, Path

Wants: TypeAlias = tuple[tuple[str, tuple[frozenset[str], ...]], ...]
"""A canonical text taken apart: for each key its values, each a set of alternatives."""

_CACHED_CHARS: Final = 1_024
_KEY = re.compile(r"[a-zA-Z\-_.][0-9a-zA-Z\-_.]*")
_PLAIN_VALUE = re.compile(r"[!-{}~](?:[ -{}~]*[!-{}~])?")
_KEY_RULE: Final = "a key of letters, digits and - _ . that does not start with a digit"
_VALUE_RULE: Final = "text without leading or trailing space"
_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(dict[str, list[str]]).decode


def canonical(dims: Mapping[str, Sequence[str]]) -> str:
    """The one text of this set: keys, values and alternatives sorted and unique."""
    given = _encode(dims)
    return _canonical_cached(given) if len(given) <= _CACHED_CHARS else _canonical(given)


def _canonical(given: bytes) -> str:
    return _encode({key: sorted({one_value(v) for v in values}) for key, values in _decode(given).items()}).decode()


_canonical_cached = lru_cache(maxsize=4096)(_canonical)


def one_value(value: str) -> str:
    """A value with its alternatives sorted and unique."""
    return "|".join(sorted(set(value.split("|")))) if "|" in value else value


def digest(canonical: str) -> str:
    """32 hex characters: the first 128 bits of SHA-256."""
    return sha256(canonical.encode()).hexdigest()[:32]


def matches(canonical: str, bot: Mapping[str, Collection[str]]) -> bool:
    """True if a bot with these dimensions may run tasks that want that set."""
    for key, values in _wants(canonical):
        has = bot.get(key)
        if has is None:
            return False
        for alternatives in values:
            if alternatives.isdisjoint(has):
                return False
    return True


def _wants(canonical: str) -> Wants:
    return _wants_cached(canonical) if len(canonical) <= _CACHED_CHARS else _taken_apart(canonical)


def _taken_apart(canonical: str) -> Wants:
    return tuple((key, tuple(frozenset(v.split("|")) for v in values)) for key, values in _decode(canonical).items())


_wants_cached = lru_cache(maxsize=4096)(_taken_apart)


def expand(canonical: str) -> list[list[str]]:
    """The set without OR: a sorted list of ``key:value`` for each combination of alternatives, at most 8."""
    choices = [
        [f"{key}:{one}" for one in sorted(alternatives)] for key, values in _wants(canonical) for alternatives in values
    ]
    return [sorted(set(combination)) for combination in product(*choices)]


def flat(dims: Mapping[str, Collection[str]]) -> list[str]:
    """A bot's dimensions as sorted ``key:value``."""
    return sorted(f"{key}:{value}" for key, values in dims.items() for value in values)


def task_dimensions(check: Checker, raw: object, path: Path) -> dict[str, list[str]]:
    """What a task wants, checked and put in canonical order.

    Every count is compared before anything is expanded: a bomb of alternatives costs no more than its bytes.
    """
    usual = _usual_dimensions(raw, check.limits)
    return _checked_dimensions(check, raw, path) if usual is None else usual


def _checked_dimensions(check: Checker, raw: object, path: Path) -> dict[str, list[str]]:
    """The same for any set, with all problems noted."""
    dims = _read(check, raw, path, _wanted_value)
    if not dims:
        return dims
    _one_of(check, dims, "pool", path, required=True)
    _one_of(check, dims, "id", path, required=False)
    if any("|" in value for value in dims.get("pool", ())):
        check.note((*path, "pool"), dims["pool"][0], "one pool, never alternatives", "pool")
    _bounded_product(check, dims, path)
    return dims


def _usual_dimensions(raw: object, limits: Limits) -> dict[str, list[str]] | None:
    """The set as ``task_dimensions`` would return it, if it has one simple value per key; else None: look closer.

    Fleets have few sets of dimensions: one that was seen before is known to be right. Nobody may change what
    this returns, since all tasks that want the same share it.
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
    """What a bot says it has, checked and sorted: exactly one id, at least one pool, no OR."""
    dims = _read(check, raw, path, _had_value)
    if not dims:
        return dims
    _one_of(check, dims, "id", path, required=True)
    if "pool" not in dims:
        check.note_shown((*path, "pool"), "nothing", "at least one pool", "missing")
    return dims


def _read(
    check: Checker, raw: object, path: Path, read_value: Callable[[Checker, str, Path], str | None]
) -> dict[str, list[str]]:
    given = check.record(raw, path)
    if not 1 <= len(given) <= check.limits.dimension_keys:
        if given is not NOTHING:
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


def _had_value(check: Checker, value: str, path: Path) -> str | None:
    found = check.item(value, path, check.limits.dimension_value_chars, least=1)
    if found is not None and found.strip() != found:
        check.note(path, found, _VALUE_RULE, "space")
    elif found is not None and "|" in found:
        check.note(path, found, "a value without |, which means OR for a task", "or")
    return found


def _wanted_value(check: Checker, value: str, path: Path) -> str | None:
    most = check.limits.dimension_value_chars
    if value.count("|") >= check.limits.dimension_alternatives * 2:
        check.note(path, value, f"at most {check.limits.dimension_alternatives} alternatives", "or")
        return None
    for alternative in value.split("|"):
        if check.item(alternative, path, most, least=1) is None:
            return None
        if alternative.strip() != alternative:
            check.note(path, value, _VALUE_RULE, "space")
            return None
    return one_value(value)


def _one_of(check: Checker, dims: dict[str, list[str]], key: str, path: Path, *, required: bool) -> None:
    values = dims.get(key)
    if values is None and required:
        check.note_shown((*path, key), "nothing", f"exactly one {key}", "missing")
    elif values is not None and len(values) > 1:
        check.note((*path, key), values, f"exactly one {key}" if required else f"at most one {key}", key)


def _bounded_product(check: Checker, dims: dict[str, list[str]], path: Path) -> None:
    combinations = 1
    for values in dims.values():
        for value in values:
            combinations *= value.count("|") + 1
    if combinations > check.limits.dimension_alternatives:
        shown = f"{combinations if combinations < 10**9 else 'too many'} combinations of alternatives"
        check.note_shown(path, shown, f"at most {check.limits.dimension_alternatives}", "or")


# -- what the store and the scheduler ask of stored texts ----------------------------------------------------


@lru_cache(maxsize=4096)
def bot_sets(has: str) -> dict[str, frozenset[str]]:
    """A bot's stored dimensions, ready to be compared."""
    return {key: frozenset(values) for key, values in _decode(has).items()}


@lru_cache(maxsize=65536)
def serves(canonical: str, has: str) -> bool:
    """Whether a bot with these stored dimensions may run tasks that want that stored set."""
    return matches(canonical, bot_sets(has))


def anchor(canonical: str) -> list[str]:
    """``key:value`` of which every bot that matches has at least one; as few bots as possible have one."""
    wants = dict(_wants(canonical))
    key = "id" if "id" in wants else "pool" if "pool" in wants else next(iter(wants))
    return sorted(f"{key}:{one}" for one in wants[key][0])


def pool_of(canonical: str) -> str:
    """The pool that a stored set of dimensions is for."""
    values = dict(_wants(canonical)).get("pool")
    return min(values[0]) if values else ""


def parts(canonical: str) -> list[str]:
    """The set taken apart into one canonical text per wanted value, the pool first."""
    singles = [(key, value) for key, values in _decode(canonical).items() for value in values]
    return [_encode({key: [value]}).decode() for key, value in sorted(singles, key=lambda s: (s[0] != "pool", s))]


def shown(single: str) -> str:
    """``key:value`` of a text with one wanted value."""
    key, values = next(iter(_decode(single).items()))
    return f"{key}:{values[0]}"
