"""The libraries that are sent with the code of a job because its modules declare functions of them.

A function on a bot that submits such a function knows neither the file of the library nor its digest: what it has is
the code, with this list in it. The list is a JSON object of the declarations, ``module:name``.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping

from myrmidon.functions.graph_errors import GraphError
from myrmidon.functions.native_task import NativeTarget
from myrmidon.functions.task_function import TaskFunction, task_function_of
from myrmidon.functions.types import module_name

FILE = "myrmidon_libraries.json"
"""The path of the list in the zip of the code."""
Listed = Dict[str, Dict[str, Any]]
"""The digest of the zip of the library, and the dimensions of its machine, by declaration."""


def key_of(function: TaskFunction[Any, Any]) -> str:
    """Return the key of a declaration in the list; modules have the names by which bots import them."""
    return f"{module_name(function.function.__module__)}:{function.function.__qualname__}"


def list_of(declared: Mapping[str, tuple[NativeTarget, str]]) -> bytes:
    """The list of declarations, each with the digest of its library's zip."""
    listed = {key: {"code": code, "dimensions": native.dimensions()} for key, (native, code) in declared.items()}
    return json.dumps(listed, sort_keys=True).encode()


def read_list(folder: str) -> Listed:
    """The list in the code in this folder; empty if it has none."""
    try:
        with open(os.path.join(folder, FILE), "rb") as file:
            listed: Listed = json.load(file)
    except FileNotFoundError:
        return {}
    return listed


def with_shipped_library(function: Any, listed: Listed) -> Any:
    """Return the function with the code of the library that was sent with the job. Raises GraphError if none was."""
    found, args, kwargs = task_function_of(function)
    if found.native is None or not found.native.path:
        return function
    sent = listed.get(key_of(found))
    if sent is None:
        raise GraphError(
            f"{found.__name__}() is in {found.native.library}, which was not sent with this job. The program that "
            f"submits the job sends the libraries that the modules of its code declare at their top: build the library "
            f"and import {found.function.__module__} there. Or install the library on the bots"
        )
    copied = found.copy(found.task_options, args, kwargs)
    copied.use_library(found.native._replace(code=sent["code"], machine=sent["dimensions"]))
    return copied
