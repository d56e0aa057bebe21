"""POST /api/v1/tasks: submits one task or up to thousands. A task that was confirmed is on disk."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

from msgspec import MsgspecError, Raw, convert, json

from myrmidon.model.errors import InvalidRequest, MyrmidonError, Problem
from myrmidon.model.ids import Micros, show_task
from myrmidon.model.limits import DEFAULT_LIMITS
from myrmidon.scheduler.submit import Draft, Submitted
from myrmidon.server.calls import WRITERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.submit import (
    draft_task,
    listed_task_key,
    single_task_key,
    store_drafts,
    store_within_quota,
)
from myrmidon.wire.fields import ErrorInfo
from myrmidon.wire.tasks import Submit, SubmitAnswer, TaskAnswer

ROUTES = Routes()

THREAD_MIN_TASKS = 32
"""From this number of tasks on, a part is parsed and checked in a thread: it would block the event loop."""
FIRST_PART, LARGEST_PART = 32, 128
_STDIN_CHARS = -(-DEFAULT_LIMITS.stdin_bytes // 3) * 4
"""The length of the largest stdin in base64."""


@ROUTES.add(
    "POST", "/api/v1/tasks", WRITERS, "Submit tasks", body=Submit, mutates=True, extra_body=_STDIN_CHARS, quiet=True
)
async def submit_tasks(context: ServerContext, call: Call) -> SubmitAnswer:
    """Store tasks. The response has one result or error per task, in order; results are on disk.

    The request key covers the whole call: the key of a task is made of it and the task's index in the list.
    """
    body: Submit = call.body
    n, group = len(body.tasks), context.groups.name_for(call, body.group)
    answers = await store_within_quota(
        context,
        call,
        group,
        num_tasks=n,
        keys=lambda: [_key_of(call, number) for number in range(n)],
        store=partial(_submit_parts, context, call, group),
    )
    return SubmitAnswer(answers)


async def _submit_parts(context: ServerContext, call: Call, group: str, group_id: int) -> list[TaskAnswer]:
    """Store the tasks in parts, in order. The first tasks run while the last ones are parsed.

    Each part is checked while the one before it is stored, so that bots do not idle; in a thread, because that would
    block the event loop. A small call is one part, and so is one without a request key: it could not be repeated safely
    if it failed halfway.
    """
    n = len(call.body.tasks)
    if n < THREAD_MIN_TASKS:
        return await _submit_part(context, group_id, _check(context, call, group, range(n), call.now))

    def check(part: range) -> CheckedPart:
        return _check(context, call, group, part, context.now())

    first, *others = [range(n)] if call.request_key is None else _parts(n)
    checked = await context.db.run_in_thread(partial(check, first))
    answers: list[TaskAnswer] = []
    for part in others:
        context.hub.num_partial_submits += 1
        checking = asyncio.ensure_future(context.db.run_in_thread(partial(check, part)))
        try:
            answers += await _submit_part(context, group_id, checked)
            checked = await checking
        finally:
            checking.cancel()
            context.hub.num_partial_submits -= 1
    return answers + await _submit_part(context, group_id, checked)


def _parts(n: int) -> list[range]:
    """The indexes of n tasks, in parts of growing size. Other calls can write in between."""
    parts, start, size = [], 0, FIRST_PART
    while start < n:
        parts.append(range(start, min(start + size, n)))
        start, size = start + size, min(2 * size, LARGEST_PART)
    return parts


class CheckedPart(NamedTuple):
    """The drafts of a part, with an error in place of each invalid request; and when they were made."""

    now: Micros
    drafts: list[Draft | MyrmidonError]


def _check(context: ServerContext, call: Call, group: str, part: range, now: Micros) -> CheckedPart:
    """Check each request on its own: an invalid one does not affect the others."""
    drafts: list[Draft | MyrmidonError] = []
    for number in part:
        try:
            document = _parse(call.body.tasks[number])
            key = _key_of(call, number) if call.request_key is not None else None
            drafts.append(draft_task(context, call, document, group=group, key=key, now=now))
        except MyrmidonError as error:
            drafts.append(error)
    return CheckedPart(now, drafts)


async def _submit_part(context: ServerContext, group_id: int, checked: CheckedPart) -> list[TaskAnswer]:
    valid = [draft for draft in checked.drafts if isinstance(draft, Draft)]
    stored = iter(await store_drafts(context, group_id, valid, checked.now) if valid else ())
    answers = []
    for draft in checked.drafts:
        result = next(stored) if isinstance(draft, Draft) else draft
        answers.append(_answer(result))
    return answers


def _parse(raw: Raw) -> Any:
    """Parse one request. Parsing all requests with the body would block the event loop for tens of milliseconds.

    Decoding the body has skipped over the requests, so invalid UTF-8 and numbers out of range show only here.
    """
    try:
        return json.decode(raw)
    except (MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest([Problem("", str(error), "JSON", "json")]) from None


def _key_of(call: Call, number: int) -> str | None:
    key = call.request_key
    if key is None or len(call.body.tasks) == 1:
        return single_task_key(key)
    return listed_task_key(key, number)


def _answer(result: Submitted | MyrmidonError) -> TaskAnswer:
    if isinstance(result, MyrmidonError):
        return TaskAnswer(error=_error_info(result))
    return TaskAnswer(
        task_id=show_task(result.task_id) if result.task_id else None,
        state=result.state,
        job_id=show_task(result.job_id) if result.job_id is not None else None,
        deduped_from=show_task(result.deduped_from) if result.deduped_from is not None else None,
        cost_saved_usd=result.cost_saved_usd,
        repeated=result.repeated,
    )


def _error_info(error: MyrmidonError) -> ErrorInfo:
    return convert(error.as_dict(), ErrorInfo)
