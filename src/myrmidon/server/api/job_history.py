"""What has happened in jobs: their last runs by name, flaky labels, the timeline of one, and its failures in groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

from msgspec import Struct, json

from myrmidon.model.ids import show_run, show_task
from myrmidon.model.secret_masking import SecretForms
from myrmidon.server.api.common import LAST_ID
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.logs import RunLog, read_range
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.run_errors import shown_errors
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import log, task_request
from myrmidon.store.views import job_history
from myrmidon.store.views.job_history import FailedTask
from myrmidon.wire import job_history as wire
from myrmidon.wire.functions import FunctionError
from myrmidon.wire.job_history import FailureGroup, FailureInfo, JobFailures

ROUTES = Routes()

RUNS = 30
"""Jobs of a name that are shown as bars and looked at for flaky labels."""
MAX_FLAKY_TASKS = 20_000


# ---------------------------------------------------------------- by name


@ROUTES.add("GET", "/api/v1/job-names", READERS, "List names of jobs with their last runs", query=wire.NamesQuery)
async def list_names(context: ServerContext, call: Call) -> wire.JobNames:
    """The names of jobs, each with its last runs."""
    query: wire.NamesQuery = call.query
    scope = await context.groups.scope_of(call)

    by_name = await context.db.read(lambda tx: job_history.newest(tx, group_id=scope))
    return wire.JobNames(
        [
            wire.JobName(
                name=name,
                group=group,
                num_jobs=len(jobs),
                num_failed=sum(job.state == "FAILED" for job in jobs),
                runs=jobs[:RUNS],
            )
            for (name, group), jobs in islice(by_name.items(), query.limit)
        ]
    )


@ROUTES.add(
    "GET",
    "/api/v1/job-names/flaky",
    READERS,
    "List labels that have failed in the last jobs of a name",
    query=wire.FlakyQuery,
)
async def list_flaky(context: ServerContext, call: Call) -> wire.FlakyLabels:
    """Labels of the last jobs of a name that have failed, and on which bots."""
    query: wire.FlakyQuery = call.query
    scope = await context.groups.scope_of(call)

    def read(tx: Tx) -> wire.FlakyLabels:
        ids = _up_to(job_history.newest_of_name(tx, query.name, group_id=scope, before=LAST_ID, n=RUNS))
        return wire.FlakyLabels(len(ids), _flaky(job_history.runs_by_label(tx, ids)))

    return await context.db.read(read)


def _up_to(jobs: Mapping[int, wire.JobRunInfo]) -> list[int]:
    """The first of these jobs that have at most MAX_FLAKY_TASKS tasks together; at least one."""
    totals = accumulate(job.num_tasks for job in jobs.values())
    return [job_id for job_id, total in zip(jobs, totals, strict=True) if total <= MAX_FLAKY_TASKS] or list(jobs)[:1]


def _flaky(by_label: Mapping[str, Sequence[wire.BotRuns]]) -> list[wire.FlakyLabel]:
    found = [
        wire.FlakyLabel(
            label=label,
            num_runs=sum(one.num_runs for one in bots),
            num_failed=sum(one.num_failed for one in bots),
            bots=[one for one in sorted(bots, key=lambda one: -one.num_failed) if one.num_failed],
        )
        for label, bots in by_label.items()
    ]
    return sorted((one for one in found if one.num_failed), key=lambda one: (-one.num_failed, one.label))


# ---------------------------------------------------------------- timeline


@ROUTES.add(
    "GET",
    "/api/v1/jobs/{id}/timeline",
    READERS,
    "Get the times of a job's tasks and its critical path",
    query=wire.TimelineQuery,
)
async def get_timeline(context: ServerContext, call: Call) -> wire.Timeline:
    """When each task of a job waited and ran, and which of them decide when the job ends."""
    query: wire.TimelineQuery = call.query
    job = await get_job(context, call, call.params["id"])
    kind = f"timeline {job.id}"
    after = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else 0

    def read(tx: Tx) -> wire.Timeline:
        path = job_history.critical_path(tx, job.id)
        rows, last = job_history.times(tx, job.id, after=after, n=query.limit, path=set(path))
        return wire.Timeline(
            created_at=job.creation_time,
            ended_at=job.ended_at,
            now=context.now(),
            num_tasks=job.num_tasks,
            rows=rows,
            critical_path=[show_task(task_id) for task_id in path],
            cursor=show_cursor(context.keys.cursor, kind, str(last)) if len(rows) == query.limit else None,
        )

    return await context.db.read(read)


# ---------------------------------------------------------------- failures


MAX_FAILED = 1_000
MAX_GROUPS = 20
MAX_LOGS_COMPARED = 50
"""Failed commands whose logs are read to group them; the rest are grouped by exit code."""
TASKS_PER_GROUP = 50
TAIL_BYTES = 4_096
_MAX_LINE = 400
_EARLIER_JOBS = 30
_ERROR = re.compile(
    r"\b(error|exception|failed|failure|fatal|panic|assert\w*|traceback|not found|denied|cannot|killed)\b",
    re.IGNORECASE,
)
_ERROR_WITH_TEXT = re.compile(r"(error|exception|failure|fatal|panic\w*)\b[^:]*: \S", re.IGNORECASE)
_STYLE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_VARYING = (
    re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b", re.IGNORECASE),
    re.compile(r"\d+(\.\d+)?"),
    re.compile(r"([\"'`])(?:(?!\1).){1,80}\1"),
)


class Failed(Struct):
    """A failed task and what is known of its end; ``tail`` is None if its log was not read."""

    task: FailedTask
    message: str
    error: FunctionError | None
    secret: bytes | None
    tail: str | None = None

    def kind(self) -> tuple[object, ...]:
        """Equal for tasks that have failed alike."""
        if self.error is not None:
            return self.task.state, self.error.type, self.error.place
        return self.task.state, self.task.reason, self.task.exit_code, without_varying(self.message)


@ROUTES.add("GET", "/api/v1/jobs/{id}/failures", READERS, "Get the failures of a job in groups")
async def get_failures(context: ServerContext, call: Call) -> JobFailures:
    """Why a job has failed: its failed tasks, grouped by what they say, largest group first."""
    job = await get_job(context, call, call.params["id"])

    def read(tx: Tx) -> tuple[list[Failed], str | None]:
        return _failed(tx, job.id), _last_success(tx, job.name, job.resource_group_id, job.id)

    failed, last_success = await context.db.read(read)
    silent = [one for one in failed if not one.message][:MAX_LOGS_COMPARED]
    await context.logs.read(lambda tx: _read_tails(tx, silent))
    for one in silent:
        one.message = telling_line(one.tail or "")
    groups: dict[tuple[object, ...], list[Failed]] = {}
    for one in failed:
        groups.setdefault(one.kind(), []).append(one)
    largest = sorted(groups.values(), key=lambda members: -len(members))[:MAX_GROUPS]
    await context.logs.read(lambda tx: _read_tails(tx, [members[0] for members in largest]))
    return JobFailures(
        num_failed=len(failed), groups=[_group(members) for members in largest], last_success=last_success
    )


def _failed(tx: Tx, job_id: int) -> list[Failed]:
    tasks = job_history.failed_tasks(tx, job_id, MAX_FAILED)
    secrets = task_request.secrets(tx, [task.id for task in tasks]) if tasks else {}
    errors = shown_errors(tx, {task.id: task.error for task in tasks})
    known = [(task, errors.get(task.id), secrets.get(task.id)) for task in tasks]
    return [Failed(task, _message(task, error, secret), error, secret) for task, error, secret in known]


def _message(task: FailedTask, error: FunctionError | None, secret: bytes | None) -> str:
    """The exception of a function, or what the run told about its end; masked as its log is."""
    if error is not None:
        return f"{error.type.removeprefix('builtins.')}: {error.message}".removesuffix(": ")
    evidence: Any = json.decode(task.evidence) if task.evidence else {}
    message = evidence.get("message") if isinstance(evidence, dict) else None
    if not isinstance(message, str):
        return ""
    return SecretForms(secret).mask_text(message) if secret else message


def _last_success(tx: Tx, name: str, group_id: int, before: int) -> str | None:
    jobs = job_history.newest_of_name(tx, name, group_id=group_id, before=before, n=_EARLIER_JOBS)
    return next((job.job_id for job in jobs.values() if job.state == "SUCCEEDED"), None)


def _read_tails(tx: Tx, failed: Sequence[Failed]) -> None:
    for one in failed:
        if one.tail is None:
            one.tail = _tail(tx, one.task, one.secret)


def _tail(tx: Tx, task: FailedTask, secret: bytes | None) -> str:
    """The last bytes of both streams of a run, from the beginning of a line on."""
    if not task.run:
        return ""
    run_log = RunLog(task.id, task.run, forms=SecretForms(secret) if secret else None)
    parts = []
    for stream in (log.STDOUT, log.STDERR):
        length = log.info(tx, task.id, task.run, stream).length
        offset = max(length - TAIL_BYTES, 0)
        content = read_range(tx, run_log, streams=(stream,), offset=offset, limit=TAIL_BYTES).content
        parts.append(content.partition(b"\n")[2] if offset else content)
    return b"".join(parts).decode(errors="replace")


def telling_line(tail: str) -> str:
    """The line of a log's end that says most: the last error with a text, else the last error, else the last line."""
    lines = [shown for line in tail.split("\n") if (shown := _STYLE.sub("", line).strip().removeprefix("E   ").strip())]
    for wanted in (_ERROR_WITH_TEXT, _ERROR):
        for line in reversed(lines):
            if wanted.search(line):
                return line[:_MAX_LINE]
    return lines[-1][:_MAX_LINE] if lines else ""


def without_varying(line: str) -> str:
    """The line without numbers, ids and quoted texts, which differ between failures that are the same."""
    for pattern in _VARYING:
        line = pattern.sub("#", line)
    return line


def _group(members: Sequence[Failed]) -> FailureGroup:
    first = members[0]
    return FailureGroup(
        state=first.task.state,
        reason=first.task.reason,
        exit_code=first.task.exit_code,
        message=first.message,
        num_tasks=len(members),
        tasks=[_failure(one.task) for one in members[:TASKS_PER_GROUP]],
        tail=first.tail or "",
        error=first.error,
    )


def _failure(task: FailedTask) -> FailureInfo:
    return FailureInfo(
        label=task.label,
        task_id=show_task(task.id),
        run=show_run(task.id, task.run) if task.run else None,
        bot_id=task.bot_id,
        exit_code=task.exit_code,
        completed_at=task.completed_at,
    )
