"""Reading an untyped tree: every limit, and a Checker that collects *all* problems.

The readers of the next files ask the Checker for one field after the other. It answers with the field's
value, or, when that is wrong, notes a Problem and answers with something harmless, so that reading goes on.
Paths are tuples and become text only for a problem: good input pays nothing for them.

Nothing given is ever shown whole: texts are cut, containers are only counted (one of them may hold a secret),
numbers too long to print are measured. No reader recurses into what it does not know, so depth cannot hurt.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct

from myrmidon.model.errors import InvalidRequest, Problem

Path: TypeAlias = tuple[str | int, ...]
E = TypeVar("E", bound=str)

MOST_PROBLEMS: Final = 1_000
MOST_DEPTH: Final = 32
LARGEST: Final = (1 << 63) - 1
REQUIRED: Final = "\0required"
"""The default of a field that has none: its absence is a problem."""

NOTHING: Final[dict[str, object]] = {}
"""What a reader gets in place of an object that is missing or wrong; compare with ``is``."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$\-]{1,255}")


class Limits(Struct, frozen=True, kw_only=True):
    """Every number a request is measured against. ``*_s`` are seconds, ``*_chars`` count code points."""

    # a task
    name_chars: int = 1024
    priority_default: int = 100
    priority_max: int = 255
    tags: int = 256
    tag_chars: int = 321
    user_chars: int = 256
    service_account_chars: int = 128
    external_id_chars: int = 128
    routing_chars: int = 10
    metadata_keys: int = 64
    metadata_key_chars: int = 255
    metadata_value_chars: int = 32_768
    slices: int = 8
    secret_bytes: int = 20_480
    retries_default: int = 1
    retries_max: int = 100
    reruns_max: int = 100
    instances_max: int = 16
    lease_default_s: int = 300
    lease_min_s: int = 30
    lease_max_s: int = 3_600
    deadline_default_s: int = 604_800
    deadline_max_s: int = 2_592_000
    # a slice and its properties
    expiration_default_s: int = 86_400
    expiration_min_s: int = 1
    expiration_max_s: int = 604_800
    command_args: int = 128
    arg_chars: int = 131_072
    cwd_chars: int = 1024
    dimension_keys: int = 32
    dimension_values: int = 16
    dimension_key_chars: int = 64
    dimension_value_chars: int = 256
    dimension_alternatives: int = 8
    env_keys: int = 64
    env_key_chars: int = 64
    env_value_chars: int = 1024
    env_prefix_paths: int = 64
    env_prefix_chars: int = 1024
    caches: int = 32
    cache_name_chars: int = 128
    cache_path_chars: int = 256
    namespace_chars: int = 128
    output_paths: int = 4096
    output_path_chars: int = 512
    execution_timeout_default_s: int = 3_600
    function_timeout_default_s: int = 300
    execution_timeout_min_s: int = 1
    execution_timeout_max_s: int = 604_800
    grace_period_default_s: int = 30
    grace_period_max_s: int = 3_600
    # a function and its values
    function_name_chars: int = 255
    inputs: int = 10_000
    outputs: int = 1_024
    type_chars: int = 1024
    value_inline_bytes: int = 1024
    value_stored_bytes: int = 67_108_864
    # a job
    label_chars: int = 255
    nodes: int = 100_000
    parents: int = 10_000
    job_retries_max: int = 100
    routing_key_bytes: int = 255
    routing_words_bytes: int = 107  # a task id, a run number and four words of 20 about the bot, with dots
    deployment: str = "myrmidon"


DEFAULT_LIMITS: Final = Limits()


def show_path(path: Path) -> str:
    """``("slices", 0, "properties")`` as ``slices[0].properties``; strange keys are quoted."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _PLAIN_KEY.fullmatch(step):
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{_cut(step)}]")
    return "".join(parts)


def show_value(value: object) -> str:
    """What was given, short and without a container's content; never raises, never recurses."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value)) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(float(value))
    return kind_of(value)


def kind_of(value: object) -> str:
    """The kind and size of a value, for places where the value itself must not be shown."""
    if isinstance(value, str):
        return f"text of {len(value)} characters"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} items"
    return f"a value of type {type(value).__name__}"


