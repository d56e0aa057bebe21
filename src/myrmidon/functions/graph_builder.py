"""Calls of task functions as a graph document.

Used by ``client.new_job`` and ``client.map``, and on a bot by ``context().submit``.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as json_text
from typing import Any, Callable, Iterable, List, Mapping, NamedTuple, Sequence

from myrmidon.functions.environments import Files, environment_of, options_in
from myrmidon.functions.graph_errors import GraphError, WiringError, at_caller
from myrmidon.functions.handles import Handle, Source, TupleHandle, source_of
from myrmidon.functions.node_inputs import InputWriter, gathered
from myrmidon.functions.node_text import (
    CodeOf,
    FunctionText,
    IdentityOf,
    builtin_text,
    compact,
    function_text,
    no_identity,
)
from myrmidon.functions.shared_ref import SharedRef
from myrmidon.functions.signature import Parameter, Signature
from myrmidon.functions.task_function import TaskFunction, task_function_of
from myrmidon.functions.task_options import TaskOptions
from myrmidon.functions.types import TypeProblem, output_types, type_string
from myrmidon.functions.values import encode

LateText = Callable[["Texts"], str]
"""A text that contains the digest of code, which is known only when the graph is complete."""
_ITEM: Any = object()
"""Stands for the item in the arguments of a mapped call."""


def _no_text(_texts: Texts) -> str:
    raise NotImplementedError  # the node calls a function: Texts.node writes it


class Node:
    """A node: its label, the nodes that it must run after beside those it reads, and its inputs as JSON texts."""

    __slots__ = ("function", "inputs", "label", "options", "outputs", "requires", "text")

    def __init__(
        self,
        label: str,
        inputs: Sequence[str | LateText],
        requires: Sequence[str],
        *,
        function: TaskFunction[Any, Any] | None = None,
        text: LateText = _no_text,
        outputs: Sequence[Any] = (),
    ) -> None:
        self.label = label
        self.inputs = inputs
        self.requires = requires
        self.function = function
        self.text = text
        self.outputs = outputs


class Document(NamedTuple):
    """A graph document as JSON, and the large values that must be uploaded before it."""

    text: bytes
    uploads: dict[str, bytes]


class Texts:
    """Makes the texts of nodes once the digests of code are known."""

    def __init__(self, writer: InputWriter, code_of: CodeOf, identity_of: IdentityOf, defaults: TaskOptions) -> None:
        self.writer = writer
        self.defaults = defaults
        self._code_of = code_of
        self._identity_of = identity_of
        self._functions: dict[int, FunctionText] = {}

    def of(self, function: TaskFunction[Any, Any]) -> FunctionText:
        found = self._functions.get(id(function))
        if found is None:
            options = options_in(self.defaults, function)
            environment, files = environment_of(options, self.defaults, function)
            self.writer.uploads.update(files)
            found = function_text(function, options, self._code_of, self._identity_of, environment)
            self._functions[id(function)] = found
        return found

    def node(self, node: Node) -> str:
        if node.function is None:
            return node.text(self)
        inputs = [one if isinstance(one, str) else one(self) for one in node.inputs]
        return self.of(node.function).node(inputs, node.requires)


class GraphBuilder:
    """Collects nodes. ``is_building`` is false once the graph was submitted or given up.

    ``defaults`` have the environment and the interpreter of calls that choose none.
    """

    def __init__(self, defaults: TaskOptions | None = None) -> None:
        self.defaults = defaults or TaskOptions()
        self.nodes: dict[str, Node] = {}
        self.is_building = True
        self.writer = InputWriter(self)
        self.misuse_hint = ""
        """What to do instead of using a handle as a value, if not what handles.py says."""
        self._numbers: dict[str, int] = {}
        self._mapped: list[TaskFunction[Any, Any]] = []

    def functions(self) -> list[TaskFunction[Any, Any]]:
        """Return every task function that the graph calls, now or when a list is known."""
        found = {id(one): one for one in self._mapped}
        for node in self.nodes.values():
            if node.function is not None:
                found[id(node.function)] = node.function
        return list(found.values())

    def environments(self) -> list[tuple[str, Files]]:
        """The environment of each of the functions, as its requirements are now, with the document to upload."""
        found = [(options_in(self.defaults, one), one) for one in self.functions()]
        return [environment_of(options, self.defaults, one) for options, one in found]

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, function: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Add the node of one call; its handle."""
        found, bound, keywords = task_function_of(function)
        signature = _signature(found)
        values = _bind(signature, (*bound, *args), {**keywords, **(kwargs or {})})
        inputs = [
            self.writer.argument(found.__name__, parameter, value)
            for parameter, value in zip(signature.parameters, values)
        ]
        label = self._new_label(found.task_options.label or found.__name__)
        return self._add_call(label, found, inputs, self._labels(found.task_options.after))

    def map(self, function: Any, items: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Add a call for each item: a list of handles; for the handle of a list, one handle of the list of results."""
        found, bound, keywords = task_function_of(function)
        signature = _signature(found)
        values = _bind(signature, (*bound, _ITEM, *args), {**keywords, **(kwargs or {})})
        position = next(i for i, value in enumerate(values) if value is _ITEM)
        inputs = [
            "" if i == position else self.writer.argument(found.__name__, parameter, value)
            for i, (parameter, value) in enumerate(zip(signature.parameters, values))
        ]
        label = self._new_label(found.task_options.label or found.__name__)
        requires = self._labels(found.task_options.after)
        if isinstance(items, Handle):
            return self._map_later(label, found, items, inputs, position, requires)
        return self._map_now(label, found, items, inputs, position, requires)

    def _map_now(
        self,
        label: str,
        function: TaskFunction[Any, Any],
        items: Iterable[Any],
        inputs: list[str],
        position: int,
        requires: Sequence[str],
    ) -> list[Any]:
        parameter = function.signature.parameters[position]
        argument, name = self.writer.argument, function.__name__
        handles = []
        for number, item in enumerate(items):
            own = inputs.copy()
            own[position] = argument(name, parameter, item)
            handles.append(self._add_call(f"{label}[{number}]", function, own, requires))
        return handles

    def _map_later(
        self,
        label: str,
        function: TaskFunction[Any, Any],
        items: Handle,
        inputs: list[str],
        position: int,
        requires: Sequence[str],
    ) -> Handle:
        """Add two nodes: one that adds a call for each item when the list exists, and one that joins the results."""
        outputs = function.signature.outputs
        if len(outputs) != 1:
            raise WiringError(
                at_caller(
                    f"{function.__name__}() has {len(outputs)} outputs; over a list that is known only at run time, "
                    "map a function with one (a dataclass or NamedTuple is one)"
                )
            )
        self._check_items(function, function.signature.parameters[position], items)
        self._mapped.append(function)
        list_input = self.writer.output_of(items, source_of(items).type)

        def expand(texts: Texts) -> str:
            plan = _map_plan(texts, label, function, inputs, position, requires)
            options = options_in(texts.defaults, function).of_builtin()
            return builtin_text("expand_map", [], options, api=True).node([list_input, plan], requires)

        expand_label = f"{label}/expand"
        self._add(Node(expand_label, (), requires, text=expand))
        result = List[outputs[0]]  # type: ignore[valid-type]
        result_type = type_string(result)

        def join(texts: Texts) -> str:
            text = builtin_text("join", [result_type], options_in(texts.defaults, function).of_builtin(), api=False)
            return text.node([gathered(result_type, [])], [expand_label])

        node = Node(label, (), [expand_label], text=join, outputs=[result])
        self._add(node)
        return Handle(Source(self, node, 0, result, result_type))

    def _check_items(self, function: TaskFunction[Any, Any], parameter: Parameter, items: Handle) -> None:
        try:
            self.writer.check_handle(items, f"List<{parameter.type}>")
        except TypeProblem as problem:
            text = f"map({function.__name__}): items for {parameter.name}: {problem.reason}"
            raise WiringError(at_caller(text)) from None

    def reduce(self, function: Any, parts: Any, fan_in: int = 100, kwargs: Mapping[str, Any] | None = None) -> Any:
        """Calls in layers, each with at most ``fan_in`` parts, until one result is left."""
        if not isinstance(fan_in, int) or fan_in < 2:
            raise GraphError(at_caller(f"fan_in is {fan_in!r}; write a number of at least 2"))
        if isinstance(parts, Handle):
            return self.call(function, (parts,), kwargs)
        layer = list(parts)
        while len(layer) > fan_in:
            chunks = [layer[start : start + fan_in] for start in range(0, len(layer), fan_in)]
            layer = [self.call(function, (chunk,), kwargs) for chunk in chunks]
        return self.call(function, (layer,), kwargs)

    def command(self, words: Sequence[Any], options: TaskOptions, *, name: str = "", returns: Any = None) -> Any:
        """Add a command. Words and values of env may be handles: they are replaced when the command starts."""
        if isinstance(words, (str, bytes)) or not words:
            raise GraphError(at_caller("a command is a list of words, such as ['make', 'all']"))
        if options.requirements or options.python or options.environment:
            raise GraphError(at_caller("requirements, python and environment are for functions; a command has none"))
        outputs = output_types(returns)
        properties = options.properties(function=False)
        properties["command"] = [self._word(word) for word in words]
        request: dict[str, Any] = {"name": name or str(words[0]), "slices": [{"properties": properties}]}
        request.update(options.request())
        if outputs:
            request["outputs"] = [{"type": type_string(one)} for one in outputs]
        node: dict[str, Any] = {"task": request}
        requires = self._labels(options.after)
        if requires:
            node["requires"] = requires
        text = compact(node)
        label = self._new_label(options.label or name or str(words[0]).rsplit("/", 1)[-1])
        made = Node(label, (), requires, text=lambda _: text, outputs=outputs)
        self._add(made)
        return self._handle(made, outputs, returns)

    def _word(self, word: Any) -> Any:
        if isinstance(word, SharedRef):
            raise WiringError(at_caller(f"a word of a command: {word!r} can only be an argument of a task function"))
        if not isinstance(word, Handle):
            return str(word)
        try:
            self.writer.check_handle(word, source_of(word).type)
        except TypeProblem as problem:
            raise WiringError(at_caller(f"a word of a command: {problem.reason}")) from None
        return {"$output": f"{source_of(word).node.label}:{source_of(word).position}"}

    # -- the document --------------------------------------------------------------------------------------------

    def document(self, fields: Mapping[str, Any], code_of: CodeOf, identity_of: IdentityOf = no_identity) -> Document:
        """The whole graph with these fields beside its tasks."""
        tasks = self.tasks_text(code_of, identity_of=identity_of)
        head = compact(dict(fields))[:-1]
        text = f'{head}{"," if fields else ""}"tasks":{tasks}}}'
        return Document(text.encode(), self.writer.uploads)

    def tasks_text(
        self, code_of: CodeOf, labels: Iterable[str] | None = None, identity_of: IdentityOf = no_identity
    ) -> str:
        """The JSON object of the nodes by label, or of some of them."""
        texts = Texts(self.writer, code_of, identity_of, self.defaults)
        chosen = self.nodes.values() if labels is None else [self.nodes[label] for label in labels]
        return "{{{}}}".format(",".join([f"{json_text(node.label)}:{texts.node(node)}" for node in chosen]))

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _add_call(
        self, label: str, function: TaskFunction[Any, Any], inputs: Sequence[str], requires: Sequence[str]
    ) -> Any:
        signature = function.signature
        node = Node(label, inputs, requires, function=function, outputs=signature.outputs)
        self._add(node)
        return self._handle(node, signature.outputs, signature.returns)

    def _add(self, node: Node) -> None:
        if node.label in self.nodes:
            raise GraphError(at_caller(f"there are two nodes with the label {node.label}"))
        self.nodes[node.label] = node

    def _handle(self, node: Node, outputs: Sequence[Any], returns: Any) -> Handle:
        if not outputs:
            return Handle(Source(self, node, -1, None, ""))
        if len(outputs) == 1 and outputs[0] is returns:
            return Handle(Source(self, node, 0, returns, type_string(returns)))
        items = [Handle(Source(self, node, i, one, type_string(one))) for i, one in enumerate(outputs)]
        return TupleHandle(Source(self, node, 0, returns, type_string(returns)), items)

    def _new_label(self, wanted: str) -> str:
        """The wanted label, with a number if it is taken."""
        number = self._numbers.get(wanted, 0) + 1
        label = wanted if number == 1 else f"{wanted}-{number}"
        while label in self.nodes:
            number += 1
            label = f"{wanted}-{number}"
        self._numbers[wanted] = number
        return label

    def _labels(self, after: Sequence[Any]) -> list[str]:
        """The labels of the nodes of handles, also in lists."""
        labels: dict[str, None] = {}
        for one in after:
            if isinstance(one, Handle):
                if source_of(one).builder is not self:
                    raise GraphError(at_caller(f"after=: {one!r} belongs to another job"))
                labels[source_of(one).node.label] = None
            elif isinstance(one, (list, tuple)):
                labels.update(dict.fromkeys(self._labels(one)))
            else:
                raise GraphError(at_caller(f"after= takes results of calls of this job, not {one!r}"))
        return list(labels)


def _map_plan(
    texts: Texts,
    label: str,
    function: TaskFunction[Any, Any],
    inputs: Sequence[str],
    position: int,
    requires: Sequence[str],
) -> str:
    """The second input of ``expand_map``: the node that it adds for each item, without the item."""
    parts = ["null" if i == position else text for i, text in enumerate(inputs)]
    item_type = function.signature.parameters[position].type
    plan = (
        f'{{"join":{json_text(label)},"node":{texts.of(function).node((), requires)},'
        f'"inputs":[{",".join(parts)}],"item_type":{json_text(item_type)}}}'
    )
    return texts.writer.constant(encode(plan, str), "string")


def _signature(function: TaskFunction[Any, Any]) -> Signature:
    try:
        return function.signature
    except TypeProblem as problem:
        raise WiringError(at_caller(str(problem))) from None


def _bind(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    try:
        return signature.bind(args, kwargs)
    except TypeError as error:
        raise WiringError(at_caller(str(error))) from None
