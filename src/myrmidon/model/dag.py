"""Resolve the edges of a job: the parents of each task and a topological order of all tasks.

Runs in linear time and does not recurse along edges: a chain of 100,000 tasks is a valid job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from myrmidon.model.job import Graph, Node
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.shown_input import Path, count
from myrmidon.model.task_request import Gathered, OutputOf, Part
from myrmidon.model.type_strings import fits
from myrmidon.model.validation import Checker


class ExistingTask(Struct, frozen=True):
    """A task that the job has before it is extended: the types of its outputs, by position."""

    outputs: list[str]


class Dag(Struct, frozen=True):
    """The edges of a graph by index into its nodes: distinct parents, sorted; and one topological order.

    ``existing_parents`` has the labels of parents that the job had before it was extended.
    """

    parents: list[list[int]]
    order: list[int]
    existing_parents: list[list[str]]


def build_dag(graph: Graph, existing: Mapping[str, ExistingTask] | None = None, limits: Limits = DEFAULT_LIMITS) -> Dag:
    """Resolve every edge, or raise InvalidRequest with every problem of the edges.

    ``existing`` are the tasks that the job already has when it is being extended, by label.
    """
    check = Checker(limits)
    if not 1 <= len(graph.nodes) <= limits.nodes:
        check.note(("tasks",), graph.nodes, f"1..{limits.nodes} tasks", "empty" if not graph.nodes else "too_many")
        check.finish()
    dag = DagBuilder(check, graph.nodes, existing or {}, frozenset()).build()
    check.finish()
    return dag


class DagBuilder:
    """Finds the parents of every node, then an order. Visits each edge once.

    ``existing`` None means that the job's other tasks are not known here: then no label is called unknown.
    ``broken`` are the labels of tasks with problems: the types of their outputs are not checked.
    """

    def __init__(
        self,
        check: Checker,
        nodes: list[Node],
        existing: Mapping[str, ExistingTask] | None,
        broken: Collection[str],
    ) -> None:
        self.check = check
        self.nodes = nodes
        self.existing = existing
        self.broken = broken
        self.index: dict[str, int] = {}

    def build(self) -> Dag:
        """The edges and their order. Problems are noted; wrong edges are left out."""
        for i, node in enumerate(self.nodes):
            if self.index.setdefault(node.label, i) != i:
                self.check.note(("tasks", node.label), node.label, "a label no other task has", "duplicate")
        parents: list[list[int]] = []
        existing_parents: list[list[str]] = []
        for i, node in enumerate(self.nodes):
            own, existing = self.parents_of(i, node)
            parents.append(sorted(own))
            existing_parents.append(sorted(existing))
        order = topological_order(parents)
        if len(order) < len(parents):
            self.note_cycles(parents, order)
        return Dag(parents=parents, order=order, existing_parents=existing_parents)

    def parents_of(self, i: int, node: Node) -> tuple[set[int], set[str]]:
        """Distinct parents: indexes of nodes of this graph, labels of tasks that the job had before."""
        own: set[int] = set()
        existing: set[str] = set()
        explicit: set[str] = set()
        for position, label in enumerate(node.requires):
            if label in explicit:
                self.check.note(("tasks", node.label, "requires", position), label, "each label once", "duplicate")
                continue
            explicit.add(label)
            self.add_parent(label, i, own, existing, position=position)
        is_function = node.request.function is not None
        for position, given in enumerate(node.request.inputs):
            # A command has no inputs that a user has given, but references in its properties.
            path = ("tasks", node.label, "task", *(("inputs", position) if is_function else ("$output",)))
            if isinstance(given, OutputOf):
                self.add_data_edge(given, i, own, existing, path)
            elif isinstance(given, Gathered):
                for number, part in enumerate(given.parts):
                    self.add_data_edge(part, i, own, existing, (*path, "parts", number))
        if len(own) + len(existing) > self.check.limits.parents:
            shown = f"{len(own) + len(existing)} parents"
            self.check.note_shown(("tasks", node.label), shown, f"at most {self.check.limits.parents}", "too_many")
        return own, existing

    def add_parent(self, label: str, child: int, own: set[int], existing: set[str], *, position: int) -> None:
        parent = self.index.get(label)
        if parent is not None and parent != child:
            own.add(parent)
            return
        path = ("tasks", self.nodes[child].label, "requires", position)
        if parent is not None:
            self.check.note(path, label, "another task: a task cannot wait for itself", "self_dependency")
        elif self.is_existing(label, path):
            existing.add(label)

    def add_data_edge(self, source: OutputOf | Part, child: int, own: set[int], existing: set[str], path: Path) -> None:
        parent = self.index.get(source.label)
        if parent is not None:
            if parent == child:
                label = (*path, "label")
                self.check.note(label, source.label, "another task: a task cannot wait for itself", "self_dependency")
                return
            own.add(parent)
            if source.label not in self.broken:
                check_source(self.check, source, [o.type for o in self.nodes[parent].request.outputs], path)
        elif self.is_existing(source.label, (*path, "label")):
            existing.add(source.label)
            if self.existing:
                check_source(self.check, source, self.existing[source.label].outputs, path)

    def is_existing(self, label: str, path: Path) -> bool:
        """Whether the job already has this task; a label that it does not have is a problem."""
        if self.existing is None:
            return False
        if label in self.existing:
            return True
        self.check.note(path, label, "the label of a task of this job", "unknown_label")
        return False

    def note_cycles(self, parents: list[list[int]], order: list[int]) -> None:
        for cycle in find_cycles(parents, order):
            labels = [self.nodes[i].label for i in cycle]
            rule = "no cycle; each of these waits for the next"
            self.check.note_shown(("tasks", labels[0], "requires"), show_cycle(labels), rule, "cycle")


def check_source(check: Checker, source: OutputOf | Part, outputs: Sequence[str], path: Path) -> None:
    """The producer must have an output at that position whose type fits that of the input."""
    if source.position >= len(outputs):
        rule = f"a position of {source.label}, which declares {count(len(outputs), 'output')} in its field `outputs`"
        check.note((*path, "position"), source.position, rule, "position")
        return
    output = outputs[source.position]
    if source.type and output and not fits(output, source.type):
        rule = f"{output}, which {source.label} returns at position {source.position}, or a type that it fits"
        check.note((*path, "type"), source.type, rule, "type_mismatch")


def topological_order(parents: list[list[int]]) -> list[int]:
    """Indexes with every parent before its children; nodes in a cycle or downstream of one are left out."""
    children: list[list[int]] = [[] for _ in parents]
    unmet = [len(own) for own in parents]
    for child, own in enumerate(parents):
        for parent in own:
            children[parent].append(child)
    order = [i for i, count in enumerate(unmet) if count == 0]
    for parent in order:  # grows while it is iterated
        for child in children[parent]:
            unmet[child] -= 1
            if unmet[child] == 0:
                order.append(child)
    return order


def find_cycles(parents: list[list[int]], order: list[int]) -> list[list[int]]:
    """Disjoint cycles, found by following one unordered parent from each unordered node."""
    ordered = set(order)
    next_parent = {
        i: next(parent for parent in own if parent not in ordered) for i, own in enumerate(parents) if i not in ordered
    }
    cycles: list[list[int]] = []
    visited: set[int] = set()
    for start in next_parent:
        position: dict[int, int] = {}
        node = start
        while node not in visited:
            visited.add(node)
            position[node] = len(position)
            node = next_parent[node]
        if node in position:
            cycles.append(list(position)[position[node] :])
    return cycles


def show_cycle(labels: list[str]) -> str:
    """``a -> b -> a``; the middle of a long cycle is replaced by a count."""
    shown = [label if len(label) <= 60 else f"{label[:57]}..." for label in (*labels[:12], labels[0])]
    if len(labels) > 12:
        shown.insert(-1, f"({len(labels) - 12} more)")
    return " -> ".join(shown)
