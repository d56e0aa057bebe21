"""What functions/ does with types, values and signatures, as lines of text: a program for Python 3.8.

    python3.8 old_python.py SOURCES < values

prints one line of JSON for each case, and for each value that is given: a line with the name of a type and the
value in hexadecimal digits. test_old_python.py compares the lines with those of another interpreter.
"""

# mypy: disable-error-code="empty-body, misc, name-defined, arg-type"
from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple, Union

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

from myrmidon.functions import msgpack, values
from myrmidon.functions.signature import signature_of
from myrmidon.functions.types import Int8, Int16, Int32, Int64, fits, output_types, type_string


class Colour(enum.Enum):
    RED = "r"
    GREEN = ("a", "tuple")


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    left: int
    right: str = "r"


@dataclasses.dataclass
class Tree:
    value: int
    children: List[Tree] = dataclasses.field(default_factory=list)
    colours: Dict[str, Colour] = dataclasses.field(default_factory=dict)
    half: float = 0.5
    size: int = dataclasses.field(init=False, default=3)


TREE = Tree(1)


@dataclasses.dataclass
class HasPath:
    path: Path


TYPES: Dict[str, Any] = {
    "int": int, "float": float, "str": str, "bytes": bytes, "bool": bool, "int8": Int8, "int16": Int16, "int32": Int32,
    "int64": Int64, "optional": Optional[int], "list": List[int], "lists": List[List[str]], "pair": Tuple[int, str],
    "many": Tuple[float, ...], "dict": Dict[str, List[int]], "by int": Dict[int, str], "named": Pair, "tree": Tree,
    "trees": Dict[str, Optional[Tree]], "colour": Colour, "level": Level, "time": dt.datetime,
    "nothing": None, "any": Any, "path": Path, "set": Set[int], "union": Union[int, str], "object": object,
    "has path": HasPath, "bare list": list, "bare dict": dict, "by float": Dict[float, int], "complex": complex,
}  # fmt: skip

UTC = dt.timezone.utc
VALUES: List[Tuple[str, Any]] = [
    *[("int", value) for value in (0, -1, 127, 128, -33, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 63, True, "1", 1.0)],
    *[("int8", value) for value in (-128, 127, 128)],
    *[("float", value) for value in (0.0, -1.5, 1e300, float("inf"), 3, 1 << 60, "x", True)],
    *[("str", value) for value in ("", "é" * 40, "x" * 70_000, "\ud800", b"x", None)],
    *[("bytes", value) for value in (b"", b"\0" * 300, bytearray(b"a"), memoryview(b"b"), "x")],
    *[("bool", value) for value in (True, 1)],
    *[("optional", value) for value in (None, 5, "x")],
    *[("list", value) for value in ([], list(range(20)), (1, 2), [1, "2"], "ab", {1: 2})],
    *[("pair", value) for value in ((1, "a"), [1, "a"], (1,), (1, 2))],
    *[("many", value) for value in ((), (1, 2.5), [0.5])],
    *[("dict", value) for value in ({}, {"a": [1], "b": []}, {1: [1]}, {"a": ["x"]})],
    *[("by int", value) for value in ({1: "a", -5: "b"}, {True: "a"})],
    *[("named", value) for value in (Pair(1), Pair(2, "x"), (1, "x"), Pair("x"))],
    *[("tree", value) for value in (Tree(1, [Tree(2)], {"c": Colour.GREEN}), Tree("x"), {"value": 1})],
    *[("trees", value) for value in ({"a": None, "b": Tree(3)},)],
    *[("colour", value) for value in (Colour.RED, "r")],
    *[("level", value) for value in (Level.LOW, 1)],
    *[("time", value) for value in (dt.datetime(2026, 1, 2, 3, 4, 5, 6, UTC), dt.datetime(2026, 1, 2), "2026")],  # noqa: DTZ001
    *[("path", value) for value in (Path("x"),)],
]  # fmt: skip


def plain(a: int, b: Optional[str] = None, *, c: float = 0.5) -> Tuple[int, str]:
    return a, f"{b}{c}"


