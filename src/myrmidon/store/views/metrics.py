"""The numbers behind the metrics and the quotas."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import EPOCH_MS, Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import sink, webhook
from myrmidon.store.tables.sink import SinkLag

SAMPLED_TASKS = 20_000
"""Tasks whose mean size stands for all pending tasks of a group."""


class Pending(Struct, frozen=True):
    """The tasks of a resource group that wait for bots: how many, and the estimated size of their properties."""

    tasks: int
    num_bytes: int


PENDING = """
    SELECT COUNT(*) FROM task_to_run r
     WHERE r.queue IN (SELECT d.id FROM task_dimensions d WHERE d.resource_group_id = :resource_group)
"""
# Measures a sample, so that the cost does not grow with the depth of the queues.
PENDING_SIZE = """
    SELECT COUNT(*), SUM(LENGTH(COALESCE(s.properties, q.properties))) FROM (
        SELECT r.task_id, r.slice FROM task_to_run r
         WHERE r.queue IN (SELECT d.id FROM task_dimensions d WHERE d.resource_group_id = :resource_group)
         LIMIT :limit
    ) AS sample JOIN task_requests q ON q.id = sample.task_id
      LEFT JOIN further_slices s ON s.task_id = sample.task_id AND s.slice = sample.slice
"""


def pending(tx: Tx, group_id: int) -> Pending:
    """Count the tasks of a group that wait for bots; the size is exact up to `SAMPLED_TASKS` tasks."""
    row = tx.one(PENDING, resource_group=group_id)
    tasks = row[0] if row else 0
    sample = tx.one(PENDING_SIZE, resource_group=group_id, limit=SAMPLED_TASKS) if tasks else None
    if not sample or not sample[0]:
        return Pending(tasks, 0)
    return Pending(tasks, int(sample[1]) * tasks // sample[0])


class Gauges(Struct, frozen=True):
    """Values of the gauges. ``pools``: name, number of waiting tasks, creation time of the oldest."""

    pools: list[tuple[str, int, Micros | None]]
    tasks: list[tuple[str, int]]
    bots: list[tuple[str, int]]
    oldest_event: Micros | None
    sinks: list[SinkLag]
    webhook_backlog: tuple[int, int]


DEPTHS = """
    SELECT d.pool, COUNT(*), MIN(r.task_id) FROM task_to_run r JOIN task_dimensions d ON d.id = r.queue
     GROUP BY d.pool ORDER BY d.pool
"""
RUNNING = "SELECT COUNT(*), COUNT(DISTINCT bot_id) FROM task_runs WHERE due_at IS NOT NULL"
FLEET = """
    SELECT SUM(alive), SUM(1 - alive), SUM(serving), SUM(draining),
           SUM(CASE WHEN quarantined IS NULL THEN 0 ELSE 1 END), SUM(CASE WHEN maintenance IS NULL THEN 0 ELSE 1 END)
      FROM bots
"""
FLEET_STATES = ("alive", "dead", "serving", "draining", "quarantined", "maintenance")
OLDEST_EVENT = "SELECT MIN(at) FROM outbox WHERE position IS NULL"


def gauges(tx: Tx, sinks: Sequence[str] = ()) -> Gauges:
    """Read the values of all gauges; of sinks those of the given names."""
    depths = [(pool, count, _created_at(oldest)) for pool, count, oldest in tx.all(DEPTHS)]
    running, busy = tx.all(RUNNING)[0]
    fleet = [(state, int(count or 0)) for state, count in zip(FLEET_STATES, tx.all(FLEET)[0], strict=True)]
    ready = sum(count for _, count, _ in depths)
    event = tx.one(OLDEST_EVENT)
    return Gauges(
        pools=depths,
        tasks=[("READY", ready), ("RUNNING", running)],
        bots=[*fleet, ("busy", busy)],
        oldest_event=event[0] if event else None,
        sinks=sink.lags(tx, sinks),
        webhook_backlog=webhook.backlog(tx),
    )


def _created_at(task_id: int | None) -> Micros | None:
    return ((task_id >> 20) + EPOCH_MS) * 1000 if task_id is not None else None
