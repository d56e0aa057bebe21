"""Shared libraries with functions, behind the C interface of ``myrmidon.h``: loads them and calls their functions.

Inputs and outputs are MessagePack; nothing is decoded here, except outputs of a library that no compiler has checked.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Callable, Sequence

from myrmidon.functions import elf
from myrmidon.functions.native_errors import (
    LibraryNotFound,
    LibraryNotLoadable,
    NativeFailure,
    NativeTypeError,
    NoEntry,
    NoFunction,
    NotALibrary,
    WrongAbiVersion,
    WrongArchitecture,
)
from myrmidon.functions.native_signature import NativeSignature, check_output

ABI_VERSION = 1
ENTRY = "myrmidon_entry"
_OK, _FAILED, _WRONG_TYPE, _NO_MEMORY = range(4)
_TYPED_OUTPUTS = 1
_MAX_FUNCTIONS = 100_000


class _Input(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Output(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Result(ctypes.Structure):
    _fields_ = (
        ("outputs", ctypes.POINTER(_Output)),
        ("num_outputs", ctypes.c_size_t),
        ("error_type", ctypes.c_char_p),
        ("error_message", ctypes.c_char_p),
        ("owner", ctypes.c_void_p),
    )


# The pointers to functions and inputs are untyped: ctypes converts each argument of a typed one, which takes longer.
_CALL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_FLUSH = ctypes.CFUNCTYPE(None)


class _Function(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("signature", ctypes.c_char_p),
        ("call", _CALL),
        ("release", _RELEASE),
        ("data", ctypes.c_void_p),
    )


class _Library(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("num_functions", ctypes.c_size_t),
        ("functions", ctypes.POINTER(_Function)),
        ("flush", _FLUSH),
    )


class NativeFunction:
    """One function of a loaded library. ``signature`` is what the library says of it."""

    def __init__(self, library: str, described: Any, *, is_typed: bool) -> None:
        self.library = library
        self.name: str = described.name.decode()
        self.signature = NativeSignature(described.signature.decode())
        self._call = described.call
        self._release = described.release
        self._address = ctypes.addressof(described)
        self._is_typed = is_typed

    def call(self, inputs: Sequence[bytes]) -> list[bytes]:
        """Call the function with encoded values; its encoded outputs.

        Raises NativeFailure, NativeTypeError or MemoryError.
        """
        given = (_Input * len(inputs))(*[_Input(one, len(one)) for one in inputs])
        result = _Result()
        status = self._call(self._address, ctypes.addressof(given), len(inputs), ctypes.addressof(result))
        try:
            if status != _OK:
                raise self._error(status, result)
            outputs = [ctypes.string_at(one.data, one.size) for one in result.outputs[: result.num_outputs]]
        finally:
            self._release(self._address, ctypes.addressof(result))
        self._check(outputs)
        return outputs

    def _error(self, status: int, result: _Result) -> Exception:
        message = (result.error_message or b"").decode(errors="replace")
        if status == _NO_MEMORY:
            return MemoryError(message)
        if status == _WRONG_TYPE:
            return NativeTypeError(message)
        type_ = (result.error_type or b"").decode(errors="replace") or "Error"
        return NativeFailure(type_, message if status == _FAILED else f"{message} (the unknown status {status})")

    def _check(self, outputs: list[bytes]) -> None:
        types = self.signature.outputs
        if len(outputs) != len(types):
            raise NativeTypeError(f"{self.name} of {self.library} has {len(types)} outputs, given {len(outputs)}")
        if self._is_typed:
            return
        for position, (data, type_) in enumerate(zip(outputs, types)):
            problem = check_output(data, type_)
            if problem:
                path = f"result[{position}]" if len(types) > 1 else "result"
                raise NativeTypeError(f"{path}: {problem}")


class NativeLibrary:
    """A loaded library. It is never unloaded: threads that its functions have left may still run its code."""

    def __init__(self, path: str) -> None:
        """Raises LibraryProblem."""
        self.name = os.path.basename(path)
        self._handle = _load(path)
        described = self._describe()
        self._described = described
        self._flush = described.flush or None
        is_typed = bool(described.flags & _TYPED_OUTPUTS)
        self.functions: dict[str, NativeFunction] = {}
        try:
            for one in described.functions[: described.num_functions]:
                function = NativeFunction(self.name, one, is_typed=is_typed)
                if function.name in self.functions:
                    raise NoEntry(f"{self.name} has two functions with the name {function.name}")
                self.functions[function.name] = function
        except (ValueError, AttributeError) as error:
            raise NoEntry(f"{self.name} describes its functions wrongly: {error}") from None

    def _describe(self) -> Any:
        try:
            entry: Callable[[], Any] = getattr(self._handle, ENTRY)
        except AttributeError:
            raise NoEntry(
                f"{self.name} has no symbol {ENTRY}; build it with myrmidon.hpp, the crate myrmidon, or myrmidon.h"
            ) from None
        entry.restype = ctypes.POINTER(_Library)  # type: ignore[attr-defined]
        found = entry()
        if not found:
            raise NoEntry(f"{self.name} cannot be used: its {ENTRY} returns nothing")
        described = found.contents
        if described.abi_version != ABI_VERSION:
            raise WrongAbiVersion(
                f"{self.name} was built for version {described.abi_version} of the interface, this is version "
                f"{ABI_VERSION}; build it again with the header of this version"
            )
        if described.num_functions > _MAX_FUNCTIONS:
            raise NoEntry(f"{self.name} says that it has {described.num_functions} functions")
        return described

    def function(self, name: str) -> NativeFunction:
        """The function of this name. Raises NoFunction."""
        found = self.functions.get(name)
        if found is None:
            known = ", ".join(sorted(self.functions)[:20]) or "none"
            raise NoFunction(f"{self.name} has no function {name}; it has {known}")
        return found

    def flush(self) -> None:
        """Write what the streams of the library's language and of C hold back."""
        if self._flush is not None:
            self._flush()
        flush_streams()


def _load(path: str) -> Any:
    problem = elf.problem_of(path) if sys.platform.startswith("linux") else ""
    if problem == elf.NO_FILE:
        raise LibraryNotFound(f"there is no file {os.path.basename(path)}")
    if problem == elf.NOT_A_LIBRARY:
        raise NotALibrary(
            f"{os.path.basename(path)} is not a shared library; build it with g++ -shared, or with crate-type cdylib"
        )
    if problem:
        raise WrongArchitecture(
            f"{os.path.basename(path)} is a library for {problem}, this machine has {elf.own()}; build it for this "
            f"one, or require bots of the other: dimensions={{'cpu': '{problem}'}}"
        )
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise LibraryNotLoadable(f"{os.path.basename(path)} cannot be loaded: {error}") from None


def flush_streams() -> None:
    """Write what the streams of C hold back."""
    _libc().fflush(None)


def show_lines_at_once() -> None:
    """Make the standard output of C write every line when it is complete, so that a crash loses none."""
    name = "__stdoutp" if sys.platform == "darwin" else "stdout"
    try:
        stream = ctypes.c_void_p.in_dll(_libc(), name)
    except ValueError:  # another libc
        return
    _libc().setvbuf(stream, None, _LINE_BUFFERED, ctypes.c_size_t(0))


_LINE_BUFFERED = 1
_libraries: list[Any] = []


def _libc() -> Any:
    if not _libraries:
        _libraries.append(ctypes.CDLL(None))
    return _libraries[0]
