"""The JSON text of function nodes. What equal nodes share is written once per function, not once per node."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as json_text
from typing import Any, Callable, NamedTuple, Sequence

from myrmidon.functions.native_task import NativeTarget
from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.task_options import TaskOptions
from myrmidon.functions.types import module_name

BUILTINS = "myrmidon.executor.builtins"

CodeOf = Callable[[str], str]
"""The digest of the code that has a module (named as bots import it); empty: it is installed on the bots."""


IdentityOf = Callable[[TaskFunction[Any, Any]], str]
"""A digest of what a function reaches in its code; empty: only the whole code tells."""


def no_identity(_function: TaskFunction[Any, Any]) -> str:
    return ""


class FunctionText(NamedTuple):
    """The text of a node before and after its inputs."""

    head: str
    tail: str

    def node(self, inputs: Sequence[str], requires: Sequence[str] = ()) -> str:
        edges = f'"requires":[{",".join(map(json_text, requires))}],' if requires else ""
        return f"{{{edges}{self.head}{','.join(inputs)}{self.tail}}}"


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def function_text(
    function: TaskFunction[Any, Any], options: TaskOptions, code_of: CodeOf, identity_of: IdentityOf, environment: str
) -> FunctionText:
    """The text of the nodes of a task function."""
    signature, native = function.signature, function.native
    described: dict[str, Any] = {
        "package_name": native.library if native else module_name(function.function.__module__),
        "func_name": native.name if native else function.function.__qualname__,
        "language": native.language if native else "PYTHON",
        "code": code_of(module_name(function.code_module)),
        "signature": signature.text,
    }
    identity = identity_of(function)
    if identity:
        described["identity"] = identity
    if environment:
        described["environment"] = environment
    if options.memory_mb is not None:
        described["memory_mb"] = options.memory_mb
    return _text(function.__name__, described, signature.output_types, options, api=native is None, native=native)


def builtin_text(name: str, output_types: list[str], options: TaskOptions, *, api: bool) -> FunctionText:
    """The text of a node that calls a function of the executor itself; it has no types of its own to compare."""
    described = {"package_name": BUILTINS, "func_name": name, "language": "PYTHON"}
    return _text(name, described, output_types, options, api=api)


def _text(
    name: str,
    function: dict[str, Any],
    output_types: Sequence[str],
    options: TaskOptions,
    *,
    api: bool = True,
    native: NativeTarget | None = None,
) -> FunctionText:
    properties = options.properties(function=True)
    if native is not None:
        properties["dimensions"] = _native_dimensions(properties["dimensions"], native, options)
    if not api:
        properties.pop("api", None)
    request = {
        "name": name,
        "function": function,
        "outputs": [{"type": one, "shared": True} if options.shared else {"type": one} for one in output_types],
        "slices": [{"properties": properties}],
        **options.request(),
    }
    return FunctionText(f'"task":{compact(request)[:-1]},"inputs":[', "]}")


def _native_dimensions(found: dict[str, list[str]], native: NativeTarget, options: TaskOptions) -> dict[str, list[str]]:
    """The machine of the library instead of the version of Python; what the options name stays as it is."""
    chosen = {key for key, _ in options.dimensions}
    kept = {key: values for key, values in found.items() if key != "python" or key in chosen}
    return {**kept, **{key: values for key, values in native.dimensions().items() if key not in chosen}}
