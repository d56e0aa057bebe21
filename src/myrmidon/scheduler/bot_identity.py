"""Who a bot is: revoking its credentials, and two processes that use the same id."""

from myrmidon.model.bot import Bot
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.validation import MAX_INT64
from myrmidon.scheduler.bot_end import set_dead
from myrmidon.scheduler.bots import lock_bot, quarantine
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot_event

DISPLACED = "bot_displaced"
DISPLACEMENT_WINDOW: Micros = 600 * 1_000_000
"""Two displacements within this time mean that two bots use one id. It covers the restart by a service manager."""
_RECENT_EVENTS = 50
_NOBODY = -1
"""The introducer of a revoked bot. It equals no token, so the next introduction counts as a new one."""


def revoke_bot(tx: Tx, bot_id: str, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> Bot:
    """End a bot's credentials; it must be introduced again. Its runs end with their leases.

    The bot is marked dead, because a call that was authenticated a moment before is checked by its session only.
    """
    uow = UnitOfWork(tx, now, ids, rules)
    bot = lock_bot(uow, bot_id)
    if bot.introducer == _NOBODY:
        return bot  # revoked already
    bot.epoch = uow.new_id()
    bot.introducer = _NOBODY
    set_dead(uow, bot)
    bot_event.insert(tx, bot, uow.new_id(), at=now, kind="bot_revoked")
    return bot


def record_displaced(
    tx: Tx, bot: Bot, session: int, address: str, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> None:
    """Record a call of a session that a newer one of the same bot id has displaced; quarantine the id at the second.

    A process that has ended makes no calls, so such a call means that two processes use the id. The displaced process
    exits. If it is started again, it displaces the other one, which then calls too: two different sessions have been
    displaced. One is not enough, because a slow network may deliver the call of an ended process late.
    """
    earlier = [
        message
        for _, at, kind, message in bot_event.read(tx, bot.id, before=MAX_INT64, n=_RECENT_EVENTS)
        if kind == DISPLACED and now - at <= DISPLACEMENT_WINDOW
    ]
    message = f"session {session} at {address} was displaced by session {bot.session} at {bot.address}"
    if any(text.startswith(f"session {session} ") for text in earlier):
        return  # the same process again
    bot_event.insert(tx, bot, ids.next(now), at=now, kind=DISPLACED, message=message)
    if earlier and bot.quarantined is None:
        why = (
            f"two bots use this id: {message}, soon after {earlier[0]}. Stop one of them, or give it another id; then"
            " end this quarantine."
        )
        quarantine(tx, bot.id, why, now=now, ids=ids, rules=rules)
