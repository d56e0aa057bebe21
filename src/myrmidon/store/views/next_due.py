"""Alarms: what time has brought due, over all tables, in one look.

Every table that waits for something keeps an index of when, so that the first
of each costs one step down an index. Nothing is locked here: whoever finds
something due decides again when it holds the locks.
"""

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx


class Alarms(Struct, frozen=True):
    """When the first of each kind is due; None when there is none. Drains wait for nothing: 0."""

    runs: Micros | None
    bots: Micros | None
    slices: Micros | None
    tasks: Micros | None
    jobs: Micros | None
    drains: Micros | None
    oldest_bot_event: Micros | None
    oldest_queue: Micros | None


# MIN, not EXISTS: that one may be planned as a scan of the whole table where many rows were due a while ago.
FIRST = """
    SELECT (SELECT MIN(alarm_at) FROM task_runs), (SELECT MIN(alarm_at) FROM bots),
           (SELECT MIN(expires_at) FROM task_to_run), (SELECT MIN(alarm_at) FROM task_results),
           (SELECT MIN(alarm_at) FROM jobs), (SELECT MIN(id) * 0 FROM drains),
           (SELECT MIN(at) FROM bot_events), (SELECT MIN(used_at) FROM task_dimensions)
"""


def first(tx: Tx) -> Alarms:
    return Alarms(*tx.all(FIRST)[0])
