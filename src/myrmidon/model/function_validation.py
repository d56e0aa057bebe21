"""Parse the typed parts of a task request: the function, its inputs and its outputs.

What each field may hold is declared by their structs (task_request.py). Here is what depends on several fields, and
type strings, which become canonical. Problems are collected as in task_validation.py.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from myrmidon.model import type_strings
from myrmidon.model.errors import InvalidRequest
from myrmidon.model.ids import try_parse_id
from myrmidon.model.shown_input import Path
from myrmidon.model.task_request import (
    ENVIRONMENT_DIMENSION,
    Constant,
    Function,
    Gathered,
    Input,
    Language,
    Output,
    Part,
    Payload,
    Slice,
    environment_value,
)
from myrmidon.model.validation import Checker

_Typed = TypeVar("_Typed", bound="Input | Part | Output")


class _Inputs(Struct):
    items: list[Input]


class _Outputs(Struct):
    items: list[Output]


_UNREADABLE: Final = Function(package_name="?", func_name="?")
"""In place of a function with problems: what else is wrong with the task is checked as for a function."""
_LIBRARY: Final = re.compile(r"[A-Za-z0-9_+@-][A-Za-z0-9_+@.-]*")


def read_function(check: Checker, raw: dict[str, object], path: Path) -> Function | None:
    given: Any = raw.get("function")
    if given is None:
        return None
    here = (*path, "function")
    if isinstance(given, dict) and isinstance(language := given.get("language"), str) and language.islower():
        given = {**given, "language": language.upper()}
    function: Function | None = check.struct(given, Function, here)
    if function is None:
        return _UNREADABLE
    if function.language is not Language.PYTHON and not _LIBRARY.fullmatch(function.package_name):
        check.note((*here, "package_name"), function.package_name, "the file name of a shared library", "pattern")
    return function


def check_environment(check: Checker, function: Function, slices: list[Slice], path: Path) -> None:
    """Note slices that bots without the environment of the function could claim."""
    wanted = environment_value(function)
    if wanted and function.language is not Language.PYTHON:
        allowed = f"nothing: only functions in {Language.PYTHON.value} have environments"
        check.note((*path, "function", "environment"), function.environment, allowed, "contradiction")
    for number, one in enumerate(slices) if wanted else ():
        if wanted not in one.properties.dimensions.get(ENVIRONMENT_DIMENSION, ()):
            where = (*path, "slices", number, "properties", "dimensions", ENVIRONMENT_DIMENSION)
            given = one.properties.dimensions.get(ENVIRONMENT_DIMENSION, "missing")
            check.note(where, given, f"{wanted}, because the function needs this environment", "missing")


# ---------------------------------------------------------------- inputs and outputs


def read_inputs(check: Checker, raw: dict[str, object], path: Path) -> list[Input]:
    given = [_with_number(one) for one in check.listing(raw, "inputs", path, check.limits.inputs)]
    here = (*path, "inputs")
    return [
        _checked_input(check, source, one, (*here, i)) for i, source, one in check.structs(given, Input, _Inputs, here)
    ]


def _with_number(given: Any) -> Any:
    """An input with the number of its shared value in place of an id that is a text."""
    if not isinstance(given, dict) or given.get("kind") != "shared":
        return given
    parsed = try_parse_id(given.get("shared_value_id"))
    return given if parsed is None or parsed[1] != 0 else {**given, "shared_value_id": parsed[0]}


def _checked_input(check: Checker, source: Input, raw: Any, path: Path) -> Input:
    if isinstance(source, Constant):
        payload = _checked_payload(check, source.payload, raw["payload"], (*path, "payload"))
        return Constant(type=_with_type(check, source, path).type, payload=payload)
    if isinstance(source, Gathered):
        parts = [_with_type(check, part, (*path, "parts", i)) for i, part in enumerate(source.parts)]
        shape = source.shape and _checked_payload(check, source.shape, raw["shape"], (*path, "shape"))
        return structs.replace(_with_type(check, source, path), parts=parts, shape=shape)
    return _with_type(check, source, path)


def read_part(check: Checker, value: object, path: Path) -> Part:
    """One part of a gathered input."""
    part = check.struct(value, Part, path)
    return Part(type="", label="") if part is None else _with_type(check, part, path)


def _checked_payload(check: Checker, payload: Payload, raw: dict[str, object], path: Path) -> Payload:
    """The payload with the size of inline bytes, which a request may leave out."""
    size = raw.get("size")
    if (payload.digest is None) == (payload.inline is None):
        given = "neither" if payload.digest is None else "both"
        check.note_shown(path, given, "either inline bytes, or a digest with its size", "contradiction")
    elif payload.inline is None:
        if size is None:
            check.note_shown((*path, "size"), "nothing", "a whole number, the size of the stored bytes", "missing")
    elif size not in (None, len(payload.inline)):
        rule = f"{len(payload.inline)}, or nothing, with these inline bytes"
        check.note((*path, "size"), size, rule, "contradiction")
    else:
        return Payload(inline=payload.inline, size=len(payload.inline))
    return payload


def read_outputs(check: Checker, raw: dict[str, object], path: Path) -> list[Output]:
    given, here = check.listing(raw, "outputs", path, check.limits.outputs), (*path, "outputs")
    return [_with_type(check, output, (*here, i)) for i, output, _ in check.structs(given, Output, _Outputs, here)]


def _with_type(check: Checker, one: _Typed, path: Path) -> _Typed:
    """The same with a canonical type string."""
    try:
        canonical = type_strings.canonical(one.type)
    except InvalidRequest as wrong:
        check.note((*path, "type"), one.type, wrong.problems[0].allowed, "type_string")
        return one
    return one if canonical == one.type else structs.replace(one, type=canonical)
