"""Renders stored tasks and runs as messages of Swarming's API v1.

The data of a page is read in a fixed number of statements, however many tasks it has. A deduplicated task shows the run
of the task that it was deduplicated from, as in v1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from msgspec import Struct, json

from myrmidon.model.ids import Micros, show_run, show_task
from myrmidon.model.states import RunState, TaskState
from myrmidon.model.task_request import FilesRef, Properties, Slice, properties_from_json
from myrmidon.model.task_result import START_FAILED, TaskResult, TaskRun
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1.encoding import (
    STATE_NAMES,
    as_object,
    encode_bytes,
    int64,
    optional_timestamp,
    timestamp,
    user_identity,
)
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import server_version, task_request, task_result, task_run
from myrmidon.store.tables.task_request import RequestRow, SliceRow
from myrmidon.store.views import run_details
from myrmidon.store.views.run_details import BotAtRun
from myrmidon.wire.tasks import RunStats

REDACTED = encode_bytes(b"<REDACTED>")
MAX_CHILDREN = 1000
_UNKNOWN_EXIT_CODE = -1
"""The exit code of a command that was killed and reported none."""
_START_FAILED_EXIT_CODE = 1
"""The exit code of a command that could not be started; natively it is that of a shell, 126 or 127."""


# ---------------------------------------------------------------- requests


def _slice(row: SliceRow) -> Slice:
    return Slice(
        properties=properties_from_json(row.properties),
        expiration_s=row.expiration // SECOND,
        wait_for_capacity=bool(row.wait_for_capacity),
    )


def show_request(row: RequestRow, slices: Sequence[Slice], *, has_secret: bool) -> v1.TaskRequest:
    """A stored request. ``properties`` repeats the first slice, for clients that do not support slices."""
    shown = [show_slice(one, has_secret=has_secret) for one in slices]
    parent = show_run(row.parent_task_id, row.parent_run or 0) if row.parent_task_id is not None else None
    return v1.TaskRequest(
        authenticated=user_identity(row.authenticated),
        bot_ping_tolerance_secs=int64(row.lease // SECOND),
        created_ts=timestamp(row.created_at),
        expiration_secs=int64(sum(one.expiration_s for one in slices)),
        name=row.name,
        parent_task_id=parent,
        priority=int64(row.priority),
        properties=shown[0].properties if shown else None,
        realm=as_object(row.metadata).get("realm") if row.metadata != "{}" else None,
        service_account=row.service_account,
        tags=json.decode(row.tags, type=list[str]),
        task_id=show_task(row.id),
        task_slices=shown,
        user=row.user_name,
    )


def show_slice(task_slice: Slice, *, has_secret: bool) -> v1.TaskSlice:
    return v1.TaskSlice(
        expiration_secs=int64(task_slice.expiration_s),
        properties=show_properties(task_slice.properties, has_secret=has_secret),
        wait_for_capacity=task_slice.wait_for_capacity,
    )


def show_properties(properties: Properties, *, has_secret: bool) -> v1.TaskProperties:
    return v1.TaskProperties(
        caches=[v1.CacheEntry(name=cache.name, path=cache.path) for cache in properties.caches],
        cas_input_root=show_files(properties.inputs),
        command=properties.command,
        dimensions=[
            v1.StringPair(key=key, value=value) for key, values in properties.dimensions.items() for value in values
        ],
        env=[v1.StringPair(key=key, value=value) for key, value in properties.env.items()],
        env_prefixes=[v1.StringListPair(key=key, value=value) for key, value in properties.env_prefixes.items()],
        execution_timeout_secs=int64(ceil(properties.execution_timeout_s)),
        grace_period_secs=int64(properties.grace_period_s),
        idempotent=properties.idempotent,
        inputs_ref=_isolated(properties.inputs),
        io_timeout_secs=int64(ceil(properties.io_timeout_s or 0)),
        outputs=properties.outputs,
        relative_cwd=properties.relative_cwd or None,
        secret_bytes=REDACTED if has_secret else None,
    )


def show_files(files: FilesRef | None) -> v1.CASReference | None:
    if files is None:
        return None
    return v1.CASReference(
        cas_instance=files.namespace, digest=v1.Digest(hash=files.digest, size_bytes=int64(files.size))
    )


def _isolated(files: FilesRef | None) -> v1.FilesRef | None:
    return v1.FilesRef(isolated=files.digest, namespace=files.namespace) if files is not None else None


def requests(tx: Tx, ids: Sequence[int]) -> list[v1.TaskRequest]:
    """Requests of tasks, in the order of the ids, without those that do not exist."""
    rows, slices = task_request.read(tx, ids), task_request.slices(tx, ids)
    with_secret = task_request.with_secret(tx, ids)
    return [
        show_request(rows[i], [_slice(row) for row in slices.get(i, [])], has_secret=i in with_secret)
        for i in ids
        if i in rows
    ]


# ---------------------------------------------------------------- results


class Facts(Struct, frozen=True, kw_only=True):
    """The stored data of the tasks of a page, by task id or by (task id, run number)."""

    tasks: Mapping[int, TaskResult]
    requests: Mapping[int, RequestRow]
    runs: Mapping[int, list[TaskRun]]
    bots: Mapping[tuple[int, int], BotAtRun]
    stats: Mapping[tuple[int, int], RunStats]
    children: Mapping[int, list[int]]
    versions: Sequence[tuple[Micros, str]]


def load_facts(tx: Tx, ids: Sequence[int], *, stats: bool) -> Facts:
    tasks = task_result.read(tx, ids)
    sources = {task.deduped_from for task in tasks.values() if task.deduped_from is not None}
    with_runs = sorted({i for i, task in tasks.items() if task.run_number} | sources)
    runs: dict[int, list[TaskRun]] = {}
    for run in task_run.read(tx, with_runs) if with_runs else ():
        runs.setdefault(run.task_id, []).append(run)
    # Tasks with many children are read one by one: children() has no limit per task.
    few = [i for i, task in tasks.items() if 0 < task.num_children <= MAX_CHILDREN]
    many = [i for i, task in tasks.items() if task.num_children > MAX_CHILDREN]
    return Facts(
        tasks=tasks,
        requests=task_request.read(tx, ids),
        runs=runs,
        bots=run_details.bots_of_runs(tx, with_runs),
        stats=run_details.stats(tx, with_runs) if stats else {},
        children=run_details.children(tx, few) | {i: task_request.children(tx, i, n=MAX_CHILDREN) for i in many},
        versions=server_version.read(tx),
    )


def results(tx: Tx, ids: Sequence[int], *, stats: bool) -> list[v1.TaskResult]:
    """Results of tasks, in the order of the ids, without those that do not exist."""
    facts = load_facts(tx, ids, stats=stats)
    return [show_result(facts, i) for i in ids if i in facts.tasks and i in facts.requests]


def deciding_run(facts: Facts, task: TaskResult) -> TaskRun | None:
    """The run that a task's result is taken from: the deduplicated one, the winning instance, or the last one."""
    if task.deduped_from is not None:
        runs, number = facts.runs.get(task.deduped_from, []), task.deduped_run
    elif task.state in (TaskState.WAITING, TaskState.READY):
        return None
    else:
        runs, number = facts.runs.get(task.id, []), task.instance_id or task.run_number
        runs = [run for run in runs if run.generation == task.generation]
    return next((run for run in runs if run.run == number), None)


