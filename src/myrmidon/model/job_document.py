"""Parse the JSON document of a job into a Graph, collecting every problem in one pass.

    {"name": ..., "tasks": {"build": {"task": {...}}, "test": {"task": {...}, "requires": ["build"]}}}

``{"$subs": "taskId:build"}`` anywhere in a task's properties is replaced by the id of that task. References to outputs
are read in output_refs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import structs

from myrmidon.model.dag import DagBuilder, ExistingTask
from myrmidon.model.function_validation import read_inputs
from myrmidon.model.job import Graph, Node, RequiresPolicy, composed_routing
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.output_refs import labels_in
from myrmidon.model.parameters import contains_key
from myrmidon.model.short_form import SHORT_KEYS
from myrmidon.model.shown_input import Path, show_value
from myrmidon.model.task_request import TaskRequest, reads_outputs
from myrmidon.model.task_validation import TASK_KEYS, read_task
from myrmidon.model.validation import NO_RECORD, Checker

_DECLARED: Final = frozenset(Graph.__struct_fields__) - {"nodes"}
_GRAPH_KEYS: Final = _DECLARED | {"tasks"}
GROWTH_KEYS: Final = frozenset({"requires", "parts", "delegates"})
"""The fields of an extension that change tasks of its job: see scheduler/growth.py."""
_REPLACED_KEYS: Final = frozenset({"parameters"})
"""Fields of a document that ``parameters`` has replaced."""
_NODE_KEYS: Final = frozenset({"requires", "requires_policy", "hold", "reruns", "task"})
_LISTED_NODE_KEYS: Final = _NODE_KEYS | {"label"}
_NO_GRAPH_KEYS: Final = {"fail_fast": "use `failure_policy: fail-fast`"}
_NO_NODE_KEYS: Final = {
    **dict.fromkeys(("needs", "depends_on", "dependencies"), "use `requires`"),
    **{key: f"`{key}` is a field inside of `task`" for key in {*TASK_KEYS, *SHORT_KEYS, "payload"} - _LISTED_NODE_KEYS},
}
"""Fields that people write in these places, and what there is in place of them."""
_REQUIRES: Final = {policy.value: policy for policy in RequiresPolicy}
_NO_TASKS_RULE: Final = 'at least one task, such as {"hello": {"task": {"command": ["echo", "hello"]}}}'
_SUBS: Final = "taskId:"
_ID_CHARS: Final = 18


def labels_of(raw: object) -> list[str]:
    """The labels of a document in order, so that ids can be made for them before it is parsed.

    Never raises: labels that are not text are reported by parse_graph.
    """
    tasks = raw.get("tasks") if isinstance(raw, dict) else None
    if isinstance(tasks, dict):
        return [label for label in tasks if isinstance(label, str)]
    if not isinstance(tasks, (list, tuple)):
        return []
    labels = [node.get("label") for node in tasks if isinstance(node, dict)]
    return list(dict.fromkeys(label for label in labels if isinstance(label, str)))


def labels_named(raw: object) -> set[str]:
    """The labels that an extension refers to, its own included; other texts may be among them."""
    found = {*labels_of(raw), *labels_read(raw)}
    for node in _nodes_of(raw):
        found.update(_texts_in(node.get("requires")))
        task = node.get("task")
        if isinstance(task, dict) and contains_key(task.get("slices"), "$subs"):
            found.update(text.removeprefix(_SUBS) for text in _texts_in(task["slices"]))
    if isinstance(raw, dict):
        found.update(_texts_in([raw.get(key) for key in GROWTH_KEYS]))
    return found


def _texts_in(tree: object) -> Iterator[str]:
    """The texts of a tree, and the keys of its objects."""
    rest = [tree]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            rest += [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            rest += value


def _nodes_of(raw: object) -> list[dict[str, object]]:
    tasks = raw.get("tasks") if isinstance(raw, dict) else None
    return _objects(list(tasks.values()) if isinstance(tasks, dict) else tasks)


def labels_read(raw: object) -> set[str]:
    """The labels whose outputs are inputs of tasks in the document. Invalid parts are skipped."""
    found: set[str] = set()
    for node in _nodes_of(raw):
        task = node.get("task")
        if isinstance(task, dict):
            given = _objects(task.get("inputs"))
            parts = [part for source in given for part in _objects(source.get("parts"))]
            found.update(label for source in (*given, *parts) if isinstance(label := source.get("label"), str))
            found |= labels_in(task.get("slices"))
    return found


def _objects(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def parse_graph(
    raw: object,
    limits: Limits = DEFAULT_LIMITS,
    subs: Mapping[str, str] | None = None,
    existing: Mapping[str, ExistingTask] | None = None,
) -> Graph:
    """The document as a struct, or InvalidRequest with every problem it has.

    ``subs`` maps labels to formatted task ids; without it nothing is substituted. The edges of a valid document
    are left to build_dag. In an invalid one they are checked here too, so that all problems are reported at once;
    ``existing`` are the tasks that the job already has (None: not given, so no label is called unknown).
    """
    check = Checker(limits)
    given = check.record(raw, ())
    if given is NO_RECORD:
        check.finish()
    check.unknown_keys(given, _GRAPH_KEYS, (), also=_REPLACED_KEYS, instead=_NO_GRAPH_KEYS)
    declared = {key: given[key] for key in _DECLARED if given.get(key) is not None}
    graph: Graph = check.struct({"name": "", "nodes": [], **declared}, Graph, ()) or Graph(name="", nodes=[])
    routing_bytes = _task_routing_bytes(limits, graph.external_id, graph.routing)
    nodes, broken = _nodes(check, given.get("tasks"), subs, routing_bytes)
    name = graph.external_id or "" if given.get("name") is None else graph.name
    graph = structs.replace(graph, name=name, nodes=nodes, tags=sorted(set(graph.tags)))
    if check.problems:
        DagBuilder(check, nodes, existing, broken).build()
    check.finish()
    return graph


def _task_routing_bytes(limits: Limits, external_id: str | None, routing: str) -> int:
    """How many bytes of the routing key are left for a task's own routing."""
    graph_id = external_id or "0" * _ID_CHARS
    fixed = composed_routing(deployment=limits.deployment, graph_id=graph_id, graph_routing=routing, task_routing="")
    return limits.routing_key_bytes - limits.routing_words_bytes - len(fixed.encode())


