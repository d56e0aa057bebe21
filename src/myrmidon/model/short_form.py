"""The short form of a task, which is accepted wherever a task is written. It is rewritten before the task is validated.

    {"command": ["make"], "dimensions": {"os": "Linux"}, "execution_timeout_s": 600, "priority": 50}
    {"payload": {"command": ["make"], "maxRunTime": 600, "extra": ...}, "deadline": "2026-..."}   as in TaskCluster

Both become a request with one slice. In the first, fields of the slice and of its properties stand beside those of the
task. In the second they are in a payload, which the command also gets as a file; what only the command reads is in its
field ``extra``. A field that nothing is done with is a problem, or a warning if the task means the same without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Final, TypeAlias

from msgspec import Struct, structs

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import Micros
from myrmidon.model.shown_input import NOTHING, Path, allowed_keys, kind_of, show_path
from myrmidon.model.task_request import Properties, Slice, TaskRequest
from myrmidon.model.validation import Checker

_TASK: Final = frozenset(TaskRequest.__struct_fields__)
_SLICE: Final = frozenset(Slice.__struct_fields__) - {"properties"}
_PROPERTIES: Final = frozenset(Properties.__struct_fields__) - {"output_refs"} - _TASK
SHORT_KEYS: Final = (_SLICE | _PROPERTIES) - {"payload"}
"""Fields that make a task without slices a short one."""
_RENAMED: Final = {"maxRunTime": "execution_timeout_s"}
_OWN_DATA: Final = "extra"
_PAYLOAD: Final = SHORT_KEYS | _RENAMED.keys() | {_OWN_DATA}
_BESIDE_PAYLOAD: Final = frozenset(
    {"payload", "deadline", "provisionerId", "workerType", "created", "expires", "scopes", "extra"}
)
"""Fields of TaskCluster's tasks that are no fields of a request."""
_IGNORED: Final = {
    "expires": "results are kept as long as the server's settings say",
    "scopes": "what a task may do depends on the token that submits it",
    "extra": "put what the command reads into payload.extra",
}
"""Why a field of a task has no effect; ``created`` asks for nothing."""
_NO_CONTAINER: Final = "commands run on the bot itself; choose bots by `dimensions`"
NOT_DONE: Final = {
    "image": _NO_CONTAINER,
    "capabilities": _NO_CONTAINER,
    "devices": _NO_CONTAINER,
    "features": "bots have none of these features",
    "osGroups": "a bot's settings choose the user of its tasks",
    "artifacts": "declare `outputs` of a task in a job, and write them to $MYRMIDON_OUTPUT_DIR",
    "mounts": "use `caches`, or fetch the files in the command",
    "cache": "use `caches`: a list of `name` and `path`",
    "onExitStatus": "use `reruns`",
    "timeout": "use `execution_timeout_s`",
    "maxRunTime": "use `execution_timeout_s`",
    "environment": "use `env`",
    "routes": "use `tags`, or `routing`",
    "dependencies": "use `requires`, beside `task` in a job",
    "cwd": "use `relative_cwd`",
}
"""Fields that people know from other systems, and what there is in place of them."""
_SECOND: Final = 1_000_000


Ignored: TypeAlias = Mapping[str, str]
"""Fields of a payload that an API accepts although they have no effect, each with the reason."""


class ShortForms(Struct):
    """The short tasks of a request: the path of each, and whether its fields are in a payload."""

    paths: dict[Path, bool] = {}


def expand_task(
    check: Checker, task: object, path: Path, forms: ShortForms, *, default_pool: str, now: Micros,
    ignored: Ignored = NOTHING,
) -> Any:  # fmt: skip
    """A short task as a request; any other value unchanged. ``forms`` gets the path of the task."""
    if not isinstance(task, dict) or "slices" in task:
        return task
    in_payload = "payload" in task and "command" not in task
    if not in_payload and not (task.keys() & SHORT_KEYS or "function" in task):
        return task
    forms.paths[path] = in_payload
    if in_payload:
        request, fields = _split_payload(check, task, path, default_pool, now, ignored)
    else:
        request = {key: value for key, value in task.items() if key not in SHORT_KEYS and key != "payload"}
        fields = {key: value for key, value in task.items() if key not in request}
        fields["dimensions"] = _dimensions(fields.get("dimensions"), {"pool": default_pool})
    properties = {key: value for key, value in fields.items() if key not in _SLICE}
    command, env = properties.get("command"), properties.get("env")
    if isinstance(command, list):
        properties["command"] = [_as_text(word) for word in command]
    if isinstance(env, dict):
        properties["env"] = {key: _as_text(value) for key, value in env.items()}
    rest = {key: fields[key] for key in _SLICE & fields.keys()}
    return {**request, "slices": [{"properties": properties, **rest}]}


