"""The wiring of a job: which task waits for which, and an order in which all of them can run.

It is linear and never recurses along edges: a chain of 100,000 tasks is a valid job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from myrmidon.model.job import Graph, Node
from myrmidon.model.task_request import OutputOf
from myrmidon.model.validation import DEFAULT_LIMITS, Checker, Limits, Path


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


def wire(graph: Graph, known: Mapping[str, KnownTask] | None = None, limits: Limits = DEFAULT_LIMITS) -> Wiring:
    """Resolve every edge, or raise InvalidRequest with all that is wrong with them.

    ``known`` are the tasks the job has already, when it is being extended; edges from them are kept apart.
    """
    check = Checker(limits)
    if not 1 <= len(graph.nodes) <= limits.nodes:
        check.note(("tasks",), graph.nodes, f"1..{limits.nodes} tasks", "empty" if not graph.nodes else "too_many")
        check.finish()
    wiring = Wires(check, graph.nodes, known or {}, frozenset()).resolve()
    check.finish()
    return wiring


class Wires:
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
