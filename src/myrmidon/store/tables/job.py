"""Jobs, and the labels of their tasks.

The row of a job is the lock of its graph. Every transaction that satisfies edges, extends, cancels, reruns or ends the
job holds it, so its counters are exact.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from msgspec import Struct, structs

from myrmidon.model.errors import BrokenPromise
from myrmidon.model.ids import Micros
from myrmidon.model.states import JobState
from myrmidon.store.engine.db import LostRace, Tx
from myrmidon.store.engine.records import columns_of, insert_of, update_of
from myrmidon.store.tables import outbox


class Job(Struct):
    """A submitted graph.

    ``num_active`` counts tasks that are READY, RUNNING or held, ``num_chunked_work`` the unfinished chunked work that
    may still change tasks. The job cannot end while either is above zero. ``revision`` counts the jobs that had its
    external id, itself included.
    """

    id: int
    resource_group_id: int
    external_id: str | None
    name: str
    routing: str
    creation_time: Micros
    state: JobState
    seq: int
    max_num_retries: int
    num_retries: int
    failure_policy: str
    staged: int
    sealed_at: Micros | None
    blocked_by: int | None
    error: str | None
    deadline_at: Micros
    ended_at: Micros | None
    due_at: Micros | None
    num_tasks: int
    num_succeeded: int
    num_failed: int
    num_active: int
    num_chunked_work: int
    tags: str
    metadata: str
    revision: int = 1

    @property
    def view(self) -> str:
        """The state of the graph: running, blocked or finished."""
        if self.state == JobState.SUCCEEDED:
            return "finished"
        if self.blocked_by is not None or self.state in (JobState.FAILED, JobState.CANCELLED):
            return "blocked"
        return "running"


_COLUMNS = columns_of(Job)
_JOBS = insert_of("jobs", Job)
_EXTERNAL_ID = attrgetter("external_id")
READ = f"SELECT {_COLUMNS} FROM jobs WHERE id {{in:ids}} ORDER BY id"
LOCK = f"SELECT {_COLUMNS} FROM jobs WHERE id {{in:ids}} ORDER BY id {{for_update}}"
LOCK_UNLOCKED = f"SELECT {_COLUMNS} FROM jobs WHERE id {{in:ids}} ORDER BY id {{skip_locked}}"


def read(tx: Tx, ids: Sequence[int]) -> dict[int, Job]:
    return {row[0]: Job(*row) for row in tx.all(READ, ids=ids)}


def lock(tx: Tx, ids: Sequence[int], *, skip_locked: bool = False) -> dict[int, Job]:
    """Lock jobs by ascending id; before any of their tasks. ``skip_locked``: only those that are not locked."""
    return {row[0]: Job(*row) for row in tx.all(LOCK_UNLOCKED if skip_locked else LOCK, ids=ids)}


def insert(tx: Tx, jobs: Sequence[Job]) -> None:
    """Add jobs, without events.

    The caller has checked that their external ids are free; LostRace when one was taken meanwhile.
    """
    rows = list(map(structs.astuple, jobs))
    if list(map(_EXTERNAL_ID, jobs)).count(None) == len(rows):
        tx.insert(_JOBS, rows)
    elif tx.insert_new(_JOBS, rows) != len(rows):
        raise LostRace("an external id was taken")


def add_first_event(tx: Tx, job: Job) -> None:
    """Write the first event of a new job. A staged job gets it when it is started."""
    outbox.write(tx, [_event(job, "running", job.creation_time)])


def _event(job: Job, what: str, now: Micros) -> tuple[int, int, Micros, str, str, str]:
    body = outbox.JobBody(job.view, what, job.blocked_by, job.num_retries)
    return (job.id, job.seq, now, outbox.JOB, job.state, outbox.body_of(body))


_SAVE, _saved_row = update_of(
    "jobs",
    Job,
    key="id",
    sets="""state, seq, num_retries, staged, sealed_at, blocked_by, error, ended_at, due_at, num_tasks, num_succeeded,
        num_failed, num_active, num_chunked_work""",
)


def save(tx: Tx, jobs: Iterable[Job]) -> None:
    """Write the counters and states of locked jobs."""
    rows = list(map(_saved_row, jobs))
    if rows and tx.update_rows(_SAVE, rows) != len(rows):
        raise BrokenPromise("a locked job was deleted by another transaction")


def add_event(tx: Tx, job: Job, what: str, now: Micros) -> None:
    """Write an event about a change of a locked job; the caller saves the job afterwards."""
    job.seq += 1
    outbox.write(tx, [_event(job, what, now)])


DUE = "SELECT id FROM jobs WHERE due_at <= :now ORDER BY due_at LIMIT :n"


def due(tx: Tx, now: Micros, n: int) -> list[int]:
    """Jobs that are to be retried, or are past their deadline or their retention."""
    return [row[0] for row in tx.all(DUE, now=now, n=n)]


DUE_UNFINISHED = """
    SELECT id FROM jobs WHERE due_at <= :now AND state IN ('RUNNING', 'PENDING_RETRY') ORDER BY due_at LIMIT :n
