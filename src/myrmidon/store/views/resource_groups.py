"""What a resource group owns, in numbers."""

from collections.abc import Mapping

from msgspec import Struct

from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_run
from myrmidon.store.views import shared_values
from myrmidon.store.views.task_search import TaskSearch, count_by_state


class GroupContent(Struct, frozen=True, kw_only=True):
    jobs: Mapping[str, int]
    tasks: Mapping[str, int]
    tasks_complete: bool
    num_running: int
    num_values: int
    value_bytes: int
    num_files: int
    file_bytes: int
    num_webhooks: int


JOBS = "SELECT state, COUNT(*) FROM jobs WHERE resource_group_id = :owner AND staged = 0 GROUP BY state"
FILES = "SELECT COUNT(*), SUM(size) FROM stored_files WHERE resource_group_id = :owner"
WEBHOOKS = "SELECT COUNT(*) FROM webhooks WHERE resource_group_id = :owner"


def content(tx: Tx, group_id: int) -> GroupContent:
    """The numbers of jobs, tasks, values and files of a group."""
    totals = shared_values.totals(tx, group_id)
    _, num_values, value_bytes = totals[0] if totals else (group_id, 0, 0)
    tasks, tasks_complete = count_by_state(tx, TaskSearch(group_id=group_id))
    files, webhooks = tx.one(FILES, owner=group_id) or (0, 0), tx.one(WEBHOOKS, owner=group_id) or (0,)
    return GroupContent(
        jobs={state: int(num) for state, num in tx.all(JOBS, owner=group_id)},
        tasks=dict(tasks),
        tasks_complete=tasks_complete,
        num_running=task_run.count_by_group(tx).get(group_id, 0),
        num_values=num_values,
        value_bytes=value_bytes,
        num_files=int(files[0]),
        file_bytes=int(files[1] or 0),
        num_webhooks=int(webhooks[0]),
    )
