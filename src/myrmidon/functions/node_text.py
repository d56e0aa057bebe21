"""The JSON text of function nodes. What equal nodes share is written once per function, not once per node."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as json_text
from typing import Any, Callable, NamedTuple, Sequence

from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.task_options import TaskOptions
from myrmidon.functions.types import module_name

BUILTINS = "myrmidon.executor.builtins"

CodeOf = Callable[[str], str]
"""The digest of the code that has a module (named as bots import it); empty: it is installed on the bots."""


class FunctionText(NamedTuple):
    """The text of a node before and after its inputs."""

    head: str
    tail: str

    def node(self, inputs: Sequence[str], requires: Sequence[str] = ()) -> str:
        edges = f'"requires":[{",".join(map(json_text, requires))}],' if requires else ""
        return f"{{{edges}{self.head}{','.join(inputs)}{self.tail}}}"


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def function_text(function: TaskFunction[Any, Any], code_of: CodeOf) -> FunctionText:
    """The text of the nodes of a task function."""
    signature, options = function.signature, function.task_options
    package = module_name(function.function.__module__)
    described: dict[str, Any] = {
        "package_name": package,
        "func_name": function.function.__qualname__,
        "language": "PYTHON",
        "code": code_of(module_name(function.code_module)),
        "signature": signature.text,
    }
    if options.memory_mb is not None:
        described["memory_mb"] = options.memory_mb
    return _text(function.__name__, described, signature.output_types, options)


def builtin_text(name: str, output_types: list[str], options: TaskOptions, *, api: bool) -> FunctionText:
    """The text of a node that calls a function of the executor itself; it has no types of its own to compare."""
    described = {"package_name": BUILTINS, "func_name": name, "language": "PYTHON"}
    return _text(name, described, output_types, options, api=api)


def _text(
    name: str, function: dict[str, Any], output_types: Sequence[str], options: TaskOptions, *, api: bool = True
) -> FunctionText:
    properties = options.properties(function=True)
    if not api:
        properties.pop("api", None)
    request = {
        "name": name,
        "function": function,
        "outputs": [{"type": one} for one in output_types],
        "slices": [{"properties": properties}],
        **options.request(),
    }
    return FunctionText(f'"task":{compact(request)[:-1]},"inputs":[', "]}")
