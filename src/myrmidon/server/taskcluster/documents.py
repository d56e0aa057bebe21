"""Converts task-graphs of TaskCluster's clients into graph documents.

    {"metadata": {...}, "tasks": [{"taskId": "XgvL0qtSR92cIWpcwdGKCA", "requires": [], "task": {...}}]}    the list form
    {"routing": "nightly", "tasks": {"build": {"requires": [], "task": {...}}}}                       the form by label

In the list form a client has chosen the ids of its tasks. Such an id becomes the task's external id, and the label is
the name in the task's metadata. Both forms have fields that graph documents do not: they are checked here, and kept in
the job's metadata where an answer shows them again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, ValidationError, json

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.limits import Limits
from myrmidon.model.shown_input import Path
from myrmidon.model.validation import NO_RECORD, Checker

METADATA_KEY: Final = "taskcluster"
"""The field of a job's metadata that keeps tags and scopes."""
METADATA_LIMITS: Final = {"name": 255, "description": 32_768, "owner": 255, "source": 4_096}
GRAPH_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,22}")
_TASK_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_TASK_ID_RULE: Final = "a slugid: 22 letters, digits, - and _"
_OWN_FIELDS: Final = frozenset({"metadata", "scopes", "routes", "tags"})
_GRAPH_KEYS: Final = _OWN_FIELDS | {"tasks"}
_EXTENSION_KEYS: Final = frozenset({"tasks"})
_SENT_ON: Final = frozenset(
    {"payload", "provisionerId", "workerType", "created", "deadline", "expires", "scopes", "extra", "retries"}
)
"""Fields of a listed task that model/short_form.py reads or warns of."""
IGNORED_IN_PAYLOAD: Final = {
    "image": "the command runs on the bot itself, which `workerType` and `dimensions` choose",
    "log": "the output of a task is its log",
    "logs": "the output of a task is its log",
    "supersederUrl": "no task is superseded",
    "rdpInfo": "bots give no remote desktop",
}
"""Fields of the payloads of TaskCluster's workers that are accepted without effect, with a warning."""
_CONVERTED: Final = frozenset({"metadata", "tags", "routes", "priority", "schedulerId", "taskGroupId"})
_TASK_KEYS: Final = _SENT_ON | _CONVERTED
_NODE_KEYS: Final = frozenset({"taskId", "task", "requires", "reruns"})
_PRIORITIES: Final = {
    "highest": 20, "very-high": 40, "high": 60, "medium": 80, "normal": 100, "low": 120, "very-low": 140, "lowest": 160,
}  # fmt: skip
_OTHER_SCHEDULER: Final = "task-graph-scheduler"
"""The name of the scheduler that clients were written for; some send it."""
_TAG_CHARS: Final = 4_096
_MOST: Final = 1_000
_MOST_ROUTES: Final = 10
_ROUTE_CHARS: Final = 249
_ROUTE_TAG: Final = "route:"
_SHORTENED: Final = 230
"""Characters of a name that are kept when the task's id must be added to it, so that it fits into a label."""


class KeptFields(Struct, frozen=True):
    """The fields of a task-graph that a job has no place for."""

    tags: dict[str, str] = {}
    scopes: list[str] = []


class GraphTarget(Struct, frozen=True, kw_only=True):
    """The graph that a document is for: its ids, and the labels of the tasks that it has by the ids of these tasks."""

    graph_id: str
    scheduler_id: str
    limits: Limits
    labels: Mapping[str, str] | None = None
    """None for a new graph."""


class ConvertedGraph(Struct, frozen=True):
    """The graph document, and the task-graph as it was sent but with its tasks by label.

    ``problems``: what is wrong with the task-graph and does not show in the graph document.
    """

    document: object
    sent: object
    problems: list[Problem]


def convert_graph(sent: object, target: GraphTarget) -> ConvertedGraph:
    """Convert a task-graph, or the tasks to extend one with."""
    check = Checker(target.limits)
    given: dict[str, Any] = check.record(sent, ())
    if given is NO_RECORD:
        check.finish()
    tasks: Any = given.get("tasks")
    if not isinstance(tasks, (list, dict)):
        check.note(("tasks",), tasks, "a list of tasks, or an object of tasks by label", "type")
        check.finish()
    fields = _extension_fields(check, given) if target.labels is not None else _graph_fields(check, given, target)
    if isinstance(tasks, list):
        labels, nodes, sent_nodes = _listed_nodes(check, tasks, target)
        document = {**fields, "tasks": _with_labels(check, nodes, {**(target.labels or {}), **labels})}
        return ConvertedGraph(document, {**given, "tasks": sent_nodes}, _problems(check))
    labelled = {label: _labelled_node(check, node, ("tasks", label), target) for label, node in tasks.items()}
    return ConvertedGraph({**fields, "tasks": labelled}, given, _problems(check))


