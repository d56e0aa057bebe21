"""References to shared values: what stands for a value that is stored once, as an argument of calls.

Like a handle it may only be passed on. Any other use is a mistake, because the value is not in this process.
"""

from __future__ import annotations

from typing import Any, NoReturn

from myrmidon.functions.graph_errors import HandleMisuse, at_caller
from myrmidon.functions.handles import USES


class SharedRef:
    """A shared value by its id and type string."""

    def __init__(self, value_id: str, type_: str) -> None:
        self.id = value_id
        self.type = type_

    def __repr__(self) -> str:
        return f"<shared value {self.id}, {self.type}>"

    __hash__ = object.__hash__


def refuse(value: SharedRef, what: str) -> NoReturn:
    """Raise HandleMisuse for a use of the reference in place of the value."""
    hint = "but it can only be an argument of a task function; get() reads the value"
    raise HandleMisuse(at_caller(f"{value!r} is not a value: {what}, {hint}"))


def _refuse(name: str, what: str) -> Any:
    def method(self: SharedRef, *_args: Any) -> NoReturn:
        refuse(self, what)

    method.__name__ = name
    return method


for _name, _what in USES:
    if _name != "__enter__":
        setattr(SharedRef, _name, _refuse(_name, _what))
