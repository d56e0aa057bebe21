"""Parameters of a graph document: ``{"$param": "name"}`` anywhere in it is replaced by the value of that parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from myrmidon.model.shown_input import Path
from myrmidon.model.validation import Checker

_MAX_REPLACED: Final = 64 << 20
"""Bytes of JSON that the values of parameters may take up in a document, as often as it uses them."""


def apply_parameters(raw: object, given: Mapping[str, Any]) -> object:
    """The document with every ``{"$param": "name"}`` replaced.

    The document may declare ``parameters`` with default values; null means that a value must be given. If it declares
    any, others are refused. All problems are raised together.
    """
    check = Checker()
    declared = raw.get("parameters") if isinstance(raw, dict) else None
    if declared is not None and not isinstance(declared, dict):
        check.note(("parameters",), declared, "an object of default values by name", "type")
        check.finish()
    values = {name: value for name, value in (declared or {}).items() if value is not None} | dict(given)
    if declared is not None:
        for name in given.keys() - declared.keys():
            check.note(("parameters", name), given[name], "a parameter that the document declares", "unknown_parameter")
    document = {key: value for key, value in raw.items() if key != "parameters"} if isinstance(raw, dict) else raw
    if not contains_key(document, "$param"):  # with a path for every value, as below, most documents would take longer
        check.finish()
        return document
    sizes = {name: len(msgspec.json.encode(value)) for name, value in values.items()}
    uses: Counter[str] = Counter()
    replaced = _replace(check, document, (), values, uses)
    if sum(sizes[name] * number for name, number in uses.items()) > _MAX_REPLACED:
        largest = max(uses, key=lambda name: sizes[name] * uses[name])
        shown = f"a value of {sizes[largest]} bytes that the document uses {uses[largest]} times"
        check.note_shown(("parameters", largest), shown, f"at most {_MAX_REPLACED} bytes in all", "too_large")
    check.finish()
    return replaced


def contains_key(tree: object, key: str) -> bool:
    """Whether an object anywhere in a tree has this key. A loop, because documents are large."""
    rest = [tree]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            if key in value:
                return True
            rest += value.values()
        elif isinstance(value, (list, tuple)):
            rest += value
    return False


def _replace(check: Checker, value: object, path: Path, values: Mapping[str, Any], uses: Counter[str]) -> object:
    """A copy with parameters replaced, or the value itself if it has none. Counts the uses of each."""
    if not isinstance(value, (dict, list)):
        return value
    if isinstance(value, list):
        # No path for items that contain nothing: there may be millions.
        items = [
            _replace(check, item, (*path, i), values, uses) if isinstance(item, (dict, list)) else item
            for i, item in enumerate(value)
        ]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    name = value.get("$param") if len(value) == 1 else None
    if isinstance(name, str):
        if name not in values:
            check.note((*path, "$param"), name, "a parameter that was given, or has a default", "unknown_parameter")
            return None
        uses[name] += 1
        return values[name]
    changed = {}
    for key, item in value.items():
        if isinstance(item, (dict, list)):
            replaced = _replace(check, item, (*path, str(key)), values, uses)
            if replaced is not item:
                changed[key] = replaced
    return {**value, **changed} if changed else value
