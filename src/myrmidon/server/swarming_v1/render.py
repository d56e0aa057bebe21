"""Tasks as Swarming's API v1 shows them: what was asked for, what became of it, run by run.

Everything that a page needs is read in a handful of statements, whatever the number of its tasks. A task that was
answered by an earlier one shows that one's run, as v1 does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, json

from myrmidon.model.ids import Micros, show_run, show_task
from myrmidon.model.states import RunState, TaskState
from myrmidon.model.task_request import FilesRef, Properties, properties_from_json
from myrmidon.model.task_result import PerformanceStats, TaskResult, TaskRun
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1.encoding import (
    STATE_NAMES,
    as_object,
    encode_bytes,
    int64,
    optional_timestamp,
    pairs_of,
    timestamp,
    user_identity,
)
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import server_version, task_request, task_result
from myrmidon.store.tables.task_request import RequestRow, SliceRow
from myrmidon.store.views import run_details
from myrmidon.store.views.run_details import BotThen
from myrmidon.store.views.task_search import MAX_ID

REDACTED = encode_bytes(b"<REDACTED>")
MAX_CHILDREN = 1000
_UNKNOWN_EXIT_CODE = -1
"""The exit code of a command that was cut off before it could say one."""


# ---------------------------------------------------------------- requests


class Wanted(Struct, frozen=True):
    """A slice as it was asked for."""

    properties: Properties
    expiration_s: int
    wait_for_capacity: bool


def wanted(row: SliceRow) -> Wanted:
    return Wanted(properties_from_json(row.properties), row.expiration // SECOND, bool(row.wait_for_capacity))


def show_request(row: RequestRow, slices: Sequence[Wanted], *, has_secret: bool) -> v1.TaskRequest:
    """What was asked for. ``properties`` are those of the first slice, for clients that know of no others."""
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
        root_task_id=show_task(row.root_task_id) if row.root_task_id is not None else None,
        service_account=row.service_account,
        tags=json.decode(row.tags, type=list[str]),
        task_id=show_task(row.id),
        task_slices=shown,
        user=row.user_name,
    )


def show_slice(one: Wanted, *, has_secret: bool) -> v1.TaskSlice:
    return v1.TaskSlice(
        expiration_secs=int64(one.expiration_s),
        properties=show_properties(one.properties, has_secret=has_secret),
        wait_for_capacity=one.wait_for_capacity,
    )


def show_properties(given: Properties, *, has_secret: bool) -> v1.TaskProperties:
    return v1.TaskProperties(
        caches=[v1.CacheEntry(name=cache.name, path=cache.path) for cache in given.caches],
        cas_input_root=show_files(given.inputs),
        command=given.command,
        dimensions=[v1.StringPair(key=key, value=one) for key, many in given.dimensions.items() for one in many],
        env=[v1.StringPair(key=key, value=value) for key, value in given.env.items()],
        env_prefixes=[v1.StringListPair(key=key, value=value) for key, value in given.env_prefixes.items()],
        execution_timeout_secs=int64(given.execution_timeout_s),
        grace_period_secs=int64(given.grace_period_s),
        idempotent=given.idempotent,
        inputs_ref=_isolated(given.inputs),
        io_timeout_secs=int64(given.io_timeout_s or 0),
        outputs=given.outputs,
        relative_cwd=given.relative_cwd or None,
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
    """Requests of tasks, in the order of the ids; those that are gone are left out."""
    rows, slices = task_request.read(tx, ids), task_request.slices(tx, ids)
    secret = task_request.with_secret(tx, ids)
    return [
        show_request(rows[i], [wanted(one) for one in slices.get(i, [])], has_secret=i in secret)
        for i in ids
        if i in rows
    ]


# ---------------------------------------------------------------- results


class Facts(Struct, frozen=True, kw_only=True):
    """All that is known of the tasks of a page, by task, or by task and run."""

    tasks: Mapping[int, TaskResult]
    requests: Mapping[int, RequestRow]
    runs: Mapping[int, list[TaskRun]]
    bots: Mapping[tuple[int, int], BotThen]
    stats: Mapping[tuple[int, int], PerformanceStats]
    children: Mapping[int, list[int]]
    versions: Sequence[tuple[Micros, str]]


def load_facts(tx: Tx, ids: Sequence[int], *, stats: bool) -> Facts:
    tasks = task_result.read(tx, ids)
    donors = {task.deduped_from for task in tasks.values() if task.deduped_from is not None}
    ran = sorted({i for i, task in tasks.items() if task.run_number} | donors)
    runs: dict[int, list[TaskRun]] = {}
    for run in task_result.runs_of(tx, ran) if ran else ():
        runs.setdefault(run.task_id, []).append(run)
    few = [i for i, task in tasks.items() if 0 < task.num_children <= MAX_CHILDREN]
    many = [i for i, task in tasks.items() if task.num_children > MAX_CHILDREN]
    return Facts(
        tasks=tasks,
        requests=task_request.read(tx, ids),
        runs=runs,
        bots=run_details.bots_of_runs(tx, ran),
        stats=run_details.stats(tx, ran) if stats else {},
        children=run_details.children(tx, few) | {i: task_request.children(tx, i, n=MAX_CHILDREN) for i in many},
        versions=server_version.read(tx),
    )


def results(tx: Tx, ids: Sequence[int], *, stats: bool) -> list[v1.TaskResult]:
    """Tasks in the order of the ids; those that are gone are left out."""
    facts = load_facts(tx, ids, stats=stats)
    return [show_result(facts, i) for i in ids if i in facts.tasks and i in facts.requests]


def deciding_run(facts: Facts, task: TaskResult) -> TaskRun | None:
    """The run that a task's result is made of: that of an earlier task, the one that won, or the last one."""
    if task.deduped_from is not None:
        runs, wanted_number = facts.runs.get(task.deduped_from, []), task.deduped_run
    elif task.state in (TaskState.WAITING, TaskState.READY):
        return None
    else:
        runs, wanted_number = facts.runs.get(task.id, []), task.instance_id or task.run_number
        runs = [run for run in runs if run.generation == task.generation]
    return next((run for run in runs if run.run == wanted_number), None)


