"""The client of one server: functions, jobs, and a method for each call of the API, in the files of api/.

Answers are the structs of wire/, which the server's route table declares too. Ids are strings as the server prints
them; times are integers, microseconds UTC. Calls that change something send an idempotency key, given or generated, and
send the same one in every retry (transport.py). What runs functions is imported with the first call of one: the command
line makes a client for every command.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from myrmidon.sdk.api.administration import GroupCalls, QueueCalls, ServerCalls, TokenCalls, WebhookCalls
from myrmidon.sdk.api.any_path import AnyPathCalls
from myrmidon.sdk.api.bots import BotCalls
from myrmidon.sdk.api.caller import segment
from myrmidon.sdk.api.jobs import JobCalls, job_body
from myrmidon.sdk.api.logs import LogCalls
from myrmidon.sdk.api.overview import OverviewCalls, SessionCalls
from myrmidon.sdk.api.tasks import TaskCalls
from myrmidon.sdk.api.values import SharedValueCalls, ValueCalls
from myrmidon.sdk.jobs import Job
from myrmidon.sdk.server_discovery import find_endpoint
from myrmidon.sdk.transport import Transport, new_key
from myrmidon.sdk.wait_reasons import WaitReasons
from myrmidon.wire.jobs import JobSubmitted
from myrmidon.wire.logs import Ended, LogBytes

if TYPE_CHECKING:
    from concurrent.futures import Future

    from myrmidon.sdk.job_sender import JobSender
    from myrmidon.sdk.mapping import Mapper, MapperOfAll
    from myrmidon.sdk.new_job import NewJob
    from myrmidon.sdk.pending_calls import PendingCalls
    from myrmidon.sdk.remote_executor import RemoteExecutor
    from myrmidon.sdk.shared import Shared


AUTO: Final = "auto"
"""Send the modules of the program that are not installed (code_zip.py)."""
A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")


class JobOptions(TypedDict, total=False):
    """The options of ``new_job``; the last three are for functions that do not choose their own."""

    id: str | None
    code: str | Path | None
    group: str | None
    fail_fast: bool
    deadline_s: int | None
    tags: list[str] | None
    metadata: Mapping[str, str] | None
    requirements: Sequence[str] | str | os.PathLike[str] | None
    python: str | None
    environment: str | None


class Client(
    TaskCalls,
    LogCalls,
    JobCalls,
    ValueCalls,
    SharedValueCalls,
    BotCalls,
    ServerCalls,
    QueueCalls,
    GroupCalls,
    TokenCalls,
    WebhookCalls,
    AnyPathCalls,
    OverviewCalls,
    SessionCalls,
):
    """Calls one server with one token; both are found as the command line finds them, unless they are given.

    ``group`` is the resource group of the jobs of functions, ``code`` the code that is sent with them
    (docs/functions.md). Use it in a with statement: its end sends what is not sent yet and closes the connections.
    """

    def __init__(
        self,
        server: str | Transport | None = None,
        token: str | None = None,
        *,
        group: str | None = None,
        code: str | Path = AUTO,
    ) -> None:
        super().__init__(found_server(server, token) if server is None or isinstance(server, str) else server)
        self._group = group
        self._code = code
        self._lock = threading.Lock()
        self._pending: PendingCalls | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Send the calls that are not sent yet, and close the connections. What was sent goes on."""
        with self._lock:
            calls, self._pending = self._pending, None
        if calls is not None:
            calls.close()
        self.transport.close()

    # -- functions ------------------------------------------------------------------------------------------

    @property
    def _calls(self) -> PendingCalls:
        """What submits calls and waits for results; started when it is first needed."""
        from myrmidon.sdk.code_packages import CodePackages
        from myrmidon.sdk.pending_calls import PendingCalls
        from myrmidon.sdk.result_stream import ResultStream

        with self._lock:
            if self._pending is None:
                self._pending = PendingCalls(self._sender(None), CodePackages(self._code), ResultStream(self))
            return self._pending

    def _sender(self, group: str | None) -> JobSender:
        from myrmidon.sdk.job_sender import JobSender

        return JobSender(self, self._group if group is None else group)

    def new_job(self, name: str = "", **options: Unpack[JobOptions]) -> NewJob:
        """A job to be built in a with block: calls of task functions inside of it become the graph.

        With an ``id`` the job is resumed: the same graph again is the same job, and a changed one takes over the
        results of the calls that have not changed. The other options are ``code``, ``group``, ``fail_fast`` (default:
        true), ``deadline_s``, ``tags``, ``metadata``, ``requirements``, ``python`` and ``environment``.
        """
        from myrmidon.functions.task_options import TaskOptions
        from myrmidon.sdk.new_job import NewJob

        if unknown := options.keys() - JobOptions.__annotations__.keys():
            raise TypeError(f"new_job has no option {', '.join(sorted(unknown))}")
        fields = {name: options.get(name) for name in ("deadline_s", "tags", "metadata")}
        fields["external_id"] = options.get("id")
        chosen = {name: options.get(name) for name in ("requirements", "python", "environment")}
        code = options.get("code")
        return NewJob(
            self._sender(options.get("group")),
            self._calls.stream,
            name,
            code=self._code if code is None else code,
            fail_fast=options.get("fail_fast", True),
            fields={key: value for key, value in fields.items() if value is not None},
            defaults=TaskOptions().changed(**{key: value for key, value in chosen.items() if value is not None}),
        )

    @overload
    def submit(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]: ...
    @overload
    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]: ...
    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function on a bot; the future of its result. Raises at once if an argument has the wrong type."""
        return self._calls.submit(function, args, kwargs)

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

        The first 10,000 calls are submitted at once, the others as results are taken. A call that fails raises
        TaskFailed when its result is reached; the others go on. ``map_with`` changes all that.
        """
        return self.map_with()(function, items, *args, **kwargs)

    @overload
    def map_with(
        self, *, return_exceptions: Literal[True], window: int = ..., progress: bool = ..., order_outputs: bool = ...
    ) -> MapperOfAll: ...
    @overload
    def map_with(
        self,
        *,
        return_exceptions: Literal[False] = ...,
        window: int = ...,
        progress: bool = ...,
        order_outputs: bool = ...,
    ) -> Mapper: ...
    def map_with(self, **options: Any) -> Any:
        """``map`` with options: ``client.map_with(order_outputs=False)(function, items, ...)``.

        ``window``: how many calls there are at most whose results were not taken, 10,000 by default. ``progress``: show
        a bar in a terminal or notebook. ``return_exceptions``: give the errors of calls as results.
        ``order_outputs=False``: give results as calls end.
        """
        from myrmidon.sdk.mapping import MapOptions, Mapper

        return Mapper(self._calls, MapOptions(**options))

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
        from myrmidon.sdk.shared import share

        return share(self._sender(group), value, type, localities)

    def executor(self) -> RemoteExecutor:
        """A concurrent.futures.Executor whose workers are bots."""
        from myrmidon.sdk.remote_executor import RemoteExecutor

        return RemoteExecutor(self._calls)

    def as_completed(self, futures: Iterable[Future[R]], timeout: float | None = None) -> Iterator[Future[R]]:
        """The futures of ``submit`` in the order in which they end."""
        from concurrent.futures import as_completed

        return as_completed(futures, timeout)

    # -- jobs and tasks -------------------------------------------------------------------------------------

    def submit_job(
        self,
        document: Mapping[str, Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        group: str | None = None,
        resume: bool = False,
        key: str | None = None,
    ) -> Job:
        """Submit a graph document (docs/jobs.md). One with an ``external_id`` may be submitted again: it is the same
        job, unless the document has changed; with ``resume`` a changed one supersedes it and runs what has changed."""
        body = job_body(document, parameters, group, resume=resume)
        external_id = document.get("external_id")
        method, path = ("PUT", f"jobs/{segment(external_id)}") if external_id else ("POST", "jobs")
        stored = self.call(method, path, JobSubmitted, body=body, key=key or new_key())
        return Job(self, stored.job_id, stored.task_ids)

    def job(self, job_id: str) -> Job:
        """The job with this id or external id. Asks the server only when a method is called."""
        return Job(self, job_id)

    def follow(self, task_id: str, *, run: int | None = None, stream: str = "both") -> Iterator[LogBytes | Ended]:
        """The log as it is written, then the end of the task or run. Resumes after a server restart.

        From time to time it says why the task does not run. A line of the log says how many bytes are missing where
        some are.
        """
        with WaitReasons(self).looking_at(task_id):
            yield from self._follow(task_id, run=run, stream=stream)


def found_server(server: str | None, token: str | None) -> Transport:
    """The server and the token that the arguments, the environment or the files of this user name."""
    endpoint = find_endpoint(server, token)
    return Transport(endpoint.addresses, endpoint.token, how_to_log_in=endpoint.how_to_log_in)
