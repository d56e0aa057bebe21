"""Parse untyped JSON into a TaskRequest, collecting every problem.

Problems are recorded in a Checker with path, value and what is allowed; a wrong field gets a harmless value, so that
parsing continues and all problems are reported at once.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import structs

from myrmidon.model.function_validation import check_environment, read_function, read_inputs, read_outputs
from myrmidon.model.ids import try_parse_id
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.output_refs import FoundOutputs
from myrmidon.model.shown_input import Path
from myrmidon.model.slice_validation import FieldReader, read_slices
from myrmidon.model.task_request import (
    Function,
    Gathered,
    OutputOf,
    TaskRequest,
)
from myrmidon.model.validation import NO_RECORD, Checker

_ACCOUNT = re.compile(r"none|bot|[^@\s]+@[^@\s]+|")
EXTERNAL_ID: Final = re.compile(r"[A-Za-z0-9_\-]+")
ROUTING: Final = re.compile(r"[^\s*#\x00-\x1f\x7f]*")
EXTERNAL_ID_RULE: Final = "letters, digits, - and _: it is one word of a routing key"
ROUTING_RULE: Final = "words separated by dots, without space, * and #"
_TASK_KEYS: Final = frozenset(TaskRequest.__struct_fields__)


def parse_task(raw: object, limits: Limits = DEFAULT_LIMITS) -> TaskRequest:
    """The request as a struct, or InvalidRequest with every problem it has.

    Inputs that are outputs of other tasks are refused: a task without a job has no such tasks.
    """
    check = Checker(limits)
    request = read_task(check, raw, ())
    for i, source in enumerate(request.inputs):
        allowed = "constant or shared inputs: this task is in no job"
        if isinstance(source, OutputOf) and request.function is None:
            check.note(("slices", "$output"), source.label, "no outputs of tasks: this task is in no job", "job")
        elif isinstance(source, OutputOf):
            check.note(("inputs", i, "label"), source.label, allowed, "job")
        elif isinstance(source, Gathered):
            check.note(("inputs", i, "parts"), source.parts, allowed, "job")
    if request.outputs and request.function is None:
        check.note(("outputs",), request.outputs, "none: only commands in a job have outputs", "job")
    check.finish()
    return request


def read_task(check: Checker, raw: object, path: Path, label: str = "") -> TaskRequest:
    """The request as a struct, with problems recorded in ``check``. ``label`` is the default name."""
    limits = check.limits
    given = check.record(raw, path)
    if given is NO_RECORD:
        return TaskRequest(name=label, slices=[])
    check.unknown_keys(given, _TASK_KEYS, path)
    function = read_function(check, given, path)
    outputs = FoundOutputs()
    given = outputs.take_stdin(check, given, path)
    request = TaskRequest(
        name=_name(check, given, path, usual=label or function),
        slices=read_slices(check, given, path, function, outputs),
        function=function,
        priority=check.integer(given, "priority", path, 0, limits.priority_max, default=limits.priority_default),
        retries=check.integer(given, "retries", path, 0, limits.retries_max, default=limits.retries_default),
        lease_s=check.integer(
            given, "lease_s", path, limits.lease_min_s, limits.lease_max_s, default=limits.lease_default_s
        ),
        **{key: read(check, given, path) for key, read in _OPTIONAL_IN_TASK.items() if key in given},
    )
    _check_contradictions(check, request, path)
    if function is not None:
        check_environment(check, function, request.slices, path)
    return _with_sources(check, request, outputs, path) if outputs.sources else request


def _with_sources(check: Checker, request: TaskRequest, outputs: FoundOutputs, path: Path) -> TaskRequest:
    """A command with the outputs of other tasks that its properties refer to as inputs."""
    if request.function is not None:
        shown = f"{outputs.sources[0].label}:{outputs.sources[0].position}"
        check.note((*path, "slices", "$output"), shown, "none with a function: use inputs", "contradiction")
    return structs.replace(request, inputs=outputs.sources)


def _name(check: Checker, raw: dict[str, object], path: Path, usual: str | Function | None) -> str:
    """The name; for tasks of a job the label, and for functions the function's name, is the default."""
    limit = check.limits.name_chars
    if not usual:
        return check.text(raw, "name", path, limit, minimum=1)
    default = usual if isinstance(usual, str) else usual.func_name
    return check.text(raw, "name", path, limit, minimum=1, default=default)


