"""Runs one function after another: finds it, decodes its inputs, calls it, encodes its outputs."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Callable

from myrmidon.executor import builtins
from myrmidon.executor.builtins import input_bytes
from myrmidon.executor.failures import ExecutorError, ResultTooLarge, describe, forget, sentence
from myrmidon.executor.run_context import RunContext
from myrmidon.executor.surroundings import Environment, Folder, Interrupts, Memory, Streams, set_up_logging
from myrmidon.executor.targets import ImportFailed, Target, Targets
from myrmidon.functions.context import Context
from myrmidon.functions.native_errors import LibraryProblem, NativeTypeError
from myrmidon.functions.scalar_codecs import Codec
from myrmidon.functions.types import TypeProblem
from myrmidon.functions.values import INLINE_BYTES, MAX_BYTES, decode_gathered_by, decode_plain, encode_by, too_large

if TYPE_CHECKING:
    from myrmidon.executor.native_functions import NativeFunctions
    from myrmidon.executor.submissions import Submissions

PYTHON = "PYTHON"


class Runner:
    """Runs functions in this process, one at a time."""

    def __init__(self, streams: Streams, folder: Folder, send: Callable[[dict[str, Any]], None]) -> None:
        """``send`` sends a frame to the bot while a run is on."""
        self._send = send
        self._code_path = ""
        self._native: NativeFunctions | None = None
        self._frame: dict[str, Any] | None = None
        self._context: RunContext | None = None
        self._lock = threading.Lock()  # threads of a function ask for the context too
        self._targets = Targets(self._after_import)
        self._streams = streams
        self._folder = folder
        self._environment = Environment()
        self._memory = Memory()
        self._interrupts = Interrupts(streams)

    def use_code(self, path: str) -> None:
        """Import modules from this folder, named by the digest of the code, first; empty: only what is installed."""
        if path:
            sys.path.insert(0, path)
        self._code_path = path

    def run(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Run one function and return the answer; whatever the function does, this raises nothing."""
        began = time.perf_counter()
        self._frame = frame
        self._interrupts.are_taken = True
        try:
            answer = self._attempt(frame)
            self._interrupts.are_taken = False
        except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt are results of a run
            self._interrupts.are_taken = False
            answer = self._failed(frame, error)
        self._end_context()
        try:
            self._tidy_up()
        except Exception as error:  # noqa: BLE001 - the bot replaces the process
            answer = self._failed(frame, error)
        answer["id"] = frame["id"]
        answer["out"], answer["err"] = self._streams.finish()
        answer["seconds"] = time.perf_counter() - began
        return answer

    def context(self) -> Context:
        """The context of the run that is on; made when a function asks for it, because most do not."""
        with self._lock:
            if self._frame is None:
                return Context()
            if self._context is None:
                self._context = RunContext(self._frame, self._code_path, self._send)
            return self._context

    def _end_context(self) -> None:
        with self._lock:
            self._frame = None
            if self._context is not None:
                self._context.is_over = True
                self._context = None

    def _attempt(self, frame: dict[str, Any]) -> dict[str, Any]:
        self._folder.enter()
        if frame["package"] == builtins.__name__:
            return self._done(frame, builtins.run(frame))
        if frame.get("language", PYTHON) != PYTHON:
            return self._attempt_native(frame)
        target = self._targets.find(frame["package"], frame["function"], frame["signature"])
        if frame.get("env"):
            os.environ.update(frame["env"])
        values = decoded_inputs(target, frame["inputs"])
        self._memory.limit(frame.get("memory_mb"))
        try:
            result = call_target(target, values)
            submissions = self._context.submissions if self._context is not None else None
            if submissions is not None:
                return self._done_with_calls(frame, target, result, submissions)
            encoded = _encoded(target, result)
        finally:
            self._memory.lift()
        return self._done(frame, list(zip(target.signature.output_types, encoded)))

    def _attempt_native(self, frame: dict[str, Any]) -> dict[str, Any]:
        if frame.get("env"):
            os.environ.update(frame["env"])
        if self._native is None:
            from myrmidon.executor.native_functions import NativeFunctions  # late: most processes need no ctypes

            self._native = NativeFunctions()
        self._memory.limit(frame.get("memory_mb"))
        try:
            outputs = self._native.run(frame, self._code_path)
        except NativeTypeError as error:
            raise _WrongType(TypeProblem(str(error))) from None
        finally:
            self._memory.lift()
        return self._done(frame, outputs)

    def _done_with_calls(
        self, frame: dict[str, Any], target: Target, result: Any, submissions: Submissions
    ) -> dict[str, Any]:
        """Send the calls that the function has submitted, once its result is known to be good."""
        try:
            delegate = submissions.delegate_of(result, target.signature)
        except TypeProblem as problem:
            raise _WrongType(problem) from None
        encoded = _encoded(target, result) if delegate is None else []
        answer = self._done(frame, list(zip(target.signature.output_types, encoded)))
        answer["delegated"] = delegate is not None
        submissions.send(delegate)
        return answer

    def _after_import(self) -> None:
        set_up_logging()
        self._environment.keep()  # what the module has set at its import stays

    def _done(self, frame: dict[str, Any], outputs: list[tuple[str, bytes]]) -> dict[str, Any]:
        described: list[dict[str, Any]] = []
        for position, (type_, data) in enumerate(outputs):
            if len(data) <= INLINE_BYTES:
                described.append({"type": type_, "data": data})
                continue
            if len(data) > MAX_BYTES:
                raise ResultTooLarge(too_large("the result", len(data)))
            path = os.path.join(frame["output_folder"], f"{frame['id']}-{position}")
            with open(path, "wb") as file:
                file.write(data)
            described.append({"type": type_, "path": path, "size": len(data)})
        return {"op": "done", "outputs": described, "delegated": False}

    def _failed(self, frame: dict[str, Any], error: BaseException) -> dict[str, Any]:
        kind = "exception"
        if isinstance(error, ImportFailed):
            kind, error = "import", error.__cause__ or error
        elif isinstance(error, MemoryError):
            kind = "memory"
        elif isinstance(error, _WrongType):
            kind, error = "type", error.problem
        elif isinstance(error, LibraryProblem):
            kind = "import"
        elif isinstance(error, ExecutorError):
            kind = error.kind
        described = describe(error)
        message = described["message"] if isinstance(error, _OWN_ERRORS) else sentence(described)
        if kind == "memory":
            limit = frame.get("memory_mb")
            message = f"out of memory: more than {limit} MB" if limit else "out of memory"
            described["message"] = described["message"] or message
        elif kind == "import" and not isinstance(error, (ExecutorError, LibraryProblem)):
            message = f"cannot import {frame['package']}: {sentence(described)}"
        forget(error)
        return {"op": "error", "kind": kind, "error": described, "message": message}

    def _tidy_up(self) -> None:
        self._environment.restore()
        self._folder.leave()
        self._interrupts.reset_signals()


