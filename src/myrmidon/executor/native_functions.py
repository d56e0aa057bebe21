"""Runs functions of shared libraries: C++, Rust, or anything behind the C interface of ``myrmidon.h``.

Values are passed on as the bytes that they are. A process that runs them runs nothing else: a library may crash it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import struct
from typing import Any

from myrmidon.executor.builtins import input_bytes
from myrmidon.executor.failures import LibraryFailed, SignatureMismatch
from myrmidon.functions import msgpack
from myrmidon.functions.native_errors import LibraryNotFound, NativeFailure
from myrmidon.functions.native_library import NativeFunction, NativeLibrary, show_lines_at_once
from myrmidon.functions.native_signature import mismatch
from myrmidon.functions.native_task import FOLDERS_VARIABLE
from myrmidon.functions.values import PART


class NativeFunctions:
    """The libraries that this process has loaded, by path."""

    def __init__(self) -> None:
        self._libraries: dict[str, NativeLibrary] = {}
        self._compared: set[tuple[str, str, str]] = set()

    def run(self, frame: dict[str, Any], code: str) -> list[tuple[str, bytes]]:
        """Call the function that a frame names; its outputs as pairs of type and bytes. ``code`` is its folder.

        Raises LibraryProblem, SignatureMismatch, LibraryFailed, NativeTypeError or MemoryError.
        """
        library = self._library(frame["package"], code)
        function = library.function(frame["function"])
        types: list[str] = frame.get("output_types") or function.signature.outputs
        self._compare(function, frame["signature"], types)
        try:
            outputs = function.call([whole_input(one) for one in frame["inputs"]])
        except NativeFailure as failure:
            raise LibraryFailed(failure) from None
        finally:
            library.flush()
        return list(zip(types, outputs))

    def _library(self, name: str, code: str) -> NativeLibrary:
        path = find_library(name, code)
        library = self._libraries.get(path)
        if library is None:
            if not self._libraries:
                _prepare_process()
            library = self._libraries[path] = NativeLibrary(path)
        return library

    def _compare(self, function: NativeFunction, requested: str, output_types: list[str]) -> None:
        key = (function.library, function.name, f"{requested} {output_types}")
        if key in self._compared:
            return
        problem = mismatch(function.library, function.name, function.signature, requested, output_types)
        if problem:
            raise SignatureMismatch(problem)
        self._compared.add(key)


def find_library(name: str, code: str) -> str:
    """The path of a library in the code of the job, or among those that are installed on this bot."""
    if not name or name != os.path.basename(name) or name.startswith("."):
        raise LibraryNotFound(f"{name!r} is not the name of a file")
    if code:
        return os.path.join(code, name)
    folders = [one for one in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if one]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    where = f"in {', '.join(folders)}" if folders else "its administrator has named no folder (--library-dir)"
    raise LibraryNotFound(f"this bot has no library {name}: {where}")


def whole_input(one: dict[str, Any]) -> bytes:
    """The bytes of an input; parts of a gathered one are put together as they are."""
    if "parts" not in one:
        return input_bytes(one)
    parts = [input_bytes(part) for part in one["parts"]]
    if not one.get("data") and not one.get("path"):
        return msgpack.pack_packed(parts)

    def part(code: int, data: bytes) -> Any:
        if code != PART or len(data) != 4 or struct.unpack(">I", data)[0] >= len(parts):
            raise msgpack.MsgpackError("the shape refers to an unknown part")
        return msgpack.Packed(parts[struct.unpack(">I", data)[0]])

    return msgpack.pack(msgpack.unpack(input_bytes(one), part))


def _prepare_process() -> None:
    """Leave signals to the library: stacks of this process's Python would say nothing about a crash in it."""
    faulthandler.disable()
    if hasattr(faulthandler, "unregister"):
        faulthandler.unregister(signal.SIGTERM)
    show_lines_at_once()
