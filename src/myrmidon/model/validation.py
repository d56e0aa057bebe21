"""Read an untyped tree with a Checker that collects *all* problems.

Readers get one field after the other from the Checker. It returns the field's value; if that is wrong, it records a
Problem and returns a harmless value, so that reading continues. Paths are tuples and become text only for a problem:
valid input does not pay for them.

Input is never quoted whole (model/shown_input.py). No reader recurses into unknown fields, so deeply nested input
cannot exhaust the stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar, cast

import msgspec

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.shown_input import NOTHING, Path, allowed_keys, count, kind_of, show_path, show_value
from myrmidon.model.struct_problems import problems_of

E = TypeVar("E", bound=str)
T = TypeVar("T")

MAX_PROBLEMS: Final = 1_000
MAX_INT64: Final = (1 << 63) - 1
REQUIRED: Final = "\0required"
"""Marks a field without a default: it is a problem if it is missing."""

NO_RECORD: Final[dict[str, object]] = {}
"""Returned in place of an object that is missing or wrong; compare with ``is``."""

_UNFIT: Final = (msgspec.ValidationError, UnicodeError)
"""What convert raises for a value that does not fit; UnicodeError for lone surrogates."""
_MAX_STRUCT_DEPTH: Final = 4
_MAX_KNOWN: Final = 64
_encode = msgspec.json.Encoder().encode


def is_clean(text: str) -> bool:
    """Whether a text has neither NUL nor lone surrogates: not every database and operating system can hold those."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Checker:
    """Collects the problems of one request; ``finish`` raises them all.

    Most methods take the raw object, the key of the field and the path of the *object*; ``item`` takes a value and
    its own path. None counts as absent, so that clients may send null for the default.
    """

    __slots__ = ("_known", "_unlisted", "_warnings", "limits", "problems")

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.problems: list[Problem] = []
        self._unlisted = 0
        self._warnings: dict[tuple[str | int, str], list[Path]] = {}
        self._known: dict[tuple[str, bytes], object] = {}

    def once(self, kind: str, raw: object, read: Callable[[], T]) -> T:
        """What ``read`` makes of a raw value; equal ones without problems are read once and share the result.

        The calls of a function in a graph of thousands have equal parts. They are compared by their JSON, because
        Python takes 1 and true for equal. Measured: a graph of 10,000 calls is read in 70 % of the time.
        """
        try:
            key = kind, _encode(raw)
        except (RecursionError, OverflowError, TypeError, ValueError):
            return read()
        if key in self._known:
            return cast("T", self._known[key])
        before = self.count
        value = read()
        if self.count == before:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = value
        return value

    @property
    def count(self) -> int:
        """How many problems were recorded so far, including those beyond MAX_PROBLEMS."""
        return len(self.problems) + self._unlisted

    def note(self, path: Path, value: object, allowed: str, code: str = "invalid") -> None:
        """Record a problem; the value is shown as show_value does."""
        self.note_shown(path, show_value(value), allowed, code)

    def note_shown(self, path: Path, shown: str, allowed: str, code: str = "invalid") -> None:
        """Record a problem with the caller's text for the value; beyond MAX_PROBLEMS they are only counted."""
        if len(self.problems) >= MAX_PROBLEMS:
            self._unlisted += 1
            return
        self.problems.append(Problem(show_path(path), shown, allowed, code))

    def warn(self, path: Path, reason: str) -> None:
        """Record a field that has no effect, and why, in a request that means the same without it."""
        self._warnings.setdefault((path[-1], reason), []).append(path)

    def warnings(self) -> list[str]:
        """A sentence for each kind of field that has no effect, with the first place of it."""
        return [
            f"{show_path(paths[0])}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''} has no effect: {reason}"
            for (_, reason), paths in self._warnings.items()
        ]

    def finish(self) -> None:
        """Raise InvalidRequest with all problems, if there are any."""
        if not self.problems:
            return
        if self._unlisted:
            more = Problem("", count(self._unlisted, "more problem"), "none; only the first ones are listed", "more")
            raise InvalidRequest([*self.problems, more])
        raise InvalidRequest(self.problems)

    # -- objects and lists ------------------------------------------------------------------------------

    def record(self, value: object, path: Path) -> dict[str, object]:
        """The value as an object with text keys; an empty one if it is something else."""
        if not isinstance(value, dict):
            self.note(path, value, "an object", "type")
            return NO_RECORD
        for key in value:
            if not isinstance(key, str):
                self.note(path, key, "keys that are text", "type")
                return NO_RECORD
        return value

    def unknown_keys(
        self, raw: Mapping[str, object], known: frozenset[str], path: Path, also: frozenset[str] = frozenset(),
        instead: Mapping[str, str] = NOTHING,
    ) -> None:  # fmt: skip
        """Record unknown fields: a misspelt one must not be ignored. Values are not shown: one may be a secret.

        ``also`` are fields that the caller may send, but that were replaced before. ``instead``: as for allowed_keys.
        """
        if raw.keys() <= known:
            return
        for key in raw:
            if key not in known:
                self.note_shown((*path, key), kind_of(raw[key]), allowed_keys(key, known | also, instead), "unknown")

    def mapping(self, raw: Mapping[str, object], key: str, path: Path, limit: int) -> dict[str, object]:
        """An optional object of at limit that many keys."""
        value = raw.get(key)
        if value is None:
            return NO_RECORD
        record = self.record(value, (*path, key))
        if len(record) > limit:
            self.note((*path, key), record, f"at most {limit} keys", "too_many")
            return NO_RECORD
        return record

    def listing(self, raw: Mapping[str, object], key: str, path: Path, limit: int, *, minimum: int = 0) -> list[object]:
        """A list of minimum..limit items; absent is empty. The items of a list that is too long are not checked."""
        value = raw.get(key)
        if value is None and not minimum:
            return []
        if not isinstance(value, (list, tuple)):
            self.note(
                (*path, key),
                value,
                f"a list of {minimum}..{limit} items",
                "missing" if value is None else "type",
            )
            return []
        if not minimum <= len(value) <= limit:
            self.note((*path, key), value, f"{minimum}..{limit} items", "too_many" if len(value) > limit else "missing")
            return []
        return list(value)

    # -- structs ----------------------------------------------------------------------------------------

    def struct(self, value: object, kind: Any, path: Path) -> Any:
        """The value as a struct that declares what is allowed; None if it is not one, with all problems recorded."""
        try:
            return msgspec.convert(value, kind)
        except _UNFIT:
            found = list(islice(problems_of(value, kind, path, null_is_absent=True, quotes=True), MAX_PROBLEMS))
        for where, problem in found:
            self.note_shown(where, problem.value, problem.allowed, problem.code)
        try:
            return None if found else msgspec.convert(_without_nulls(value, _MAX_STRUCT_DEPTH), kind)
        except _UNFIT:
            self.note(path, value, "JSON, without lone surrogates in its texts", "characters")
            return None

    def structs(self, values: list[object], kind: Any, items: type[Any], path: Path) -> list[tuple[int, Any, Any]]:
        """(position, struct, value) of those items of a list that are structs of this kind.

        ``items`` is a struct with the list as its field ``items``: msgspec looks at the type of a plain list each time.
        """
        try:
            return list(zip(range(len(values)), msgspec.convert({"items": values}, items).items, values, strict=True))
        except _UNFIT:
            found = [(i, self.struct(value, kind, (*path, i)), value) for i, value in enumerate(values)]
            return [one for one in found if one[1] is not None]

    # -- single values ----------------------------------------------------------------------------------

    def text(
        self,
        raw: Mapping[str, object],
        key: str,
        path: Path,
        limit: int,
        *,
        minimum: int = 0,
        pattern: re.Pattern[str] | None = None,
        allowed: str = "",
        default: str = REQUIRED,
    ) -> str:
        """A text of minimum..limit characters that matches the whole pattern; ``allowed`` describes the pattern."""
        value = raw.get(key)
        if value is None:
            if default is not REQUIRED:
                return default
            self.note_shown((*path, key), "nothing", allowed or f"text of {minimum}..{limit} characters", "missing")
            return ""
        if (
            isinstance(value, str)
            and minimum <= len(value) <= limit
            and (pattern is None or pattern.fullmatch(value))
            and is_clean(value)
        ):
            return value
        self.item(value, (*path, key), limit, minimum=minimum, pattern=pattern, allowed=allowed)
        return "" if default is REQUIRED else default

    def item(
        self,
        value: object,
        path: Path,
        limit: int,
        *,
        minimum: int = 0,
        pattern: re.Pattern[str] | None = None,
        allowed: str = "",
    ) -> str | None:
        """Like ``text`` for a value that is not a field, e.g. an item of a list; None when it is wrong."""
        if not isinstance(value, str):
            unquoted = isinstance(value, (bool, int, float))
            self.note(path, value, allowed or ("text: write it in quotes" if unquoted else "text"), "type")
        elif not minimum <= len(value) <= limit:
            self.note(path, value, f"text of {minimum}..{limit} characters", "length")
        elif not is_clean(value):
            self.note(path, value, "text without NUL and without lone surrogates", "characters")
        elif pattern is not None and not pattern.fullmatch(value):
            self.note(path, value, allowed or f"text like {pattern.pattern}", "pattern")
        else:
            return value
        return None

    def texts(
        self,
        raw: Mapping[str, object],
        key: str,
        path: Path,
        limit: int,
        *,
        chars: int,
        minimum_chars: int = 0,
        fits: Callable[[str], bool] | None = None,
        allowed: str = "",
    ) -> list[str]:
        """A list of at limit that many texts for which ``fits`` is true; ``allowed`` describes the condition."""
        if raw.get(key) is None:
            return []
        valid: list[str] = []
        for i, value in enumerate(self.listing(raw, key, path, limit)):
            if not (isinstance(value, str) and minimum_chars <= len(value) <= chars and is_clean(value)):
                self.item(value, (*path, key, i), chars, minimum=minimum_chars)
            elif fits is not None and not fits(value):
                self.note((*path, key, i), value, allowed, "pattern")
            else:
                valid.append(value)
        return valid

    def integer(
        self,
        raw: Mapping[str, object],
        key: str,
        path: Path,
        minimum: int,
        limit: int,
        *,
        default: int | None = None,
    ) -> int:
        """A whole number in minimum..limit; without a default it is required."""
        value = raw.get(key)
        if value is None:
            if default is not None:
                return default
            self.note_shown((*path, key), "nothing", f"a whole number in {minimum}..{limit}", "missing")
            return minimum
        if type(value) is int and minimum <= value <= limit:
            return value
        code = "range" if type(value) is int else "type"
        self.note((*path, key), value, f"a whole number in {minimum}..{limit}", code)
        return minimum if default is None else default

    def optional_integer(self, raw: Mapping[str, object], key: str, path: Path, minimum: int, limit: int) -> int | None:
        """A whole number in minimum..limit, or nothing."""
        return None if raw.get(key) is None else self.integer(raw, key, path, minimum, limit)

    def boolean(self, raw: Mapping[str, object], key: str, path: Path, *, default: bool = False) -> bool:
        """true or false, not 0 or 1."""
        value = raw.get(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        self.note((*path, key), value, "true or false", "type")
        return default

    def choice(self, raw: Mapping[str, object], key: str, path: Path, choices: Mapping[str, E], default: E) -> E:
        """One of the named choices."""
        value = raw.get(key)
        if value is None:
            return default
        chosen = choices.get(value) if isinstance(value, str) else None
        if chosen is None:
            self.note((*path, key), value, f"one of {', '.join(choices)}", "choice")
            return default
        return chosen


def _without_nulls(value: object, depth: int) -> object:
    """The value without fields that are null, which counts as absent; only as deep as structs are nested."""
    if depth and isinstance(value, dict):
        return {key: _without_nulls(item, depth - 1) for key, item in value.items() if item is not None}
    if depth and isinstance(value, list):
        return [_without_nulls(item, depth - 1) for item in value]
    return value