def show_result(facts: Facts, task_id: int) -> v1.TaskResult:
    task, request = facts.tasks[task_id], facts.requests[task_id]
    run = deciding_run(facts, task)
    deduped = task.deduped_from is not None
    code, duration = _outcome(task.state, run)
    try_number = 0 if deduped else run.run if run else None
    return v1.TaskResult(
        **_bot_fields(facts, run),
        abandoned_ts=optional_timestamp(task.abandoned_at),
        children_task_ids=[show_task(child) for child in facts.children.get(task_id, ())],
        completed_ts=optional_timestamp(run.ended_at if deduped and run else task.completed_at),
        cost_saved_usd=task.cost_saved_usd,
        costs_usd=[] if deduped else [own.cost_usd for own in facts.runs.get(task_id, [])],
        created_ts=timestamp(request.created_at),
        current_task_slice=int64(task.current_task_slice),
        deduped_from=show_run(task.deduped_from or 0, task.deduped_run or 0) if deduped else None,
        duration=duration,
        exit_code=int64(code) if code is not None else None,
        failure=bool(code) or task.state == TaskState.TIMED_OUT,
        internal_failure=_is_internal_failure(task.state, run),
        modified_ts=timestamp(task.modified_at),
        name=request.name,
        performance_stats=show_stats(facts.stats.get((run.task_id, run.run))) if run and not deduped else None,
        run_id=show_run(run.task_id, run.run) if run else None,
        server_versions=_server_versions(facts, run),
        started_ts=optional_timestamp(_started(task, run, deduped=deduped)),
        state=STATE_NAMES[task.state],
        tags=json.decode(request.tags, type=list[str]),
        task_id=show_task(task_id),
        try_number=int64(try_number) if try_number is not None else None,
        user=request.user_name,
    )


def _started(task: TaskResult, run: TaskRun | None, *, deduped: bool) -> Micros | None:
    if deduped:
        return (run.started_at or run.claimed_at) if run else None
    return task.started_at if run else None


def _bot_fields(facts: Facts, run: TaskRun | None) -> dict[str, Any]:
    """The fields of a result about the bot of a run, as it was when the run started, and about its output files."""
    if run is None:
        return {}
    bot = facts.bots.get((run.task_id, run.run), BotAtRun())
    files = json.decode(run.outputs_ref, type=FilesRef) if run.outputs_ref else None
    return {
        "bot_id": run.bot_id,
        "bot_version": bot.version,
        "bot_dimensions": string_lists(json.decode(bot.dimensions, type=dict[str, list[str]])),
        "bot_idle_since_ts": optional_timestamp(bot.idle_since),
        "cas_output_root": show_files(files),
        "outputs_ref": _isolated(files),
    }