def _cut(text: str) -> str:
    shown = repr(str(text[:100]))
    return shown if len(shown) <= 100 and len(text) <= 100 else f"{shown[:96]}...{shown[0]}"


def is_clean(text: str) -> bool:
    """No NUL, no lone surrogate: what every database and every operating system can hold."""
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

    Every method takes the raw object, the key of the field and the path of the *object*; ``item`` takes a
    value and its own path. None counts as absent, so that clients may send null for "the default".
    """

    __slots__ = ("limits", "problems", "_unlisted")

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.problems: list[Problem] = []
        self._unlisted = 0

    @property
    def count(self) -> int:
        """How many problems were noted so far, listed or not."""
        return len(self.problems) + self._unlisted

    def note(self, path: Path, value: object, allowed: str, code: str = "invalid") -> None:
        """Note a problem; the value is shown cut, see show_value."""
        self.note_shown(path, show_value(value), allowed, code)

    def note_shown(self, path: Path, shown: str, allowed: str, code: str = "invalid") -> None:
        """Note a problem with a text of the caller's making; beyond 1,000 they are only counted."""
        if len(self.problems) >= MOST_PROBLEMS:
            self._unlisted += 1
            return
        self.problems.append(Problem(show_path(path), shown, allowed, code))

    def finish(self) -> None:
        """Raise InvalidRequest with all problems, if there are any."""
        if not self.problems:
            return
        if self._unlisted:
            more = Problem("", f"{self._unlisted} more problems", "none; only the first ones are listed", "more")
            raise InvalidRequest([*self.problems, more])
        raise InvalidRequest(self.problems)

    # -- objects and lists ------------------------------------------------------------------------------

    def record(self, value: object, path: Path) -> dict[str, object]:
        """The value as an object with text keys; an empty one if it is something else."""
        if not isinstance(value, dict):
            self.note(path, value, "an object", "type")
            return NOTHING
        for key in value:
            if not isinstance(key, str):
                self.note(path, key, "keys that are text", "type")
                return NOTHING
        return value

    def unknown_keys(self, raw: Mapping[str, object], known: frozenset[str], path: Path) -> None:
        """A misspelt field must not be dropped in silence. Its value is not shown: it may be a secret."""
        if raw.keys() <= known:
            return
        for key in raw:
            if key not in known:
                self.note_shown((*path, key), kind_of(raw[key]), f"one of {', '.join(sorted(known))}", "unknown")

    def mapping(self, raw: Mapping[str, object], key: str, path: Path, most: int) -> dict[str, object]:
        """An optional object of at most that many keys."""
        value = raw.get(key)
        if value is None:
            return NOTHING
        found = self.record(value, (*path, key))
        if len(found) > most:
            self.note((*path, key), found, f"at most {most} keys", "too_many")
            return NOTHING
        return found

    def listing(self, raw: Mapping[str, object], key: str, path: Path, most: int, *, least: int = 0) -> list[object]:
        """A list of so many items; absent is empty. A list too long is not looked into."""
        value = raw.get(key)
        if value is None and not least:
            return []
        if not isinstance(value, (list, tuple)):
            self.note(
                (*path, key),
                value,
                f"a list of {least}..{most} items",
                "missing" if value is None else "type",
            )
            return []
        if not least <= len(value) <= most:
            self.note((*path, key), value, f"{least}..{most} items", "too_many" if len(value) > most else "missing")
            return []
        return list(value)

    # -- single values ----------------------------------------------------------------------------------

    def text(
        self,
        raw: Mapping[str, object],
        key: str,
        path: Path,
        most: int,
        *,
        least: int = 0,
        pattern: re.Pattern[str] | None = None,
        allowed: str = "",
        default: str = REQUIRED,
    ) -> str:
        """A text of least..most characters that fits the whole pattern, which allowed describes."""
        value = raw.get(key)
        if value is None:
            if default is not REQUIRED:
                return default
            self.note_shown((*path, key), "nothing", allowed or f"text of {least}..{most} characters", "missing")
            return ""
        if (
            isinstance(value, str)
            and least <= len(value) <= most
            and (pattern is None or pattern.fullmatch(value))
            and is_clean(value)
        ):
            return value
        self.item(value, (*path, key), most, least=least, pattern=pattern, allowed=allowed)
        return "" if default is REQUIRED else default

    def item(
        self,
        value: object,
        path: Path,
        most: int,
        *,
        least: int = 0,
        pattern: re.Pattern[str] | None = None,
        allowed: str = "",
    ) -> str | None:
        """The same for a value that is not a field, e.g. of a list; None when it is wrong."""
        if not isinstance(value, str):
            self.note(path, value, allowed or "text", "type")
        elif not least <= len(value) <= most:
            self.note(path, value, f"text of {least}..{most} characters", "length")
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
        most: int,
        *,
        chars: int,
        least_chars: int = 0,
        fits: Callable[[str], bool] | None = None,
        allowed: str = "",
    ) -> list[str]:
        """A list of at most that many texts, each of which fits; allowed describes what fits."""
        if raw.get(key) is None:
            return []
        good: list[str] = []
        for i, value in enumerate(self.listing(raw, key, path, most)):
            if not (isinstance(value, str) and least_chars <= len(value) <= chars and is_clean(value)):
                self.item(value, (*path, key, i), chars, least=least_chars)
            elif fits is not None and not fits(value):
                self.note((*path, key, i), value, allowed, "pattern")
            else:
                good.append(value)
        return good

    def integer(
        self,
        raw: Mapping[str, object],
        key: str,
        path: Path,
        least: int,
        most: int,
        *,
        default: int | None = None,
    ) -> int:
        """A whole number in least..most; without a default it is required."""
        value = raw.get(key)
        if value is None:
            if default is not None:
                return default
            self.note_shown((*path, key), "nothing", f"a whole number in {least}..{most}", "missing")
            return least
        if type(value) is int and least <= value <= most:
            return value
        wrong = "range" if type(value) is int else "type"
        self.note((*path, key), value, f"a whole number in {least}..{most}", wrong)
        return least if default is None else default

    def maybe_integer(self, raw: Mapping[str, object], key: str, path: Path, least: int, most: int) -> int | None:
        """A whole number in least..most, or nothing."""
        return None if raw.get(key) is None else self.integer(raw, key, path, least, most)

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
        found = choices.get(value) if isinstance(value, str) else None
        if found is None:
            self.note((*path, key), value, f"one of {', '.join(choices)}", "choice")
            return default
        return found

    def bytes_(
        self, raw: Mapping[str, object], key: str, path: Path, most: int, *, secret: bool = False
    ) -> bytes | None:
        """Bytes, or base64 text of them; absent is None. The content is never part of a problem."""
        value = raw.get(key)
        if value is None:
            return None
        decoded = _decoded(value, most)
        if decoded is not None and len(decoded) <= most:
            return decoded
        shown = "a secret" if secret else kind_of(value) if decoded is None else f"{len(decoded)} bytes"
        self.note_shown((*path, key), shown, f"at most {most} bytes, as base64 text", "bytes")
        return None

    def relative(self, raw: Mapping[str, object], key: str, path: Path, most: int, *, default: str = REQUIRED) -> str:
        """A path below the run's folder, see is_relative."""
        found = self.text(raw, key, path, most, least=1 if default is REQUIRED else 0, default=default)
        if not found or is_relative(found):
            return found
        self.note((*path, key), found, RELATIVE, "path")
        return ""


RELATIVE: Final = "a normalised relative path with forward slashes and without '..'"
_STEP = re.compile(r"(?:^|/)(?:\.{0,2})(?:/|$)|\\|^[A-Za-z]:")


def is_relative(path: str) -> bool:
    """True for a path that stays below where it starts, on every system, written the one normal way."""
    return path == "." or not _STEP.search(path)


def _decoded(value: object, most: int) -> bytes | None:
    """The bytes of a value; None if it is none. A text far too long is not decoded just to be refused."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if not isinstance(value, str):
        return None
    if len(value) > most * 2 + 8:
        return b"\0" * (most + 1)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
