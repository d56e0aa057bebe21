"""The job: a graph of tasks submitted as one document.

    Graph
    └── nodes[]          label, requires (explicit edges), policy, hold
        └── request      whose OutputOf inputs are the data edges

parse_graph reads the document and substitutes ``$subs``; wire checks that the nodes form a graph and orders
them. Both are linear and neither recurses along edges: a chain of 100,000 tasks is a valid job. How a job
runs, fails and is retried is told in scheduler/.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct, structs

from myrmidon.model.checks import (
    DEFAULT_LIMITS,
    MOST_DEPTH,
    NOTHING,
    Checker,
    Limits,
    Path,
    show_value,
)
from myrmidon.model.task_checks import read_external_id, read_metadata, read_routing, read_tags
from myrmidon.model.task_parsing import read_task
from myrmidon.model.task_request import OutputOf, TaskRequest, encode_task


class FailurePolicy(StrEnum):
    """What a failed task does to its job: independent branches go on, or everything stops."""

    CONTINUE = "continue"
    FAIL_FAST = "fail-fast"


class RequiresPolicy(StrEnum):
    """When a task's parents let it start: all succeeded, or all ended in whatever way."""

    ALL_SUCCEEDED = "all-succeeded"
    ALL_RESOLVED = "all-resolved"


class Node(Struct, frozen=True, kw_only=True, gc=False):
    """One task of a job. ``requires`` holds the explicit parents only; data edges come from the inputs."""

    label: str
    request: TaskRequest
    requires: list[str] = []
    policy: RequiresPolicy = RequiresPolicy.ALL_SUCCEEDED
    hold: bool = False


class Graph(Struct, frozen=True, kw_only=True):
    """A job as it was asked for."""

    name: str
    nodes: list[Node]
    external_id: str | None = None
    routing: str = ""
    failure_policy: FailurePolicy = FailurePolicy.CONTINUE
    max_num_retries: int = 0
    deadline_s: int | None = None
    metadata: dict[str, str] = {}
    tags: list[str] = []


class KnownTask(Struct, frozen=True):
    """A task the job already has when it is extended: the types of its outputs, by position."""

    outputs: list[str]


class Wiring(Struct, frozen=True):
    """The edges of a graph by index into its nodes: distinct parents, sorted; and one topological order.

    ``known_parents`` are the labels of parents that were in the job before, kept apart.
    """

    parents: list[list[int]]
    order: list[int]
    known_parents: list[list[str]]


_GRAPH_KEYS: Final = (frozenset(Graph.__struct_fields__) - {"nodes"}) | {"tasks"}
_NODE_KEYS: Final = frozenset({"requires", "requires_policy", "hold", "reruns", "task"})
_LISTED_NODE_KEYS: Final = _NODE_KEYS | {"label"}
_POLICIES: Final = {policy.value: policy for policy in FailurePolicy}
_REQUIRES: Final = {policy.value: policy for policy in RequiresPolicy}
_SUBS: Final = "taskId:"
_ID_CHARS: Final = 18


# -- the document --------------------------------------------------------------------------------------------


def labels_of(raw: object) -> list[str]:
    """The labels of a document in order, so that ids can be made for them before it is parsed.

    Never raises: what is not a label is left for parse_graph to complain about.
    """
    tasks = raw.get("tasks") if isinstance(raw, dict) else None
    if isinstance(tasks, dict):
        return [label for label in tasks if isinstance(label, str)]
    if not isinstance(tasks, (list, tuple)):
        return []
    labels = [node.get("label") for node in tasks if isinstance(node, dict)]
    return list(dict.fromkeys(label for label in labels if isinstance(label, str)))