_OWN_ERRORS = (ExecutorError, LibraryProblem, TypeProblem)
"""Their messages need no name of a class before them."""


class _WrongType(Exception):
    """Marks a value of a wrong type, as opposed to a TypeProblem that the function itself raises."""

    def __init__(self, problem: TypeProblem) -> None:
        self.problem = problem


def decoded_inputs(target: Target, inputs: list[dict[str, Any]]) -> list[Any]:
    """The arguments of a call, by the annotations of the function."""
    codecs = target.inputs
    if len(inputs) != len(codecs):
        raise _WrongType(TypeProblem(f"{target.signature.name}() takes {len(codecs)} inputs, given {len(inputs)}"))
    values: list[Any] = []
    try:
        for codec, one in zip(codecs, inputs):
            values.append(_decode(codec, one))
    except TypeProblem as problem:
        parameter = target.signature.parameters[len(values)]
        raise _WrongType(problem.inside(f"argument {parameter.name}")) from None
    return values


def _decode(codec: Codec, one: dict[str, Any]) -> Any:
    if "parts" not in one:
        return codec.from_plain(decode_plain(input_bytes(one)))
    shape = input_bytes(one) if one.get("data") or one.get("path") else None
    return decode_gathered_by(codec, shape, [input_bytes(part) for part in one["parts"]])


def call_target(target: Target, values: list[Any]) -> Any:
    """Call the function; the values are freed after it, so that their memory is there for the encoded result."""
    result = target.signature.call(target.function, values)
    if type(result) is CoroutineType:
        import asyncio

        result = asyncio.run(result)
    values.clear()
    return result


def _encoded(target: Target, result: Any) -> list[bytes]:
    try:
        return _outputs(target, result)
    except TypeProblem as problem:
        raise _WrongType(problem) from None


def _outputs(target: Target, result: Any) -> list[bytes]:
    codecs = target.outputs
    if not codecs:
        if result is not None:
            raise TypeProblem(f"expected None, given {type(result).__qualname__}", "result")
        return []
    if not target.signature.returns_tuple:
        return [_output(codecs[0], result, "result")]
    if not isinstance(result, tuple) or len(result) != len(codecs):
        given = f"{len(result)} items" if isinstance(result, tuple) else type(result).__qualname__
        raise TypeProblem(f"expected a tuple of {len(codecs)} items, given {given}", "result")
    return [_output(codec, one, f"result[{at}]") for at, (codec, one) in enumerate(zip(codecs, result))]


def _output(codec: Codec, value: Any, path: str) -> bytes:
    try:
        return encode_by(codec, value)
    except TypeProblem as problem:
        raise problem.inside(path) from None