def nested(a: List[Dict[str, int]], b: Tree = TREE) -> Optional[Pair]: ...
def nothing() -> None: ...
async def later(a: Colour) -> Tuple[int, ...]: ...
def starred(*args: int) -> int: ...
def no_type(a) -> int: ...
def no_result(a: int): ...
def wrong_type(a: Path) -> int: ...
def unknown(a: Missing) -> int: ...  # noqa: F821
def generator(a: int) -> int:
    yield a


FUNCTIONS: List[Any] = [
    plain, nested, nothing, later, starred, no_type, no_result, wrong_type, unknown, generator,
    functools.partial(plain, 1), functools.partial(plain, b="x"),
]  # fmt: skip
CALLS: List[Tuple[Tuple[Any, ...], Dict[str, Any]]] = [
    ((1,), {}), ((1, "x"), {"c": 2.0}), ((), {"a": 1}), ((), {}), ((1, 2, 3), {}), ((1,), {"d": 1}), ((1,), {"a": 1}),
]  # fmt: skip
PACKED: List[str] = [
    "c0", "7f", "e0", "ccff", "cdffff", "ceffffffff", "cfffffffffffffffff", "d080", "d38000000000000000", "ca3fc00000",
    "a161", "d90161", "c40100", "9301c2a161", "dc000101", "8101a161", "d40105", "c70301616263", "", "c1", "dd7fffffff",
    "a2ff", "92", "81c001", "c6ffffffff", "d7", "91" * 2000,
]  # fmt: skip


def outcome(call: Callable[[], Any]) -> str:
    """What a call returns, or the error with its message."""
    try:
        return repr(call())
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        return f"{type(error).__name__}: {error}".replace("typing.Any", "Any")  # Python 3.8 does not say typing


def round_trip(name: str, value: Any) -> str:
    data = values.encode(value, TYPES[name])
    return f"{data.hex()[:400]} {len(data)} {values.decode(data, TYPES[name])!a:.400}"


def signature_text(function: Any) -> Tuple[Any, ...]:
    found = signature_of(function)
    return found.text, found.output_types, [one.name for one in found.parameters]


def gathered() -> str:
    shape = values.encode_gathered(
        {"a": [1, 5], "b": [5]}, Dict[str, List[int]], lambda value, _: 0 if value == 5 else None
    )
    return f"{shape.hex()} {values.decode_gathered(shape, [values.encode(7, int)], Dict[str, List[int]])!r}"


def cases() -> List[Tuple[str, Callable[[], Any]]]:
    """All cases, each with a name."""
    found: List[Tuple[str, Callable[[], Any]]] = []
    for name, annotation in TYPES.items():
        found.append((f"type {name}", functools.partial(type_string, annotation)))
        found.append((f"outputs {name}", functools.partial(outputs_of, annotation)))
        found += [(f"fits {name} {other}", functools.partial(both, annotation, TYPES[other])) for other in TYPES]
    found += [
        (f"value {number} {name}", functools.partial(round_trip, name, value))
        for number, (name, value) in enumerate(VALUES)
    ]
    found += [(f"signature {number}", functools.partial(signature_text, one)) for number, one in enumerate(FUNCTIONS)]
    found += [(f"call {args} {more}", functools.partial(bound, args, more)) for args, more in CALLS]
    found += [(f"packed {text[:20]}", functools.partial(repacked, text)) for text in PACKED]
    return [*found, ("gathered", gathered)]


def outputs_of(annotation: Any) -> List[str]:
    return [type_string(one) for one in output_types(annotation)]


def both(given: Any, wanted: Any) -> bool:
    return fits(type_string(given), type_string(wanted))


def bound(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[Any]:
    return signature_of(plain).bind(args, kwargs)


def repacked(text: str) -> str:
    value = msgpack.unpack(bytes.fromhex(text))
    return f"{value!r:.300} {msgpack.pack(value).hex()[:300]}"


def main() -> None:
    for name, call in cases():
        print(json.dumps([name, outcome(call)]))
    for line in sys.stdin:
        name, _, text = line.strip().rpartition(" ")
        data = bytes.fromhex(text)
        value = values.decode(data, TYPES[name])
        print(json.dumps([f"given {name}", f"{value!a} {values.encode(value, TYPES[name]) == data}"]))


if __name__ == "__main__":
    main()