def parse_graph(
    raw: object,
    limits: Limits = DEFAULT_LIMITS,
    subs: Mapping[str, str] | None = None,
    known: Mapping[str, KnownTask] | None = None,
) -> Graph:
    """The document as a struct, or InvalidRequest with every problem it has.

    ``subs`` gives the shown task id of each label; without it nothing is substituted. A document that is fine
    is not wired here. One that is not has its edges checked too, so that all problems come back at once; then
    ``known`` are the tasks the job has already (None: not given, so no label is called unknown).
    """
    check = Checker(limits)
    given = check.record(raw, ())
    if given is NOTHING:
        check.finish()
    check.unknown_keys(given, _GRAPH_KEYS, ())
    external_id = read_external_id(check, given, ())
    routing = read_routing(check, given, ())
    room = _routing_room(limits, external_id, routing)
    nodes, broken = _nodes(check, given.get("tasks"), subs, room)
    graph = Graph(
        name=check.text(given, "name", (), limits.name_chars, default=external_id or ""),
        nodes=nodes,
        external_id=external_id,
        routing=routing,
        failure_policy=check.choice(given, "failure_policy", (), _POLICIES, FailurePolicy.CONTINUE),
        max_num_retries=check.integer(given, "max_num_retries", (), 0, limits.job_retries_max, default=0),
        deadline_s=check.maybe_integer(given, "deadline_s", (), 1, limits.deadline_max_s),
        metadata=read_metadata(check, given, ()),
        tags=read_tags(check, given, ()),
    )
    if check.problems:
        _Wires(check, nodes, known, broken).resolve()
    check.finish()
    return graph


def encode_graph(graph: Graph) -> dict[str, object]:
    """The JSON shape that parse_graph reads back to an equal graph; without secrets."""
    tasks = {
        node.label: {
            "requires": list(node.requires),
            "requires_policy": node.policy.value,
            "hold": node.hold,
            "task": encode_task(node.request),
        }
        for node in graph.nodes
    }
    return {
        "name": graph.name,
        "external_id": graph.external_id,
        "routing": graph.routing,
        "failure_policy": graph.failure_policy.value,
        "max_num_retries": graph.max_num_retries,
        "deadline_s": graph.deadline_s,
        "metadata": dict(graph.metadata),
        "tags": list(graph.tags),
        "tasks": tasks,
    }


def composed_routing(*, deployment: str, graph_id: str, graph_routing: str, task_routing: str) -> str:
    """The end of a task's routing key. An empty routing keeps its dot: words are found by position."""
    return f"{deployment}.{graph_id}.{graph_routing}.{task_routing}"


def _routing_room(limits: Limits, external_id: str | None, routing: str) -> int:
    """How many bytes are left for a task's routing in a key of 255."""
    graph_id = external_id or "0" * _ID_CHARS
    fixed = composed_routing(deployment=limits.deployment, graph_id=graph_id, graph_routing=routing, task_routing="")
    return limits.routing_key_bytes - limits.routing_words_bytes - len(fixed.encode())


def _nodes(check: Checker, tasks: object, subs: Mapping[str, str] | None, room: int) -> tuple[list[Node], set[str]]:
    """All nodes, and the labels of those with problems, about whose outputs nothing can be said."""
    raws = _labelled(check, tasks)
    nodes: list[Node] = []
    broken: set[str] = set()
    for label, path, raw in raws:
        before = check.count
        nodes.append(_node(check, raw, path, label=label, subs=subs))
        _check_room(check, nodes[-1], path, room)
        if check.count > before:
            broken.add(label)
    _check_external_ids(check, nodes, [path for _, path, _ in raws])
    return nodes, broken


def _labelled(check: Checker, tasks: object) -> list[tuple[str, Path, object]]:
    """(label, path, raw node) of each task, whether they came as an object or as a list."""
    if not isinstance(tasks, (dict, list, tuple)):
        check.note(("tasks",), tasks, "an object of tasks by label, or a list", "type")
        return []
    if not 1 <= len(tasks) <= check.limits.nodes:
        check.note(("tasks",), tasks, f"1..{check.limits.nodes} tasks", "too_many" if tasks else "empty")
        return []
    if isinstance(tasks, dict):
        return _from_object(check, tasks)
    return _from_list(check, tasks)


def _from_object(check: Checker, tasks: dict[str, object]) -> list[tuple[str, Path, object]]:
    most = check.limits.label_chars
    given = check.record(tasks, ("tasks",))
    for label in given:
        check.item(label, ("tasks", label), most, least=1)
    return [(label, ("tasks", label), raw) for label, raw in given.items()]