def _nodes(
    check: Checker, tasks: object, subs: Mapping[str, str] | None, routing_bytes: int
) -> tuple[list[Node], set[str]]:
    """All nodes, and the labels of those with problems: the types of their outputs cannot be relied on."""
    raws = _labelled_nodes(check, tasks)
    nodes: list[Node] = []
    broken: set[str] = set()
    for label, path, raw in raws:
        before = check.count
        nodes.append(_node(check, raw, path, label=label, subs=subs))
        _check_routing(check, nodes[-1], path, routing_bytes)
        if check.count > before:
            broken.add(label)
    _check_external_ids(check, nodes, [path for _, path, _ in raws])
    return nodes, broken


def _labelled_nodes(check: Checker, tasks: object) -> list[tuple[str, Path, object]]:
    """(label, path, raw node) of each task, whether they came as an object or as a list."""
    if tasks is None or (isinstance(tasks, (dict, list, tuple)) and not tasks):
        check.note_shown(("tasks",), "no tasks", _NO_TASKS_RULE, "missing" if tasks is None else "empty")
        return []
    if not isinstance(tasks, (dict, list, tuple)):
        check.note(("tasks",), tasks, "an object of tasks by label, or a list", "type")
        return []
    if len(tasks) > check.limits.nodes:
        check.note(("tasks",), tasks, f"1..{check.limits.nodes} tasks", "too_many")
        return []
    if isinstance(tasks, dict):
        return _from_object(check, tasks)
    return _from_list(check, tasks)


def _from_object(check: Checker, tasks: dict[str, object]) -> list[tuple[str, Path, object]]:
    given, longest = check.record(tasks, ("tasks",)), check.limits.label_chars
    for label in given:
        if 0 < len(label) <= longest:
            check.item(label, ("tasks", label), longest)
        else:
            check.note(("tasks", label), label, f"a label of 1..{longest} characters", "length")
    return [(label, ("tasks", label), raw) for label, raw in given.items()]


def _from_list(check: Checker, tasks: Sequence[object]) -> list[tuple[str, Path, object]]:
    nodes: list[tuple[str, Path, object]] = []
    seen: dict[str, int] = {}
    for i, raw in enumerate(tasks):
        node = check.record(raw, ("tasks", i))
        if node is NO_RECORD:
            continue
        label = check.text(node, "label", ("tasks", i), check.limits.label_chars, minimum=1)
        first = seen.setdefault(label, i)
        if label and first != i:
            check.note(
                ("tasks", i, "label"),
                label,
                f"a label no other task has; it is tasks[{first}]'s",
                "duplicate",
            )
            continue
        nodes.append((label, ("tasks", i), node))
    return nodes


def _node(check: Checker, value: object, path: Path, *, label: str, subs: Mapping[str, str] | None) -> Node:
    raw = check.record(value, path)
    listed = len(path) == 2 and isinstance(path[1], int)
    check.unknown_keys(raw, _LISTED_NODE_KEYS if listed else _NODE_KEYS, path, instead=_NO_NODE_KEYS)
    request = _node_request(check, raw, path, label=label, subs=subs)
    policy = check.choice(raw, "requires_policy", path, _REQUIRES, RequiresPolicy.ALL_SUCCEEDED)
    if policy == RequiresPolicy.ALL_RESOLVED and request.function and any(map(reads_outputs, request.inputs)):
        rule = "all-succeeded for a function that reads outputs: a parent that failed may have none"
        check.note_shown((*path, "requires_policy"), policy.value, rule, "contradiction")
    return Node(
        label=label,
        request=request,
        requires=check.texts(
            raw, "requires", path, check.limits.parents, chars=check.limits.label_chars, minimum_chars=1
        ),
        policy=policy,
        hold=check.boolean(raw, "hold", path),
    )


