"""Gives back runs that were claimed for a bot and do not reach it, so that they are claimed again at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from myrmidon.model.task_result import GiveBack, TaskRun
from myrmidon.scheduler import report as reporting
from myrmidon.scheduler.claim_tokens import claim_token
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import ATTEMPT_BITS
from myrmidon.server.waiting.connected_bot import ConnectedBot
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_run


async def give_back(context: ServerContext, bot: ConnectedBot, *, after: int, before: int) -> None:
    """Give back the runs of claims whose nonces are between these two."""
    if await context.db.read(partial(_runs_between, bot=bot, after=after, before=before)):
        await context.db.write(_give_back(context, bot, after=after, before=before))


def begin_give_back(context: ServerContext, bot: ConnectedBot, *, after: int, before: int) -> None:
    """As `give_back`, without waiting for it: the handler of the poll may have been cancelled."""
    context.db.write(_give_back(context, bot, after=after, before=before))


def _give_back(context: ServerContext, bot: ConnectedBot, *, after: int, before: int) -> Callable[[Tx], None]:
    """The transaction."""
    now = context.now()

    def write(tx: Tx) -> None:
        runs = _runs_between(tx, bot, after=after, before=before)
        reports = [GiveBack(run.task_id, run.run, _token(context, run)) for run in runs]
        reporting.report(tx, bot.bot_id, reports, session=bot.session, now=now, ids=context.ids, rules=context.rules)

    return write


def _runs_between(tx: Tx, bot: ConnectedBot, *, after: int, before: int) -> list[TaskRun]:
    return [
        run
        for run in task_run.live_of_bot(tx, bot.bot_id)
        if run.session == bot.session and run.started_at is None and after < run.nonce >> ATTEMPT_BITS < before
    ]


def _token(context: ServerContext, run: TaskRun) -> str:
    return claim_token(context.keys.run_token, bot_id=run.bot_id, session=run.session, nonce=run.nonce)
