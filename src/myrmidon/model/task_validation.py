"""Parse untyped JSON into a TaskRequest, collecting every problem.

The struct declares what most fields may hold; here is what depends on several fields or on the settings. Problems are
recorded in a Checker with path, value and what is allowed; a wrong field gets a harmless value, so that parsing
continues and all problems are reported at once.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from myrmidon.model.function_validation import check_environment, read_function, read_inputs, read_outputs
from myrmidon.model.ids import try_parse_id
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.output_refs import FoundOutputs
from myrmidon.model.short_form import NOT_DONE, SHORT_KEYS
from myrmidon.model.shown_input import Path
from myrmidon.model.slice_validation import FieldReader, read_slices
from myrmidon.model.task_request import (
    Gathered,
    OutputOf,
    TaskRequest,
)
from myrmidon.model.validation import NO_RECORD, Checker

TASK_KEYS: Final = frozenset(TaskRequest.__struct_fields__)


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
    given = check.record(raw, path)
    if given is NO_RECORD:
        return TaskRequest(name=label, slices=[])
    check.unknown_keys(given, TASK_KEYS, path, also=SHORT_KEYS, instead=NOT_DONE)
    function = read_function(check, given, path)
    outputs = FoundOutputs()
    given = outputs.take_stdin(check, given, path)
    usual_name = label or (function.func_name if function else None)
    if "slices" not in given:
        usual_name = usual_name or "task"  # a short task needs no name: what is missing are its fields
    request = _declared_fields(check, given, path, usual_name=usual_name)
    request = structs.replace(
        request,
        slices=read_slices(check, given, path, function, outputs),
        function=function,
        **{key: read(check, given, path) for key, read in _READ_HERE.items() if key in given},
    )
    _check_contradictions(check, request, path)
    if function is not None:
        check_environment(check, function, request.slices, path)
    return _with_sources(check, request, outputs, path) if outputs.sources else request


def _declared_fields(check: Checker, raw: dict[str, object], path: Path, usual_name: str | None) -> TaskRequest:
    """The request with the fields that its struct declares, in the form in which they are stored."""
    limits = check.limits
    given: dict[str, object] = {**raw, **_NOT_DECLARED}
    lease = raw.get("lease_s")
    if lease is None:
        given["lease_s"] = limits.lease_default_s
    elif type(lease) is int and 1 <= lease < limits.lease_min_s:
        rule = f"a whole number in {limits.lease_min_s}..{limits.lease_max_s}"
        check.note((*path, "lease_s"), lease, rule, "range")
    if raw.get("name") is None and usual_name:
        given["name"] = usual_name
    request: TaskRequest | None = check.struct(given, TaskRequest, path)
    if request is None:
        return TaskRequest(name="", slices=[])
    changed: dict[str, object] = {}
    if len(request.tags) > 1:
        changed["tags"] = sorted(set(request.tags))
    if not request.service_account:
        changed["service_account"] = "none"
    if isinstance(request.soft_timeout_s, float) and request.soft_timeout_s.is_integer():
        changed["soft_timeout_s"] = int(request.soft_timeout_s)
    return structs.replace(request, **changed) if changed else request


def _with_sources(check: Checker, request: TaskRequest, outputs: FoundOutputs, path: Path) -> TaskRequest:
    """A command with the outputs of other tasks that its properties refer to as inputs."""
    if request.function is not None:
        shown = f"{outputs.sources[0].label}:{outputs.sources[0].position}"
        check.note((*path, "slices", "$output"), shown, "none with a function: use inputs", "contradiction")
    return structs.replace(request, inputs=outputs.sources)


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


def read_parent(check: Checker, raw: dict[str, object], path: Path) -> tuple[int, int] | None:
    given = raw.get("parent")
    if given is None:
        return None
    parsed = try_parse_id(given)
    if parsed is None or parsed[1] == 0:
        check.note((*path, "parent"), given, "the id of a run, not of a task: it does not end in 0", "id")
        return None
    return parsed


_READ_HERE: Final[dict[str, FieldReader]] = {"inputs": read_inputs, "outputs": read_outputs, "parent": read_parent}
_NOT_DECLARED: Final[dict[str, object]] = {"slices": [], "function": None, "inputs": [], "outputs": [], "parent": None}
"""Fields that are read by functions, with what stands for them meanwhile. The struct declares what others may hold."""
