"""Signatures of functions in shared libraries: ``(text:string,top:int64)->Map<string,int64>``, names are optional.

They are compared with the signature of a request, which a Python declaration has made. The name of a class without a
module stands for the class of that name in any module: a library does not know in which module Python declares it.
"""

from __future__ import annotations

from typing import Any, Sequence

from myrmidon.functions import msgpack
from myrmidon.functions.types import Tree, parse_type

_INTEGERS = {f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)}
_CLASSES = {"double": (float, int), "string": (str,), "bytes": (bytes,), "bool": (bool,)}
_PRIMITIVES = {*_INTEGERS, *_CLASSES}


class NativeSignature:
    """``parameters``: pairs of name (empty if not given) and type. ``outputs``: types."""

    def __init__(self, text: str) -> None:
        """Raises ValueError if the text is not a signature."""
        self.text = text.replace(" ", "")
        begin = self.text.find("(")
        inputs, arrow, outputs = self.text[begin + 1 :].partition(")->")
        if begin < 0 or not arrow or not outputs:
            raise ValueError(f"{text!r} is not a signature")
        if outputs.startswith("("):
            outputs = outputs[1:-1]
        self.parameters = [_parameter(one) for one in split_types(inputs)]
        self.outputs = split_types(outputs)
        for type_ in [*(kind for _, kind in self.parameters), *self.outputs]:
            parse_type(type_)

    def matches(self, requested: NativeSignature) -> bool:
        """Whether a call by the requested signature is right; names matter where both have them."""
        return (
            len(self.parameters) == len(requested.parameters)
            and all(
                same_type(kind, other) and (not name or not wanted or name == wanted)
                for (name, kind), (wanted, other) in zip(self.parameters, requested.parameters)
            )
            and same_types(self.outputs, requested.outputs)
        )


def mismatch(library: str, name: str, offered: NativeSignature, requested: str, output_types: Sequence[str]) -> str:
    """Why a function of a library is not the requested one; empty if it is. ``requested`` may be unknown (empty)."""
    try:
        if same_types(offered.outputs, output_types) and (not requested or offered.matches(NativeSignature(requested))):
            return ""
    except ValueError:
        pass
    declared = requested or f"the outputs ({','.join(output_types)})"
    return (
        f"the function is another one: it was declared as {declared}, {library} has {name}{offered.text}; "
        "change the declaration, or build the library again"
    )


def _parameter(text: str) -> tuple[str, str]:
    name, colon, type_ = text.rpartition(":")
    return (name, type_) if colon else ("", text)


def split_types(text: str) -> list[str]:
    """Split ``int64,Map<string,int64>`` at the commas that are not inside of a type."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts if text else []


def same_types(offered: Sequence[str], requested: Sequence[str]) -> bool:
    return len(offered) == len(requested) and all(map(same_type, offered, requested))


def same_type(offered: str, requested: str) -> bool:
    """Whether a type of a library is the type of a request."""
    return offered == requested or _same(parse_type(offered), parse_type(requested))


def _same(offered: Tree, requested: Tree) -> bool:
    name, items = offered
    if len(items) != len(requested[1]):
        return False
    is_class = not items and name not in _PRIMITIVES and "." not in name
    names_match = name == (requested[0].rpartition(".")[2] if is_class else requested[0])
    return names_match and all(map(_same, items, requested[1]))


def check_output(data: bytes, type_: str) -> str:
    """Why an encoded value does not have a type; empty if it has. Of a class only that it is one is checked."""
    try:
        value = msgpack.unpack(data)
    except msgpack.MsgpackError as error:
        return f"it is not MessagePack: {error}"
    tree = parse_type(type_)
    return "" if _has_type(value, tree) else f"expected {type_}, given {type(value).__name__}"


def _has_type(value: Any, tree: Tree) -> bool:
    name, items = tree
    if name in _INTEGERS:
        low, high = _INTEGERS[name]
        return type(value) is int and low <= value <= high
    if name in _CLASSES:
        return type(value) in _CLASSES[name]
    if name == "Optional":
        return value is None or _has_type(value, items[0])
    if name == "List":
        return type(value) is list and all(_has_type(one, items[0]) for one in value)
    if name == "Tuple":
        return type(value) is list and len(value) == len(items) and all(map(_has_type, value, items))
    if name == "Map":
        return type(value) is dict and all(
            _has_type(key, items[0]) and _has_type(one, items[1]) for key, one in value.items()
        )
    return type(value) in (dict, str, int)