def _problems(check: Checker) -> list[Problem]:
    try:
        check.finish()
    except InvalidRequest as error:
        return error.problems
    return []


# ---------------------------------------------------------------- the fields of a graph


def _extension_fields(check: Checker, given: dict[str, Any]) -> dict[str, Any]:
    check.unknown_keys(given, _EXTENSION_KEYS, ())
    return {}


def _graph_fields(check: Checker, given: dict[str, Any], target: GraphTarget) -> dict[str, Any]:
    """The fields of a new job. The form by label may have all fields of a graph document, which are checked later."""
    listed = isinstance(given["tasks"], list)
    if listed:
        check.unknown_keys(given, _GRAPH_KEYS, ())
    metadata = _metadata(check, given, ()) if listed else check.mapping(given, "metadata", (), target.limits.nodes)
    kept = KeptFields(
        tags=_tags(check, given, ()),
        scopes=check.texts(given, "scopes", (), _MOST, chars=_TAG_CHARS),
    )
    text = json.encode(kept).decode()
    if len(text) > target.limits.metadata_value_chars:
        rule = f"at most {target.limits.metadata_value_chars} characters in tags and scopes together"
        check.note_shown(("tags",), f"{len(text)} characters", rule, "length")
    passed = {} if listed else {key: value for key, value in given.items() if key not in _OWN_FIELDS}
    name = {"name": metadata["name"]} if metadata.get("name") and "name" not in given else {}
    return {
        **name,
        **passed,
        "external_id": target.graph_id,
        "metadata": {**metadata, METADATA_KEY: text},
        "tags": [*_routes(check, given, ()), *_as_list(kept.tags, target.limits)],
    }


