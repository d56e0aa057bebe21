"""Type strings: what a function takes and returns, as text.

    type   =  "List<" type ">"  |  "Map<" type "," type ">"  |  "Optional<" type ">"
           |  "Tuple<" type {"," type} ">"  |  primitive  |  class
    class  =  identifier {"." identifier}

Spaces are ignored on input and never printed. ``int``, ``float`` and ``str`` are other spellings of
``int64``, ``double`` and ``string``. Two types are the same exactly when their canonical texts are equal.
Encoding values is not done here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NoReturn, TypeAlias, assert_never

from msgspec import Struct

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.validation import is_clean, show_value

MAX_CHARS: Final = 1024
MAX_DEPTH: Final = 32

INTEGERS: Final = frozenset({"int8", "int16", "int32", "int64"})
PRIMITIVES: Final = INTEGERS | {"double", "bool", "bytes", "string"}
ALIASES: Final = {"int": "int64", "float": "double", "str": "string"}


class Primitive(Struct, frozen=True):
    """A type of the language itself."""

    name: str


class ClassName(Struct, frozen=True):
    """A user's class, ``module.QualName``; only its name is known here."""

    name: str


class ListOf(Struct, frozen=True):
    """``List<item>``; ``List<int8>`` doubles as text in C++."""

    item: Type


class MapOf(Struct, frozen=True):
    """``Map<key,value>``; a key is an integer, ``string``, ``bytes`` or ``List<int8>``."""

    key: Type
    value: Type


class OptionalOf(Struct, frozen=True):
    """``Optional<item>``: the item or nothing."""

    item: Type


class TupleOf(Struct, frozen=True):
    """``Tuple<a,b,...>``: a fixed number of items."""

    items: tuple[Type, ...]


Type: TypeAlias = Primitive | ClassName | ListOf | MapOf | OptionalOf | TupleOf

_TOKEN = re.compile(r"[ \t\r\n]*([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*|[<>,]|$)")
_ARITY: Final = {"List": 1, "Map": 2, "Optional": 1, "Tuple": 0}
_KEYS: Final = frozenset({*(Primitive(n) for n in INTEGERS | {"string", "bytes"}), ListOf(Primitive("int8"))})


def parse(text: object, path: str = "type") -> Type:
    """The type a text names. Raises InvalidRequest when it names none, is too long or too deep."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_CHARS or not is_clean(text):
        _refuse(path, text, f"a type string of 1..{MAX_CHARS} characters")
    reader = _Reader(text, path)
    found = reader.type(1)
    if reader.token:
        _refuse(path, text, f"nothing after {show(found)}")
    if len(show(found)) > MAX_CHARS:
        _refuse(path, text, f"at most {MAX_CHARS} characters once int, float and str are written out")
    return found


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


def same(a: Type, b: Type) -> bool:
    """Types of an edge must be equal; nothing is converted on the way."""
    return a == b


@lru_cache(maxsize=4096)
def normal(text: str) -> str:
    """The canonical text for a text; raises as parse does."""
    return show(parse(text))


def _refuse(path: str, text: object, allowed: str) -> NoReturn:
    raise InvalidRequest([Problem(path, show_value(text), allowed, "type_string")])


class _Reader:
    """Reads one type string from left to right, one token ahead."""

    def __init__(self, text: str, path: str) -> None:
        self.text = text
        self.path = path
        self.at = 0
        self.token = ""
        self.advance()

    def advance(self) -> str:
        """Move on; returns the token left behind. The empty token is the end."""
        left = self.token
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            _refuse(self.path, self.text, f"a name or one of < > , at character {self.at + 1}")
        self.token, self.at = found.group(1), found.end()
        return left

    def type(self, depth: int) -> Type:
        """One type; depth counts the brackets around it."""
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
        return Primitive(name) if name in PRIMITIVES else ClassName(name)

    def generic(self, name: str, depth: int) -> Type:
        """The part in brackets after List, Map, Optional or Tuple."""
        self.expect("<", f"{name}<...>")
        items = [self.type(depth + 1)]
        while self.token == ",":
            self.advance()
            items.append(self.type(depth + 1))
        self.expect(">", f"> to close {name}<")
        wanted = _ARITY[name]
        if wanted and len(items) != wanted:
            _refuse(self.path, self.text, f"{name} of {wanted} type{'s' if wanted > 1 else ''}")
        return self.built(name, items)

    def built(self, name: str, items: list[Type]) -> Type:
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
