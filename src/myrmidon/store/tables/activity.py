"""How many tasks were submitted and ended per minute, counted from the events of the outbox.

Charts read these few rows instead of a million tasks. The cursor of the sink ``activity`` says up to which event they
are counted; it moves in the transaction that adds to the counts, so every event counts once.
"""

from collections.abc import Sequence

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import outbox

SINK = "activity"
SUBMITTED = "SUBMITTED"
MINUTE: Micros = 60_000_000
_SINKS = Insert("sinks", "name, position, holder, held_until")
_COUNTS = Insert("activity", "minute_at, resource_group_id, what, num")
CURSOR = "SELECT position FROM sinks WHERE name = 'activity'"
ADVANCE = "UPDATE sinks SET position = :until WHERE name = 'activity' AND position = :after"
# Two statements: the first event of a task can be its end too, for one with the result of an earlier task.
FIRST_EVENTS = """
    SELECT o.at - (o.at % 60000000), t.resource_group_id, COUNT(*)
      FROM outbox o JOIN task_results t ON t.id = o.subject
     WHERE o.position > :after AND o.position <= :until AND o.kind = 'task' AND o.seq = 1
     GROUP BY o.at - (o.at % 60000000), t.resource_group_id
"""
LAST_EVENTS = """
    SELECT o.at - (o.at % 60000000), t.resource_group_id, o.state, COUNT(*)
      FROM outbox o JOIN task_results t ON t.id = o.subject
     WHERE o.position > :after AND o.position <= :until AND o.kind = 'task'
       AND o.state NOT IN ('WAITING', 'READY', 'RUNNING')
     GROUP BY o.at - (o.at % 60000000), t.resource_group_id, o.state
"""
ADD = """
    UPDATE activity SET num = num + :num
     WHERE minute_at = :minute AND resource_group_id = :resource_group AND what = :what
"""
DELETE_OLD = "DELETE FROM activity WHERE minute_at < :before"

Counts = list[tuple[Micros, int, str, int]]
"""Minute, resource group, what, number."""


def uncounted(tx: Tx, n: int) -> tuple[int, int]:
    """The positions of the last counted event, and of the last one to count next; equal if there is none."""
    row = tx.one(CURSOR)
    after = row[0] if row else 0
    # A cursor beyond the newest event is from before the database was restored: it moves back.
    return after, min(outbox.newest(tx), after + n)


def count(tx: Tx, after: int, until: int) -> Counts:
    """Count the events between two positions."""
    first = [(row[0], row[1], SUBMITTED, row[2]) for row in tx.all(FIRST_EVENTS, after=after, until=until)]
    last = [(row[0], row[1], row[2], row[3]) for row in tx.all(LAST_EVENTS, after=after, until=until)]
    return [(int(minute), group, what, int(num)) for minute, group, what, num in first + last]


def add(tx: Tx, counts: Counts, after: int, until: int) -> bool:
    """Add counts and move the cursor; False when another server has counted these events."""
    tx.insert_new(_SINKS, [(SINK, 0, None, None)])
    if tx.run(ADVANCE, after=after, until=until) != 1:
        return False
    tx.insert_new(_COUNTS, [(minute, group, what, 0) for minute, group, what, _ in counts])
    for minute, group, what, num in counts:
        tx.run(ADD, minute=minute, resource_group=group, what=what, num=num)
    return True


def delete_old(tx: Tx, before: Micros) -> None:
    tx.run(DELETE_OLD, before=before)


# The step is computed in a subquery: PostgreSQL takes two uses of a parameter for two values.
SERIES = """
    SELECT s.step_at, s.what, SUM(s.num)
      FROM (SELECT minute_at - (minute_at % :step) AS step_at, what, num FROM activity WHERE minute_at >= :start) s
     GROUP BY s.step_at, s.what
"""
SERIES_OF_GROUP = """
    SELECT s.step_at, s.what, SUM(s.num)
      FROM (SELECT minute_at - (minute_at % :step) AS step_at, what, num FROM activity
             WHERE minute_at >= :start AND resource_group_id = :resource_group) s
     GROUP BY s.step_at, s.what
"""


def series(tx: Tx, *, group_id: int | None, start: Micros, step: Micros) -> Sequence[tuple[Micros, str, int]]:
    """The sums of each step since ``start``, which is a multiple of it: (beginning of the step, what, number)."""
    given = {"start": start, "step": step}
    rows = tx.all(SERIES, **given) if group_id is None else tx.all(SERIES_OF_GROUP, resource_group=group_id, **given)
    return [(int(at), what, int(num)) for at, what, num in rows]