def _metadata(check: Checker, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    given = check.record(raw.get("metadata"), (*path, "metadata"))
    if given is NO_RECORD:
        return {}
    here = (*path, "metadata")
    check.unknown_keys(given, frozenset(METADATA_LIMITS), here)
    return {key: check.text(given, key, here, limit) for key, limit in METADATA_LIMITS.items()}


def _tags(check: Checker, raw: dict[str, Any], path: Path) -> dict[str, str]:
    given = check.mapping(raw, "tags", path, _MOST)
    return {key: check.item(value, (*path, "tags", key), _TAG_CHARS) or "" for key, value in given.items()}


def _as_list(tags: Mapping[str, str], limits: Limits) -> list[str]:
    """Tags as ``key:value``, so that lists can be filtered by them; those that are too long for that are left out."""
    fitting = [f"{key}:{value}" for key, value in tags.items() if len(key) + len(value) < limits.tag_chars]
    return fitting[: limits.tags - _MOST_ROUTES]


def _routes(check: Checker, raw: dict[str, Any], path: Path) -> list[str]:
    """Routes as the tags that messages about a job or task are sent by."""
    routes = check.texts(raw, "routes", path, _MOST_ROUTES, chars=_ROUTE_CHARS, minimum_chars=1)
    return [f"{_ROUTE_TAG}{route}" for route in routes]


def kept_fields(metadata: Mapping[str, str]) -> KeptFields | None:
    """What the metadata of a job keeps; None for a job that was not submitted as a task-graph."""
    text = metadata.get(METADATA_KEY)
    try:
        return json.decode(text, type=KeptFields) if text is not None else None
    except (ValidationError, ValueError):
        return None


# ---------------------------------------------------------------- tasks


def _labelled_node(check: Checker, node: object, path: Path, target: GraphTarget) -> object:
    """A node of the form by label: as in a graph document, but its task may have fields of TaskCluster's queue."""
    task = node.get("task") if isinstance(node, dict) else None
    if not isinstance(node, dict) or not isinstance(task, dict) or not (task.keys() & _CONVERTED):
        return node
    here = (*path, "task")
    converted = {key: value for key, value in task.items() if key not in _CONVERTED}
    if task.get("metadata") is not None:
        converted["metadata"] = task["metadata"]
    _convert_fields(check, task, here, target, converted)
    return {**node, "task": converted}


def _convert_fields(
    check: Checker, task: dict[str, Any], path: Path, target: GraphTarget, converted: dict[str, Any]
) -> None:
    """Convert tags and priority, and check the ids of scheduler and graph."""
    tags, routes, priority = task.get("tags"), _routes(check, task, path), task.get("priority")
    if tags is None or isinstance(tags, dict):
        converted["tags"] = [*routes, *_as_list(_tags(check, task, path), target.limits)]
    else:
        converted["tags"] = [*routes, *tags] if isinstance(tags, list) else tags
    if priority is not None:
        converted["priority"] = _PRIORITIES.get(priority, priority) if isinstance(priority, str) else priority
    if task.get("schedulerId") not in (None, target.scheduler_id, _OTHER_SCHEDULER):
        check.note((*path, "schedulerId"), task["schedulerId"], f"none, or {target.scheduler_id}", "path")
    if task.get("taskGroupId") not in (None, target.graph_id):
        check.note((*path, "taskGroupId"), task["taskGroupId"], f"none, or {target.graph_id}", "path")


def _listed_nodes(
    check: Checker, tasks: list[Any], target: GraphTarget
) -> tuple[dict[str, str], dict[str, dict[str, Any]], dict[str, Any]]:
    """Labels by task id, and the nodes by label: converted, and as they were sent."""
    existing = target.labels or {}
    taken, labels = set(existing.values()), dict[str, str]()
    nodes: dict[str, dict[str, Any]] = {}
    sent: dict[str, Any] = {}
    for i, raw in enumerate(tasks):
        path: Path = ("tasks", i)
        node = check.record(raw, path)
        if node is NO_RECORD:
            continue
        check.unknown_keys(node, _NODE_KEYS, path)
        task_id = check.text(node, "taskId", path, 22, minimum=22, pattern=_TASK_ID, allowed=_TASK_ID_RULE)
        if task_id and task_id in labels:
            check.note((*path, "taskId"), task_id, "an id that no other task has", "duplicate")
            continue
        task = _listed_task(check, node.get("task"), (*path, "task"), target)
        label = existing.get(task_id) or _label(str(task.get("name", "")), task_id or str(i), taken)
        taken.add(label)
        labels[task_id] = label
        task["external_id"] = task_id or None
        nodes[label] = {"task": task, "requires": node.get("requires"), "reruns": node.get("reruns")}
        sent[label] = raw
    return labels, nodes, sent


def _label(name: str, task_id: str, taken: set[str]) -> str:
    """The name, with the id added if the graph has another task of this name."""
    if name and name not in taken:
        return name
    return f"{name[:_SHORTENED]} ({task_id})" if name else task_id


def _listed_task(check: Checker, raw: object, path: Path, target: GraphTarget) -> dict[str, Any]:
    task = check.record(raw, path)
    if task is NO_RECORD:
        return {}
    check.unknown_keys(task, _TASK_KEYS, path)
    for key in ("provisionerId", "workerType"):
        check.text(task, key, path, target.limits.dimension_value_chars, minimum=1)
    if task.get("payload") is None:
        check.note_shown((*path, "payload"), "nothing", "an object", "missing")
    for key in ("created", "deadline"):
        _check_date(check, task.get(key), (*path, key))
    converted = {key: value for key, value in task.items() if key in _SENT_ON}
    metadata = _metadata(check, task, path)
    if metadata.get("name"):
        converted["name"] = metadata["name"]
    converted["metadata"] = metadata
    _convert_fields(check, task, path, target, converted)
    return converted


def _check_date(check: Checker, value: object, path: Path) -> None:
    """Record a date that is absent or wrong; whether a deadline is in the future is checked later."""
    try:
        if isinstance(value, str) and datetime.fromisoformat(value):
            return
    except ValueError:
        pass
    check.note(path, value, "a date and time such as 2026-12-31T12:00:00Z", "missing" if value is None else "type")


def _with_labels(check: Checker, nodes: dict[str, dict[str, Any]], labels: Mapping[str, str]) -> dict[str, Any]:
    """The nodes with the labels of their parents in place of ids."""
    for label, node in nodes.items():
        requires = node["requires"]
        if not isinstance(requires, list):
            continue  # what is no list is reported when the graph document is checked
        known = []
        for i, task_id in enumerate(requires):
            if isinstance(task_id, str) and task_id in labels:
                known.append(labels[task_id])
            else:
                rule = "the taskId of a task of this graph"
                check.note(("tasks", label, "requires", i), task_id, rule, "unknown_label")
        node["requires"] = known
    return nodes
