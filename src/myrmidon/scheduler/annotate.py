"""Annotate tasks, and set the small texts that the tasks of a job share."""

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import IdSource, Micros
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import notes
from myrmidon.store.tables.notes import Annotation

MAX_META = 100
"""How many texts a job may have."""


def annotate(tx: Tx, task_id: int, content: str, *, run: int, now: Micros, ids: IdSource) -> None:
    """Replace the summary of a task that exists. ``run`` is the run that writes it; 0 for a person."""
    UnitOfWork(tx, now, ids).lock([task_id])
    notes.replace(tx, Annotation(task_id, run, now, content))


def set_meta(
    tx: Tx, job_id: int, name: str, value: str | None, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> None:
    """Set a text of a job that exists, or delete it with None."""
    UnitOfWork(tx, now, ids, rules).lock_jobs([job_id])
    known = notes.meta(tx, job_id)
    if value is not None and name not in known and len(known) >= MAX_META:
        raise InvalidRequest([Problem("name", name, f"at most {MAX_META} names in one job", "too_many")])
    notes.set_meta(tx, job_id, name, value, now)
