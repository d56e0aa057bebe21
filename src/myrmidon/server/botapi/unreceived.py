"""Gives back runs that were claimed for a bot and never reached it, because its connection was lost meanwhile.

A bot repeats a poll that was not answered, and gets the same runs. But the abandoned poll may still be at work here: it
may claim after the bot has got its answer, or after the bot has gone on to another request. Nobody would run these
tasks until the time to start them is over.
"""

from __future__ import annotations

from myrmidon.server.botapi.messages import ExchangeRequest
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.give_back import begin_give_back, give_back
from myrmidon.server.waiting.connected_bot import ConnectedBot


async def note_request(context: ServerContext, bot: ConnectedBot, request: ExchangeRequest) -> bool:
    """Record the request of a bot, and give back the runs of earlier claims that it did not receive, if there are any.

    Whether there were: the bot may have changed in memory meanwhile.
    """
    bot.latest_nonce = max(bot.latest_nonce, request.nonce)
    if bot.future is not None:
        context.hub.end_abandoned(bot, request.nonce)
    if request.received is not None and request.received < bot.nonce < request.nonce:
        await give_back(context, bot, after=request.received, before=request.nonce)
        bot.nonce = request.received
        return True
    return False


def begin_give_back_if_abandoned(context: ServerContext, bot: ConnectedBot, nonce: int) -> bool:
    """Give back what a poll has just claimed if the bot has sent another request since then; whether that is so.

    Not awaited: at the moment of the commit no handler may be left that could.
    """
    if bot.latest_nonce <= nonce:
        return False
    begin_give_back(context, bot, after=nonce - 1, before=nonce + 1)
    return True


def begin_give_back_unreceived(
    context: ServerContext, bot: ConnectedBot, request: ExchangeRequest, *, claimed: int
) -> None:
    """Give back what a bot has not received from another server; ``claimed``: its last claim, by the database."""
    if request.received is not None and request.received < claimed < request.nonce:
        begin_give_back(context, bot, after=request.received, before=request.nonce)
