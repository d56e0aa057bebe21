"""Which tasks a rerun would run again, without changing anything."""

from collections.abc import Iterator

from myrmidon.model.states import FINAL, TaskState
from myrmidon.scheduler.cascade import plan_pages
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import edge, task_result
from myrmidon.store.tables.chunked_work import WHOLE
from myrmidon.store.views import job_details


def preview_task(tx: Tx, task_id: int, *, cascade: bool) -> list[int]:
    """The task, and with ``cascade`` all descendants that have started or ended, by id."""
    if not cascade:
        return [task_id]
    pages = plan_pages(edge.below(tx, task_id), task_id, WHOLE)
    states = {i: state for page in pages for i, (_, state) in task_result.groups_and_states(tx, page.tasks).items()}
    return sorted([task_id, *(i for i, state in states.items() if state != TaskState.WAITING)])


def preview_job(tx: Tx, job_id: int, *, full: bool) -> Iterator[str]:
    """The labels of the ended tasks that did not succeed, or with ``full`` of all ended ones."""
    for task in job_details.all_tasks(tx, job_id):
        if task.state in FINAL and (full or task.state != TaskState.SUCCEEDED):
            yield task.label
