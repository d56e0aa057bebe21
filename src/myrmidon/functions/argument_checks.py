"""Checks of arguments that people often give in a wrong form: a text where a dict or a list is expected."""

from __future__ import annotations

from typing import Any, Iterable, Mapping


def mapping(name: str, value: Any, example: str) -> Mapping[str, Any]:
    """The value if it is a mapping with texts as keys; else a TypeError that shows how to write one."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} is {value!r}; write a dict such as {example}")
    return value


def texts(name: str, value: Any, example: str) -> tuple[str, ...]:
    """The value if it is texts, and not a single one; else a TypeError that shows how to write them."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} is {value!r}; write a list such as {example}")
    listed = tuple(value)
    if not all(isinstance(text, (str, int)) for text in listed):
        raise TypeError(f"{name} is {value!r}; write a list of texts such as {example}")
    return tuple(map(str, listed))
