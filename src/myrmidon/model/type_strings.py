"""Type strings: the types of a function's inputs and outputs, as text.

    type   =  "List<" type ">"  |  "Map<" type "," type ">"  |  "Optional<" type ">"
           |  "Tuple<" type {"," type} ">"  |  primitive  |  class
    class  =  identifier "." identifier {"." identifier}  |  identifier with a capital letter

The second form of a class is for structs of native libraries, which have no module. A name that could be a misspelt
type is not one: `int65`, `boolean`, `String`. Spaces are ignored on input and never printed. ``int``, ``float`` and
``str`` are aliases of ``int64``, ``double`` and ``string``. Two types are the same exactly when their canonical texts
are equal. Values are encoded elsewhere.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, NoReturn, TypeAlias, assert_never

from msgspec import Struct

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.shown_input import show_value
from myrmidon.model.validation import is_clean

MAX_CHARS: Final = 1024
MAX_DEPTH: Final = 32

INTEGERS: Final = frozenset({"int8", "int16", "int32", "int64"})
PRIMITIVES: Final = INTEGERS | {"double", "bool", "bytes", "string"}
ALIASES: Final = {"int": "int64", "float": "double", "str": "string"}


class Primitive(Struct, frozen=True):
    """A built-in scalar type."""

    name: str


class ClassName(Struct, frozen=True):
    """A class of the user, ``module.QualName``, or of a library, ``Name``; it is not resolved here."""

    name: str


class ListOf(Struct, frozen=True):
    """``List<item>``; ``List<int8>`` is also used for text in C++."""

    item: Type


class MapOf(Struct, frozen=True):
    """``Map<key,value>``; a key is an integer, ``string``, ``bytes`` or ``List<int8>``."""

    key: Type
    value: Type


class OptionalOf(Struct, frozen=True):
    """``Optional<item>``: the item or none."""

    item: Type


class TupleOf(Struct, frozen=True):
    """``Tuple<a,b,...>``: a fixed number of items."""

    items: tuple[Type, ...]


Type: TypeAlias = Primitive | ClassName | ListOf | MapOf | OptionalOf | TupleOf

_TOKEN = re.compile(r"[ \t\r\n]*([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*|[<>,]|$)")
_ARITY: Final = {"List": 1, "Map": 2, "Optional": 1, "Tuple": 0}
_KNOWN: Final = {name.lower(): name for name in (*PRIMITIVES, *ALIASES, *_ARITY, "datetime.datetime", "numpy.ndarray")}
_STEMS: Final = frozenset(name.rstrip("0123456789") for name in _KNOWN)
_KEYS: Final = frozenset({*(Primitive(n) for n in INTEGERS | {"string", "bytes"}), ListOf(Primitive("int8"))})


def parse(text: object, path: str = "type") -> Type:
    """Parse a type string. Raises InvalidRequest when it is not a type, too long or nested too deeply."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_CHARS or not is_clean(text):
        _refuse(path, text, f"a type string of 1..{MAX_CHARS} characters")
    reader = _Reader(text, path)
    parsed = reader.type(1)
    if reader.token:
        _refuse(path, text, f"nothing after {show(parsed)}")
    if len(show(parsed)) > MAX_CHARS:
        _refuse(path, text, f"at most {MAX_CHARS} characters after int, float and str became int64, double and string")
    return parsed


def show(shown: Type) -> str:
    """The canonical text of a type."""
    match shown:
        case Primitive(name) | ClassName(name):
            return name
        case ListOf(item):
            return f"List<{show(item)}>"
        case MapOf(key, value):
            return f"Map<{show(key)},{show(value)}>"
        case OptionalOf(item):
            return f"Optional<{show(item)}>"
        case TupleOf(items):
            return f"Tuple<{','.join(map(show, items))}>"
        case _:
            assert_never(shown)


@lru_cache(maxsize=4096)
def fits(output: str, given: str) -> bool:
    """Whether an output of one type may feed an input of another; both are canonical texts.

    Besides equal types, T fits ``Optional<T>`` and ``int64`` fits ``double``, also inside of other types. The keys of
    maps must be equal, because a key is never converted.
    """
    return output == given or _fits(parse(output), parse(given))


