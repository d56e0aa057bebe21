"""Myrmidon runs tasks and graphs of tasks on a fleet of bots. ARCHITECTURE.md describes the packages.

The names of the Python API are imported when they are first used: this file is also a part of the bot zip, which has
``task`` and ``context``, but no client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from myrmidon.functions.context import context as context
    from myrmidon.functions.graph_errors import GraphError as GraphError
    from myrmidon.functions.graph_errors import HandleMisuse as HandleMisuse
    from myrmidon.functions.graph_errors import WiringError as WiringError
    from myrmidon.functions.native_errors import LibraryProblem as LibraryProblem
    from myrmidon.functions.native_errors import NativeFailure as NativeFailure
    from myrmidon.functions.task_function import TaskFunction as TaskFunction
    from myrmidon.functions.task_function import task as task
    from myrmidon.functions.types import Int8 as Int8
    from myrmidon.functions.types import Int16 as Int16
    from myrmidon.functions.types import Int32 as Int32
    from myrmidon.functions.types import Int64 as Int64
    from myrmidon.sdk.async_client import AsyncClient as AsyncClient
    from myrmidon.sdk.client import Client as Client
    from myrmidon.sdk.errors import JobFailed as JobFailed
    from myrmidon.sdk.errors import WaitedTooLong as WaitedTooLong
    from myrmidon.sdk.shared import Shared as Shared
    from myrmidon.sdk.task_failed import TaskFailed as TaskFailed

_HOMES = {
    "task": "myrmidon.functions.task_function",
    "TaskFunction": "myrmidon.functions.task_function",
    "context": "myrmidon.functions.context",
    "GraphError": "myrmidon.functions.graph_errors",
    "HandleMisuse": "myrmidon.functions.graph_errors",
    "WiringError": "myrmidon.functions.graph_errors",
    "LibraryProblem": "myrmidon.functions.native_errors",
    "NativeFailure": "myrmidon.functions.native_errors",
    "Int8": "myrmidon.functions.types",
    "Int16": "myrmidon.functions.types",
    "Int32": "myrmidon.functions.types",
    "Int64": "myrmidon.functions.types",
    "Client": "myrmidon.sdk.client",
    "AsyncClient": "myrmidon.sdk.async_client",
    "Shared": "myrmidon.sdk.shared",
    "TaskFailed": "myrmidon.sdk.task_failed",
    "JobFailed": "myrmidon.sdk.errors",
    "WaitedTooLong": "myrmidon.sdk.errors",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'myrmidon' has no attribute {name!r}")
    from importlib import import_module

    try:
        found = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("myrmidon.sdk"):
            raise
        found = client_placeholder(name)
    globals()[name] = found
    return found


def client_placeholder(name: str) -> type:
    """Stands for a class of the client on a bot: a script that imports it can be imported there, but not use it."""

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError(
            f"{name} is a part of the client, which bots do not have. Bots import this module to call its functions: "
            'write what submits them below `if __name__ == "__main__":`. In a function use context()'
        )

    return type(name, (Exception,), {"__init__": refuse, "__module__": __name__})


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
