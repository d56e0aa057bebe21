"""Deduplication: succeeded idempotent tasks whose result an equal task can take over."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_ROWS = Insert("dedupe_sources", "dedupe_key, task_id, run, created_at")


def insert(tx: Tx, rows: Sequence[tuple[str, int, int, Micros]]) -> None:
    """Offer the results of succeeded idempotent tasks (key, task, run, time) to equal tasks."""
    tx.insert_new(_ROWS, rows)


class Found(Struct, frozen=True, gc=False):
    """A result that can be taken over."""

    task_id: int
    run: int
    cost_usd: float
    job_id: int | None


FIND = """
    SELECT d.dedupe_key, d.task_id, r.run, r.cost_usd, t.job_id
      FROM dedupe_sources d JOIN task_results t ON t.id = d.task_id AND t.state = 'SUCCEEDED'
      JOIN task_runs r ON r.task_id = t.id AND r.run = t.instance_id
     WHERE d.dedupe_key {in_text:keys} AND d.created_at > :since
     ORDER BY d.task_id
"""


def find(tx: Tx, keys: Sequence[str], since: Micros) -> dict[str, list[Found]]:
    """The succeeded tasks of each key, the newest last. A task that is being rerun is not found."""
    found: dict[str, list[Found]] = {}
    for row in tx.all(FIND, keys=keys, since=since):
        found.setdefault(row[0], []).append(Found(*row[1:]))
    return found


DELETE = "DELETE FROM dedupe_sources WHERE task_id {in:ids}"


def delete(tx: Tx, task_ids: Sequence[int]) -> None:
    """Withdraw the results of these tasks."""
    tx.run(DELETE, ids=task_ids)