def _fits(a: Type, b: Type) -> bool:
    match a, b:
        case OptionalOf(item), OptionalOf(other):
            return _fits(item, other)
        case _, OptionalOf(other):
            return _fits(a, other)
        case ListOf(item), ListOf(other):
            return _fits(item, other)
        case MapOf(key, value), MapOf(other_key, other):
            return key == other_key and _fits(value, other)
        case TupleOf(items), TupleOf(others):
            return len(items) == len(others) and all(map(_fits, items, others))
        case Primitive("int64"), Primitive("double"):
            return True
        case _:
            return a == b


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """The canonical form of a type string; raises as parse does."""
    return show(parse(text))


def _refuse(path: str, text: object, allowed: str) -> NoReturn:
    raise InvalidRequest([Problem(path, show_value(text), allowed, "type_string")])


def _may_be_class(name: str) -> bool:
    """Whether this may be the name of a class and not a misspelt type."""
    return "." in name or (name[0].isupper() and name.lower().rstrip("0123456789") not in _STEMS)


def _nearest(name: str) -> str:
    """The type that was probably meant, or all of them."""
    close = get_close_matches(name.lower(), _KNOWN, 1)
    return _KNOWN[close[0]] if close else f"one of {', '.join(sorted(PRIMITIVES))}, {', '.join(_ARITY)}"


class _Reader:
    """A recursive-descent parser with one token of lookahead."""

    def __init__(self, text: str, path: str) -> None:
        self.text = text
        self.path = path
        self.at = 0
        self.token = ""
        self.advance()

    def advance(self) -> str:
        """Read the next token and return the previous one. The empty token is the end."""
        previous = self.token
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            _refuse(self.path, self.text, f"a name or one of < > , at character {self.at + 1}{self.hint()}")
        self.token, self.at = match.group(1), match.end()
        return previous

    def hint(self) -> str:
        """What to write instead of the brackets of Python."""
        return ": List<int>, not List[int]" if "[" in self.text[self.at :] else ""

    def type(self, depth: int) -> Type:
        """Parse one type; ``depth`` is its nesting level, 1 at the top."""
        if depth > MAX_DEPTH:
            _refuse(self.path, self.text, f"at most {MAX_DEPTH} levels")
        if self.token in ("", "<", ">", ","):
            _refuse(self.path, self.text, f"the name of a type before character {self.at + 1}")
        name = self.advance()
        if name in _ARITY:
            return self.generic(name, depth)
        if self.token == "<":
            _refuse(self.path, self.text, f"{name} without <>; only {', '.join(_ARITY)} take types")
        name = ALIASES.get(name, name)
        if name in PRIMITIVES:
            return Primitive(name)
        if not _may_be_class(name):
            _refuse(self.path, self.text, f"{_nearest(name)} in place of {name[:40]}; a class is written module.Class")
        return ClassName(name)

    def generic(self, name: str, depth: int) -> Type:
        """Parse the part in brackets after List, Map, Optional or Tuple."""
        self.expect("<", f"{name}<...>")
        items = [self.type(depth + 1)]
        while self.token == ",":
            self.advance()
            items.append(self.type(depth + 1))
        self.expect(">", f"> to close {name}<")
        arity = _ARITY[name]
        if arity and len(items) != arity:
            _refuse(self.path, self.text, f"{name} of {arity} type{'s' if arity > 1 else ''}")
        return self.build(name, items)

    def build(self, name: str, items: list[Type]) -> Type:
        if name == "List":
            return ListOf(items[0])
        if name == "Optional":
            return OptionalOf(items[0])
        if name == "Tuple":
            return TupleOf(tuple(items))
        if items[0] not in _KEYS:
            _refuse(self.path, self.text, "a Map whose key is an integer, string, bytes or List<int8>")
        return MapOf(items[0], items[1])

    def expect(self, token: str, allowed: str) -> None:
        if self.token != token:
            _refuse(self.path, self.text, allowed)
        self.advance()
