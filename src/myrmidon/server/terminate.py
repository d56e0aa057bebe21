"""Ending a bot by hand: one way for both APIs."""

from __future__ import annotations

from functools import partial

from myrmidon.model.ids import show_task
from myrmidon.scheduler import terminate
from myrmidon.server.door import Door
from myrmidon.server.placing import place

MOST_REASON = 1000


async def terminate_bot(door: Door, bot_id: str, reason: str = "", *, who: str = "") -> str:
    """Let a bot finish what it has and then end; the id of the task that tells it so.

    An order that the bot has not carried out yet is the answer to another one. NotFound when there is no such bot.
    """
    group_id, now = await door.group_id(door.settings.default_group), door.now()
    order = partial(
        terminate.order_end,
        bot_id=bot_id,
        group_id=group_id,
        task_id=door.ids.next(now),
        reason=reason[:MOST_REASON],
        authenticated=who,
        now=now,
        ids=door.ids,
        rules=door.rules,
    )
    task_id = await place(door, order)
    door.hub.look(bot_id)
    return show_task(task_id)
