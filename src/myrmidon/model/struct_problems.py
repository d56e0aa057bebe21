"""Lists all problems of a value that could not be decoded into a struct; msgspec itself names only the first one.

What is allowed is read from the struct, so each constraint is declared once; a description in its Meta is shown as it
is. Valid input never gets here. A text may be a secret, so none is shown, unless only certain ones are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import inspect

from myrmidon.model.errors import Problem
from myrmidon.model.shown_input import Path, allowed_keys, kind_of, show_path, show_value
from myrmidon.model.task_request import CLEAN


@lru_cache(maxsize=512)
def _info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


class _Rules(NamedTuple):
    strict: bool
    null_is_absent: bool
    quotes: bool


Located: TypeAlias = tuple[Path, Problem]


def problems_of(
    value: object,
    kind: Any,
    path: Path = (),
    *,
    strict: bool = True,
    null_is_absent: bool = False,
    quotes: bool = False,
) -> Iterator[Located]:
    """The problems of JSON with their paths, in the order of its fields; ``strict`` as for msgspec.convert.

    ``quotes``: no text of the struct is a secret.
    """
    return _walk(value, _info(kind), path, _Rules(strict, null_is_absent, quotes))


def _walk(value: object, kind: inspect.Type, path: Path, rules: _Rules) -> Iterator[Located]:
    declared, kind = kind, _plain(kind)
    if isinstance(kind, inspect.UnionType):
        declared = _option(value, kind, rules)
        kind = _plain(declared)
    if isinstance(kind, inspect.UnionType) and isinstance(value, dict) and (tags := _tags(kind)):
        field, names = tags
        yield _at((*path, field), show_value(value.get(field)), f"one of {', '.join(names)}", "choice")
    elif isinstance(kind, inspect.StructType) and isinstance(value, dict):
        yield from _fields(value, kind, path, rules)
    elif isinstance(kind, inspect.DictType) and isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                yield _at(path, show_value(key), "keys that are text", "type")
                return
            yield from _walk(key, kind.key_type, (*path, key), rules)
            yield from _walk(item, kind.value_type, (*path, key), rules)
        yield from _wrong_length(value, len(value), kind, path)
    elif isinstance(kind, inspect.CollectionType) and isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _walk(item, kind.item_type, (*path, i), rules)
        yield from _wrong_length(value, len(value), kind, path)
    elif code := _code(value, kind, rules):
        shown = show_value(value)
        if isinstance(value, str) and code != "choice" and (code == "bytes" or not rules.quotes):
            shown = kind_of(value)
        quotes = ": write it in quotes" if code == "type" and _is_unquoted(value, kind) else ""
        yield _at(path, shown, _allowed(declared) + quotes, code)


def _is_unquoted(value: object, kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.StrType) and isinstance(value, (bool, int, float))


def _plain(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _tags(union: inspect.UnionType) -> tuple[str, list[str]] | None:
    """The field that tells the structs of a union apart, and its values; None if there is none."""
    tagged = [one for one in union.types if isinstance(one, inspect.StructType) and one.tag_field is not None]
    return (str(tagged[0].tag_field), [str(one.tag) for one in tagged]) if tagged else None


def _option(value: object, union: inspect.UnionType, rules: _Rules) -> inspect.Type:
    """The type of a union that the value was meant as: by its tag, else the first of its kind."""
    others = [one for one in union.types if not isinstance(one, inspect.NoneType)]
    if value is None and len(others) < len(union.types):
        return inspect.NoneType()
    for one in others:
        plain = _plain(one)
        if isinstance(plain, inspect.StructType) and isinstance(value, dict):
            if plain.tag_field is None or value.get(plain.tag_field) == plain.tag:
                return one
        elif _code(value, one, rules) is None:
            return one
    return others[0] if len(others) == 1 else inspect.UnionType(tuple(others))


def _fields(value: dict[Any, object], kind: inspect.StructType, path: Path, rules: _Rules) -> Iterator[Located]:
    known = {field.encode_name: field for field in kind.fields}
    for name, field in known.items():
        if name in value and not (rules.null_is_absent and value[name] is None):
            yield from _walk(value[name], field.type, (*path, name), rules)
        elif field.required:
            yield _at((*path, name), "nothing", _allowed(field.type), "missing")
    if kind.forbid_unknown_fields:
        for name, given in value.items():
            if type(name) is not str:
                yield _at(path, show_value(name), "keys that are text", "type")
                return
            if name not in known and name != kind.tag_field:
                yield _at((*path, name), kind_of(given), allowed_keys(name, known), "unknown")


def _at(path: Path, shown: str, allowed: str, code: str) -> Located:
    return path, Problem(show_path(path), shown, allowed, code)


def _wrong_length(value: object, length: int, kind: Any, path: Path) -> Iterator[Located]:
    if not isinstance(kind, inspect.TupleType) and _is_out_of(length, kind.min_length, kind.max_length):
        code = "missing" if length < (kind.min_length or 0) else "too_many"
        yield _at(path, kind_of(value), _allowed(kind), code)


def _code(value: object, kind: inspect.Type, rules: _Rules) -> str | None:
    """What is wrong with a value that has no parts; None if nothing is, or if msgspec must say it."""
    kind = _plain(kind)
    if not rules.strict and isinstance(kind, (inspect.IntType, inspect.FloatType, inspect.BoolType)):
        try:
            value = msgspec.convert(value, _PLAIN[type(kind)], strict=False)
        except msgspec.ValidationError:
            return "type"
    match kind:
        case inspect.LiteralType() | inspect.EnumType():
            return None if value in _choices(kind) else "choice"
        case inspect.BytesType():
            return _bytes_code(value, kind)
        case inspect.StrType():
            return _text_code(value, kind)
        case inspect.IntType() | inspect.FloatType():
            numbers = (int,) if isinstance(kind, inspect.IntType) else (int, float)
            return "type" if type(value) not in numbers else _range_code(value, kind)  # type: ignore[arg-type]
        case inspect.BoolType():
            return None if isinstance(value, bool) else "type"
        case inspect.NoneType():
            return None if value is None else "type"
        case inspect.UnionType():
            codes = {_code(value, one, rules) for one in kind.types}
            return None if None in codes else "range" if "range" in codes else "type"
        case inspect.StructType() | inspect.DictType():
            return None if isinstance(value, dict) else "type"
        case inspect.CollectionType():
            return None if isinstance(value, (list, tuple)) else "type"
    return None


_PLAIN: Final[dict[Any, type]] = {inspect.IntType: int, inspect.FloatType: float, inspect.BoolType: bool}


def _choices(kind: inspect.LiteralType | inspect.EnumType) -> list[Any]:
    return list(kind.values) if isinstance(kind, inspect.LiteralType) else [one.value for one in kind.cls]


def _text_code(value: object, kind: inspect.StrType) -> str | None:
    if not isinstance(value, str):
        return "type"
    if _is_out_of(len(value), kind.min_length, kind.max_length):
        return "length"
    return "pattern" if kind.pattern is not None and not re.search(kind.pattern, value) else None


def _bytes_code(value: object, kind: inspect.BytesType) -> str | None:
    try:
        data = msgspec.convert(value, bytes)
    except (msgspec.ValidationError, UnicodeError):
        return "bytes"
    return "bytes" if _is_out_of(len(data), kind.min_length, kind.max_length) else None


def _range_code(value: float, kind: inspect.IntType | inspect.FloatType) -> str | None:
    beyond = (kind.gt is not None and value <= kind.gt) or (kind.lt is not None and value >= kind.lt)
    return "range" if beyond or _is_out_of(value, kind.ge, kind.le) else None


def _is_out_of(value: float, least: float | None, most: float | None) -> bool:
    """Whether a number is beyond its limits; NaN is, unlike with ``value < least or value > most``."""
    return not ((least is None or value >= least) and (most is None or value <= most))


def _allowed(kind: inspect.Type) -> str:
    """The values of a type, in words."""
    match kind:
        case inspect.Metadata():
            return (kind.extra_json_schema or {}).get("description") or _allowed(kind.type)
        case inspect.BytesType():
            return f"bytes{_within(kind.min_length, kind.max_length, ' bytes')}, as base64 text"
        case inspect.UnionType():
            return " or ".join(dict.fromkeys(map(_allowed, kind.types)))
        case inspect.LiteralType() | inspect.EnumType():
            return f"one of {', '.join(map(str, _choices(kind)))}"
        case inspect.StrType():
            pattern = f" like {kind.pattern}" if kind.pattern not in (None, CLEAN) else ""
            return f"text{_within(kind.min_length, kind.max_length, ' characters')}{pattern}"
        case inspect.IntType() | inspect.FloatType():
            name = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            return f"{name}{_within(kind.ge, kind.le)}"
        case inspect.DictType():
            return f"an object{_within(kind.min_length, kind.max_length, ' keys')}"
        case inspect.CollectionType():
            return f"a list{_within(kind.min_length, kind.max_length, ' items')}"
    return _NAMES.get(type(kind), "a value: the field is required")


_NAMES: Final[dict[Any, str]] = {
    inspect.BoolType: "true or false",
    inspect.NoneType: "nothing",
    inspect.StructType: "an object",
}


def _within(least: float | None, most: float | None, unit: str = "") -> str:
    if least is None and most is None:
        return ""
    if least is None or most is None:
        return f" of at {f'most {most}' if least is None else f'least {least}'}{unit}"
    return f" {'of' if unit else 'in'} {least}..{most}{unit}"
