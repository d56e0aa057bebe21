"""Ending a bot by hand, and forgetting one: one way for both APIs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from myrmidon.model.errors import Forbidden, NotFound
from myrmidon.model.ids import show_task
from myrmidon.scheduler import bots as fleet
from myrmidon.scheduler import terminate
from myrmidon.server.calls import Call, Role
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.direct_assign import place
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot_event, task_request

MOST_REASON = 1000
_LAST_ID = (1 << 63) - 1
_DELETED = "bot_deleted"


async def terminate_bot(context: ServerContext, bot_id: str, reason: str = "", *, who: str = "") -> str:
    """Let a bot finish what it has and then end; the id of the task that tells it so.

    An order that the bot has not carried out yet is the answer to another one. NotFound when there is no such bot.
    """
    group_id, now = await context.groups.id_of(context.settings.default_group), context.now()
    order = partial(
        terminate.order_end,
        bot_id=bot_id,
        group_id=group_id,
        task_id=context.ids.next(now),
        reason=reason[:MOST_REASON],
        authenticated=who,
        now=now,
        ids=context.ids,
        rules=context.rules,
    )
    task_id = await place(context, order)
    context.hub.look(bot_id)
    return show_task(task_id)


def cancellable(tx: Tx, call: Call, task_ids: Sequence[int]) -> list[int]:
    """Those of the tasks that this caller may cancel: who may not end a bot may not keep it from ending either."""
    orders = set() if call.who.role is Role.ADMIN else task_request.orders(tx, task_ids)
    return [task_id for task_id in task_ids if task_id not in orders]


def check_cancel(tx: Tx, call: Call, task_id: int) -> None:
    if not cancellable(tx, call, [task_id]):
        raise Forbidden("This task tells a bot to end; only an administrator may cancel it.")


async def forget_bot(context: ServerContext, bot_id: str) -> None:
    """Forget a bot; its history stays. Saying it again is the same as saying it once.

    NotFound when there never was one.
    """
    now = context.now()

    def forget(tx: Tx) -> None:
        try:
            fleet.delete_bot(tx, bot_id, now=now, ids=context.ids, rules=context.rules)
        except NotFound:
            last = bot_event.read(tx, bot_id, before=_LAST_ID, n=1)
            if not last or last[0][2] != _DELETED:
                raise

    await context.db.write(forget)
    context.hub.forget(bot_id)
