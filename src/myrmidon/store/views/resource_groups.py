"""What a resource group owns, in numbers."""

from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_run
from myrmidon.store.tables.resource_group import ResourceGroup
from myrmidon.store.views import shared_values
from myrmidon.store.views.task_search import TaskSearch, count_by_state
from myrmidon.wire.resource_groups import GroupDetails

JOBS = "SELECT state, COUNT(*) FROM jobs WHERE resource_group_id = :owner AND staged = 0 GROUP BY state"
FILES = "SELECT COUNT(*), SUM(size) FROM stored_files WHERE resource_group_id = :owner"
WEBHOOKS = "SELECT COUNT(*) FROM webhooks WHERE resource_group_id = :owner"


def in_full(tx: Tx, group: ResourceGroup) -> GroupDetails:
    """A group with the numbers of its jobs, tasks, values and files."""
    group_id = group.id
    values = next(iter(shared_values.totals(tx, group_id)), None)
    tasks, tasks_complete = count_by_state(tx, TaskSearch(group_id=group_id))
    files, webhooks = tx.one(FILES, owner=group_id) or (0, 0), tx.one(WEBHOOKS, owner=group_id) or (0,)
    return GroupDetails(
        name=group.external_id,
        created_at=group.created_at,
        deleting=bool(group.deleting),
        jobs={state: int(num) for state, num in tx.all(JOBS, owner=group_id)},
        tasks=dict(tasks),
        tasks_complete=tasks_complete,
        num_running=task_run.count_by_group(tx).get(group_id, 0),
        num_values=values.num_values if values else 0,
        value_bytes=values.num_bytes if values else 0,
        num_files=int(files[0]),
        file_bytes=int(files[1] or 0),
        num_webhooks=int(webhooks[0]),
    )
