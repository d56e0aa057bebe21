"""The environment of the calls of a graph: their own, or the one of their job or of the submitting function."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any, Callable, Dict

from myrmidon.functions.graph_errors import GraphError
from myrmidon.functions.requirements import NAMED, BadRequirements, document, read_lines
from myrmidon.functions.task_options import StoredRequirements, TaskOptions

if TYPE_CHECKING:
    from myrmidon.functions.task_function import TaskFunction

Files = Dict[str, bytes]
"""Documents by their digest."""


def defaults_of_run(environment: str) -> TaskOptions:
    """Return the options that calls of a function in this environment have by default."""
    if environment.startswith(NAMED):
        return TaskOptions(environment=environment[len(NAMED) :])
    return TaskOptions(requirements=StoredRequirements(environment)) if environment else TaskOptions()


def options_in(defaults: TaskOptions, function: TaskFunction[Any, Any]) -> TaskOptions:
    """The options of a function with the environment of its job; functions of a shared library have none."""
    options = function.task_options
    if function.native is None:
        return options.with_environment_of(defaults)
    if options.requirements or options.environment or options.python:
        raise GraphError(f"{function.__name__}() is in a shared library: it has no requirements and no interpreter")
    return options


def environment_of(options: TaskOptions, defaults: TaskOptions, function: TaskFunction[Any, Any]) -> tuple[str, Files]:
    """(the environment as a function names it, the document to upload). ``options`` contain the defaults already."""
    if options.environment is not None:
        return f"{NAMED}{options.environment}", {}
    chosen = options.requirements
    if isinstance(chosen, str):
        text = _lock_text(chosen, function.function)
        if text is None and isinstance(defaults.requirements, StoredRequirements):
            chosen = defaults.requirements  # on a bot, which has no lock file: that of the function that submits
        elif text is None:
            raise GraphError(f"requirements: there is no file {chosen}; write a list for requirements, or a path")
        else:
            chosen = _lock_lines(chosen, text)
    if isinstance(chosen, StoredRequirements):
        return chosen.digest, {}
    if not chosen:
        return "", {}
    digest, data = document(chosen)
    return digest, {digest: data}


def _lock_text(path: str, function: Callable[..., Any]) -> str | None:
    """The text of a lock file: beside the module of the function, or in the present folder; None if there is none."""
    for folder in (_folder_of(function), ""):
        try:
            with open(os.path.join(folder, os.path.expanduser(path)), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeError) as error:
            raise GraphError(f"requirements: {path} cannot be read: {error}") from None
    return None


def _folder_of(function: Callable[..., Any]) -> str:
    try:
        return os.path.dirname(inspect.getfile(function))
    except (OSError, TypeError):  # a notebook
        return ""


def _lock_lines(path: str, text: str) -> tuple[str, ...]:
    try:
        lines = read_lines(text)
    except BadRequirements as error:
        raise GraphError(f"{path}: {error}") from None
    if not lines:
        raise GraphError(f"requirements: {path} has no requirements")
    return lines