def _from_list(check: Checker, tasks: Sequence[object]) -> list[tuple[str, Path, object]]:
    found: list[tuple[str, Path, object]] = []
    seen: dict[str, int] = {}
    for i, raw in enumerate(tasks):
        node = check.record(raw, ("tasks", i))
        if node is NOTHING:
            continue
        label = check.text(node, "label", ("tasks", i), check.limits.label_chars, least=1)
        first = seen.setdefault(label, i)
        if label and first != i:
            check.note(
                ("tasks", i, "label"),
                label,
                f"a label no other task has; it is tasks[{first}]'s",
                "duplicate",
            )
            continue
        found.append((label, ("tasks", i), node))
    return found


def _node(check: Checker, value: object, path: Path, *, label: str, subs: Mapping[str, str] | None) -> Node:
    raw = check.record(value, path)
    listed = len(path) == 2 and isinstance(path[1], int)
    check.unknown_keys(raw, _LISTED_NODE_KEYS if listed else _NODE_KEYS, path)
    request = _node_request(check, raw, path, label=label, subs=subs)
    policy = check.choice(raw, "requires_policy", path, _REQUIRES, RequiresPolicy.ALL_SUCCEEDED)
    if policy == RequiresPolicy.ALL_RESOLVED and any(isinstance(given, OutputOf) for given in request.inputs):
        rule = "all-succeeded for a task that reads outputs: a parent that failed has none"
        check.note_shown((*path, "requires_policy"), policy.value, rule, "contradiction")
    return Node(
        label=label,
        request=request,
        requires=check.texts(
            raw, "requires", path, check.limits.parents, chars=check.limits.label_chars, least_chars=1
        ),
        policy=policy,
        hold=check.boolean(raw, "hold", path),
    )


def _node_request(
    check: Checker, raw: dict[str, object], path: Path, *, label: str, subs: Mapping[str, str] | None
) -> TaskRequest:
    here = (*path, "task")
    task = raw.get("task")
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


def _check_room(check: Checker, node: Node, path: Path, room: int) -> None:
    routing = node.request.routing
    if len(routing) <= room and (routing.isascii() or len(routing.encode()) <= room):
        return
    shown = f"{show_value(routing)}, {len(routing.encode())} bytes"
    rule = f"at most {max(room, 0)} bytes: the whole routing key may have {check.limits.routing_key_bytes}"
    check.note_shown((*path, "task", "routing"), shown, rule, "length")


def _check_external_ids(check: Checker, nodes: list[Node], paths: list[Path]) -> None:
    seen: set[str] = set()
    for node, path in zip(nodes, paths, strict=True):
        chosen = node.request.external_id
        if not chosen:
            continue
        if chosen in seen:
            check.note((*path, "task", "external_id"), chosen, "an id no other task has", "duplicate")
        seen.add(chosen)


# -- $subs ---------------------------------------------------------------------------------------------------


def substitute(raw: object, ids: Mapping[str, str]) -> object:
    """The tree with every ``{"$subs": "taskId:<label>"}`` replaced by that task's shown id, at any depth.

    Keys are never replaced; an object with more keys, or with another text, is left alone. A label without an
    id is a problem, all of them raised together. A substitution makes no dependency.
    """
    check = Checker()
    replaced = _substituted(check, raw, (), ids)
    check.finish()
    return replaced


def _substituted_task(check: Checker, task: object, path: Path, ids: Mapping[str, str]) -> object:
    """Only what is inside ``properties`` may name other tasks. Most tasks name none and are not copied."""
    slices = task.get("slices") if isinstance(task, dict) else None
    if not isinstance(task, dict) or not isinstance(slices, (list, tuple)):
        return task
    replaced = list(slices)
    for i, one in enumerate(replaced[: check.limits.slices]):
        properties = one.get("properties") if isinstance(one, dict) else None
        if _mentions_subs(properties):
            here = (*path, "slices", i, "properties")
            replaced[i] = {**one, "properties": _substituted(check, properties, here, ids)}
    return {**task, "slices": replaced}


