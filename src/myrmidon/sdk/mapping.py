"""``client.map``: calls of one function for many items, with a limited number of them submitted at a time."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from myrmidon.sdk.job_results import how_to_watch
from myrmidon.sdk.pending_calls import CALLS_PER_JOB, PendingCalls, RemoteFuture
from myrmidon.sdk.progress import progress_bar

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")

WINDOW: Final = 10_000
_REFILLS: Final = 20
"""A window is filled again when this part of it is free."""

Done = Callable[[RemoteFuture[Any]], object]


class MapOptions(NamedTuple):
    """How results are taken. ``window``: how many calls are submitted at most whose results were not taken yet."""

    window: int = WINDOW
    progress: bool = False
    return_exceptions: bool = False
    order_outputs: bool = True


class Mapper:
    """``client.map`` with options."""

    def __init__(self, calls: PendingCalls, options: MapOptions) -> None:
        self._calls = calls
        self._options = options

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
        items: Iterable[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Iterator[R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, P], R], items: Iterable[A], *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[R]: ...
    def __call__(self, function: Callable[..., Any], items: Iterable[Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        return self.submit(function, items, args, kwargs).results()

    def submit(
        self, function: Callable[..., Any], items: Iterable[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> MappedCalls:
        return MappedCalls(self._calls, function, items, args, kwargs, self._options)


class AsyncMapper:
    """The same for ``AsyncClient``."""

    def __init__(self, mapper: Mapper) -> None:
        self._mapper = mapper

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
        items: Iterable[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncIterator[R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, P], R], items: Iterable[A], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[R]: ...
    def __call__(
        self, function: Callable[..., Any], items: Iterable[Any], *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        return self._mapper.submit(function, items, args, kwargs).async_results()


class MapperOfAll(Protocol):
    """The type of a mapper whose results may be errors."""

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
        items: Iterable[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Iterator[R | Exception]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, P], R], items: Iterable[A], *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[R | Exception]: ...


class AsyncMapperOfAll(Protocol):
    """The same for ``AsyncClient``."""

    @overload
    def __call__(
        self,
        function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
        items: Iterable[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncIterator[R | Exception]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[A, P], R], items: Iterable[A], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[R | Exception]: ...


class MappedCalls:
    """The calls of one map. The first ones are submitted at once, the others as results are taken."""

    def __init__(
        self,
        calls: PendingCalls,
        function: Callable[..., Any],
        items: Iterable[Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: MapOptions,
    ) -> None:
        if options.window < 1:
            raise ValueError(f"window is {options.window}; it must be at least 1")
        self._submit = partial(calls.map, function, args=args, kwargs=kwargs)
        self._left = iter(items)
        self._total = len(items) if isinstance(items, Sized) else None
        self._options = options
        self._open: deque[RemoteFuture[Any]] = deque()
        self._num_open = 0
        self._on_done: Done | None = None
        self._fill()

    def _fill(self) -> None:
        room = self._options.window - self._num_open
        if self._num_open and room < self._options.window // _REFILLS:
            return
        while room > 0 and (chunk := list(islice(self._left, min(CALLS_PER_JOB, room)))):
            futures = self._submit(chunk)
            room -= len(futures)
            self._num_open += len(futures)
            self._wait_for(futures)

    def _wait_for(self, futures: Iterable[RemoteFuture[Any]]) -> None:
        """Without ``_on_done`` they are taken in order."""
        if self._on_done is None:
            self._open.extend(futures)
            return
        for future in futures:
            future.add_done_callback(self._on_done)  # type: ignore[arg-type] # it gets what it was added to

    def _in_order_of_ends(self, put: Done) -> None:
        """From now on give each future to ``put`` when it has ended."""
        self._on_done = put
        futures, self._open = self._open, deque()
        self._wait_for(futures)

    def _taken(self) -> None:
        self._num_open -= 1
        self._fill()

    def _outcome(self, future: RemoteFuture[Any]) -> Any:
        error = future.exception()
        if error is None:
            return future.result()
        if self._options.return_exceptions:
            return error
        raise error

    @contextmanager
    def _shown(self) -> Iterator[Callable[[], None]]:
        """Called in the block for each result, which a terminal or notebook shows if that is wanted."""
        if not self._options.progress:
            yield lambda: None
            return
        with progress_bar("calls", self._total) as advance:
            yield advance

    def results(self) -> Iterator[Any]:
        """The results. Ctrl-C leaves the calls running and says so."""
        ended: SimpleQueue[RemoteFuture[Any]] = SimpleQueue()
        if not self._options.order_outputs:
            self._in_order_of_ends(ended.put)
        job_id: str | None = None
        with self._shown() as advance:
            while self._num_open:
                try:
                    if self._options.order_outputs:
                        future = self._open[0]
                        job_id = future.job_id
                        future.exception()  # waits
                        self._open.popleft()
                    else:
                        future = ended.get()
                except KeyboardInterrupt:
                    sys.stderr.write(how_to_watch([job_id] if job_id is not None else []))
                    raise
                self._taken()
                advance()
                yield self._outcome(future)

    async def async_results(self) -> AsyncIterator[Any]:
        """The results, for a program that uses asyncio."""
        ended: asyncio.Queue[RemoteFuture[Any]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        if not self._options.order_outputs:
            self._in_order_of_ends(lambda future: loop.call_soon_threadsafe(ended.put_nowait, future))
        with self._shown() as advance:
            while self._num_open:
                if self._options.order_outputs:
                    future = self._open.popleft()
                    with suppress(Exception):
                        await asyncio.wrap_future(future)
                else:
                    future = await ended.get()
                self._taken()
                advance()
                yield self._outcome(future)