"""


def due_unfinished(tx: Tx, now: Micros, n: int) -> list[int]:
    """Jobs that are to be retried, are past their deadline, or were never completed."""
    return [row[0] for row in tx.all(DUE_UNFINISHED, now=now, n=n)]


BY_EXTERNAL = "SELECT id FROM jobs WHERE resource_group_id = :resource_group AND external_id = :external_id"


def by_external(tx: Tx, resource_group_id: int, external_id: str) -> int | None:
    row = tx.one(BY_EXTERNAL, resource_group=resource_group_id, external_id=external_id)
    return row[0] if row else None


NAME = "UPDATE jobs SET external_id = :external_id, revision = :revision WHERE id = :id"


def name(tx: Tx, job: Job, external_id: str, revision: int) -> None:
    """Give a locked job an external id that no other job has."""
    tx.run(NAME, id=job.id, external_id=external_id, revision=revision)
    job.external_id, job.revision = external_id, revision


OF_GROUP = """
    SELECT id FROM jobs WHERE resource_group_id = :resource_group ORDER BY external_id, id LIMIT :n
"""


def of_group(tx: Tx, resource_group_id: int, n: int) -> list[int]:
    return [row[0] for row in tx.all(OF_GROUP, resource_group=resource_group_id, n=n)]


LIVE_OF_GROUP = """
    SELECT id FROM jobs
     WHERE resource_group_id = :resource_group AND state IN ('RUNNING', 'PENDING_RETRY') AND id > :after
     ORDER BY id LIMIT :n
"""


def live_of_group(tx: Tx, resource_group_id: int, *, after: int, n: int) -> list[int]:
    """Jobs of the group that have not ended, by id; those that are not completely stored too."""
    return [row[0] for row in tx.all(LIVE_OF_GROUP, resource_group=resource_group_id, after=after, n=n)]


# ---------------------------------------------------------------- labels

LABELS = "SELECT label, task_id FROM task_labels WHERE job_id = :job"


ADDED_BY = "SELECT added_by FROM task_requests WHERE id = :id"


def added_by(tx: Tx, task_id: int) -> int | None:
    """The task that has added this one to its job while it ran; None if none has."""
    row = tx.one(ADDED_BY, id=task_id)
    return row[0] if row else None


def labels(tx: Tx, job_id: int) -> dict[str, int]:
    """The task of every label of a job."""
    return dict(tx.all(LABELS, job=job_id))


NAMED = "SELECT label, task_id, definition_hash FROM task_labels WHERE job_id = :job AND label {in_text:labels}"


def named(tx: Tx, job_id: int, labels: Sequence[str]) -> dict[str, tuple[int, str]]:
    """For those of the labels that a job has: the task, and the digest of its definition."""
    return {label: (task, digest) for label, task, digest in tx.all(NAMED, job=job_id, labels=labels)}


TASK_IDS = "SELECT id FROM task_results WHERE job_id = :job ORDER BY id LIMIT :n"


def task_ids(tx: Tx, job_id: int, n: int) -> list[int]:
    """The first n tasks of a job, by id."""
    return [row[0] for row in tx.all(TASK_IDS, job=job_id, n=n)]


DELETES = tuple(
    f"DELETE FROM {table} WHERE {column} = :job"
    for table, column in (
        ("job_meta", "job_id"),
        ("request_keys", "subject"),
        ("chunked_work", "job_id"),
        ("jobs", "id"),
    )
)


def delete(tx: Tx, job_id: int) -> None:
    """Delete a job whose tasks are deleted."""
    for text in DELETES:
        tx.run(text, job=job_id)


GROUPS_OF = "SELECT id, resource_group_id FROM jobs WHERE id {in:ids}"


def groups_of(tx: Tx, ids: Sequence[int]) -> dict[int, int]:
    """The resource group of each job."""
    return dict(tx.all(GROUPS_OF, ids=ids)) if ids else {}
