"""``client.executor()``: a concurrent.futures.Executor whose workers are bots."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import Any, ParamSpec, TypeVar

from myrmidon.functions import dynamic_call
from myrmidon.functions.task_function import TaskFunction, task, task_function_of
from myrmidon.functions.types import TypeProblem, module_name
from myrmidon.sdk.pending_calls import PendingCalls, RemoteFuture

P = ParamSpec("P")
T = TypeVar("T")

_plain_call = task(dynamic_call.call)


class RemoteExecutor(Executor):
    """Runs functions on bots. Typed functions get typed values; others take and return plain objects."""

    def __init__(self, calls: PendingCalls) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._futures: set[RemoteFuture[Any]] = set()
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = self._submit(fn, args, kwargs)
            self._futures.add(future)
        future.add_done_callback(self._forget)
        return future

    def _submit(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteFuture[Any]:
        while isinstance(function, functools.partial):
            args, kwargs, function = (*function.args, *args), {**function.keywords, **kwargs}, function.func
        if _is_typed(function):
            return self._calls.submit(function, args, kwargs)
        module, name = dynamic_call.name_of(function)
        call = _call_of(module, name)
        arguments = dynamic_call.pack_plain([args, kwargs])
        return self._calls.submit(call, (module_name(module), name, arguments), {}, _plain_result)

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._is_shut_down = True
            left = list(self._futures)
        if cancel_futures:
            for future in reversed(left):  # the last ones have probably not started
                future.cancel()
        if wait:
            _wait_for(left)


def _wait_for(futures: list[RemoteFuture[Any]]) -> None:
    wait(futures)


@functools.lru_cache(maxsize=1_024)
def _is_typed(function: Any) -> bool:
    try:
        return bool(task_function_of(function)[0].signature)
    except TypeProblem:
        return False


@functools.lru_cache(maxsize=1_024)
def _call_of(module: str, name: str) -> TaskFunction[Any, Any]:
    """The call of a function without annotations, with its name as the label and the code of its module."""
    made = _plain_call.options(label=name[:200])
    made.code_module = module
    return made


def _plain_result(values: list[Any]) -> Any:
    return dynamic_call.unpack_plain(values[0])
