"""Results of idempotent tasks that equal tasks can take over."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from msgspec import structs
from myrmidon.model.errors import BrokenPromise
from myrmidon.model.ids import Micros
from myrmidon.model.task_result import PerformanceStats, TaskResult, TaskRun
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, Row, RowUpdate, names
from myrmidon.store.tables import outbox

_DONORS = Insert("task_donors", "dedupe_key, task_id, run, created_at")


def add_donors(tx: Tx, rows: Sequence[tuple[str, int, int, Micros]]) -> None:
    """Let succeeded idempotent tasks answer equal ones to come."""
    tx.insert_new(_DONORS, rows)


DONORS = """
    SELECT d.dedupe_key, d.task_id, r.run, r.cost_usd
      FROM task_donors d JOIN task_results t ON t.id = d.task_id AND t.state = 'SUCCEEDED'
      JOIN task_runs r ON r.task_id = t.id AND r.run = t.instance_id
     WHERE d.dedupe_key {in_text:keys} AND d.created_at > :since
     ORDER BY d.task_id
"""


def donors(tx: Tx, keys: Sequence[str], since: Micros) -> dict[str, tuple[int, int, float]]:
    """The newest donor of each key: task, run and what it cost. One that runs again has no answer to give."""
    return {row[0]: (row[1], row[2], row[3]) for row in tx.all(DONORS, keys=keys, since=since)}
