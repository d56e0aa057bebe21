"""Submitting over HTTP: tasks one by one or thousands at once; what was answered is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, MsgspecError, Raw, Struct, json

from myrmidon.model.errors import InvalidRequest, MyrmidonError, Problem
from myrmidon.model.ids import Micros, show_task
from myrmidon.scheduler.submit import Draft, Submitted
from myrmidon.server.api.common import Name, show_optional_task
from myrmidon.server.calls import WRITERS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.submit import (
    draft_task,
    listed_task_key,
    single_task_key,
    store_drafts,
    store_within_quota,
)

MANY = 32
"""From so many tasks on a submit is checked on a thread, so that it holds up no other call."""
FIRST_PART, LARGEST_PART = 32, 128
MOST_AT_ONCE = 10_000
EXAMPLE = {
    "name": "hello",
    "slices": [
        {"properties": {"command": ["echo", "hello"], "dimensions": {"pool": ["default"]}}, "expiration_s": 600}
    ],
    "priority": 100,
    "tags": ["purpose:greeting"],
}
"""A task as it is asked for; docs/requests.md tells of every field."""


class Submit(Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks as the documentation of requests describes them; each is read and checked by itself."""

    tasks: Annotated[list[Raw], Meta(min_length=1, max_length=MOST_AT_ONCE, examples=[[EXAMPLE]])]
    group: Name | None = None


class TaskAnswer(Struct, frozen=True, omit_defaults=True):
    """What became of one task of a submit: an id and a state, or an error. No id: it was only evaluated."""

    task_id: str | None = None
    state: str | None = None
    job_id: str | None = None
    deduped_from: str | None = None
    cost_saved_usd: float | None = None
    repeated: bool = False
    error: dict[str, Any] | None = None


class SubmitAnswer(Struct, frozen=True):
    tasks: list[TaskAnswer]


async def submit_tasks(context: ServerContext, call: Call) -> SubmitAnswer:
    """Store tasks; one answer or error for each, in order. What was answered is on disk.

    The request key counts for the whole call: each task gets a key made of it and of its place in the list.
    """
    body: Submit = call.body
    group = context.groups.name_for(call, body.group)
    n = len(body.tasks)

    answers = await store_within_quota(
        context,
        call,
        group,
        num_tasks=n,
        keys=lambda: [_key_of(call, number) for number in range(n)],
        store=lambda group_id: _submit_parts(context, call, group_id, _parts(call)),
    )
    return SubmitAnswer(answers)


def _parts(call: Call) -> list[range]:
    """A long list is stored part by part: its first tasks run while the last are read, and others can write meanwhile.

    A call without a request key is stored at once: it could not be repeated if it broke off in the middle.
    """
    n = len(call.body.tasks)
    if call.request_key is None:
        return [range(n)]
    parts, start, size = [], 0, FIRST_PART
    while start < n:
        parts.append(range(start, min(start + size, n)))
        start, size = start + size, min(2 * size, LARGEST_PART)
    return parts


async def _submit_parts(context: ServerContext, call: Call, group_id: int, parts: Sequence[range]) -> list[TaskAnswer]:
    """The next part is checked while this one is stored: a bot that comes back for more finds it in line before it."""
    answers: list[TaskAnswer] = []
    checked = await _check(context, call, parts[0])
    for part in parts[1:]:
        context.hub.num_unfinished += 1
        checking = asyncio.ensure_future(_check(context, call, part))
        try:
            answers += await _submit_part(context, group_id, checked)
            checked = await checking
        finally:
            checking.cancel()
            context.hub.num_unfinished -= 1
    return answers + await _submit_part(context, group_id, checked)


class Checked(NamedTuple):
    """The tasks of a part as they were found good or bad, and when."""

    now: Micros
    tasks: list[Draft | MyrmidonError]


async def _check(context: ServerContext, call: Call, part: range) -> Checked:
    now = context.now()
    group = context.groups.name_for(call, call.body.group)
    draft = partial(_drafted, context, call, group, part, now)
    return Checked(now, draft() if len(part) < MANY else await context.db.run_in_thread(draft))


async def _submit_part(context: ServerContext, group_id: int, checked: Checked) -> list[TaskAnswer]:
    good = [one for one in checked.tasks if isinstance(one, Draft)]
    stored = iter(await store_drafts(context, group_id, good, checked.now) if good else ())
    return [_answer(next(stored) if isinstance(one, Draft) else one) for one in checked.tasks]


def _drafted(context: ServerContext, call: Call, group: str, part: range, now: Micros) -> list[Draft | MyrmidonError]:
    """Each request checked by itself: one that is wrong harms no other."""
    drafts: list[Draft | MyrmidonError] = []
    for number in part:
        try:
            document = _read(call.body.tasks[number])
            key = _key_of(call, number)
            drafts.append(draft_task(context, call, document, group=group, key=key, now=now))
        except MyrmidonError as error:
            drafts.append(error)
    return drafts


def _read(raw: Raw) -> Any:
    """Not before its turn: ten thousand tasks would hold up the event loop for as many microseconds times four.

    The body as a whole was only skimmed: a text that is no UTF-8, a number too large or a depth too great shows here.
    """
    try:
        return json.decode(raw)
    except (MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest([Problem("", str(wrong), "JSON of a sensible depth", "json")]) from None


def _key_of(call: Call, number: int) -> str | None:
    key = call.request_key
    if key is None or len(call.body.tasks) == 1:
        return single_task_key(key)
    return listed_task_key(key, number)


def _answer(one: Submitted | MyrmidonError) -> TaskAnswer:
    if isinstance(one, MyrmidonError):
        return TaskAnswer(error=one.as_dict())
    return TaskAnswer(
        task_id=show_task(one.task_id) if one.task_id else None,
        state=one.state,
        job_id=show_optional_task(one.job_id),
        deduped_from=show_optional_task(one.deduped_from),
        cost_saved_usd=one.cost_saved_usd,
        repeated=one.repeated,
    )


ROUTES = (
    Route(
        method="POST",
        path="/api/v1/tasks",
        call=submit_tasks,
        who=WRITERS,
        body=Submit,
        out=SubmitAnswer,
        mutates=True,
        quiet=True,
        summary="Submit tasks",
    ),
)