def _server_versions(facts: Facts, run: TaskRun | None) -> list[str]:
    """The server versions that were in use during a run."""
    if run is None:
        return []
    at_start = [name for since, name in facts.versions if since <= run.claimed_at][-1:]
    during = [
        name
        for since, name in facts.versions
        if run.claimed_at < since and (run.ended_at is None or since <= run.ended_at)
    ]
    return list(dict.fromkeys([*at_start, *during]))


def string_lists(values: Mapping[str, Sequence[str]]) -> list[v1.StringListPair]:
    """A mapping as key-value pairs, sorted by key."""
    return [v1.StringListPair(key=key, value=list(items)) for key, items in sorted(values.items())]


_KILLED = frozenset({TaskState.TIMED_OUT, TaskState.KILLED, TaskState.CLIENT_ERROR})
_RAN = frozenset({TaskState.SUCCEEDED, TaskState.FAILED}) | _KILLED


def _outcome(state: str, run: TaskRun | None) -> tuple[int | None, float | None]:
    """Exit code and duration: both are set for tasks that ran to an end, else both are None.

    A function has no exit code: it gets 0 or 1. A task whose run is not stored any more has succeeded.
    """
    if state not in _RAN:
        return None, None
    code, duration = (run.exit_code, run.duration) if run else (None, None)
    if run is not None and run.reason == START_FAILED:
        code = _START_FAILED_EXIT_CODE
    if code is None:
        code = _UNKNOWN_EXIT_CODE if state in _KILLED else int(state != TaskState.SUCCEEDED)
    if duration is None:
        began = (run.started_at or run.claimed_at) if run else 0
        duration = max(0.0, ((run.ended_at or began) - began) / SECOND) if run else 0.0
    return code, duration


def _is_internal_failure(state: str, run: TaskRun | None) -> bool:
    """Whether the infrastructure failed: the bot died, or killed the task without reporting its end."""
    return state == TaskState.BOT_DIED or (state == TaskState.KILLED and run is not None and run.exit_code is None)


# ---------------------------------------------------------------- runs and their stats


_ENDED_BY_ITSELF = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT})


def abandoned_at(run: TaskRun, task: TaskResult | None) -> Micros | None:
    """When a run was abandoned: when it was cancelled, or else when it was ended by the server; None otherwise."""
    if run.ended_at is None or run.state in _ENDED_BY_ITSELF:
        return None
    cancelled_at = task.abandoned_at if task is not None else None
    in_run = cancelled_at is not None and run.claimed_at <= cancelled_at <= run.ended_at
    return cancelled_at if in_run else run.ended_at


def show_run_result(facts: Facts, run: TaskRun, name: str, created_at: Micros) -> v1.TaskResult:
    """The result of one run. It has no tags and no user: those are the task's."""
    code, duration = _outcome(run.state, run)
    return v1.TaskResult(
        **_bot_fields(facts, run),
        abandoned_ts=optional_timestamp(abandoned_at(run, facts.tasks.get(run.task_id))),
        completed_ts=optional_timestamp(run.ended_at),
        costs_usd=[run.cost_usd],
        created_ts=timestamp(created_at),
        current_task_slice=int64(run.slice),
        duration=duration,
        exit_code=int64(code) if code is not None else None,
        failure=bool(code) or run.state == RunState.TIMED_OUT,
        internal_failure=_is_internal_failure(run.state, run),
        modified_ts=timestamp(run.modified_at),
        name=name,
        performance_stats=show_stats(facts.stats.get((run.task_id, run.run))),
        run_id=show_run(run.task_id, run.run),
        server_versions=_server_versions(facts, run),
        started_ts=timestamp(run.started_at or run.claimed_at),
        state=STATE_NAMES[run.state],
        task_id=show_run(run.task_id, run.run),
        try_number=int64(run.run),
    )


def show_stats(stats: RunStats | None) -> v1.PerformanceStats | None:
    """The statistics of a run. In v1 every operation is there; one that the run did not need took no time."""
    if stats is None:
        return None
    return v1.PerformanceStats(
        bot_overhead=stats.bot_overhead,
        cache_trim=_operation(stats.cache_trim),
        cleanup=_operation(stats.cleanup),
        isolated_download=_files_stats(stats.isolated_download),
        isolated_upload=_files_stats(stats.isolated_upload),
        named_caches_install=_operation(stats.named_caches_install),
        named_caches_uninstall=_operation(stats.named_caches_uninstall),
        package_installation=_operation(stats.package_installation),
    )


def _operation(seconds: float | None) -> v1.OperationStats:
    return v1.OperationStats(duration=seconds or 0.0)


_STRINGS = ("items_cold", "items_hot")
_FLOATS = ("duration",)


def _files_stats(text: str | None) -> v1.FilesStats | None:
    """File transfer statistics as reported by the bot in JSON: only the fields of v1 are shown."""
    reported = as_object(text) if text else {}
    if not reported:
        return None
    shown: dict[str, Any] = {}
    for name in v1.FilesStats.__struct_fields__:
        value = reported.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _STRINGS:
            shown[name] = float(value) if name in _FLOATS else int64(int(value))
        elif isinstance(value, str) and name in _STRINGS:
            shown[name] = value
    return v1.FilesStats(**shown)
