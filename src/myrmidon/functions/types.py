"""Type strings of Python annotations, and which output may feed which input.

    int  float  str  bytes  bool                 int64  double  string  bytes  bool
    Int8  Int16  Int32  Int64                    int8  int16  int32  int64
    list[T]  tuple[T, ...]                       List<T>
    dict[K, V]                                   Map<K,V>; a key is an integer, str or bytes
    Optional[T]  tuple[A, B]                     Optional<T>  Tuple<A,B>
    dataclass, enum, NamedTuple, msgspec.Struct  module.QualName
    datetime.datetime, numpy.ndarray             datetime.datetime, numpy.ndarray

``model/type_strings.py`` is the server's parser of these texts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import pathlib
import re
import sys
import types
import typing
from typing import Any, NamedTuple, Tuple

_UNION = (typing.Union, getattr(types, "UnionType", typing.Union))
_KEYS = ("int8", "int16", "int32", "int64", "string", "bytes")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class TypeProblem(TypeError):
    """An annotation or a value has the wrong type. ``path`` says where in the value, as ``parts[3].name``."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}" if path else reason)

    def inside(self, outer: str) -> TypeProblem:
        """Return the problem as seen from the object that contains the value: ``inside("parts")`` of ``[3]``."""
        return TypeProblem(self.reason, outer + self.path)


class _Integer(int):
    """An integer of fewer bits, checked when it is made."""

    bits: typing.ClassVar[int] = 64

    def __new__(cls, *args: Any) -> Any:
        value = super().__new__(cls, *args)
        if not -(1 << (cls.bits - 1)) <= value < 1 << (cls.bits - 1):
            raise ValueError(f"{int(value)} does not fit into {cls.bits} bits")
        return value


class Int8(_Integer):
    """An integer from -128 to 127."""

    bits = 8


class Int16(_Integer):
    """An integer from -32,768 to 32,767."""

    bits = 16


class Int32(_Integer):
    """An integer of 32 bits with a sign."""

    bits = 32


class Int64(_Integer):
    """An integer of 64 bits with a sign; the same type as a plain ``int``."""


class Kind(NamedTuple):
    """What an annotation means. ``name`` is a primitive's type string, or list, items, map, optional, tuple, dataclass,
    enum, namedtuple, struct, datetime or ndarray; ``of`` are the annotations inside, ``cls`` is the class, if any.
    """

    name: str
    of: tuple[Any, ...] = ()
    cls: Any = None


_PRIMITIVES: dict[Any, Kind] = {
    int: Kind("int64"),
    float: Kind("double"),
    str: Kind("string"),
    bytes: Kind("bytes"),
    bool: Kind("bool"),
    Int8: Kind("int8", cls=Int8),
    Int16: Kind("int16", cls=Int16),
    Int32: Kind("int32", cls=Int32),
    Int64: Kind("int64", cls=Int64),
    dt.datetime: Kind("datetime", cls=dt.datetime),
}
_HINTS: dict[Any, str] = {
    list: "write list[...] with the type of its items",
    dict: "write dict[..., ...] with the types of keys and values",
    tuple: "write tuple[...] with the types of its items",
    set: "use list[...]",
    frozenset: "use list[...]",
    type(None): "None alone is not a value; use Optional[...], or `-> None` for a function without output",
    complex: "use tuple[float, float]",
    bytearray: "use bytes",
    dt.date: "use datetime.datetime or str",
    dt.timedelta: "use float, in seconds",
    object: "name the class",
    Any: "name the type: values are checked and encoded by their annotations",
}


def kind_of(annotation: Any) -> Kind:
    """Return what an annotation means. Raises TypeProblem with a hint if it is not one of the types above."""
    found = _PRIMITIVES.get(annotation) if isinstance(annotation, type) else None
    if found is not None:
        return found
    origin = typing.get_origin(annotation)
    if origin is not None:
        return _generic(annotation, origin, typing.get_args(annotation))
    if hasattr(annotation, "__supertype__"):  # a NewType
        return kind_of(annotation.__supertype__)
    if isinstance(annotation, type) and annotation not in _HINTS:
        return _class(annotation)
    raise _refuse(annotation)