def _node_request(
    check: Checker, raw: dict[str, object], path: Path, *, label: str, subs: Mapping[str, str] | None
) -> TaskRequest:
    here = (*path, "task")
    task = raw.get("task")
    request = _read_call(check, task, here)
    if request is None:
        if subs is not None:
            task = _substituted_task(check, task, here, subs)
        request = read_task(check, task, here, label)
    if request.evaluate_only:
        check.note_shown((*here, "evaluate_only"), "true", "false inside a job", "contradiction")
    if raw.get("reruns") is None:
        return request
    reruns = check.integer(raw, "reruns", path, 0, check.limits.reruns_max)
    if isinstance(task, dict) and task.get("reruns") not in (None, reruns):
        check.note(
            (*path, "reruns"),
            reruns,
            f"{request.reruns}, as in the task, or only one of them",
            "contradiction",
        )
    return structs.replace(request, reruns=reruns)


def _read_call(check: Checker, task: object, path: Path) -> TaskRequest | None:
    """The request of a node that calls a function and says everything itself; None for any other one.

    Calls of one function differ in their inputs only: the rest is read once (Checker.once).
    """
    if not isinstance(task, dict) or task.get("function") is None or task.get("name") is None:
        return None
    rest = {key: value for key, value in task.items() if key != "inputs"}

    def read() -> TaskRequest | None:
        return None if contains_key(rest.get("slices"), "$subs") else read_task(check, rest, path)

    request = check.once("call", rest, read)
    if request is None or "inputs" not in task:
        return request
    return structs.replace(request, inputs=read_inputs(check, task, path))


def _check_routing(check: Checker, node: Node, path: Path, limit: int) -> None:
    routing = node.request.routing
    if len(routing) <= limit and (routing.isascii() or len(routing.encode()) <= limit):
        return
    shown = f"{show_value(routing)}, {len(routing.encode())} bytes"
    rule = f"at most {max(limit, 0)} bytes: the whole routing key may have {check.limits.routing_key_bytes}"
    check.note_shown((*path, "task", "routing"), shown, rule, "length")


def _check_external_ids(check: Checker, nodes: list[Node], paths: list[Path]) -> None:
    seen: set[str] = set()
    for node, path in zip(nodes, paths, strict=True):
        external_id = node.request.external_id
        if not external_id:
            continue
        if external_id in seen:
            check.note((*path, "task", "external_id"), external_id, "an id no other task has", "duplicate")
        seen.add(external_id)


# -- $subs ---------------------------------------------------------------------------------------------------


def substitute(raw: object, ids: Mapping[str, str]) -> object:
    """The tree with every ``{"$subs": "taskId:<label>"}`` replaced by that task's formatted id, at any depth.

    Keys are never replaced; an object with more keys or another text is left unchanged. Labels without an id are
    problems, all raised together. A substitution does not create a dependency.
    """
    check = Checker()
    replaced = _substituted(check, raw, (), ids)
    check.finish()
    return replaced


def _substituted_task(check: Checker, task: object, path: Path, ids: Mapping[str, str]) -> object:
    """Substitutes within the ``properties`` of each slice; most have no ``$subs`` and are not copied."""
    slices = task.get("slices") if isinstance(task, dict) else None
    if not isinstance(task, dict) or not isinstance(slices, (list, tuple)):
        return task
    replaced = list(slices)
    for i, raw in enumerate(replaced[: check.limits.slices]):
        properties = raw.get("properties") if isinstance(raw, dict) else None
        if contains_key(properties, "$subs"):
            here = (*path, "slices", i, "properties")
            replaced[i] = {**raw, "properties": _substituted(check, properties, here, ids)}
    return {**task, "slices": replaced}


def _substituted(check: Checker, value: object, path: Path, ids: Mapping[str, str]) -> object:
    """A copy with substitutions, or the value itself if it has none."""
    if not isinstance(value, (dict, list, tuple)):
        return value
    if not isinstance(value, dict):
        items = [_substituted(check, item, (*path, i), ids) for i, item in enumerate(value)]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    label = _subs_label(value)
    if label is not None:
        return _id_of(check, label, path, ids)
    changed: dict[object, object] = {}
    for key, item in value.items():
        if isinstance(item, (dict, list, tuple)):
            replaced = _substituted(check, item, (*path, str(key)), ids)
            if replaced is not item:
                changed[key] = replaced
    return {**value, **changed} if changed else value


def _subs_label(value: dict[str, object]) -> str | None:
    """The label in an object of the form ``{"$subs": "taskId:<label>"}``; None for any other object."""
    if len(value) != 1:
        return None
    text = value.get("$subs")
    return text[len(_SUBS) :] if isinstance(text, str) and text.startswith(_SUBS) else None


def _id_of(check: Checker, label: str, path: Path, ids: Mapping[str, str]) -> str:
    task_id = ids.get(label)
    if task_id is None:
        check.note((*path, "$subs"), label, "taskId: and the label of a task of this job", "unknown_label")
        return "?"
    return task_id
