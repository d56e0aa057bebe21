"""The short form of a task in a graph document, and parameters: both are rewritten before the document is parsed.

    {"payload": {"command": ["make"], "env": {...}, "maxRunTime": 600, "dimensions": {...}}, "deadline": "2026-..."}

A task with ``payload`` and without ``slices`` becomes a request with one slice. What the payload holds besides the
fields below is not read here; the command gets the whole payload as a file. ``{"$param": "name"}`` anywhere in the
document is replaced by the value of that parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import Micros
from myrmidon.model.shown_input import Path
from myrmidon.model.validation import Checker

_PROPERTIES: Final = {
    "command": "command",
    "env": "env",
    "maxRunTime": "execution_timeout_s",
    "dimensions": "dimensions",
    "caches": "caches",
    "relative_cwd": "relative_cwd",
    "env_prefixes": "env_prefixes",
    "execution_timeout_s": "execution_timeout_s",
    "io_timeout_s": "io_timeout_s",
    "grace_period_s": "grace_period_s",
    "idempotent": "idempotent",
    "api": "api",
}
"""Fields of a payload that are read, and the properties that they become."""
_SHORT_KEYS: Final = frozenset(
    {"payload", "deadline", "provisionerId", "workerType", "created", "expires", "scopes", "routes", "extra", "retries"}
)
"""Fields of a short task that are no fields of a request; those without a meaning here are accepted and ignored."""
_IGNORED: Final = frozenset({"created", "expires", "scopes", "extra"})
_SECOND: Final = 1_000_000
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
    if not _has_parameters(document):
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


def _has_parameters(document: object) -> bool:
    """Whether there is something to replace.

    Most documents have nothing; with a path for every value, as ``_replace`` needs it, a large one takes far longer.
    """
    if isinstance(document, dict):
        return "$param" in document or any(map(_has_parameters, document.values()))
    return isinstance(document, list) and any(map(_has_parameters, document))


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


def expand_tasks(raw: object, *, default_pool: str, now: Micros) -> tuple[object, frozenset[str | int]]:
    """The document with short tasks as requests, and the keys (labels or list indexes) of the tasks that were short."""
    tasks = raw.get("tasks") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(tasks, (dict, list)):
        return raw, frozenset()
    items: list[tuple[Any, Any]] = list(tasks.items()) if isinstance(tasks, dict) else list(enumerate(tasks))
    short = frozenset(key for key, node in items if _is_short(node))
    if not short:
        return raw, short
    check = Checker()
    expanded = {
        key: _expand_node(check, node, ("tasks", key), default_pool=default_pool, now=now) if key in short else node
        for key, node in items
    }
    check.finish()
    return {**raw, "tasks": expanded if isinstance(tasks, dict) else list(expanded.values())}, short


def _is_short(node: object) -> bool:
    task = node.get("task") if isinstance(node, dict) else None
    return isinstance(task, dict) and "payload" in task and "slices" not in task


def _expand_node(check: Checker, node: dict[str, Any], path: Path, *, default_pool: str, now: Micros) -> dict[str, Any]:
    here = (*path, "task")
    task: dict[str, Any] = node["task"]
    payload = task["payload"]
    if not isinstance(payload, dict):
        check.note((*here, "payload"), payload, "an object", "type")
        payload = {}
    properties = {_PROPERTIES[key]: value for key, value in payload.items() if key in _PROPERTIES}
    if isinstance(properties.get("command"), list):
        properties["command"] = [_as_text(word) for word in properties["command"]]
    if isinstance(properties.get("env"), dict):
        properties["env"] = {key: _as_text(value) for key, value in properties["env"].items()}
    properties["dimensions"] = _dimensions(task, payload, default_pool)
    properties["payload"] = payload
    slice_: dict[str, Any] = {"properties": properties}
    if "expiration_s" in payload:
        slice_["expiration_s"] = payload["expiration_s"]
    request = {key: value for key, value in task.items() if key not in _SHORT_KEYS}
    request["slices"] = [slice_]
    if "retries" in task:
        request["retries"] = task["retries"]
    if task.get("deadline") is not None:
        request["deadline_s"] = _seconds_until(check, task["deadline"], (*here, "deadline"), now)
    return {**node, "task": request}


def _as_text(value: object) -> object:
    """Numbers as text: ``[sleep, 5]`` in YAML, and parameters that are numbers, are meant as words of a command."""
    return str(value) if type(value) in (int, float) else value


def _dimensions(task: dict[str, Any], payload: dict[str, Any], default_pool: str) -> Any:
    """The dimensions of the payload; ``provisionerId`` is the pool, ``workerType`` the dimension worker_type."""
    given = payload.get("dimensions")
    if given is not None and not isinstance(given, dict):
        return given
    dimensions = {"pool": [task.get("provisionerId") or default_pool], **(given or {})}
    if task.get("workerType"):
        dimensions.setdefault("worker_type", [task["workerType"]])
    return {key: value if isinstance(value, list) else [value] for key, value in dimensions.items()}


def _seconds_until(check: Checker, text: object, path: Path, now: Micros) -> int | None:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    if moment is None:
        check.note(path, text, "a date and time such as 2026-12-31T12:00:00Z", "type")
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    left = -(-(int(moment.timestamp() * _SECOND) - now) // _SECOND)
    if left < 1:
        check.note(path, text, "a time in the future", "range")
        return None
    return left


def rename_problems(error: InvalidRequest, short: frozenset[str | int]) -> InvalidRequest:
    """The error with the paths of short tasks as the document has them: ``payload.command``, not ``slices[0]...``.

    What is read from a payload is also a part of the whole payload, so the same problem may have been found in both.
    """
    if not short:
        return error
    renamed = [_renamed(problem) for problem in error.problems]
    return InvalidRequest(list({(problem.path, problem.code): problem for problem in renamed}.values()))


_BACK: Final = {prop: key for key, prop in reversed(_PROPERTIES.items())}


def _renamed(problem: Problem) -> Problem:
    head, found, rest = problem.path.partition(".task.slices[0].properties.")
    if found:
        rest = rest.removeprefix("payload.")
        name = next((prop for prop in _BACK if rest == prop or rest.startswith((f"{prop}.", f"{prop}["))), None)
        shown = rest if name is None else _BACK[name] + rest[len(name) :]
        return Problem(f"{head}.task.payload.{shown}", problem.value, problem.allowed, problem.code)
    return Problem(
        problem.path.replace(".task.deadline_s", ".task.deadline"), problem.value, problem.allowed, problem.code
    )
