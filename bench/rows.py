"""Rows as the verbs write them, for any number of tasks: one real task is recorded and copied.

Ids and times are moved, everything else stays as it was, so a copy has the shape of the real thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from bench.bed import Bed, recorded
from myrmidon.scheduler import submit
from myrmidon.store.engine.db import Insert, Row, Tx
from myrmidon.store.engine.sql import names

ID_COLUMNS = frozenset(("id", "task_id", "subject"))
_positions = count(1 << 40)
"""Numbers of copied events: beyond those that the verbs give out beside them."""


class Copier(NamedTuple):
    """The rows of one task in one table, and which of their columns move."""

    statement: Insert
    rows: list[Row]
    id_columns: list[int]
    time_columns: list[int]
    rank_columns: list[int]
    position_columns: list[int]

    def copy(self, task_id: int, later: int) -> list[Row]:
        """The rows of another task, submitted that much later."""
        return [self._moved(list(row), task_id, later) for row in self.rows]

    def _moved(self, row: list[object], task_id: int, later: int) -> Row:
        for column in self.id_columns:
            row[column] = task_id
        for column in self.time_columns:
            value = row[column]
            if isinstance(value, int):
                row[column] = value + later
        for column in self.rank_columns:
            row[column] += later // 64 << 8  # type: ignore[operator]
        for column in self.position_columns:
            row[column] = next(_positions)
        return tuple(row)


def copier(statement: Insert, rows: Sequence[Row]) -> Copier:
    columns = names(statement.columns)
    places = list(enumerate(columns))
    return Copier(
        statement,
        list(rows),
        [n for n, name in places if name in ID_COLUMNS],
        [n for n, name in places if name.endswith(("_at", "_since")) or name == "at"],
        [n for n, name in places if name == "task_rank"],
        [n for n, name in places if name == "position"],
    )


class Sample(NamedTuple):
    """What a submit of one task writes."""

    task_id: int
    at: int
    queue: int
    copiers: list[Copier]


def sample(bed: Bed, raw: dict) -> Sample:
    """Submit one task for real and keep its rows."""
    now = bed.now()
    draft = submit.draft_task(raw, now=now, ids=bed.ids)
    _, inserted = recorded(bed, lambda tx: submit.submit(tx, bed.group_id, [draft], now=now, ids=bed.ids))
    copiers = [copier(statement, rows) for statement, rows in inserted if rows]
    found = next(c for c in copiers if c.statement.table == "task_to_run")
    queue = found.rows[0][names(found.statement.columns).index("queue")]
    return Sample(draft.task_id, now, queue, copiers)


CHUNK = 5_000


def load(bed: Bed, made: Sample, queues: Sequence[int], n: int) -> None:
    """Bring n READY tasks into being, dealt out to the queues in turn."""
    for start in range(0, n, CHUNK):
        bed.db.write(partial(_load, bed=bed, made=made, queues=queues, numbers=range(start, min(start + CHUNK, n))))


def _load(tx: Tx, bed: Bed, made: Sample, queues: Sequence[int], numbers: range) -> None:
    now = bed.now()
    task_ids = bed.ids.block(len(numbers), now)
    for c in made.copiers:
        columns = names(c.statement.columns)
        at = columns.index("queue") if "queue" in columns else None
        rows: list[Row] = []
        for nth, (number, task_id) in enumerate(zip(numbers, task_ids, strict=True)):
            # A tick apart, so that ranks differ as those of single submits do.
            for row in c.copy(task_id, now - made.at + 64 * nth):
                if at is not None:
                    row = (*row[:at], queues[number % len(queues)], *row[at + 1 :])
                rows.append(row)
        tx.insert(c.statement, rows)