def show_result(facts: Facts, task_id: int) -> v1.TaskResult:
    task, request = facts.tasks[task_id], facts.requests[task_id]
    run = deciding_run(facts, task)
    deduped = task.deduped_from is not None
    code, duration = _outcome(task.state, run)
    where = _bot_fields(facts, run)
    own = facts.runs.get(task_id, [])
    tried = 0 if deduped else run.run if run else None
    return v1.TaskResult(
        **where,
        abandoned_ts=optional_timestamp(task.abandoned_at),
        children_task_ids=[show_task(child) for child in facts.children.get(task_id, ())],
        completed_ts=optional_timestamp(run.ended_at if deduped and run else task.completed_at),
        cost_saved_usd=task.cost_saved_usd,
        costs_usd=[] if deduped else [one.cost_usd for one in own],
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
        try_number=int64(tried) if tried is not None else None,
        user=request.user_name,
    )


def _started(task: TaskResult, run: TaskRun | None, *, deduped: bool) -> Micros | None:
    if deduped:
        return (run.started_at or run.claimed_at) if run else None
    return task.started_at if run else None


def _bot_fields(facts: Facts, run: TaskRun | None) -> dict[str, Any]:
    """On which bot it ran, and what that was like then; what it left behind."""
    if run is None:
        return {}
    bot = facts.bots.get((run.task_id, run.run), BotThen())
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
    """The versions of the server that were at work during a run."""
    if run is None:
        return []
    before = [name for at, name in facts.versions if at <= run.claimed_at][-1:]
    during = [name for at, name in facts.versions if run.claimed_at < at <= (run.ended_at or MAX_ID)]
    return list(dict.fromkeys([*before, *during]))


def string_lists(found: Mapping[str, Sequence[str]]) -> list[v1.StringListPair]:
    return [v1.StringListPair(key=key, value=value) for key, value in pairs_of(found)]


_CUT_OFF = frozenset({TaskState.TIMED_OUT, TaskState.KILLED, TaskState.CLIENT_ERROR})
_RAN = frozenset({TaskState.SUCCEEDED, TaskState.FAILED}) | _CUT_OFF


def _outcome(state: str, run: TaskRun | None) -> tuple[int | None, float | None]:
    """Exit code and duration; both are there for everything that ran to an end, and for nothing else.

    A function has no exit code of its own: 0 or 1. A result whose run is gone was a success.
    """
    if state not in _RAN:
        return None, None
    code, duration = (run.exit_code, run.duration) if run else (None, None)
    if code is None:
        code = _UNKNOWN_EXIT_CODE if state in _CUT_OFF else int(state != TaskState.SUCCEEDED)
    if duration is None:
        began = (run.started_at or run.claimed_at) if run else 0
        duration = max(0.0, ((run.ended_at or began) - began) / SECOND) if run else 0.0
    return code, duration


def _is_internal_failure(state: str, run: TaskRun | None) -> bool:
    """Whether the infrastructure failed: the bot died, or was never heard of again after it was told to kill."""
    return state == TaskState.BOT_DIED or (state == TaskState.KILLED and run is not None and run.exit_code is None)


# ---------------------------------------------------------------- runs and their stats


_ENDED_BY_ITSELF = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT})


def abandoned_at(run: TaskRun, task: TaskResult | None) -> Micros | None:
    """When a run was given up: when somebody asked for its end, or when it was found to have none of its own."""
    if run.ended_at is None or run.state in _ENDED_BY_ITSELF:
        return None
    asked = task.abandoned_at if task is not None else None
    return asked if asked is not None and run.claimed_at <= asked <= run.ended_at else run.ended_at


def show_run_result(facts: Facts, run: TaskRun, name: str, created_at: Micros) -> v1.TaskResult:
    """One run by itself; tags and user are its task's."""
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


def show_stats(stats: PerformanceStats | None) -> v1.PerformanceStats | None:
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


def _operation(seconds: float | None) -> v1.OperationStats | None:
    return v1.OperationStats(duration=seconds) if seconds is not None else None


_TEXTS = ("items_cold", "items_hot")
_FLOATS = ("duration",)


def _files_stats(text: str | None) -> v1.FilesStats | None:
    """What a bot said of moving files: JSON, of which the fields that v1 knows are shown."""
    given = as_object(text) if text else {}
    if not given:
        return None
    shown: dict[str, Any] = {}
    for name in v1.FilesStats.__struct_fields__:
        value = given.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _TEXTS:
            shown[name] = float(value) if name in _FLOATS else int64(int(value))
        elif isinstance(value, str) and name in _TEXTS:
            shown[name] = value
    return v1.FilesStats(**shown)
