"""POST /api/v1/tasks/wait: a long poll that returns when tasks have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import parse_id, show_task
from myrmidon.model.states import FINAL
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_result
from myrmidon.store.views import run_details
from myrmidon.wire.tasks import Mode, TaskEnd, Waited, WaitRequest

ROUTES = Routes()

RECHECK_S = 5.0
"""How often states are read without a notification: another server may have written them."""
MAX_WAIT_S = 120.0


@ROUTES.add("POST", "/api/v1/tasks/wait", READERS, "Wait until tasks have ended", body=WaitRequest, waits=True)
async def wait(context: ServerContext, call: Call) -> Waited:
    """Wait until any or all of these tasks have ended, or the time is up."""
    body: WaitRequest = call.body
    ids = [parse_id(shown, f"task_ids[{number}]")[0] for number, shown in enumerate(body.task_ids)]
    group = await context.groups.scope_of(call)
    clock = asyncio.get_running_loop().time
    deadline = clock() + min(body.wait_s, MAX_WAIT_S)
    waiting = set(ids)
    while True:
        watched = waiting if body.mode is Mode.ANY else {max(waiting, default=0)}
        with context.hub.watch_ends(watched) as watch:
            ended, response = await context.db.read(
                partial(_check, ids=ids, waiting=waiting, mode=body.mode, group=group)
            )
            waiting = waiting - ended
            remaining_s = deadline - clock()
            if response is not None:
                return response
            if remaining_s <= 0 or context.hub.stopping:
                return await context.db.read(lambda tx: Waited(done=False, tasks=_ends(tx, ids)))
            if not watched & ended:
                await watch.wait(min(remaining_s, RECHECK_S))


def _check(
    tx: Tx, ids: Sequence[int], waiting: AbstractSet[int], mode: Mode, group: int | None
) -> tuple[set[int], Waited | None]:
    """Which of the waiting tasks have ended, and the response if the condition is met."""
    states = task_result.groups_and_states(tx, sorted(waiting))
    for task_id in waiting:
        if task_id not in states or group not in (None, states[task_id][0]):
            raise NotFound("task", show_task(task_id))
    ended = {task_id for task_id, (_, state) in states.items() if state in FINAL}
    done = len(ended) == len(waiting) or (mode is Mode.ANY and bool(ended))
    return ended, Waited(done=True, tasks=_ends(tx, ids)) if done else None


def _ends(tx: Tx, ids: Sequence[int]) -> list[TaskEnd]:
    ends = run_details.ends(tx, sorted(set(ids)))
    return [ends[task_id] for task_id in ids if task_id in ends]
