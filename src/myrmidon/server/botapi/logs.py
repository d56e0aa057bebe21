"""What runs write, on its way from bots into the store: by offset, so that the same bytes again change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from myrmidon.model.errors import NotFound, TooLarge
from myrmidon.scheduler import report as reporting
from myrmidon.scheduler.report import LogBytes
from myrmidon.server.botapi.handshake import itself
from myrmidon.server.botapi.messages import Exchange, LogPlace, LogStored, log_bytes_of, run_of
from myrmidon.server.calls import Call
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx

MOST_PIECES = 256 << 10
MOST_LOG_BYTES = 1 << 20
_MOST_REMEMBERED = 10_000


async def log(context: ServerContext, call: Call) -> LogStored:
    """Bytes of a run's output, at their offset; the same bytes again change nothing."""
    bot_id = itself(call)
    place_of: LogPlace = call.query
    task_id, run = run_of(call.params["run"])
    stream = call.params["stream"]
    item = LogBytes(
        task_id=task_id,
        run=run,
        token=call.headers.get("x-run-token", ""),
        stream=int(stream) if stream in ("0", "1") else -1,
        offset=place_of.offset,
        content=call.body,
    )
    if not await _may_write(context, bot_id, [item]):
        raise NotFound("run of this bot", call.params["run"][:32])
    info = await context.logs.write(partial(reporting.append_log, item=item, rules=context.rules))
    context.hub.notify((task_id, run))
    pause = context.hub.log_throttle.pause(place_of.offset, len(call.body), context.now())
    return LogStored(length=info.length, cut_from=info.cut_from, cut_to=info.cut_to, pause_s=pause)


async def store_pieces(context: ServerContext, bot_id: str, ask: Exchange) -> list[int]:
    """The small pieces that come with an exchange, in one write; -1 for those that are not the bot's to write."""
    if sum(len(piece.data) for piece in ask.logs) > MOST_PIECES:
        raise TooLarge(f"An exchange carries at most {MOST_PIECES} bytes of output.")
    items = [log_bytes_of(piece) for piece in ask.logs]
    mine = await _may_write(context, bot_id, items)
    good = [item for item in items if (item.task_id, item.run, item.token) in mine and item.stream in (0, 1)]

    def append(tx: Tx) -> dict[int, int]:
        return {id(item): reporting.append_log(tx, item, context.rules).length for item in good}

    lengths = await context.logs.write(append) if good else {}
    for item in good:
        context.hub.notify((item.task_id, item.run))
    return [lengths.get(id(item), -1) for item in items]


async def _may_write(context: ServerContext, bot_id: str, items: Sequence[LogBytes]) -> set[tuple[int, int, str]]:
    """Those runs, with their tokens, whose log this bot may add to. Who has a run never changes, so it is kept."""
    known = context.hub.log_rights
    asked = {(item.task_id, item.run, item.token): item for item in items}
    mine = {key for key in asked if (bot_id, *key) in known}
    missing = [item for key, item in asked.items() if key not in mine]
    if missing:
        checked = await context.db.read(lambda tx: [item for item in missing if reporting.check_log(tx, bot_id, item)])
        for item in checked:
            key = (item.task_id, item.run, item.token)
            mine.add(key)
            known[(bot_id, *key)] = None
        while len(known) > _MOST_REMEMBERED:
            known.popitem(last=False)
    return mine
