"""The inputs of a node as JSON texts: constants, outputs of other nodes, and values gathered from many outputs.

Texts, not objects: a graph may have 100,000 nodes, and a text is made once.
"""

from __future__ import annotations

import base64
import hashlib
from json.encoder import encode_basestring_ascii as json_text
from typing import TYPE_CHECKING, Any

from myrmidon.functions.graph_errors import WiringError, at_caller
from myrmidon.functions.handles import Handle, TupleHandle, source_of
from myrmidon.functions.shared_ref import SharedRef
from myrmidon.functions.signature import Parameter
from myrmidon.functions.types import TypeProblem, fits, kind_of, type_string
from myrmidon.functions.values import INLINE_BYTES, MAX_BYTES, encode, encode_gathered, too_large

if TYPE_CHECKING:
    from myrmidon.functions.graph_builder import GraphBuilder


class InputWriter:
    """Writes the arguments of calls; ``uploads`` has the large constants by digest."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self.uploads: dict[str, bytes] = {}

    def argument(self, function: str, parameter: Parameter, value: Any) -> str:
        """Add one input. Raises WiringError with the caller's line if the value does not fit the parameter."""
        try:
            if isinstance(value, Handle) and not isinstance(value, TupleHandle):
                return self.output_of(value, parameter.type)
            if isinstance(value, SharedRef):
                return self.shared(value, parameter.type)
            if contains_handle(value):
                return self._gathered(value, parameter)
            return self.constant(encode(value, parameter.annotation), parameter.type)
        except TypeProblem as problem:
            where = f"argument {parameter.name}{problem.path}"
            raise WiringError(at_caller(f"{function}(): {where}: {problem.reason}")) from None

    def constant(self, data: bytes, type_: str) -> str:
        return f'{{"kind":"constant","type":{json_text(type_)},"payload":{self.payload(data)}}}'

    def payload(self, data: bytes) -> str:
        if len(data) <= INLINE_BYTES:
            return f'{{"inline":"{base64.b64encode(data).decode()}"}}'
        if len(data) > MAX_BYTES:
            raise TypeProblem(too_large("the value", len(data)))
        digest = hashlib.sha256(data).hexdigest()
        self.uploads[digest] = data
        return f'{{"digest":"{digest}","size":{len(data)}}}'

    def output_of(self, handle: Handle, type_: str) -> str:
        self.check_handle(handle, type_)
        source = source_of(handle)
        label = json_text(source.node.label)
        return f'{{"kind":"output_of","type":{json_text(type_)},"label":{label},"position":{source.position}}}'

    def shared(self, value: SharedRef, type_: str) -> str:
        """An input that is a shared value. It keeps its own type: the server compares that with the stored one."""
        if not fits(value.type, type_):
            raise TypeProblem(f"expected {type_}, given {value!r}")
        return f'{{"kind":"shared","type":{json_text(value.type)},"shared_value_id":{json_text(value.id)}}}'

    def check_handle(self, handle: Handle, type_: str) -> None:
        """Raise TypeProblem unless the handle is of this job and its output fits the type."""
        source = source_of(handle)
        if source.builder is not self._builder:
            raise TypeProblem(f"{handle!r} belongs to another job; pass the value, as job.result gives it")
        if source.position < 0:
            raise TypeProblem(f"{source.node.label} returns nothing; to run after it, use .options(after=[...])")
        if not fits(source.type, type_):
            raise TypeProblem(f"expected {type_}, given the result of {source.node.label}, {source.type}")

    def _gathered(self, value: Any, parameter: Parameter) -> str:
        value = _unpacked(value)
        parts: list[Handle] = []

        def place(item: Any, annotation: Any) -> int | None:
            if not isinstance(item, Handle):
                return None
            self.check_handle(item, type_string(annotation))
            parts.append(item)
            return len(parts) - 1

        shape = encode_gathered(value, parameter.annotation, place)
        flat = kind_of(parameter.annotation).name in ("list", "items") and len(parts) == len(value)
        flat = flat and all(isinstance(item, Handle) for item in value)
        return gathered(parameter.type, parts, "" if flat else f'"shape":{self.payload(shape)},')


def gathered(type_: str, parts: list[Handle], shape: str = "") -> str:
    """An input that is put together from outputs; without a shape it is the list of them."""
    texts = [
        f'{{"label":{json_text(part.node.label)},"position":{part.position},"type":{json_text(part.type)}}}'
        for part in map(source_of, parts)
    ]
    return f'{{"kind":"gathered","type":{json_text(type_)},{shape}"parts":[{",".join(texts)}]}}'


def contains_handle(value: Any) -> bool:
    """Whether there is a handle in lists, tuples and dict values at any depth.

    The types of all items are collected first, which is fast: most lists hold many items of few types.
    """
    if isinstance(value, Handle):
        return True
    if type(value) is dict:
        items: Any = value.values()
    elif type(value) in (list, tuple):
        items = value
    else:
        return False
    kinds = set(map(type, items))
    if not any(kind in (list, tuple, dict) or issubclass(kind, Handle) for kind in kinds):
        return False
    try:
        return any(map(contains_handle, items))
    except RecursionError:
        return False  # a list that contains itself: the encoder says so


def _unpacked(value: Any) -> Any:
    """The value with handles of tuples replaced by tuples of handles."""
    if isinstance(value, TupleHandle):
        return tuple(value)
    if type(value) is dict:
        return {key: _unpacked(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_unpacked, value))
    return value