def _check_contradictions(check: Checker, request: TaskRequest, path: Path) -> None:
    """Record problems of fields that are valid alone but not together."""
    if request.function is None and request.inputs:
        rule = 'none without a function; a command gets outputs of other tasks by {"$output": "label:position"}'
        check.note((*path, "inputs"), request.inputs, rule, "contradiction")
    if request.function is not None and request.stdin is not None:
        check.note_shown((*path, "stdin"), f"{len(request.stdin)} bytes", "none with a function", "contradiction")
    soft = request.soft_timeout_s
    if soft is None:
        return
    hard = min((s.properties.execution_timeout_s for s in request.slices), default=soft + 1)
    if soft >= hard:
        check.note((*path, "soft_timeout_s"), soft, f"less than the execution timeout of {hard}", "contradiction")


def read_account(check: Checker, raw: dict[str, object], path: Path) -> str:
    limit = check.limits.service_account_chars
    rule = "none, bot or an e-mail address"
    return check.text(raw, "service_account", path, limit, pattern=_ACCOUNT, allowed=rule, default="none") or "none"


def read_secret(check: Checker, raw: dict[str, object], path: Path) -> bytes | None:
    return check.bytes_(raw, "secret_bytes", path, check.limits.secret_bytes, secret=True)


def read_parent(check: Checker, raw: dict[str, object], path: Path) -> tuple[int, int] | None:
    given = raw.get("parent")
    if given is None:
        return None
    parsed = try_parse_id(given)
    if parsed is None or parsed[1] == 0:
        check.note((*path, "parent"), given, "the id of a run, not of a task: it does not end in 0", "id")
        return None
    return parsed


def read_tags(check: Checker, raw: dict[str, object], path: Path) -> list[str]:
    """The user's tags, sorted and unique; each has the form ``key:value``."""
    if raw.get("tags") is None:
        return []
    limits = check.limits
    tags = check.texts(raw, "tags", path, limits.tags, chars=limits.tag_chars, fits=_has_colon, allowed="key:value")
    return sorted(set(tags))


def _has_colon(tag: str) -> bool:
    return ":" in tag


def read_external_id(check: Checker, raw: dict[str, object], path: Path) -> str | None:
    """The id that the client chose for the task."""
    if raw.get("external_id") is None:
        return None
    limit = check.limits.external_id_chars
    return check.text(raw, "external_id", path, limit, minimum=1, pattern=EXTERNAL_ID, allowed=EXTERNAL_ID_RULE)


def read_routing(check: Checker, raw: dict[str, object], path: Path) -> str:
    """The words that the client adds to the routing keys of its events."""
    limit = check.limits.routing_chars
    return check.text(raw, "routing", path, limit, pattern=ROUTING, allowed=ROUTING_RULE, default="")


def read_metadata(check: Checker, raw: dict[str, object], path: Path) -> dict[str, str]:
    """Texts that are stored with the request and otherwise ignored."""
    limits = check.limits
    given = check.mapping(raw, "metadata", path, limits.metadata_keys)
    metadata: dict[str, str] = {}
    for key, value in given.items():
        here = (*path, "metadata", key)
        check.item(key, here, limits.metadata_key_chars, minimum=1)
        metadata[key] = check.item(value, here, limits.metadata_value_chars) or ""
    return metadata


def _soft_timeout(check: Checker, raw: dict[str, object], path: Path) -> int | float | None:
    limits = check.limits
    return check.optional_number(raw, "soft_timeout_s", path, limits.soft_timeout_min_s, limits.execution_timeout_max_s)


# Most requests use few fields, so only those that are given are read; the struct has the defaults of the others.
_OPTIONAL_IN_TASK: Final[dict[str, FieldReader]] = {
    "inputs": read_inputs,
    "outputs": read_outputs,
    "tags": read_tags,
    "user": lambda check, raw, path: check.text(raw, "user", path, check.limits.user_chars, default=""),
    "service_account": read_account,
    "parent": read_parent,
    "detached": lambda check, raw, path: check.boolean(raw, "detached", path),
    "reruns": lambda check, raw, path: check.integer(raw, "reruns", path, 0, check.limits.reruns_max, default=0),
    "max_instances": lambda check, raw, path: check.integer(
        raw, "max_instances", path, 1, check.limits.instances_max, default=1
    ),
    "soft_timeout_s": _soft_timeout,
    "deadline_s": lambda check, raw, path: check.optional_integer(
        raw, "deadline_s", path, 1, check.limits.deadline_max_s
    ),
    "secret_bytes": read_secret,
    "stdin": lambda check, raw, path: check.bytes_(raw, "stdin", path, check.limits.stdin_bytes),
    "evaluate_only": lambda check, raw, path: check.boolean(raw, "evaluate_only", path),
    "external_id": read_external_id,
    "routing": read_routing,
    "metadata": read_metadata,
}
