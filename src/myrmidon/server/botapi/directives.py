"""What a bot is told to do besides its work: update, restart, end."""

from __future__ import annotations

from collections.abc import Sequence

from myrmidon.model.ids import Micros
from myrmidon.model.task_result import Finish
from myrmidon.scheduler import report as reporting
from myrmidon.scheduler.claim import Claimed
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.botapi.messages import is_terminate
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import rollout
from myrmidon.server.waiting.connected_bot import ConnectedBot
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event

TELL_SOON: Micros = 10 * SECOND
TELL_AGAIN: Micros = 600 * SECOND
_LONGER = 6
"""The answer that told a bot may have been lost, so it is told again soon; each time after that much longer."""
TOLD = {"update": "request_update", "restart": "request_restart"}


def order_for(context: ServerContext, seat: ConnectedBot) -> str | None:
    """What the bot is told to do besides its work. Of the same update or restart it is told less and less often.

    A bot that cannot update goes on with the version it has: better an old soldier than none. It carries orders out
    between its tasks.
    """
    if seat.directive is not None:
        return seat.directive
    wanted, config = rollout.release_for(context, seat.bot_id), context.state.config.config_version_of(seat.bot_id)
    if wanted and seat.version and seat.version != wanted:
        order, what = "update", wanted
    elif seat.config is not None and seat.config != config:
        order, what = "restart", config
    else:
        return None
    now = context.now()
    times = seat.directive_sends if what == seat.directive_target else 0
    if times and now - seat.directive_sent_at < min(TELL_SOON * _LONGER ** (times - 1), TELL_AGAIN):
        return None
    seat.directive_target, seat.directive_sent_at, seat.directive_sends = what, now, times + 1
    return order


async def note_order(
    context: ServerContext, seat: ConnectedBot, tasks: Sequence[Claimed], order: str | None, *, knows_end: bool
) -> tuple[list[Claimed], str | None]:
    """Write down what a bot is told to do; the tasks and the order that it gets.

    A bot of before, which knows no tasks that end it, gets an order instead of such a task, and the task is done.
    """
    bot_id, now = seat.bot_id, context.now()
    ends = [one for one in tasks if is_terminate(one)]
    kind = "bot_terminate" if ends else TOLD.get(order or "")
    old = [] if knows_end else ends

    def note(tx: Tx) -> None:
        if old:
            done = [Finish(task_id=one.task_id, run=one.run, token=one.token, exit_code=0) for one in old]
            reporting.report(tx, bot_id, done, session=seat.session, now=now, ids=context.ids, rules=context.rules)
            bots.set_terminating_session(tx, bot_id, seat.session)
        bot = bots.read(tx, bot_id)
        if bot is not None and kind is not None:
            bot_event.insert(
                tx, bot, context.ids.next(now), at=now, kind=kind, message=ends[0].work.name if ends else ""
            )

    await context.db.write(note)
    if not old:
        return list(tasks), order
    seat.directive = "terminate"
    return [one for one in tasks if one not in old], "terminate"
