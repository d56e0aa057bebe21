"""The zips of code that a client sends, each made once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from myrmidon.functions import shipped_libraries
from myrmidon.functions.graph_errors import GraphError
from myrmidon.functions.native_task import NativeTarget
from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.types import module_name
from myrmidon.sdk.client import AUTO
from myrmidon.sdk.code_zip import INSTALLED, CodeZip, folder_contents, is_shipped, module_contents, zip_files
from myrmidon.sdk.notebook_code import session_source


class CodePackages:
    """Finds the code of functions. Kept by a client, because a job's code must not change from call to call."""

    def __init__(self, code: str | Path = AUTO) -> None:
        self.code = code
        self._zips: dict[str, CodeZip | None] = {}
        self._session: dict[str, CodeZip] = {}
        self._declared: dict[str, dict[str, CodeZip]] = {}
        """The zips of the libraries that the modules of a code declare functions of, by the digest of the code."""

    def collect(self, functions: Iterable[TaskFunction[Any, Any]], *, newest: bool = False) -> dict[str, CodeZip]:
        """The zip of each module that these functions belong to, by the name under which bots import it.

        With them come the libraries that those modules declare: the functions may submit calls of them.

        ``newest``: functions of a session as they are defined now, not as they were when they were called.
        """
        found: dict[str, CodeZip] = {}
        typed: list[Any] = []
        for function in functions:
            module = function.code_module
            if function.native is not None:
                found.update(self._library(function.native))
            elif module == "__main__" and self.code == AUTO and _is_session():
                typed.append(_redefined(function.function) if newest else function.function)
            elif (packed := self._module(module)) is not None:
                found[module_name(module)] = packed
        if typed:
            found[module_name("__main__")] = self._session_zip(typed)
        for packed in list(found.values()):
            found.update(self._declared.get(packed.digest, {}))
        return found

    def _library(self, native: NativeTarget) -> dict[str, CodeZip]:
        """The zip of a library that is shipped, by what stands for its module."""
        if not native.path or self.code == INSTALLED:
            return {}
        key = native.code_module
        packed = self._zips.get(key)
        if packed is None:
            packed = self._zips[key] = zip_files({native.library: _read_library(native)})
        return {key: packed}

    def _module(self, module: str) -> CodeZip | None:
        if self.code == INSTALLED or not self.code:
            return None
        key = "" if self.code != AUTO else module if module == "__main__" else module.partition(".")[0]
        if key not in self._zips:
            self._zips[key] = self._make(key)
        return self._zips[key]

    def _make(self, top: str) -> CodeZip | None:
        if self.code != AUTO:
            return self._zip(folder_contents(Path(self.code)))
        if not is_shipped(top):
            return None
        if top != "__main__" and not _is_session() and is_shipped(_main_top()):
            main = self._module("__main__")
            # What the script imports is shipped with it: one zip, so one process on a bot runs all its functions.
            if main is not None and _has_module(main, top):
                return main
        return self._zip(module_contents([top]))

    def _zip(self, contents: dict[str, bytes]) -> CodeZip:
        """The zip of a code, with a list of the libraries that its modules declare functions of."""
        libraries: dict[str, CodeZip] = {}
        listed: dict[str, tuple[NativeTarget, str]] = {}
        for key, native in declared_libraries(contents).items():
            with contextlib.suppress(GraphError):  # not built here; the functions of this job may do without it
                libraries.update(self._library(native))
                listed[key] = native, libraries[native.code_module].digest
        if listed:
            contents = {**contents, shipped_libraries.FILE: shipped_libraries.list_of(listed)}
        packed = zip_files(contents)
        self._declared[packed.digest] = libraries
        return packed

    def _session_zip(self, functions: list[Any]) -> CodeZip:
        """By source: what the functions use may have changed since the last call, though they are the same objects."""
        source = session_source(sorted(functions, key=lambda function: str(function.__name__)))
        if source not in self._session:
            name = f"{module_name('__main__')}.py"
            self._session[source] = self._zip({**module_contents(_imports(source)), name: source.encode()})
        return self._session[source]


def _read_library(native: NativeTarget) -> bytes:
    try:
        return Path(native.path).read_bytes()
    except OSError as error:
        raise GraphError(f"the library of {native.name} cannot be read: {error}; build it first") from None


def declared_libraries(names: Iterable[str]) -> dict[str, NativeTarget]:
    """The libraries that are sent because the modules with these paths declare functions of them, by declaration."""
    found: dict[str, NativeTarget] = {}
    for name in names:
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        loaded = sys.modules.get("__main__" if module == module_name("__main__") else module)
        for value in vars(loaded).values() if loaded is not None and name.endswith(".py") else ():
            if isinstance(value, TaskFunction) and value.native is not None and value.native.path:
                found[shipped_libraries.key_of(value)] = value.native
    return found


def _redefined(function: Any) -> Any:
    """The function that has this one's name in the session now."""
    found = vars(sys.modules["__main__"]).get(function.__name__, function)
    return found.function if isinstance(found, TaskFunction) else found


def _imports(source: str) -> list[str]:
    """The modules of the import lines that session_source has written."""
    return [line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))]


def _is_session() -> bool:
    """Whether this is a notebook or an interactive session, whose code is in no file."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is None and getattr(main, "__file__", None) is None


def _main_top() -> str:
    """``__main__``, or with ``python -m`` the top package of the program, which may be an installed one."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "__main__" if spec is None else str(spec.name).partition(".")[0]


def _has_module(packed: CodeZip, top: str) -> bool:
    return any(name == f"{top}.py" or name.startswith(f"{top}/") for name in packed.names)
