"""Function tasks on an application inside the test's process, claimed and ended without a real bot."""

from __future__ import annotations

from typing import Any

from myrmidon.model.ids import show_run
from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import Finish
from myrmidon.model.value import OutputValue
from myrmidon.scheduler.claim import Claimed
from tests.server.inside import BOT, Inside
from tests.world import World


def world_of(app: Inside, group: str = "default") -> World:
    """The scheduler of an application, in one of its resource groups, with a bot."""
    world = World(app.context.db.engine)
    world.now, world.ids = app.context.now(), app.context.ids
    world.group = app.run(app.context.groups.id_of(group, app.context.now()))
    world.bot(BOT)
    return world


def stored_constant(digest: str, size: int, kind: str = "string") -> dict[str, Any]:
    return {"kind": "constant", "type": kind, "payload": {"digest": digest, "size": size}}


def file_path(claimed: Claimed, digest: str) -> str:
    return f"/bot/v1/runs/{show_run(claimed.task_id, claimed.run)}/files/{digest}"


def run_headers(claimed: Claimed) -> dict[str, str]:
    return {"X-Run-Token": claimed.token}


def finish_with(claimed: Claimed, *outputs: tuple[str, Payload], exit_code: int = 0) -> Finish:
    """The report of a run with these outputs, each with its type."""
    return Finish(
        task_id=claimed.task_id,
        run=claimed.run,
        token=claimed.token,
        exit_code=exit_code,
        duration=1.0,
        outputs=[OutputValue(kind, payload) for kind, payload in outputs],
    )


def inline(content: bytes) -> Payload:
    return Payload(inline=content, size=len(content))
