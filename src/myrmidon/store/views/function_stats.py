"""Durations and failures of typed functions, among the newest tasks."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.views.selection import in_group

SCAN_LIMIT = 20_000
"""Tasks that are looked at: the newest ones."""
FLOOR = "SELECT id FROM task_requests ORDER BY id DESC LIMIT 1 OFFSET :limit"


class FunctionTask(Struct, frozen=True):
    """A task that runs a function."""

    id: int
    package_name: str
    func_name: str
    state: str
    reason: str
    started_at: Micros | None
    completed_at: Micros | None
    code: str | None
    """The digest of the zip with its modules; None if they are installed on the bot."""


_TASK = "t.id, COALESCE(r.package_name, ''), r.func_name, t.state, t.reason, t.started_at, t.completed_at, r.code"
_SOURCE = """task_requests r JOIN task_results t ON t.id = r.id
    WHERE r.id >= :floor AND r.func_name IS NOT NULL AND t.seq > 0
      AND (:any_group = 1 OR r.resource_group_id = :resource_group)"""
NEWEST = f"SELECT {_TASK} FROM {_SOURCE} ORDER BY r.id DESC"
NEWEST_OF = f"""
    SELECT {_TASK} FROM {_SOURCE} AND COALESCE(r.package_name, '') = :package AND r.func_name = :name ORDER BY r.id DESC
"""


def newest(tx: Tx, *, group_id: int | None) -> list[FunctionTask]:
    """The tasks with functions among the newest tasks, newest first."""
    return [FunctionTask(*row) for row in tx.all(NEWEST, **_given(tx, group_id))]


def newest_of(tx: Tx, package: str, name: str, *, group_id: int | None) -> list[FunctionTask]:
    """Return the newest tasks of one function."""
    return [FunctionTask(*row) for row in tx.all(NEWEST_OF, package=package, name=name, **_given(tx, group_id))]


ERRORS = """
    SELECT t.id, u.error FROM task_results t
      JOIN task_runs u ON u.task_id = t.id AND u.run = COALESCE(t.instance_id, t.run_number)
     WHERE t.id {in:ids} AND u.error IS NOT NULL
"""


def errors(tx: Tx, task_ids: Sequence[int]) -> dict[int, str | None]:
    """The exceptions that ended the deciding runs of tasks, as they are stored."""
    return {row[0]: row[1] for row in tx.all(ERRORS, ids=list(task_ids))} if task_ids else {}


def _given(tx: Tx, group_id: int | None) -> dict[str, int]:
    row = tx.one(FLOOR, limit=SCAN_LIMIT)
    return {"floor": row[0] if row else 0, **in_group(group_id)}