def _mentions_subs(tree: object) -> bool:
    """A quick look, without recursion, whether there is anything to replace."""
    rest = [tree]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            if "$subs" in value:
                return True
            rest.extend(value.values())
        elif isinstance(value, (list, tuple)):
            rest.extend(value)
    return False


def _substituted(check: Checker, value: object, path: Path, ids: Mapping[str, str], depth: int = 0) -> object:
    """The value itself when nothing in it changes. Recursion ends at a depth no valid request has."""
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth >= MOST_DEPTH:
        check.note(path, value, f"at most {MOST_DEPTH} levels", "depth")
        return None
    if not isinstance(value, dict):
        items = [_substituted(check, item, (*path, i), ids, depth + 1) for i, item in enumerate(value)]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    label = _named(value)
    if label is not None:
        return _id_of(check, label, path, ids)
    changed: dict[object, object] = {}
    for key, item in value.items():
        if isinstance(item, (dict, list, tuple)):
            replaced = _substituted(check, item, (*path, str(key)), ids, depth + 1)
            if replaced is not item:
                changed[key] = replaced
    return {**value, **changed} if changed else value


def _named(value: dict[str, object]) -> str | None:
    """The label that an object of the form ``{"$subs": "taskId:<label>"}`` names."""
    if len(value) != 1:
        return None
    text = value.get("$subs")
    return text[len(_SUBS) :] if isinstance(text, str) and text.startswith(_SUBS) else None


def _id_of(check: Checker, label: str, path: Path, ids: Mapping[str, str]) -> str:
    found = ids.get(label)
    if found is None:
        check.note((*path, "$subs"), label, "taskId: and the label of a task of this job", "unknown_label")
        return "?"
    return found


# -- edges ---------------------------------------------------------------------------------------------------


def wire(graph: Graph, known: Mapping[str, KnownTask] | None = None, limits: Limits = DEFAULT_LIMITS) -> Wiring:
    """Resolve every edge, or raise InvalidRequest with all that is wrong with them.

    ``known`` are the tasks the job has already, when it is being extended; edges from them are kept apart.
    """
    check = Checker(limits)
    if not 1 <= len(graph.nodes) <= limits.nodes:
        check.note(("tasks",), graph.nodes, f"1..{limits.nodes} tasks", "empty" if not graph.nodes else "too_many")
        check.finish()
    wiring = _Wires(check, graph.nodes, known or {}, frozenset()).resolve()
    check.finish()
    return wiring


