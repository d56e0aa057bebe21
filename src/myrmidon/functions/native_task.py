"""Declarations of functions in shared libraries: ``@task(library="./libcount.so", language="cpp")``.

The Python function below the decorator says names and types; its body is never run. A library with a path is shipped
with the job, one with only a file name is installed on the bots.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from myrmidon.functions import elf
from myrmidon.functions.native_errors import LibraryNotFound
from myrmidon.functions.native_signature import mismatch
from myrmidon.functions.signature import Signature
from myrmidon.functions.types import TypeProblem
from myrmidon.functions.values import decode, encode

if TYPE_CHECKING:
    from myrmidon.functions.native_library import NativeLibrary

FOLDERS_VARIABLE = "MYRMIDON_LIBRARY_PATH"
"""A bot's processes for functions have in it the folders of the libraries that are installed on the bot."""
_LANGUAGES = {"cpp": "CPP", "c": "CPP", "c++": "CPP", "rust": "RUST"}
LIBRARY = "library "
"""The prefix of the names that stand for modules of functions in shipped libraries."""


class NativeTarget(NamedTuple):
    """Where a native function is. ``path`` is empty for a library that is installed on the bots.

    On a bot, ``code`` is the digest of the code that has a library which was sent with the job, and ``machine`` are the
    dimensions of the machine that it was built for.
    """

    library: str
    name: str
    language: str
    path: str
    code: str = ""
    machine: Mapping[str, list[str]] = {}

    @property
    def code_module(self) -> str:
        """Return the name that stands for a module where code is collected; empty if nothing is shipped."""
        return f"{LIBRARY}{self.code or self.path}" if self.path else ""

    def dimensions(self) -> dict[str, list[str]]:
        """Return the dimensions of the bots that can run it: the machine of the library, or where it is installed."""
        if not self.path:
            return {"library": [self.library]}
        if self.code:
            return dict(self.machine)
        with contextlib.suppress(OSError):
            machine = elf.machine_of(self.path)
            if machine.startswith(("x86", "arm")):
                return {"os": ["Linux"], "cpu": [machine]}
        return {}

    def call(self, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function in this process, outside of a job.

        Raises LibraryProblem, NativeFailure, or TypeError for a wrong type.
        """
        if not self.path:
            raise LibraryNotFound(f"{self.library} is installed on bots only; call {self.name} in a job")
        function = _loaded(self.path).function(self.name)
        problem = mismatch(function.library, function.name, function.signature, signature.text, signature.output_types)
        if problem:
            raise TypeProblem(problem)
        values = signature.bind(args, dict(kwargs))
        inputs = [encode(value, one.annotation) for value, one in zip(values, signature.parameters)]
        with _CALLS:
            returned = function.call(inputs)
        outputs = [decode(data, kind) for data, kind in zip(returned, signature.outputs)]
        if signature.returns_tuple:
            return tuple(outputs)
        return outputs[0] if outputs else None


def native_target(function: Any, library: Any, language: str, name: str) -> NativeTarget:
    """The target of a declaration. A relative path begins at the folder of the module of the function."""
    given = os.fspath(library)
    if not isinstance(given, str) or not os.path.basename(given):
        raise TypeError(f"library is {library!r}; write the path of a shared library, such as './libcount.so'")
    kind = _LANGUAGES.get(language.lower())
    if kind is None:
        raise ValueError(f"language is {language!r}; there are cpp and rust")
    path = ""
    if os.path.dirname(given):
        source = function.__globals__.get("__file__")
        folder = os.path.dirname(os.path.abspath(source)) if source else os.getcwd()
        path = os.path.normpath(os.path.join(folder, os.path.expanduser(given)))
    return NativeTarget(os.path.basename(given), name or function.__name__, kind, path)


_CALLS = threading.RLock()
"""A library gets one call at a time, also from a program with threads: on a bot it cannot be otherwise."""
_LIBRARIES: dict[str, NativeLibrary] = {}


def _loaded(path: str) -> NativeLibrary:
    with _CALLS:
        found = _LIBRARIES.get(path)
        if found is None:
            from myrmidon.functions.native_library import NativeLibrary  # late: few programs need ctypes

            found = _LIBRARIES[path] = NativeLibrary(path)
        return found
