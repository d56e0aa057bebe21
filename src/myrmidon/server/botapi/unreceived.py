"""Gives back runs that were claimed for a bot and never reached it, because its connection was lost meanwhile.

A bot repeats a poll that was not answered, and gets the same runs. But the abandoned poll may still be at work here: it
may claim after the bot has got its answer, or after the bot has gone on to another request. Nobody would run these
tasks until the time to start them is over.
"""

from __future__ import annotations

from functools import partial

from myrmidon.model.ids import Micros
from myrmidon.model.task_result import GiveBack, TaskRun
from myrmidon.scheduler import report as reporting
from myrmidon.scheduler.claim import Poll, claim_token
from myrmidon.server.botapi.messages import ExchangeRequest
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import ATTEMPT_BITS
from myrmidon.server.waiting.connected_bot import ConnectedBot
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_run


async def note_request(context: ServerContext, bot: ConnectedBot | None, request: ExchangeRequest) -> None:
    """Record the request of a bot, and give back the runs of earlier claims that it did not receive."""
    if bot is None or request.received is None:
        return
    bot.latest_nonce = max(bot.latest_nonce, request.nonce)
    context.hub.end_abandoned(bot, request.nonce)
    if request.received < bot.nonce < request.nonce:
        await _give_back(context, bot, after=request.received, before=request.nonce)
        bot.nonce = request.received


async def give_back_if_abandoned(context: ServerContext, bot: ConnectedBot, nonce: int) -> bool:
    """Give back what a poll has just claimed if the bot has sent another request since then; whether that is so."""
    if bot.latest_nonce <= nonce:
        return False
    await _give_back(context, bot, after=nonce - 1, before=nonce + 1)
    return True


async def _give_back(context: ServerContext, bot: ConnectedBot, *, after: int, before: int) -> None:
    """Give back the runs of claims whose nonces are between these two."""
    find = partial(_runs_between, bot_id=bot.bot_id, session=bot.session, after=after, before=before)
    if not await context.db.read(find):
        return
    now = context.now()

    def write(tx: Tx) -> None:
        reports = [GiveBack(run.task_id, run.run, _token(context, run)) for run in find(tx)]
        reporting.report(tx, bot.bot_id, reports, session=bot.session, now=now, ids=context.ids, rules=context.rules)

    await context.db.write(write)


def _runs_between(tx: Tx, bot_id: str, session: Micros, after: int, before: int) -> list[TaskRun]:
    return [
        run
        for run in task_run.live_of_bot(tx, bot_id)
        if run.session == session and run.started_at is None and after < run.nonce >> ATTEMPT_BITS < before
    ]


def _token(context: ServerContext, run: TaskRun) -> str:
    claim = Poll(bot_id=run.bot_id, session=run.session, nonce=run.nonce, token_key=context.keys.run_token)
    return claim_token(claim)
