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
from myrmidon.server.api.common import show_optional_task
from myrmidon.server.calls import WRITERS, Call, Route
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

THREAD_MIN_TASKS = 32
"""From this number of tasks on, a part is parsed and checked in a thread: it would block the event loop."""
FIRST_PART, LARGEST_PART = 32, 128
_STDIN_CHARS = -(-DEFAULT_LIMITS.stdin_bytes // 3) * 4
"""The length of the largest stdin in base64."""


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
        store=lambda group_id: _submit_parts(context, call, group, group_id),
    )
    return SubmitAnswer(answers)


def _parts(call: Call) -> list[range]:
    """The indexes of the tasks, in parts that are stored one after the other.

    The first tasks run while the last ones are parsed, and other calls can write in between. A call without a request
    key is one part: it could not be repeated safely if it failed halfway.
    """
    n = len(call.body.tasks)
    if call.request_key is None:
        return [range(n)]
    parts, start, size = [], 0, FIRST_PART
    while start < n:
        parts.append(range(start, min(start + size, n)))
        start, size = start + size, min(2 * size, LARGEST_PART)
    return parts


async def _submit_parts(context: ServerContext, call: Call, group: str, group_id: int) -> list[TaskAnswer]:
    """Store the parts in order. Each part is checked while the one before it is stored, so that bots do not idle."""
    answers: list[TaskAnswer] = []
    first, *others = _parts(call)
    checked = await _check(context, call, group, first)
    for part in others:
        context.hub.num_partial_submits += 1
        checking = asyncio.ensure_future(_check(context, call, group, part))
        try:
            answers += await _submit_part(context, group_id, checked)
            checked = await checking
        finally:
            checking.cancel()
            context.hub.num_partial_submits -= 1
    return answers + await _submit_part(context, group_id, checked)


class CheckedPart(NamedTuple):
    """The drafts of a part, with an error in place of each invalid request; and when they were made."""

    now: Micros
    drafts: list[Draft | MyrmidonError]


async def _check(context: ServerContext, call: Call, group: str, part: range) -> CheckedPart:
    now = context.now()
    make_drafts = partial(_make_drafts, context, call, group, part, now)
    in_thread = len(part) >= THREAD_MIN_TASKS
    return CheckedPart(now, await context.db.run_in_thread(make_drafts) if in_thread else make_drafts())


async def _submit_part(context: ServerContext, group_id: int, checked: CheckedPart) -> list[TaskAnswer]:
    valid = [draft for draft in checked.drafts if isinstance(draft, Draft)]
    results = iter(await store_drafts(context, group_id, valid, checked.now) if valid else ())
    return [_answer(next(results) if isinstance(draft, Draft) else draft) for draft in checked.drafts]


def _make_drafts(
    context: ServerContext, call: Call, group: str, part: range, now: Micros
) -> list[Draft | MyrmidonError]:
    """Check each request on its own: an invalid one does not affect the others."""
    drafts: list[Draft | MyrmidonError] = []
    for number in part:
        try:
            document = _parse(call.body.tasks[number])
            key = _key_of(call, number)
            drafts.append(draft_task(context, call, document, group=group, key=key, now=now))
        except MyrmidonError as error:
            drafts.append(error)
    return drafts


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
        job_id=show_optional_task(result.job_id),
        deduped_from=show_optional_task(result.deduped_from),
        cost_saved_usd=result.cost_saved_usd,
        repeated=result.repeated,
    )


def _error_info(error: MyrmidonError) -> ErrorInfo:
    return convert(error.as_dict(), ErrorInfo)


ROUTES = (
    Route(
        method="POST",
        path="/api/v1/tasks",
        call=submit_tasks,
        who=WRITERS,
        body=Submit,
        out=SubmitAnswer,
        mutates=True,
        extra_body=_STDIN_CHARS,
        quiet=True,
        summary="Submit tasks",
    ),
)
