"""Files of runs: a bot fetches large inputs and the code of a run, and stores its large outputs."""

from __future__ import annotations

from myrmidon.files.folder import check_digest
from myrmidon.model.errors import NotFound
from myrmidon.scheduler.new_values import group_of_live_run
from myrmidon.server.botapi.bot_snapshot import require_bot_id
from myrmidon.server.botapi.conversion import parse_run
from myrmidon.server.calls import BOTS, Answer, Call, Routes, StreamedBody
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.files import send_file, store_file
from myrmidon.store.engine.db import Tx
from myrmidon.store.views import run_files
from myrmidon.wire.files import MAX_FILE_BYTES, StoredFile

ROUTES = Routes()


@ROUTES.add(
    "GET",
    "/bot/v1/runs/{run}/files/{digest}",
    BOTS,
    "Fetch a file that a run needs",
    media="application/octet-stream",
)
async def fetch_file(context: ServerContext, call: Call) -> Answer:
    """A file that is an input of a run of this bot, a part of one, or its code; only while the run is live."""
    digest = check_digest(call.params["digest"])

    def check(tx: Tx) -> None:
        _group_of_run(tx, call)
        if not run_files.needs(tx, parse_run(call.params["run"])[0], digest):
            raise NotFound("file of this run", digest)

    await context.db.read(check)
    return await send_file(context, digest)


@ROUTES.add(
    "PUT", "/bot/v1/runs/{run}/files/{digest}", BOTS, "Store a file that a run has produced",
    body=StreamedBody, mutates=True, body_limit=MAX_FILE_BYTES,
)  # fmt: skip
async def store_output(context: ServerContext, call: Call) -> StoredFile:
    """Store a file of a live run of this bot for the run's resource group; idempotent."""
    check_digest(call.params["digest"])
    group_id = await context.db.read(lambda tx: _group_of_run(tx, call))
    return await store_file(context, call, group_id)


def _group_of_run(tx: Tx, call: Call) -> int:
    """The resource group of the live run in the path; NotFound if it is not a run of this bot with this token."""
    task_id, run = parse_run(call.params["run"])
    token = call.headers.get("x-run-token", "")
    group_id = group_of_live_run(tx, require_bot_id(call), task_id, run, token=token)
    if group_id is None:
        raise NotFound("run of this bot", call.params["run"][:32])
    return group_id