def _generic(annotation: Any, origin: Any, args: tuple[Any, ...]) -> Kind:
    if hasattr(annotation, "__metadata__"):  # Annotated[T, ...]
        return kind_of(args[0])
    if origin in _UNION:
        inner = [one for one in args if one is not type(None)]
        if len(inner) == 1 and len(args) == 2:
            return Kind("optional", (inner[0],))
        raise TypeProblem(f"{show(annotation)} is not a type of values: of unions, only Optional[...] is")
    if origin is list and len(args) == 1:
        return Kind("list", args)
    if origin is dict and len(args) == 2:
        key = kind_of(args[0]).name
        if key not in _KEYS:
            raise TypeProblem(f"{show(annotation)} is not a type of values: a key is an int, str or bytes")
        return Kind("map", args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return Kind("items", args[:1])
    if origin is tuple and args and args != ((),):
        return Kind("tuple", args)
    if _is_numpy_array(origin):
        return Kind("ndarray", args, origin)
    raise _refuse(annotation)


def _class(cls: Any) -> Kind:
    if _is_numpy_array(cls):
        return Kind("ndarray", cls=cls)
    if issubclass(cls, enum.Enum):
        return Kind("enum", cls=cls)
    if dataclasses.is_dataclass(cls):
        return Kind("dataclass", cls=cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Kind("namedtuple", cls=cls)
    if hasattr(cls, "__struct_fields__"):
        return Kind("struct", cls=cls)
    raise _refuse(cls)


def _is_numpy_array(cls: Any) -> bool:
    """Compare by name: numpy may be absent, and it has been imported if the annotation is its class."""
    return getattr(cls, "__module__", "") == "numpy" and getattr(cls, "__name__", "") == "ndarray"


def _refuse(annotation: Any) -> TypeProblem:
    hint = "use a dataclass, an enum, list, dict, tuple, int, float, str, bytes, bool or datetime"
    if isinstance(annotation, type) and issubclass(annotation, pathlib.PurePath):
        hint = "files are not values; pass the content as bytes, or a command's files as its outputs"
    with contextlib.suppress(TypeError):  # not hashable
        hint = _HINTS.get(annotation, hint)
    return TypeProblem(f"{show(annotation)} is not a type of values; {hint}")


def show(annotation: Any) -> str:
    """An annotation as Python code."""
    if annotation is type(None) or annotation is None:
        return "None"
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        own = annotation.__module__ == "builtins"
        return annotation.__qualname__ if own else f"{annotation.__module__}.{annotation.__qualname__}"
    return re.sub(r"\btyping\.", "", repr(annotation))


# -------------------------------------------------------------------------------------------------------- type strings

_STRINGS: dict[Any, str] = {}


def type_string(annotation: Any) -> str:
    """The type string of an annotation. Raises TypeProblem with a hint if it is not a type of values."""
    try:
        return _STRINGS[annotation]
    except KeyError:
        pass
    except TypeError:  # not hashable, so not a type
        raise _refuse(annotation) from None
    text = _STRINGS[annotation] = _type_string(annotation)
    return text


def _type_string(annotation: Any) -> str:
    kind = kind_of(annotation)
    if kind.name in ("datetime", "ndarray"):
        return {"datetime": "datetime.datetime", "ndarray": "numpy.ndarray"}[kind.name]
    if kind.name in _GENERIC:
        return f"{_GENERIC[kind.name]}<{','.join(map(type_string, kind.of))}>"
    if kind.name in ("dataclass", "enum", "namedtuple", "struct"):
        return _class_name(kind.cls)
    return kind.name


_GENERIC = {"list": "List", "items": "List", "map": "Map", "optional": "Optional", "tuple": "Tuple"}


def _class_name(cls: Any) -> str:
    name = f"{module_name(cls.__module__)}.{cls.__qualname__}"
    if _IDENTIFIER.fullmatch(name) is None:
        raise TypeProblem(f"{show(cls)} is not a type of values; define the class at the top level of its module")
    return name


def module_name(module: str) -> str:
    """The name under which a bot imports a module: another one for ``__main__``, its own for all others."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name)
    stem = pathlib.Path(getattr(main, "__file__", None) or "notebook").stem
    return "main_" + re.sub(r"\W", "_", stem, flags=re.ASCII)


def output_types(returns: Any) -> list[Any]:
    """The annotations of a function's outputs: none for ``None``, several for ``tuple[A, B]``, else one."""
    if returns is None or returns is type(None):
        return []
    kind = kind_of(returns)
    return list(kind.of) if kind.name == "tuple" else [returns]


# ---------------------------------------------------------------------------------------------------------------- fits

_TOKEN = re.compile(r"[^<>,]+|[<>,]")
Tree = Tuple[str, Tuple[Any, ...]]
"""A type string as the name of a type and the trees inside it."""


def fits(output_type: str, input_type: str) -> bool:
    """Whether an output may feed an input: equal types, T for Optional<T>, int64 for double, also inside others."""
    return output_type == input_type or _fits(parse_type(output_type), parse_type(input_type))


def _fits(given: Tree, wanted: Tree) -> bool:
    if given == wanted or (given[0], wanted[0]) == ("int64", "double"):
        return True
    if wanted[0] == "Optional":
        return _fits(given[1][0] if given[0] == "Optional" else given, wanted[1][0])
    if given[0] != wanted[0] or len(given[1]) != len(wanted[1]):
        return False
    if given[0] == "Map":
        return bool(given[1][0] == wanted[1][0]) and _fits(given[1][1], wanted[1][1])
    return bool(given[1]) and all(map(_fits, given[1], wanted[1]))


def parse_type(text: str) -> Tree:
    """A type string as a tree of names. Raises ValueError."""
    tokens = _TOKEN.findall(text.replace(" ", ""))
    try:
        tree, at = _parse_at(tokens, 0)
    except IndexError:
        at = -1
    if at != len(tokens):
        raise ValueError(f"{text} is not a type string")
    return tree


def _parse_at(tokens: list[str], at: int) -> tuple[Tree, int]:
    name, at = tokens[at], at + 1
    items = []
    if at < len(tokens) and tokens[at] == "<":
        while tokens[at] != ">":
            item, at = _parse_at(tokens, at + 1)
            items.append(item)
        at += 1
    return (name, tuple(items)), at
