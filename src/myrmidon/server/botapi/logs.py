"""Log uploads from bots. Bytes are stored by offset, so that repeating an upload changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from myrmidon.model.errors import NotFound, TooLarge
from myrmidon.scheduler import report as reporting
from myrmidon.scheduler.report import LogBytes
from myrmidon.server.botapi.bot_snapshot import require_bot_id
from myrmidon.server.botapi.conversion import parse_marks, parse_run, to_log_bytes
from myrmidon.server.botapi.messages import ExchangeRequest, LogQuery, LogStored
from myrmidon.server.calls import BOTS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx

ROUTES = Routes()

MAX_EXCHANGE_LOG_BYTES = 256 << 10
MAX_LOG_BYTES = 1 << 20
_MAX_CACHED_RIGHTS = 10_000


@ROUTES.add(
    "POST", "/bot/v1/log/{run}/{stream}", BOTS, "Upload bytes of a run's output at their offset", body=bytes,
    query=LogQuery, mutates=True, body_limit=MAX_LOG_BYTES,
)  # fmt: skip
async def upload_log(context: ServerContext, call: Call) -> LogStored:
    """Store bytes of a run's output at their offset; idempotent."""
    bot_id = require_bot_id(call)
    query: LogQuery = call.query
    task_id, run = parse_run(call.params["run"])
    stream = call.params["stream"]
    item = LogBytes(
        task_id=task_id,
        run=run,
        token=call.headers.get("x-run-token", ""),
        stream=int(stream) if stream in ("0", "1") else -1,
        offset=query.offset,
        content=call.body,
        marks=parse_marks(call.headers.get("x-log-marks", "")),
    )
    if not await _writable_runs(context, bot_id, [item]):
        raise NotFound("run of this bot", call.params["run"][:32])
    info = await context.logs.write(partial(reporting.append_log, item=item, rules=context.rules))
    context.hub.notify((task_id, run))
    pause = context.hub.log_throttle.pause(query.offset, len(call.body), context.now())
    return LogStored(length=info.length, cut_from=info.cut_from, cut_to=info.cut_to, pause_s=pause)


async def store_pieces(context: ServerContext, bot_id: str, request: ExchangeRequest) -> list[int]:
    """Store the small log pieces of an exchange in one write; the new lengths, -1 where the bot may not write."""
    if sum(len(piece.data) for piece in request.logs) > MAX_EXCHANGE_LOG_BYTES:
        raise TooLarge(f"An exchange may have at most {MAX_EXCHANGE_LOG_BYTES} bytes of output.")
    items = [to_log_bytes(piece) for piece in request.logs]
    writable = await _writable_runs(context, bot_id, items)
    accepted = [item for item in items if (item.task_id, item.run, item.token) in writable and item.stream in (0, 1)]

    def append(tx: Tx) -> dict[int, int]:
        return {id(item): reporting.append_log(tx, item, context.rules).length for item in accepted}

    lengths = await context.logs.write(append) if accepted else {}
    for item in accepted:
        context.hub.notify((item.task_id, item.run))
    return [lengths.get(id(item), -1) for item in items]


async def _writable_runs(context: ServerContext, bot_id: str, items: Sequence[LogBytes]) -> set[tuple[int, int, str]]:
    """The runs among these, with their tokens, whose log the bot may write; cached, as a run never changes its bot."""
    cached = context.hub.log_rights
    by_key = {(item.task_id, item.run, item.token): item for item in items}
    writable = {key for key in by_key if (bot_id, *key) in cached}
    unknown = [item for key, item in by_key.items() if key not in writable]
    if unknown:
        checked = await context.db.read(lambda tx: [item for item in unknown if reporting.check_log(tx, bot_id, item)])
        for item in checked:
            key = (item.task_id, item.run, item.token)
            writable.add(key)
            cached[(bot_id, *key)] = None
        while len(cached) > _MAX_CACHED_RIGHTS:
            cached.popitem(last=False)
    return writable
