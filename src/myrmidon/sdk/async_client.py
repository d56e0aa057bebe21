"""AsyncClient: the client for programs that use asyncio.

Calls of the server run in threads of the event loop's executor; building a graph does not wait for anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from myrmidon.sdk.client import AUTO, Client, JobOptions
from myrmidon.sdk.errors import WaitedTooLong
from myrmidon.sdk.mapping import AsyncMapper, AsyncMapperOfAll
from myrmidon.sdk.new_job import NewJob
from myrmidon.sdk.shared import Shared
from myrmidon.sdk.task_failed import TaskFailed
from myrmidon.sdk.transport import Transport
from myrmidon.wire import jobs as wire

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

_STEP_S = 10.0


class AsyncClient:
    """The methods of Client as coroutines; ``client`` is the synchronous one."""

    def __init__(
        self,
        server: str | Transport | None = None,
        token: str | None = None,
        *,
        group: str | None = None,
        code: str | Path = AUTO,
    ) -> None:
        self.client = Client(server, token, group=group, code=code)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send the calls that are not sent yet, and close the connections."""
        await asyncio.to_thread(self.client.close)

    def new_job(self, name: str = "", **options: Unpack[JobOptions]) -> AsyncNewJob:
        """A job to be built in an ``async with`` block."""
        return AsyncNewJob(self.client.new_job(name, **options))

    @overload
    async def submit(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function on a bot and wait for its result. Use ``asyncio.gather`` for several at once."""
        return await asyncio.wrap_future(self.client.submit(function, *args, **kwargs))

    @overload
    def map(
        self,
        function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
        items: Iterable[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncIterator[R]: ...
    @overload
    def map(
        self, function: Callable[Concatenate[A, P], R], items: Iterable[A], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[R]: ...
    def map(self, function: Callable[..., Any], items: Iterable[Any], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """As ``Client.map``."""
        return self.map_with()(function, items, *args, **kwargs)

    @overload
    def map_with(
        self, *, return_exceptions: Literal[True], window: int = ..., progress: bool = ..., order_outputs: bool = ...
    ) -> AsyncMapperOfAll: ...
    @overload
    def map_with(
        self,
        *,
        return_exceptions: Literal[False] = ...,
        window: int = ...,
        progress: bool = ...,
        order_outputs: bool = ...,
    ) -> AsyncMapper: ...
    def map_with(self, **options: Any) -> Any:
        """As ``Client.map_with``."""
        return AsyncMapper(self.client.map_with(**options))

    async def share(
        self,
        value: T,
        type: Any = None,  # noqa: A002 - what it is for callers, who name it
        *,
        group: str | None = None,
        localities: Sequence[str] = (),
    ) -> Shared[T]:
        """As ``Client.share``; use it as ``async with await client.share(value) as shared``."""
        return await asyncio.to_thread(self.client.share, value, type, group=group, localities=localities)


class AsyncNewJob:
    """The methods of NewJob as coroutines; ``job`` is the synchronous one."""

    def __init__(self, job: NewJob) -> None:
        self.job = job
        self.reduce = job.reduce
        self.command = job.command
        self.map = job.map

    async def __aenter__(self) -> Self:
        self.job.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.job.end_block(kind):
            await asyncio.to_thread(self.job.submit)

    @property
    def id(self) -> str:
        return self.job.id

    @overload
    async def result(self, handle: Coroutine[Any, Any, T]) -> T: ...
    @overload
    async def result(self, handle: T) -> T: ...
    async def result(self, handle: Any) -> Any:
        """The value of a call, once it exists. Limit the time with ``asyncio.timeout``."""
        return await self.job.async_result(handle)

    async def share(self, handle: T) -> Shared[T]:
        """As ``NewJob.share``."""
        return await asyncio.to_thread(self.job.share, handle)

    async def wait(self) -> wire.JobInfo:
        """The job once it has ended, however it ends. Limit the time with ``asyncio.timeout``."""
        while True:
            with contextlib.suppress(WaitedTooLong):  # a thread for ever could not be cancelled
                return await asyncio.to_thread(self.job.wait, _STEP_S)

    async def info(self) -> wire.JobInfo:
        return await asyncio.to_thread(self.job.info)

    async def errors(self) -> dict[str, list[TaskFailed]]:
        return await asyncio.to_thread(self.job.errors)

    async def cancel(self) -> None:
        await asyncio.to_thread(self.job.cancel)

    async def rerun(self, *, failed: bool = True, code: Literal["pinned", "new"] = "pinned") -> None:
        await asyncio.to_thread(self.job.rerun, failed=failed, code=code)
