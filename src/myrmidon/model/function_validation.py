"""Parse the typed parts of a task request: the function, its inputs and its outputs.

Problems are collected as in task_validation.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from myrmidon.model import type_strings
from myrmidon.model.errors import InvalidRequest
from myrmidon.model.ids import try_parse_id
from myrmidon.model.shown_input import Path
from myrmidon.model.slice_validation import read_digest
from myrmidon.model.task_request import (
    ENVIRONMENT_DIMENSION,
    NAMED_ENVIRONMENT,
    Constant,
    Function,
    Gathered,
    Input,
    Language,
    Output,
    OutputOf,
    Part,
    Payload,
    Shared,
    Slice,
    environment_value,
)
from myrmidon.model.validation import MAX_INT64, NO_RECORD, Checker

_LANGUAGES: Final = {name: lang for lang in Language for name in (lang.value, lang.value.lower())}
_FUNCTION_KEYS: Final = frozenset(Function.__struct_fields__)
_PAYLOAD_KEYS: Final = frozenset(Payload.__struct_fields__)
_OUTPUT_KEYS: Final = frozenset(Output.__struct_fields__)
_PART_KEYS: Final = frozenset(Part.__struct_fields__)
_DIGEST_OR_NOTHING: Final = re.compile("[0-9a-f]{64}|")
_ENVIRONMENT: Final = re.compile(f"[0-9a-f]{{64}}|{NAMED_ENVIRONMENT}[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}}|")


def read_function(check: Checker, raw: dict[str, object], path: Path) -> Function | None:
    if raw.get("function") is None:
        return None
    here = (*path, "function")
    given = check.record(raw["function"], here)
    check.unknown_keys(given, _FUNCTION_KEYS, here)
    limits = check.limits
    language = check.choice(given, "language", here, _LANGUAGES, Language.PYTHON)
    return Function(
        package_name=_package_name(check, given, here, language),
        func_name=check.text(given, "func_name", here, limits.function_name_chars, minimum=1),
        language=language,
        code=check.text(given, "code", here, 64, pattern=_DIGEST_OR_NOTHING, allowed=_CODE_RULE, default=""),
        signature=check.text(given, "signature", here, limits.signature_chars, default=""),
        memory_mb=check.optional_integer(given, "memory_mb", here, 1, limits.memory_max_mb),
        identity=check.text(
            given, "identity", here, 64, pattern=_DIGEST_OR_NOTHING, allowed=_IDENTITY_RULE, default=""
        ),
        environment=check.text(
            given, "environment", here, 80, pattern=_ENVIRONMENT, allowed=_ENVIRONMENT_RULE, default=""
        ),
    )


def _package_name(check: Checker, given: dict[str, object], path: Path, language: Language) -> str:
    most = check.limits.function_name_chars
    if language is Language.PYTHON:
        return check.text(given, "package_name", path, most, minimum=1)
    return check.text(
        given, "package_name", path, most, minimum=1, pattern=_FILE_NAME, allowed="the file name of a shared library"
    )


_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_+@-][A-Za-z0-9_+@.-]*")
_CODE_RULE: Final = "SHA-256 of a zip as 64 lower-case hex, or nothing for a package that is installed on the bot"

_IDENTITY_RULE: Final = "a digest of 64 lower-case hex, or nothing: then the whole code decides"


_ENVIRONMENT_RULE: Final = (
    "SHA-256 of a document with requirements as 64 lower-case hex, name: with the name of an environment of the bots, "
    "or nothing for the packages of the bot"
)


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


def read_inputs(check: Checker, raw: dict[str, object], path: Path) -> list[Input]:
    if raw.get("inputs") is None:
        return []
    values = check.listing(raw, "inputs", path, check.limits.inputs)
    inputs = [_input(check, value, (*path, "inputs", i)) for i, value in enumerate(values)]
    return [source for source in inputs if source is not None]


def _input(check: Checker, value: object, path: Path) -> Input | None:
    raw = check.record(value, path)
    kind = raw.get("kind")
    reader = _INPUT_KINDS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        if raw is not NO_RECORD:
            check.note((*path, "kind"), kind, f"one of {', '.join(_INPUT_KINDS)}", "choice")
        return None
    return reader(check, raw, path)


def _constant(check: Checker, raw: dict[str, object], path: Path) -> Constant:
    check.unknown_keys(raw, frozenset({"kind", "type", "payload"}), path)
    return Constant(type=_type(check, raw, path), payload=_payload(check, raw.get("payload"), (*path, "payload")))


def _shared(check: Checker, raw: dict[str, object], path: Path) -> Shared:
    check.unknown_keys(raw, frozenset({"kind", "type", "shared_value_id"}), path)
    given = raw.get("shared_value_id")
    parsed = try_parse_id(given)
    if parsed is not None and parsed[1] == 0:
        return Shared(type=_type(check, raw, path), shared_value_id=parsed[0])
    number = check.integer(raw, "shared_value_id", path, 1, MAX_INT64)
    return Shared(type=_type(check, raw, path), shared_value_id=number)


def _output_of(check: Checker, raw: dict[str, object], path: Path) -> OutputOf:
    check.unknown_keys(raw, frozenset({"kind", "type", "label", "position"}), path)
    return OutputOf(
        type=_type(check, raw, path),
        label=check.text(raw, "label", path, check.limits.label_chars, minimum=1),
        position=check.integer(raw, "position", path, 0, check.limits.outputs - 1, default=0),
    )


def _gathered(check: Checker, raw: dict[str, object], path: Path) -> Gathered:
    check.unknown_keys(raw, frozenset({"kind", "type", "parts", "shape"}), path)
    parts = check.listing(raw, "parts", path, check.limits.inputs)
    shape = raw.get("shape")
    return Gathered(
        type=_type(check, raw, path),
        parts=[read_part(check, part, (*path, "parts", i)) for i, part in enumerate(parts)],
        shape=None if shape is None else _payload(check, shape, (*path, "shape")),
    )


def read_part(check: Checker, value: object, path: Path) -> Part:
    """One part of a gathered input."""
    raw = check.record(value, path)
    if raw is NO_RECORD:
        return Part(type="", label="")
    check.unknown_keys(raw, _PART_KEYS, path)
    return Part(
        type=_type(check, raw, path),
        label=check.text(raw, "label", path, check.limits.label_chars, minimum=1),
        position=check.integer(raw, "position", path, 0, check.limits.outputs - 1, default=0),
    )


_INPUT_KINDS: Final[dict[str, Callable[[Checker, dict[str, object], Path], Input]]] = {
    "constant": _constant,
    "shared": _shared,
    "output_of": _output_of,
    "gathered": _gathered,
}


def _payload(check: Checker, value: object, path: Path) -> Payload:
    limits = check.limits
    raw = check.record(value, path)
    if raw is NO_RECORD:
        return Payload(size=0)
    check.unknown_keys(raw, _PAYLOAD_KEYS, path)
    by_digest = raw.get("digest") is not None
    if by_digest == (raw.get("inline") is not None):
        given = "both" if by_digest else "neither"
        check.note_shown(path, given, "either inline bytes, or a digest with its size", "contradiction")
        return Payload(size=0)
    if by_digest:
        size = check.integer(raw, "size", path, 0, limits.value_stored_bytes)
        return Payload(digest=read_digest(check, raw, path), size=size)
    inline = check.bytes_(raw, "inline", path, limits.value_inline_bytes)
    size = len(inline) if inline is not None else 0
    if raw.get("size") is not None and inline is not None and raw["size"] != size:
        check.note((*path, "size"), raw["size"], f"{size}, or nothing, with these inline bytes", "contradiction")
    return Payload(inline=inline, size=size)


def read_outputs(check: Checker, raw: dict[str, object], path: Path) -> list[Output]:
    if raw.get("outputs") is None:
        return []
    values = check.listing(raw, "outputs", path, check.limits.outputs)
    return [_output(check, value, (*path, "outputs", i)) for i, value in enumerate(values)]


def _output(check: Checker, value: object, path: Path) -> Output:
    raw = check.record(value, path)
    check.unknown_keys(raw, _OUTPUT_KEYS, path)
    return Output(type=_type(check, raw, path), shared=check.boolean(raw, "shared", path))


def _type(check: Checker, raw: dict[str, object], path: Path) -> str:
    """The canonical type string; empty when it is wrong."""
    text = check.text(raw, "type", path, check.limits.type_chars, minimum=1)
    if not text:
        return ""
    try:
        return type_strings.canonical(text)
    except InvalidRequest as wrong:
        check.note((*path, "type"), text, wrong.problems[0].allowed, "type_string")
        return ""