class _Wires:
    """Finds the parents of every node, then an order. Each edge is looked at once."""

    def __init__(
        self,
        check: Checker,
        nodes: list[Node],
        known: Mapping[str, KnownTask] | None,
        broken: Collection[str],
    ) -> None:
        self.check = check
        self.nodes = nodes
        self.known = known
        self.broken = broken
        self.index: dict[str, int] = {}

    def resolve(self) -> Wiring:
        """The wiring; what is wrong is noted and left out of it."""
        for i, node in enumerate(self.nodes):
            if self.index.setdefault(node.label, i) != i:
                self.check.note(("tasks", node.label), node.label, "a label no other task has", "duplicate")
        parents: list[list[int]] = []
        known_parents: list[list[str]] = []
        for i, node in enumerate(self.nodes):
            inside, outside = self.parents_of(i, node)
            parents.append(sorted(inside))
            known_parents.append(sorted(outside))
        order = topological(parents)
        if len(order) < len(parents):
            self.note_cycles(parents, order)
        return Wiring(parents=parents, order=order, known_parents=known_parents)

    def parents_of(self, i: int, node: Node) -> tuple[set[int], set[str]]:
        """Distinct parents: indexes of this graph's, labels of those the job had before."""
        inside: set[int] = set()
        outside: set[str] = set()
        explicit: set[str] = set()
        for at, label in enumerate(node.requires):
            if label in explicit:
                self.check.note(("tasks", node.label, "requires", at), label, "each label once", "duplicate")
                continue
            explicit.add(label)
            self.add_parent(label, i, inside, outside, at=at)
        for at, given in enumerate(node.request.inputs):
            if isinstance(given, OutputOf):
                self.add_data_edge(given, i, inside, outside, at=at)
        if len(inside) + len(outside) > self.check.limits.parents:
            shown = f"{len(inside) + len(outside)} parents"
            self.check.note_shown(("tasks", node.label), shown, f"at most {self.check.limits.parents}", "too_many")
        return inside, outside

    def add_parent(self, label: str, child: int, inside: set[int], outside: set[str], *, at: int) -> None:
        parent = self.index.get(label)
        if parent is not None and parent != child:
            inside.add(parent)
            return
        path = ("tasks", self.nodes[child].label, "requires", at)
        if parent is not None:
            self.check.note(path, label, "other tasks; none can wait for itself", "self_dependency")
        elif self.is_known(label, path):
            outside.add(label)

    def add_data_edge(self, given: OutputOf, child: int, inside: set[int], outside: set[str], *, at: int) -> None:
        path: Path = ("tasks", self.nodes[child].label, "task", "inputs", at)
        parent = self.index.get(given.label)
        if parent is not None:
            if parent == child:
                label = (*path, "label")
                self.check.note(label, given.label, "other tasks; none can wait for itself", "self_dependency")
                return
            inside.add(parent)
            if given.label not in self.broken:
                self.check_types(given, [o.type for o in self.nodes[parent].request.outputs], path)
        elif self.is_known(given.label, (*path, "label")):
            outside.add(given.label)
            if self.known:
                self.check_types(given, self.known[given.label].outputs, path)

    def is_known(self, label: str, path: Path) -> bool:
        if self.known is None:
            return False
        if label in self.known:
            return True
        self.check.note(path, label, "the label of a task of this job", "unknown_label")
        return False

    def check_types(self, given: OutputOf, outputs: Sequence[str], path: Path) -> None:
        """What the parent gives at that position must be exactly what the child takes."""
        if given.position >= len(outputs):
            rule = f"a position of {given.label}, which has {len(outputs)} outputs"
            self.check.note((*path, "position"), given.position, rule, "position")
        elif given.type and outputs[given.position] != given.type:
            rule = f"{outputs[given.position]}, which {given.label} returns at position {given.position}"
            self.check.note((*path, "type"), given.type, rule, "type_mismatch")

    def note_cycles(self, parents: list[list[int]], order: list[int]) -> None:
        for cycle in _cycles(parents, order):
            labels = [self.nodes[i].label for i in cycle]
            rule = "no cycle; each of these waits for the next"
            self.check.note_shown(("tasks", labels[0], "requires"), _arrows(labels), rule, "cycle")


def topological(parents: list[list[int]]) -> list[int]:
    """Indexes with every parent before its children; those in or behind a cycle are left out."""
    children: list[list[int]] = [[] for _ in parents]
    missing = [len(mine) for mine in parents]
    for child, mine in enumerate(parents):
        for parent in mine:
            children[parent].append(child)
    order = [i for i, count in enumerate(missing) if count == 0]
    for done in order:  # grows while it is walked
        for child in children[done]:
            missing[child] -= 1
            if missing[child] == 0:
                order.append(child)
    return order


def _cycles(parents: list[list[int]], order: list[int]) -> list[list[int]]:
    """Disjoint cycles: from each node without a place in the order, follow one parent without one."""
    ordered = set(order)
    onward = {
        i: next(parent for parent in mine if parent not in ordered)
        for i, mine in enumerate(parents)
        if i not in ordered
    }
    found: list[list[int]] = []
    walked: set[int] = set()
    for start in onward:
        trail: dict[int, int] = {}
        at = start
        while at not in walked:
            walked.add(at)
            trail[at] = len(trail)
            at = onward[at]
        if at in trail:
            found.append(list(trail)[trail[at] :])
    return found


def _arrows(labels: list[str]) -> str:
    """``a -> b -> a``; the middle of a long cycle is only counted."""
    shown = [label if len(label) <= 60 else f"{label[:57]}..." for label in (*labels[:12], labels[0])]
    if len(labels) > 12:
        shown.insert(-1, f"({len(labels) - 12} more)")
    return " -> ".join(shown)
