"""Codecs: how the values of one annotation become plain objects of MessagePack and back, with checks both ways."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Callable

from myrmidon.functions.scalar_codecs import (
    ArrayCodec,
    Codec,
    DatetimeCodec,
    EnumCodec,
    ExactCodec,
    FloatCodec,
    IntegerCodec,
)
from myrmidon.functions.types import TypeProblem, kind_of, show, type_string


def codec_of(annotation: Any) -> Codec:
    """The codec of an annotation, made once."""
    try:
        return _CODECS[annotation]
    except KeyError:
        pass
    type_string(annotation)  # raises TypeProblem with a hint
    kind = kind_of(annotation)
    codec: Codec = _CLASSES[kind.name](annotation, kind)
    _CODECS[annotation] = codec
    try:
        codec.prepare()
    except BaseException:
        _CODECS.clear()  # others may refer to the unfinished one
        raise
    return codec


_CODECS: dict[Any, Codec] = {}


class _Optional(Codec):
    def prepare(self) -> None:
        self.inner = codec_of(self.kind.of[0])
        self.exact = self.inner.exact | {type(None)} if self.inner.exact else frozenset()

    def to_plain(self, value: Any) -> Any:
        return None if value is None else self.inner.to_plain(value)

    def from_plain(self, plain: Any) -> Any:
        return None if plain is None else self.inner.from_plain(plain)

    def check_exact(self, values: Any) -> None:
        try:
            self.inner.check_exact([one for one in values if one is not None])
        except TypeProblem:
            for index, one in enumerate(values):  # the index above counts without None
                _at(self.to_plain, one, f"[{index}]")
            raise


class _Items(Codec):
    """``list[T]`` and ``tuple[T, ...]``."""

    def prepare(self) -> None:
        self.item = codec_of(self.kind.of[0])
        self.cls: Any = list if self.kind.name == "list" else tuple

    def to_plain(self, value: Any) -> Any:
        if not isinstance(value, self.cls) or hasattr(value, "_fields"):
            raise self.wrong(value)
        return self.convert(value, self.item.to_plain)

    def from_plain(self, plain: Any) -> Any:
        if type(plain) not in (list, tuple):
            raise self.wrong(plain)
        return self.cls(self.convert(plain, self.item.from_plain))

    def convert(self, values: Any, convert: Callable[[Any], Any]) -> Any:
        exact = self.item.exact
        if exact and exact.issuperset(map(type, values)):
            self.item.check_exact(values)
            return values if type(values) is list else list(values)
        return _each(values, convert)


def _each(values: Any, convert: Callable[[Any], Any]) -> list[Any]:
    converted: list[Any] = []
    try:
        converted.extend(map(convert, values))  # keeps what it has got when an item fails
    except TypeProblem as problem:
        raise problem.inside(f"[{len(converted)}]") from None
    return converted


def _at(convert: Callable[[Any], Any], value: Any, path: str) -> Any:
    try:
        return convert(value)
    except TypeProblem as problem:
        raise problem.inside(path) from None


class _Map(Codec):
    def prepare(self) -> None:
        self.key, self.value = codec_of(self.kind.of[0]), codec_of(self.kind.of[1])

    def to_plain(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise self.wrong(value)
        return self.convert(value, self.key.to_plain, self.value.to_plain)

    def from_plain(self, plain: Any) -> dict[Any, Any]:
        if type(plain) is not dict:
            raise self.wrong(plain)
        return self.convert(plain, self.key.from_plain, self.value.from_plain)

    def convert(self, values: Any, key: Callable[[Any], Any], item: Callable[[Any], Any]) -> dict[Any, Any]:
        converted = {}
        for one in values:
            try:
                converted[key(one)] = item(values[one])
            except TypeProblem as problem:
                raise problem.inside(f"[{one!r}]") from None
        return converted


class _Tuple(Codec):
    def prepare(self) -> None:
        self.items = [codec_of(one) for one in self.kind.of]

    def to_plain(self, value: Any) -> list[Any]:
        if not isinstance(value, tuple) or len(value) != len(self.items):
            raise self.wrong(value)
        return [_at(item.to_plain, one, f"[{at}]") for at, (item, one) in enumerate(zip(self.items, value))]

    def from_plain(self, plain: Any) -> tuple[Any, ...]:
        if type(plain) not in (list, tuple) or len(plain) != len(self.items):
            raise self.wrong(plain)
        return tuple(_at(item.from_plain, one, f"[{at}]") for at, (item, one) in enumerate(zip(self.items, plain)))

    def wrong(self, given: Any) -> TypeProblem:
        if type(given) not in (list, tuple):
            return super().wrong(given)
        return TypeProblem(f"expected {show(self.annotation)}, given {len(given)} items")


class _Fields(Codec):
    """A dataclass, NamedTuple or msgspec struct: a map by field name."""

    def prepare(self) -> None:
        cls = self.kind.cls
        try:
            hints = typing.get_type_hints(cls)
        except (NameError, TypeError, SyntaxError) as error:
            raise TypeProblem(f"an annotation of {show(cls)} cannot be resolved: {error}") from None
        names, self.later = _field_names(cls, self.kind.name)
        missing = [name for name in names if name not in hints]
        if missing:
            raise TypeProblem(f"{show(cls)} has no annotation of {missing[0]}")
        self.fields = {name: _at(codec_of, hints[name], f"{cls.__qualname__}.{name}") for name in names}

    def to_plain(self, value: Any) -> dict[str, Any]:
        if type(value) is not self.kind.cls:  # the fields of a subclass would be lost
            raise self.wrong(value)
        plain = {}
        for name, codec in self.fields.items():
            try:
                plain[name] = codec.to_plain(getattr(value, name))
            except TypeProblem as problem:
                raise problem.inside(f".{name}") from None
        return plain

    def from_plain(self, plain: Any) -> Any:
        if type(plain) is not dict:
            raise self.wrong(plain)
        values = {}
        for name, one in plain.items():
            codec = self.fields.get(name)
            if codec is None:
                raise TypeProblem(f"{show(self.kind.cls)} has no field {name!r}")
            try:
                values[name] = codec.from_plain(one)
            except TypeProblem as problem:
                raise problem.inside(f".{name}") from None
        later = {name: values.pop(name) for name in self.later if name in values}
        try:
            made = self.kind.cls(**values)
        except (TypeError, ValueError) as error:
            raise TypeProblem(f"cannot make a {show(self.kind.cls)}: {error}") from error
        for name, one in later.items():
            object.__setattr__(made, name, one)  # also of a frozen one
        return made


def _field_names(cls: Any, kind: str) -> tuple[list[str], list[str]]:
    """The names of all fields, and of those that the constructor does not take."""
    if kind == "struct":
        return list(cls.__struct_fields__), []
    if kind == "namedtuple":
        return list(cls._fields), []
    hints = vars(cls).get("__dataclass_fields__", getattr(cls, "__dataclass_fields__", {}))
    only_init = [name for name, one in hints.items() if getattr(one, "_field_type", None) is _INIT_VAR]
    if only_init:
        raise TypeProblem(f"{show(cls)} has the InitVar {only_init[0]}, which cannot be stored; make it a field")
    fields = dataclasses.fields(cls)
    return [one.name for one in fields], [one.name for one in fields if not one.init]


_INIT_VAR = getattr(dataclasses, "_FIELD_INITVAR", object())


_CLASSES: dict[str, Any] = {
    "int8": IntegerCodec,
    "int16": IntegerCodec,
    "int32": IntegerCodec,
    "int64": IntegerCodec,
    "double": FloatCodec,
    "string": ExactCodec,
    "bytes": ExactCodec,
    "bool": ExactCodec,
    "datetime": DatetimeCodec,
    "enum": EnumCodec,
    "optional": _Optional,
    "list": _Items,
    "items": _Items,
    "map": _Map,
    "tuple": _Tuple,
    "dataclass": _Fields,
    "namedtuple": _Fields,
    "struct": _Fields,
    "ndarray": ArrayCodec,
}
