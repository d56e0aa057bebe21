"""The part of Client that runs Python functions: jobs from calls, single calls, and an executor.

What they need is imported with the first of them: the command line makes a client for every command.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from concurrent.futures import Future

    from myrmidon.sdk.api.calls import Api
    from myrmidon.sdk.executor import RemoteExecutor
    from myrmidon.sdk.function_calls import FunctionCalls, RemoteFuture
    from myrmidon.sdk.new_job import NewJob
    from myrmidon.sdk.shared import Shared

AUTO: Final = "auto"
"""Send the modules of the program that are not installed (code_zip.py)."""
A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


class FunctionClient:
    """Runs functions for a client. Nothing is started before the first call."""

    def __init__(self, api: Api, *, group: str | None = None, code: str | Path = AUTO) -> None:
        self._api = api
        self._group = group
        self._code = code
        self._lock = threading.Lock()
        self._calls: FunctionCalls | None = None

    def new_job(
        self,
        name: str = "",
        *,
        code: str | Path | None,
        group: str | None,
        fail_fast: bool,
        fields: Mapping[str, Any],
        environment: Mapping[str, Any] | None = None,
    ) -> NewJob:
        from myrmidon.functions.task_options import TaskOptions
        from myrmidon.sdk.new_job import NewJob

        return NewJob(
            self._api,
            name,
            code=self._code if code is None else code,
            group=self._group if group is None else group,
            fail_fast=fail_fast,
            fields=_without_none(fields),
            defaults=TaskOptions().changed(**_without_none(environment or {})),
        )

    @property
    def calls(self) -> FunctionCalls:
        from myrmidon.sdk.code_packages import CodePackages
        from myrmidon.sdk.function_calls import FunctionCalls
        from myrmidon.sdk.function_server import FunctionServer

        with self._lock:
            if self._calls is None:
                server = FunctionServer(self._api, self._group)
                self._calls = FunctionCalls(server, CodePackages(self._code))
            return self._calls

    def share(self, value: T, annotation: Any, *, group: str | None, localities: Sequence[str]) -> Shared[T]:
        from myrmidon.sdk.function_server import FunctionServer
        from myrmidon.sdk.shared import share

        server = FunctionServer(self._api, self._group if group is None else group)
        return share(server, value, annotation, localities)

    def executor(self) -> RemoteExecutor:
        from myrmidon.sdk.executor import RemoteExecutor

        return RemoteExecutor(self.calls)

    def results(self, futures: list[RemoteFuture[R]]) -> Iterator[R]:
        """The results in order. Ctrl-C leaves the tasks running and says so."""
        try:
            for future in futures:
                yield future.wait_for_result()
        except KeyboardInterrupt:
            jobs = {future.job_id: None for future in futures if future.job_id and not future.done()}
            from myrmidon.sdk.job_results import how_to_watch

            sys.stderr.write(how_to_watch([job for job in jobs if job is not None]))
            raise

    def close(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, None
        if calls is not None:
            calls.close()


def _without_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


class FunctionMethods:
    """The methods of Client for Python functions. ``functions`` does the work."""

    functions: FunctionClient

    def new_job(
        self,
        name: str = "",
        *,
        id: str | None = None,  # noqa: A002 - what people write
        code: str | Path | None = None,
        group: str | None = None,
        fail_fast: bool = True,
        deadline_s: int | None = None,
        tags: list[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        requirements: Sequence[str] | str | os.PathLike[str] | None = None,
        python: str | None = None,
        environment: str | None = None,
    ) -> NewJob:
        """A job to be built in a with block: calls of task functions inside of it become the graph.

        With an ``id`` the job is resumed: the same graph again is the same job, and a changed one takes over the
        results of the calls that have not changed. ``requirements``, ``python`` and ``environment`` are for the
        functions that do not choose their own.
        """
        fields = {"external_id": id, "deadline_s": deadline_s, "tags": tags, "metadata": metadata}
        chosen = {"requirements": requirements, "python": python, "environment": environment}
        return self.functions.new_job(
            name, code=code, group=group, fail_fast=fail_fast, fields=fields, environment=chosen
        )

    @overload
    def submit(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]: ...
    @overload
    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function on a bot; the future of its result. Raises at once if an argument has the wrong type."""
        return self.functions.calls.submit(function, args, kwargs)

    @overload
    def map(
        self,
        function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
        items: Iterable[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Iterator[R]: ...
    @overload
    def map(
        self, function: Callable[Concatenate[A, P], R], items: Iterable[A], *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[R]: ...
    def map(self, function: Callable[..., Any], items: Iterable[Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Call a function on bots for each item, with the same further arguments; the results in order.

        The calls are submitted at once. A call that fails raises TaskFailed when its result is reached; the others go
        on.
        """
        return self.functions.results(self.functions.calls.map(function, items, args, kwargs))

    def share(
        self,
        value: T,
        type: Any = None,  # noqa: A002 - what it is for callers, who name it
        *,
        group: str | None = None,
        localities: Sequence[str] = (),
    ) -> Shared[T]:
        """Store a value once, for any number of calls of task functions; ``drop`` ends that.

        ``type`` is its annotation; default: that of the value and its first items. Tasks that read it run on a bot with
        one of the addresses ``localities`` if such a bot is free.
        """
        return self.functions.share(value, type, group=group, localities=localities)

    def executor(self) -> RemoteExecutor:
        """A concurrent.futures.Executor whose workers are bots."""
        return self.functions.executor()

    def as_completed(self, futures: Iterable[Future[R]], timeout: float | None = None) -> Iterator[Future[R]]:
        """The futures of ``submit`` in the order in which they end."""
        from concurrent.futures import as_completed

        return as_completed(futures, timeout)
