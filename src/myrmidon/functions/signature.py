"""The typed signature of a function: what a graph stores of it, and what a bot compares before it calls it."""

from __future__ import annotations

import functools
import inspect
import typing
from typing import Any, Callable, NamedTuple, Sequence

from myrmidon.functions.codecs import codec_of
from myrmidon.functions.task_context import TaskContext
from myrmidon.functions.types import TypeProblem, kind_of, output_types, type_string

REQUIRED = inspect.Parameter.empty
"""The default of a parameter that has none."""


class Parameter(NamedTuple):
    """One parameter: its annotation, type string and default (``REQUIRED`` if none)."""

    name: str
    annotation: Any
    type: str
    default: Any
    keyword_only: bool = False


class Signature:
    """Parameters and outputs of a function. ``text`` is canonical: equal texts mean interchangeable functions."""

    def __init__(
        self,
        name: str,
        parameters: list[Parameter],
        returns: Any,
        python: inspect.Signature,
        *,
        takes_context: bool = False,
    ) -> None:
        self.name = name
        self.takes_context = takes_context
        """Whether the first parameter is a TaskContext, which is not in ``parameters``: ``call`` adds it."""
        self.parameters = parameters
        self.returns = returns
        self.outputs: list[Any] = output_types(returns)
        self.returns_tuple = bool(self.outputs) and kind_of(returns).name == "tuple"
        """Whether the items of what it returns are its outputs; else what it returns is the output, if any."""
        self.output_types: list[str] = [_checked_type(one) for one in self.outputs]
        self.text = f"{name}({','.join(f'{one.name}:{one.type}' for one in parameters)})->{self._show_outputs()}"
        self._python = python
        self._positional = [one for one in parameters if not one.keyword_only]
        self._keywords = [one.name for one in parameters if one.keyword_only]

    def _show_outputs(self) -> str:
        if len(self.output_types) == 1:
            return self.output_types[0]
        return f"({','.join(self.output_types)})"

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return one value per parameter, in their order, with defaults applied. Raises TypeError as a call would."""
        try:
            bound = self._python.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        return [bound.arguments.get(one.name, one.default) for one in self.parameters]

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Call a function with one value per parameter, as ``bind`` gives them."""
        first = (TaskContext(),) if self.takes_context else ()
        if not self._keywords:
            return function(*first, *values)
        count = len(self._positional)
        return function(*first, *values[:count], **dict(zip(self._keywords, values[count:])))

    def __repr__(self) -> str:
        return f"Signature({self.text})"


def signature_of(function: Any) -> Signature:
    """The signature of a function, a static method or a partial, also through decorators that use ``functools.wraps``.

    Raises TypeProblem for ``*args``, ``**kwargs``, a missing annotation, a type that is not a type of values, and for
    generators.
    """
    if isinstance(function, staticmethod):
        function = function.__func__
    plain = _innermost(function)
    name = getattr(plain, "__qualname__", type(plain).__qualname__)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise TypeProblem(f"{name} is a generator; return a list instead of yielding its items")
    python = inspect.signature(function)
    hints = _hints(plain, name)
    given = list(python.parameters.values())
    takes_context = bool(given) and hints.get(given[0].name) is TaskContext
    if takes_context:
        given = given[1:]
        python = python.replace(parameters=given)
    parameters = [_parameter(one, hints, name) for one in given]
    if "return" not in hints:
        raise TypeProblem(f"{name} has no return annotation; write `-> None` if it returns nothing")
    returns = hints["return"]
    try:
        return Signature(name, parameters, returns, python, takes_context=takes_context)
    except TypeProblem as problem:
        raise TypeProblem(f"the result of {name}: {problem.reason}") from None


def _innermost(function: Any) -> Any:
    """The function below partials and decorators, which has the annotations."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function


def _hints(function: Any, name: str) -> dict[str, Any]:
    """The annotations, with texts resolved."""
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise TypeProblem(f"an annotation of {name} cannot be resolved: {error}") from None


def _parameter(one: inspect.Parameter, hints: dict[str, Any], name: str) -> Parameter:
    if one.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        stars = "*" if one.kind is inspect.Parameter.VAR_POSITIONAL else "**"
        raise TypeProblem(f"{name} has {stars}{one.name}; name every parameter, or take a list or dict")
    if one.name not in hints:
        raise TypeProblem(f"parameter {one.name} of {name} has no annotation")
    annotation = hints[one.name]
    try:
        kind = _checked_type(annotation)
    except TypeProblem as problem:
        raise TypeProblem(f"parameter {one.name} of {name}: {problem.reason}") from None
    return Parameter(one.name, annotation, kind, one.default, one.kind is inspect.Parameter.KEYWORD_ONLY)


def _checked_type(annotation: Any) -> str:
    """The type string, if also the fields of all classes in it are types of values."""
    codec_of(annotation)
    return type_string(annotation)
