"""Graphs in Spider's shape: functions side by side (``group``) and one after the other (``chain``).

A graph is a value: it has no arguments yet, and may be used in other graphs and submitted many times.
"""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple, Sequence

from myrmidon.functions.graph_builder import GraphBuilder
from myrmidon.functions.handles import TupleHandle
from myrmidon.functions.signature import Parameter
from myrmidon.functions.task_function import TaskFunction, task_function_of
from myrmidon.functions.types import fits, type_string


class NodeOutput(NamedTuple):
    """An output of a node, by the number of the node and the position."""

    node: int
    position: int


class GraphNode(NamedTuple):
    """A call of a function. A source of None is an input of the whole graph; ``after`` are nodes without outputs."""

    function: TaskFunction[Any, Any]
    sources: tuple[NodeOutput | None, ...]
    after: tuple[int, ...] = ()

    def moved(self, by: int) -> GraphNode:
        """Return the node as it is in a graph with this many nodes before it."""
        sources = [None if one is None else NodeOutput(one.node + by, one.position) for one in self.sources]
        return GraphNode(self.function, tuple(sources), tuple(one + by for one in self.after))


class TaskGraph:
    """Nodes in topological order. Its inputs and outputs are those of its first and last nodes, in their order."""

    def __init__(self, nodes: Sequence[GraphNode]) -> None:
        if not nodes:
            raise ValueError("a graph has at least one function")
        self.nodes = tuple(nodes)

    @property
    def inputs(self) -> list[Parameter]:
        """Return the inputs that the graph needs to run."""
        return [
            parameter
            for node in self.nodes
            for parameter, source in zip(node.function.signature.parameters, node.sources)
            if source is None
        ]

    @property
    def output_nodes(self) -> list[int]:
        """The nodes without children."""
        used = {source.node for node in self.nodes for source in node.sources if source is not None}
        used.update(one for node in self.nodes for one in node.after)
        return [number for number in range(len(self.nodes)) if number not in used]

    @property
    def outputs(self) -> list[tuple[NodeOutput, Any]]:
        """Return the outputs that the graph produces, with their annotations."""
        return [
            (NodeOutput(number, position), annotation)
            for number in self.output_nodes
            for position, annotation in enumerate(self.nodes[number].function.signature.outputs)
        ]

    def build(self, builder: GraphBuilder, args: Sequence[Any], **options: Any) -> list[Any]:
        """Add the calls to a graph; their handles. ``options`` are those of ``@task``, where a function has none.

        Raises ValueError if the number of arguments is not that of the inputs, and WiringError for a wrong type.
        """
        if len(args) != len(self.inputs):
            raise ValueError(f"the graph takes {len(self.inputs)} arguments, given {len(args)}")
        left = iter(args)
        handles: list[Any] = []
        for node in self.nodes:
            values = [next(left) if source is None else _output(handles, source) for source in node.sources]
            function = _with_defaults(node.function, options)
            if node.after:
                function = function.options(after=[handles[one] for one in node.after])
            parameters = function.signature.parameters
            positional = [value for one, value in zip(parameters, values) if not one.keyword_only]
            named = {one.name: value for one, value in zip(parameters, values) if one.keyword_only}
            handles.append(builder.call(function, positional, named))
        return handles


def _output(handles: Sequence[Any], source: NodeOutput) -> Any:
    handle = handles[source.node]
    return list(handle)[source.position] if isinstance(handle, TupleHandle) else handle


def _with_defaults(function: TaskFunction[Any, Any], options: dict[str, Any]) -> TaskFunction[Any, Any]:
    """The function with the options that it does not set itself."""
    if not options or function.task_options.soft_timeout_s is not None:
        return function
    return function.options(**options)


def graph_of(task: Any) -> TaskGraph:
    """The graph of one function; a graph as it is. Raises TypeError for anything else."""
    if isinstance(task, TaskGraph):
        return task
    function, args, kwargs = task_function_of(task)
    if args or kwargs:
        raise TypeError(f"{function.__name__} has arguments already; a graph gets all of them when it is submitted")
    return TaskGraph([GraphNode(function, (None,) * len(function.signature.parameters))])


def group(tasks: Iterable[Any]) -> TaskGraph:
    """Functions and graphs side by side. The inputs and outputs are those of all, in order."""
    nodes: list[GraphNode] = []
    for one in tasks:
        nodes += [node.moved(len(nodes)) for node in graph_of(one).nodes]
    return TaskGraph(nodes)


def chain(parent: Any, child: Any) -> TaskGraph:
    """Connect two graphs: the outputs of ``parent``, in order, are the inputs of ``child``.

    Raises TypeError if they differ in number or type.
    """
    first, second = graph_of(parent), graph_of(child)
    outputs, inputs = first.outputs, second.inputs
    if len(outputs) != len(inputs):
        raise TypeError(f"the first graph has {len(outputs)} outputs, the second takes {len(inputs)}")
    for number, ((_, annotation), parameter) in enumerate(zip(outputs, inputs)):
        if not fits(type_string(annotation), parameter.type):
            raise TypeError(f"output {number} is {type_string(annotation)}, {parameter.name} takes {parameter.type}")
    sources = iter([source for source, _ in outputs])
    silent = tuple(one for one in first.output_nodes if not first.nodes[one].function.signature.outputs)
    nodes = list(first.nodes)
    for node in second.nodes:
        moved = node.moved(len(first.nodes))
        filled = [next(sources) if source is None else source for source in moved.sources]
        begins = not any(node.sources) and not node.after
        nodes.append(GraphNode(moved.function, tuple(filled), (*moved.after, *(silent if begins else ()))))
    return TaskGraph(nodes)
