"""Submitting tasks, the same way for every API: pool policy, validation, quota, storing, direct assignment."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from myrmidon.model.errors import InvalidRequest, MyrmidonError, Problem
from myrmidon.model.ids import Micros
from myrmidon.model.short_form import ShortForms, expand_task, named_after_program, rename_problems
from myrmidon.model.shown_input import show_value
from myrmidon.model.task_request import TaskRequest
from myrmidon.model.validation import Checker
from myrmidon.scheduler import submit
from myrmidon.scheduler.submit import Draft, Submitted
from myrmidon.server.calls import Call
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import write_and_assign
from myrmidon.server.fleet.pool_policy import AUTO, apply_pool_policy
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import request_key

T = TypeVar("T")

_MAX_KEY_PART = 240
_NUMBERED_KEY = re.compile("=*[0-9]+:")
"""How the keys of tasks in a list begin."""


# ---------------------------------------------------------------- request keys


def single_task_key(key: str | None) -> str | None:
    """The request key of a task submitted alone, escaped so that it never equals the key of a task in a list."""
    return f"={_shorten(key)}" if key is not None and _NUMBERED_KEY.match(key) else key


def listed_task_key(key: str, number: int) -> str:
    """The request key of one task of a list: that of the call, with the task's index."""
    return f"{number}:{_shorten(key)}"


def _shorten(key: str) -> str:
    return key if len(key) <= _MAX_KEY_PART else sha256(key.encode()).hexdigest()


# ---------------------------------------------------------------- drafts


def draft_task(
    context: ServerContext,
    call: Call,
    document: Any,
    *,
    group: str,
    key: str | None,
    now: Micros,
    clamp_priority: bool = False,
    template: str = AUTO,
    complete: Callable[[Any], Any] | None = None,
) -> Draft:
    """Apply the pool's policy to a request, validate it and give it ids. ``document`` is in the native format.

    ``complete`` can change the document after the policy and before validation.
    """
    request, short, problems = document, ShortForms(), list[Problem]()
    if isinstance(document, dict) and "slices" not in document:
        request, problems = _expanded(context, call, document, short, now)
    applied, _ = apply_pool_policy(context, call.who, request, group=group, clamp=clamp_priority, template=template)
    if complete is not None:
        applied = complete(applied)
    try:
        draft = submit.draft_task(
            applied,
            now=now,
            ids=context.ids,
            request_key=key,
            authenticated=call.who.name,
            limits=context.limits,
            rules=context.rules,
            original=document,
        )
        check_served(draft.request)
    except InvalidRequest as error:
        raise rename_problems(InvalidRequest([*problems, *error.problems]), short) from None
    if problems:
        raise InvalidRequest(problems)
    return draft


def _expanded(
    context: ServerContext, call: Call, document: dict[str, Any], short: ShortForms, now: Micros
) -> tuple[Any, list[Problem]]:
    """The request that a short task stands for, with a name, and the problems that the request does not show."""
    check = Checker(context.limits)
    request = expand_task(check, document, (), short, default_pool=context.settings.default_pool, now=now)
    call.warnings += check.warnings()
    return named_after_program(request) if short.paths else request, check.problems


# ---------------------------------------------------------------- what no bot can do yet

# The scheduler stores references to files; only requests over HTTP are refused. Without this, such a task would be
# accepted and then fail on its bot, or lose its outputs. A function outside of a job is refused too: nobody could read
# its result there.

NOT_SERVED = "not_served"
"""The code of these problems."""
OUTDIR = "${ISOLATED_OUTDIR}"
"""The placeholder for a folder whose content Swarming stores."""


def no_inputs(path: str) -> Problem:
    return Problem(path, "files", "none: files are not served yet", NOT_SERVED)


def no_outputs(path: str, num_paths: int) -> Problem:
    allowed = "none: files are not served yet, so outputs would be lost"
    return Problem(path, f"{num_paths} paths", allowed, NOT_SERVED)


def _no_folder(path: str) -> Problem:
    allowed = (
        "none: folders of results are not stored yet; in a job, declare outputs and write them to $MYRMIDON_OUTPUT_DIR"
    )
    return Problem(path, OUTDIR, allowed, NOT_SERVED)


def check_served(request: TaskRequest, *, in_job: bool = False) -> None:
    """InvalidRequest for a task with files or a folder of results, or outside of a job with a function or ``api``."""
    problems: list[Problem] = []
    if request.function is not None and not in_job:
        allowed = "a function in a job: submit a job with this one task (POST /api/v1/jobs)"
        problems.append(Problem("function", show_value(request.function.func_name), allowed, "no_job"))
    for number, task_slice in enumerate(request.slices):
        properties = task_slice.properties
        if properties.inputs is not None:
            problems.append(no_inputs(f"slices[{number}].properties.inputs"))
        if properties.outputs:
            problems.append(no_outputs(f"slices[{number}].properties.outputs", len(properties.outputs)))
        if OUTDIR in " ".join((*properties.command, *properties.env.values())):
            problems.append(_no_folder(f"slices[{number}].properties.command"))
        if properties.api and not in_job:
            allowed = "none: only a task of a job may call the server"
            problems.append(Problem(f"slices[{number}].properties.api", show_value(properties.api), allowed, "no_job"))
    if problems:
        raise InvalidRequest(problems)


# ---------------------------------------------------------------- storing


def store_within_quota(
    context: ServerContext,
    call: Call,
    group: str,
    *,
    num_tasks: int,
    keys: Callable[[], Sequence[str | None]],
    store: Callable[[int], Awaitable[T]],
    tasks_per_key: int = 1,
) -> Awaitable[T]:
    """Reserve quota for tasks, then call ``store`` with the id of the group. QuotaExceeded if they do not fit.

    ``keys`` returns the tasks' request keys; it is called only if the quota is too small for all of them. A request key
    stands for ``tasks_per_key`` tasks.
    """

    async def reserve_and_store(group_id: int) -> T:
        size, now = call.body_size, call.now
        reserved = context.quotas.reserve_at_once(group_id, tasks=num_tasks, num_bytes=size, now=now)
        if reserved is None:
            count = partial(_count_stored, group_id=group_id, keys=keys, tasks_per_key=tasks_per_key)
            reserved = await context.quotas.reserve(
                group, group_id, tasks=num_tasks, num_bytes=size, now=now, count_stored=count
            )
        try:
            return await store(group_id)
        finally:
            reserved.end()

    return context.groups.run_in(call, group, reserve_and_store)


def _count_stored(tx: Tx, *, group_id: int, keys: Callable[[], Sequence[str | None]], tasks_per_key: int) -> int:
    """How many tasks an earlier call with the same request keys has stored: they need no quota again."""
    present = [key for key in keys() if key is not None]
    return len(request_key.read(tx, group_id, present)) * tasks_per_key if present else 0


def store_drafts(
    context: ServerContext, group_id: int, drafts: Sequence[Draft], now: Micros
) -> Awaitable[list[Submitted | MyrmidonError]]:
    """Store tasks and assign them to waiting bots; one result or error per draft, in order."""
    store = partial(submit.submit, group_id=group_id, drafts=drafts, now=now, ids=context.ids, rules=context.rules)
    return write_and_assign(context, store, size=len(drafts))
