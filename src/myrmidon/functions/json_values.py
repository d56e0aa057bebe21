"""Values in JSON as MessagePack, by their type strings: outputs of commands, and values that people write.

int8 ... int64, double, bool, string   as in JSON
bytes                                  a string in base64
List<T>, Tuple<T,U>                    a list
Map<K,V>                               an object; keys that are numbers are written as strings
Optional<T>                            null, or as T
a class                                as its MessagePack form: an object by field name, a string for a datetime
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any, Callable

from myrmidon.functions import msgpack

_INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_NAMES = {"int": "int64", "float": "double", "str": "string"}


class JsonProblem(ValueError):
    """A value does not have its type; the message says where."""


def encode_json(value: Any, type_string: str, path: str) -> bytes:
    """The MessagePack form of a value that was read from JSON. Raises JsonProblem; ``path`` names the value in it."""
    try:
        return msgpack.pack(_convert(value, _parse_type(type_string), path))
    except IndexError:
        raise JsonProblem(f"{type_string[:100]} is not a type string") from None
    except msgpack.MsgpackError as error:
        raise JsonProblem(f"{path} cannot be encoded: {error}") from None


class TypeTree:
    """A parsed type string: the name and its arguments."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, arguments: list[TypeTree]) -> None:
        self.name = name
        self.arguments = arguments


def _parse_type(text: str) -> TypeTree:
    tokens = re.findall(r"[^<>,\s]+|[<>,]", text)
    return _parse(tokens)


def _parse(tokens: list[str]) -> TypeTree:
    name = tokens.pop(0)
    arguments: list[TypeTree] = []
    if tokens and tokens[0] == "<":
        while tokens and tokens.pop(0) != ">":
            arguments.append(_parse(tokens))
    return TypeTree(_NAMES.get(name, name), arguments)


def _convert(value: Any, kind: TypeTree, path: str) -> Any:
    """The plain object of a value of this type. Raises JsonProblem."""
    convert = _CONVERTERS.get(kind.name)
    if convert is None:
        return value  # the process of the function that reads it checks it
    return convert(value, kind, path)


def _wrong(value: Any, kind: TypeTree, path: str) -> JsonProblem:
    shown = json.dumps(value)
    return JsonProblem(f"{path} must be {kind.name}, not {shown if len(shown) <= 60 else shown[:60] + '...'}")


def _integer(value: Any, kind: TypeTree, path: str) -> int:
    limit = 1 << (_INTEGER_BITS[kind.name] - 1)
    if type(value) is not int or not -limit <= value < limit:
        raise _wrong(value, kind, path)
    return value


def _double(value: Any, kind: TypeTree, path: str) -> float:
    if type(value) not in (int, float):
        raise _wrong(value, kind, path)
    try:
        return float(value)
    except OverflowError:
        raise _wrong(value, kind, path) from None


def _boolean(value: Any, kind: TypeTree, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, kind, path)
    return value


def _string(value: Any, kind: TypeTree, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, kind, path)
    return value


def _bytes(value: Any, kind: TypeTree, path: str) -> bytes:
    try:
        return b64decode(_string(value, kind, path), validate=True)
    except ValueError:
        raise JsonProblem(f"{path} must be bytes as a string in base64") from None


def _list(value: Any, kind: TypeTree, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(value, kind, path)
    return [_convert(item, kind.arguments[0], f"{path}[{at}]") for at, item in enumerate(value)]


def _tuple(value: Any, kind: TypeTree, path: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != len(kind.arguments):
        raise _wrong(value, kind, path)
    return [_convert(item, each, f"{path}[{at}]") for at, (item, each) in enumerate(zip(value, kind.arguments))]


def _map(value: Any, kind: TypeTree, path: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, kind, path)
    key_kind, value_kind = kind.arguments
    return {
        _key(key, key_kind, path): _convert(item, value_kind, f"{path}[{json.dumps(key)[:40]}]")
        for key, item in value.items()
    }


def _key(key: str, kind: TypeTree, path: str) -> Any:
    if kind.name not in _INTEGER_BITS:
        return _convert(key, kind, f"a key of {path}")
    try:
        return _integer(int(key), kind, f"a key of {path}")
    except ValueError:
        raise JsonProblem(f"a key of {path} must be {kind.name}, not {json.dumps(key)[:60]}") from None


def _optional(value: Any, kind: TypeTree, path: str) -> Any:
    return None if value is None else _convert(value, kind.arguments[0], path)


_CONVERTERS: dict[str, Callable[[Any, TypeTree, str], Any]] = {
    **dict.fromkeys(_INTEGER_BITS, _integer),
    "double": _double,
    "bool": _boolean,
    "string": _string,
    "bytes": _bytes,
    "List": _list,
    "Tuple": _tuple,
    "Map": _map,
    "Optional": _optional,
}
