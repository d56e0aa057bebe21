"""The client of one server: functions, jobs, tasks and their output. All other calls are methods of ``client.api``.

Answers are the structs of wire/, which the server's route table declares too. Ids are strings as the server prints
them; times are integers, microseconds UTC. Calls that change something send an idempotency key, given or generated, and
send the same one in every retry (transport.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from myrmidon.sdk.api.calls import Api
from myrmidon.sdk.api.tasks import MAX_WAIT_S
from myrmidon.sdk.function_client import AUTO, FunctionClient, FunctionMethods
from myrmidon.sdk.jobs import Job
from myrmidon.sdk.resource_groups import ResourceGroups
from myrmidon.sdk.server_discovery import find_endpoint
from myrmidon.sdk.transport import Transport
from myrmidon.sdk.wait_reasons import WaitReasons
from myrmidon.wire.jobs import JobCheck, JobList
from myrmidon.wire.logs import Ended, LogBytes
from myrmidon.wire.tasks import Cancelled, RerunAnswer, TaskInfo, TaskList, Waited


class Client(FunctionMethods):
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
        transport = found_server(server, token) if server is None or isinstance(server, str) else server
        self.api = Api(transport)
        self.functions = FunctionClient(self.api, group=group, code=code)
        self.resource_groups = ResourceGroups(self.api)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Send the calls that are not sent yet, and close the connections. What was sent goes on."""
        self.functions.close()
        self.api.transport.close()

    # -- jobs -----------------------------------------------------------------------------------------------

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
        stored = self.api.submit_job(document, parameters=parameters, group=group, resume=resume, key=key)
        return self.job(stored.job_id)

    def check_job(
        self,
        document: Mapping[str, Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        group: str | None = None,
        resume: bool = False,
    ) -> JobCheck:
        """Validate a graph document and match it with the fleet; nothing is stored."""
        return self.api.check_job(document, parameters=parameters, group=group, resume=resume)

    def job(self, job_id: str) -> Job:
        """The job with this id or external id. Asks the server only when a method is called."""
        return Job(self.api, job_id)

    def jobs(self, **filters: Any) -> JobList:
        """One page of jobs. Filters: state, name, tag, group, start, end, mine, limit, cursor."""
        return self.api.jobs(**filters)

    # -- tasks ----------------------------------------------------------------------------------------------

    def tasks(self, **filters: Any) -> TaskList:
        """One page. Filters: state, tag, name, pool, bot, group, start, end, sort, limit, cursor."""
        return self.api.tasks(**filters)

    def task(self, task_id: str) -> TaskInfo:
        """The task's request, result and runs."""
        return self.api.task(task_id)

    def wait(self, task_ids: Sequence[str], *, all_of: bool = False, wait_s: int = MAX_WAIT_S) -> Waited:
        """The states of these tasks, once any (or, with all_of, every one) has ended, or after wait_s."""
        return self.api.wait(task_ids, all_of=all_of, wait_s=wait_s)

    def cancel(self, task_id: str, *, kill_running: bool, key: str | None = None) -> Cancelled:
        return self.api.cancel(task_id, kill_running=kill_running, key=key)

    def rerun(self, task_id: str, *, force: bool = False, cascade: bool = False, key: str | None = None) -> RerunAnswer:
        return self.api.rerun(task_id, force=force, cascade=cascade, key=key)

    def log(self, task_id: str, *, run: int | None = None, stream: str = "both") -> Iterator[bytes]:
        """The log so far, in chunks. ``stream`` is stdout, stderr, or both: stdout, then stderr."""
        return self.api.log(task_id, run=run, stream=stream)

    def follow(self, task_id: str, *, run: int | None = None, stream: str = "both") -> Iterator[LogBytes | Ended]:
        """The log as it is written, then the end of the task or run. Resumes after a server restart."""
        with WaitReasons(self.api).looking_at(task_id):
            yield from self.api.follow(task_id, run=run, stream=stream)


def found_server(server: str | None, token: str | None) -> Transport:
    """The server and the token that the arguments, the environment or the files of this user name."""
    endpoint = find_endpoint(server, token)
    return Transport(endpoint.server, endpoint.token, how_to_log_in=endpoint.how_to_log_in)