def _split_payload(
    check: Checker, task: dict[str, Any], path: Path, default_pool: str, now: Micros, ignored: Ignored
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the request, and those of its slice and properties."""
    payload = task["payload"]
    here = (*path, "payload")
    if not isinstance(payload, dict):
        check.note(here, payload, "an object", "type")
        payload = {}
    fields: dict[str, Any] = {}
    for key, value in payload.items():
        if key in SHORT_KEYS or key in _RENAMED:
            name = _RENAMED.get(key, key)
            if name in fields:
                check.note_shown((*here, key), "both", f"either this or {name}, which is the same", "contradiction")
            fields[name] = value
        elif value is None or key == _OWN_DATA or (key in NOT_DONE and not value):
            pass  # it asks for nothing
        elif key in ignored:
            check.warn((*here, key), ignored[key])
        else:
            check.note_shown((*here, key), kind_of(value), _payload_rule(key), "unknown")
    fields["payload"] = payload
    for key, reason in _IGNORED.items():
        if task.get(key):
            check.warn((*path, key), reason)
    usual = {"pool": task.get("provisionerId") or default_pool}
    if task.get("workerType"):
        usual["worker_type"] = task["workerType"]
    fields["dimensions"] = _dimensions(payload.get("dimensions"), usual)
    request = {key: value for key, value in task.items() if key not in _BESIDE_PAYLOAD}
    if task.get("deadline") is not None:
        request["deadline_s"] = _seconds_until(check, task["deadline"], (*path, "deadline"), now)
    return request, fields


def _payload_rule(key: str) -> str:
    """What is allowed in place of a field that a payload does not have."""
    if key in _TASK:
        return f"nothing here: `{key}` is a field of the task, beside the payload"
    rule = allowed_keys(key, _PAYLOAD - {_OWN_DATA}, NOT_DONE)
    return rule if key in NOT_DONE else f"{rule}, or `{_OWN_DATA}` for what only the command reads"


def named_after_program(request: dict[str, Any]) -> dict[str, Any]:
    """A request that is in no job, where its label would be its name."""
    if request.get("name") is not None or request.get("function") is not None:
        return request
    command = request["slices"][0]["properties"].get("command")
    program = str(command[0]) if isinstance(command, list) and command else ""
    return {**request, "name": PurePath(program).name or "command"}


def _as_text(value: object) -> object:
    """Numbers as text: ``[sleep, 5]`` in YAML, and parameters that are numbers, are meant as words of a command."""
    return str(value) if type(value) in (int, float) else value


def _dimensions(given: object, usual: Mapping[str, object]) -> Any:
    """The dimensions, with lists in place of single values. Those that are not given have their usual value."""
    if given is not None and not isinstance(given, dict):
        return given
    dimensions = {**usual, **(given or {})}
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


def expand_tasks(
    check: Checker, raw: object, forms: ShortForms, *, default_pool: str, now: Micros, ignored: Ignored = NOTHING
) -> object:
    """A graph document with its short tasks as requests."""
    tasks = raw.get("tasks") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(tasks, (dict, list)):
        return raw
    expanded: dict[Any, Any] = {}
    for key, node in tasks.items() if isinstance(tasks, dict) else enumerate(tasks):
        task = node.get("task") if isinstance(node, dict) else None
        path = ("tasks", key, "task")
        request = expand_task(check, task, path, forms, default_pool=default_pool, now=now, ignored=ignored)
        expanded[key] = {**node, "task": request} if request is not task else node
    if not forms.paths:
        return raw
    return {**raw, "tasks": expanded if isinstance(tasks, dict) else list(expanded.values())}


# ---------------------------------------------------------------- problems


def rename_problems(error: InvalidRequest, forms: ShortForms) -> InvalidRequest:
    """The error with the paths of short tasks as they were written: ``payload.command``, not ``slices[0]...``.

    What is read from a payload is also a part of the whole payload, so the same problem may have been found in both.
    """
    if not forms.paths:
        return error
    short = {show_path(path): in_payload for path, in_payload in forms.paths.items()}
    renamed = [_renamed(problem, short) for problem in error.problems]
    return InvalidRequest(list({(problem.path, problem.code): problem for problem in renamed}.values()))


_BACK: Final = {name: key for key, name in _RENAMED.items()}


def _renamed(problem: Problem, short: Mapping[str, bool]) -> Problem:
    task, found, rest = problem.path.rpartition(".slices[0]")
    if not found and problem.path.startswith("slices[0]"):
        task, found, rest = "", "slices[0]", problem.path.removeprefix("slices[0]")
    if not found or task not in short:
        task, _, last = problem.path.rpartition(".")
        renames = last == "deadline_s" and short.get(task)
        return structs.replace(problem, path=f"{task}.deadline".lstrip(".")) if renames else problem
    name = rest.removeprefix(".properties").removeprefix(".")
    if short[task]:
        name = name.removeprefix("payload.")
        first, dot, more = name.partition(".")
        name = f"payload.{_BACK.get(first, first)}{dot}{more}".rstrip(".")
    return structs.replace(problem, path=f"{task}.{name}".strip("."))
