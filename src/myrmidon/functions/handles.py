"""Handles: what a call of a task function returns while a job is being built.

A handle stands for a value that does not exist yet. It may be passed to other calls, also inside lists, tuples and dict
values, and to ``job.result``. Any other use is a mistake that would otherwise go unnoticed (a handle is always true,
equals nothing, formats as text), so it raises HandleMisuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, NoReturn

from myrmidon.functions.graph_errors import HandleMisuse, at_caller

if TYPE_CHECKING:
    from myrmidon.functions.graph_builder import GraphBuilder, Node


class Source:
    """Where the value of a handle comes from: an output of a node.

    ``position`` is -1 for a node without outputs, which can only be waited for.
    """

    __slots__ = ("annotation", "builder", "node", "position", "type")

    def __init__(self, builder: GraphBuilder, node: Node, position: int, annotation: Any, type_: str) -> None:
        self.builder = builder
        self.node = node
        self.position = position
        self.annotation = annotation
        self.type = type_


class Handle:
    """Stands for one output of a node. It has no public attributes: see ``source_of``."""

    __slots__ = ("_source",)

    def __init__(self, source: Source) -> None:
        self._source = source

    def __repr__(self) -> str:
        source = self._source
        return f"<handle of {source.node.label}, {source.type or 'no output'}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by debuggers, notebooks and copy, which expect this error
            raise AttributeError(name)
        _misused(self, f"its attribute {name} was read")

    __hash__ = object.__hash__


class TupleHandle(Handle):
    """The outputs of a function that returns ``tuple[A, B]``: may be unpacked, or passed on as a whole."""

    __slots__ = ("_items",)

    def __init__(self, source: Source, items: list[Handle]) -> None:
        super().__init__(source)
        self._items = items

    def __iter__(self) -> Iterator[Handle]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    __hash__ = object.__hash__


def source_of(handle: Handle) -> Source:
    """Return the source of the value of a handle."""
    return handle._source  # noqa: SLF001 - the one way to it, so that handles have no public attributes


USES: tuple[tuple[str, str], ...] = (
    ("__bool__", "it was used as a condition"),
    ("__iter__", "it was iterated over"),
    ("__len__", "its length was asked for"),
    ("__getitem__", "an item of it was read"),
    ("__contains__", "`in` was used on it"),
    ("__str__", "it was converted to text"),
    ("__format__", "it was formatted as text"),
    ("__eq__", "it was compared"),
    ("__ne__", "it was compared"),
    ("__lt__", "it was compared"),
    ("__le__", "it was compared"),
    ("__gt__", "it was compared"),
    ("__ge__", "it was compared"),
    ("__int__", "it was converted to a number"),
    ("__float__", "it was converted to a number"),
    ("__index__", "it was used as a number"),
    ("__call__", "it was called"),
    ("__await__", "it was awaited"),
    ("__aiter__", "it was iterated over"),
    ("__enter__", "it was used in a with statement"),
    ("__neg__", "it was used in arithmetic"),
    ("__pos__", "it was used in arithmetic"),
    ("__abs__", "it was used in arithmetic"),
    ("__invert__", "it was used in arithmetic"),
    ("__round__", "it was used in arithmetic"),
    *(
        (f"__{prefix}{name}__", "it was used in arithmetic")
        for name in [
            "add",
            "sub",
            "mul",
            "matmul",
            "truediv",
            "floordiv",
            "mod",
            "divmod",
            "pow",
            "lshift",
            "rshift",
            "and",
            "xor",
            "or",
        ]
        for prefix in ("", "r")
    ),
)
_HINTS = {
    "__iter__": "; to call a function for each item, use job.map(function, handle)",
    "__await__": "; after the block, use job.result(handle)",
}


def _misused(handle: Handle, what: str, hint: str = "") -> NoReturn:
    when = (
        "the job has not run yet"
        if source_of(handle).builder.is_building
        else "use job.result(handle) to get the value"
    )
    builder = source_of(handle).builder
    raise HandleMisuse(at_caller(f"{handle!r} is not a value: {what}, but {when}{builder.misuse_hint or hint}"))


def _refuse(name: str, what: str) -> Any:
    def refuse(self: Handle, *_args: Any) -> NoReturn:
        _misused(self, what, _HINTS.get(name, ""))

    refuse.__name__ = name
    return refuse


for _name, _what in USES:
    setattr(Handle, _name, _refuse(_name, _what))
