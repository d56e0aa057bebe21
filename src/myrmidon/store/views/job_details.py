"""Read-only queries about jobs: lists, tasks by label, edges, and what tasks with equal names took before.

A page starts at a key, not at an offset, so that new rows do not shift it.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct, json, structs

from myrmidon.model.ids import Micros
from myrmidon.model.states import FINAL, JobState, TaskState
from myrmidon.store.engine.db import Tx
from myrmidon.store.views.selection import GROUP_NAME, Selection, in_group
from myrmidon.wire.jobs import JobInfo, JobSummary, JobTask

SCAN_LIMIT = 5_000
"""Jobs that one page of a list with tags reads, at most."""
_READ_SIZE = 1_000
_JOB = {
    "job_id": "j.id",
    "group": GROUP_NAME.format("j"),
    "view": """CASE WHEN j.state = 'SUCCEEDED' THEN 'finished'
        WHEN j.blocked_by IS NOT NULL OR j.state IN ('FAILED', 'CANCELLED') THEN 'blocked' ELSE 'running' END""",
    "created_at": "j.creation_time",
    "sealed": "j.sealed_at IS NOT NULL",
}
JOB = Selection(JobSummary, "j", **_JOB)
JOB_IN_FULL = Selection(
    JobInfo, "j", counts="NULL", progress="NULL", first_failure="NULL", busy="j.num_chunked_work > 0", **_JOB
)


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs to list; None and empty lists restrict nothing. The ids are bounds of the creation time."""

    group_id: int | None = None
    states: list[str] = []
    name: str | None = None
    tags: list[str] = []
    submitter: str | None = None
    from_id: int = 0


JOBS = f"""
    SELECT {JOB.columns}, j.tags FROM jobs j
     WHERE j.staged = 0 AND j.id < :before AND j.id >= :from_id AND j.state {{in_text:states}}
       AND (:any_group = 1 OR j.resource_group_id = :resource_group) AND (:any_name = 1 OR j.name = :name)
     ORDER BY j.id DESC LIMIT :n
"""


POOLS = """
    SELECT d.pool FROM task_results t JOIN task_requests r ON r.id = t.id JOIN task_dimensions d ON d.id = r.queue
     WHERE t.job_id = :job
     UNION
    SELECT d.pool FROM task_results t JOIN further_slices s ON s.task_id = t.id JOIN task_dimensions d ON d.id = s.queue
     WHERE t.job_id = :job
"""


def pools(tx: Tx, job_id: int) -> list[str]:
    """The pools that the tasks of a job are for."""
    return sorted(row[0] for row in tx.all(POOLS, job=job_id))


def jobs(tx: Tx, filters: JobFilter, *, before: int, n: int, scan: int = SCAN_LIMIT) -> tuple[list[JobSummary], int]:
    """A page of jobs, newest first, and the id to continue before; 0 at the end.

    Tags are compared here: they are stored as one text per job; so is the submitter, which is stored with the tasks.
    Such a page may be short before the end of the list.
    """
    given = {
        "from_id": filters.from_id,
        "states": filters.states or list(JobState),
        **in_group(filters.group_id),
        "any_name": int(filters.name is None),
        "name": filters.name or "",
    }
    wanted, found, scanned = set(filters.tags), list[JobSummary](), 0
    size = n if not wanted and filters.submitter is None else _READ_SIZE
    while scanned < scan:
        page = tx.all(JOBS, before=before, n=size, **given)
        scanned += len(page)
        own = set(submitted_by(tx, [row[0] for row in page], filters.submitter))
        for row in page:
            before = row[0]
            if before in own and (not wanted or wanted <= set(json.decode(row[-1], type=list[str]))):
                found.append(JOB(row))
                if len(found) == n:
                    return found, before
        if len(page) < size:
            return found, 0
    return found, before


SUBMITTED_BY = """
    SELECT j.id FROM jobs j
      JOIN task_requests r ON r.id = (SELECT MIN(t.id) FROM task_results t WHERE t.job_id = j.id)
     WHERE j.id {in:ids} AND r.authenticated = :submitter
"""


def submitted_by(tx: Tx, job_ids: Sequence[int], submitter: str | None) -> Sequence[int]:
    """Return the ids of these jobs that this caller has submitted; all of them for None.

    The task with the lowest id is one of the submitted document: an extension, perhaps by somebody else, comes later.
    """
    if submitter is None or not job_ids:
        return job_ids
    return [row[0] for row in tx.all(SUBMITTED_BY, ids=job_ids, submitter=submitter)]


SUMMARIES = f"SELECT {JOB.columns} FROM jobs j WHERE j.id {{in:ids}}"
IN_FULL = f"SELECT {JOB_IN_FULL.columns} FROM jobs j WHERE j.id = :job"


def summaries(tx: Tx, job_ids: Sequence[int]) -> dict[int, JobSummary]:
    return {row[0]: JOB(row) for row in tx.all(SUMMARIES, ids=job_ids)}


def in_full(tx: Tx, job_id: int) -> JobInfo | None:
    """A job with its numbers of tasks by state, but without its first failure."""
    found = JOB_IN_FULL.read(tx, IN_FULL, job=job_id)
    counts = task_counts(tx, job_id)
    ended = sum(n for state, n in counts.items() if state in FINAL)
    return next((structs.replace(job, counts=counts, progress=ended / (job.num_tasks or 1)) for job in found), None)


COUNTS = "SELECT state, COUNT(*) FROM jobs WHERE staged = 0 GROUP BY state"
COUNTS_OF_GROUP = (
    "SELECT state, COUNT(*) FROM jobs WHERE staged = 0 AND resource_group_id = :resource_group GROUP BY state"
)


def counts(tx: Tx, group_id: int | None) -> dict[str, int]:
    """The number of jobs by state, in one resource group or in all."""
    rows = tx.all(COUNTS) if group_id is None else tx.all(COUNTS_OF_GROUP, resource_group=group_id)
    return {state: int(n) for state, n in rows}


TASK_COUNTS = "SELECT state, COUNT(*) FROM task_results WHERE job_id = :job GROUP BY state"


def task_counts(tx: Tx, job_id: int) -> dict[str, int]:
    """The number of a job's tasks by state."""
    return {state: int(n) for state, n in tx.all(TASK_COUNTS, job=job_id)}


# ---------------------------------------------------------------- tasks of a job


class JobTaskLine(Struct, frozen=True):
    """A task of a job, as far as two jobs are compared. The last fields are those of its latest or deciding run."""

    label: str
    id: int
    definition_hash: str
    state: str
    reason: str
    bot_id: str | None
    deduped_from: int | None
    exit_code: int | None
    duration: float | None
    evidence: str | None
    error: str | None


_TASK_LINE = """l.label, t.id, l.definition_hash, t.state, t.reason, t.bot_id, t.deduped_from, u.exit_code, u.duration,
    u.evidence, u.error"""
_RUN = "COALESCE(t.instance_id, t.run_number)"
_TASK_SOURCE = f"""task_labels l JOIN task_results t ON t.id = l.task_id
    LEFT JOIN task_runs u ON u.task_id = t.id AND u.run = {_RUN}"""
_BY_LABEL = "l.job_id = :job AND l.label > :after"
ALL_TASKS = f"SELECT {_TASK_LINE} FROM {_TASK_SOURCE} WHERE {_BY_LABEL} ORDER BY l.label LIMIT :n"
BY_LABELS = f"SELECT {_TASK_LINE} FROM {_TASK_SOURCE} WHERE l.job_id = :job AND l.label {{in_text:labels}}"
BY_IDS = f"SELECT {_TASK_LINE} FROM {_TASK_SOURCE} WHERE l.task_id {{in:ids}}"


def all_tasks(tx: Tx, job_id: int) -> Iterator[JobTaskLine]:
    """Return all tasks of a job by label, read page by page."""
    after = ""
    while page := [JobTaskLine(*row) for row in tx.all(ALL_TASKS, job=job_id, after=after, n=_READ_SIZE)]:
        yield from page
        after = page[-1].label


def tasks_by_label(tx: Tx, job_id: int, labels: Sequence[str]) -> dict[str, JobTaskLine]:
    return {row[0]: JobTaskLine(*row) for row in tx.all(BY_LABELS, job=job_id, labels=list(labels))} if labels else {}


def tasks_by_id(tx: Tx, task_ids: Sequence[int]) -> dict[int, JobTaskLine]:
    return {row[1]: JobTaskLine(*row) for row in tx.all(BY_IDS, ids=task_ids)} if task_ids else {}


class ListedTask(Struct, frozen=True):
    """A task in the list of a job's tasks without its parents, and the end of its run as it is stored."""

    id: int
    shown: JobTask
    evidence: str | None
    error: str | None


_HAS_ENDED = "t.state NOT IN ('WAITING', 'READY', 'RUNNING')"
# The last change of a task or of its run: the progress of a run does not change its task.
TASK = Selection(
    JobTask,
    "t",
    left_out=["message", "error"],
    label="l.label",
    task_id="t.id",
    requires="NULL",
    requires_left="NULL",
    reruns="r.max_num_retries",
    reruns_left="CASE WHEN r.max_num_retries > t.num_reruns THEN r.max_num_retries - t.num_reruns ELSE 0 END",
    resolution="NULL",
    priority="r.priority",
    run=("t.id", f"NULLIF({_RUN}, 0)"),
    exit_code=f"CASE WHEN {_HAS_ENDED} THEN u.exit_code END",
    modified_at="CASE WHEN u.modified_at > t.modified_at THEN u.modified_at ELSE t.modified_at END",
    waited_s="t.started_at - t.ready_at",
    duration_s=f"CASE WHEN {_HAS_ENDED} THEN u.duration END",
    progress="u.progress",
)
_TASKS = f"""
    SELECT {TASK.columns}, u.evidence, u.error
      FROM task_labels l JOIN task_results t ON t.id = l.task_id JOIN task_requests r ON r.id = t.id
      LEFT JOIN task_runs u ON u.task_id = t.id AND u.run = {_RUN}
     WHERE {_BY_LABEL} AND l.label >= :prefix"""
TASKS = f"{_TASKS} ORDER BY l.label LIMIT :n"
CHANGED_TASKS = f"""{_TASKS} AND t.state {{in_text:states}} AND (t.modified_at >= :since OR u.modified_at >= :since)
     ORDER BY l.label LIMIT :n
"""


def tasks(
    tx: Tx,
    job_id: int,
    *,
    after: str = "",
    n: int,
    states: Sequence[str] = (),
    since: Micros | None = None,
    prefix: str = "",
) -> list[ListedTask]:
    """The next n tasks of a job by label, from ``prefix`` on; the caller compares the rest of the prefix.

    ``states`` and ``since`` restrict them to those in these states, and to those that have changed since then.
    """
    given = {"job": job_id, "after": after, "prefix": prefix, "n": n}
    if not states and since is None:
        rows = tx.all(TASKS, **given)
    else:
        rows = tx.all(CHANGED_TASKS, states=list(states or TaskState), since=since or 0, **given)
    return [ListedTask(row[1], TASK(row), row[-2], row[-1]) for row in rows]


LABELS_OF = "SELECT task_id, label FROM task_labels WHERE task_id {in:ids}"


def labels_of(tx: Tx, task_ids: Sequence[int]) -> dict[int, str]:
    """The labels of tasks that belong to a job."""
    return dict(tx.all(LABELS_OF, ids=task_ids)) if task_ids else {}


UNSATISFIED_PARENTS = """
    SELECT e.parent, e.child FROM task_edges e
      LEFT JOIN completed_task_edges c ON c.parent = e.parent AND c.child = e.child
     WHERE e.child {in:ids} AND c.parent IS NULL ORDER BY e.child, e.parent
"""


def unsatisfied_parents(tx: Tx, task_ids: Sequence[int]) -> list[tuple[int, int]]:
    """The edges (parent, child) to these tasks that are not satisfied."""
    return [(row[0], row[1]) for row in tx.all(UNSATISFIED_PARENTS, ids=task_ids)]


OUTPUT_TASKS = """
    SELECT task_id FROM output_tasks WHERE job_id = :job AND task_id > :after ORDER BY task_id LIMIT :n
"""


def output_tasks(tx: Tx, job_id: int, *, after: int, n: int) -> list[int]:
    """The next n tasks of a job that have no children, by id."""
    return [row[0] for row in tx.all(OUTPUT_TASKS, job=job_id, after=after, n=n)]


# ---------------------------------------------------------------- the graph


class GraphNode(Struct, frozen=True):
    id: int
    label: str
    state: str
    held: int


NODES = """
    SELECT t.id, l.label, t.state, t.held FROM task_results t JOIN task_labels l ON l.task_id = t.id
     WHERE t.job_id = :job AND t.id > :after ORDER BY t.id LIMIT :n
"""
EDGES = """
    SELECT e.parent, e.child FROM task_results t JOIN task_edges e ON e.parent = t.id
     WHERE t.job_id = :job AND t.id > :after AND t.id <= :until ORDER BY e.parent, e.child
"""


def graph(tx: Tx, job_id: int) -> tuple[list[GraphNode], list[tuple[int, int]]]:
    """Return all nodes of a job by id, and its edges (parent, child)."""
    nodes: list[GraphNode] = []
    edges: list[tuple[int, int]] = []
    after = 0
    while page := [GraphNode(*row) for row in tx.all(NODES, job=job_id, after=after, n=_READ_SIZE)]:
        edges += [(row[0], row[1]) for row in tx.all(EDGES, job=job_id, after=after, until=page[-1].id)]
        nodes += page
        after = page[-1].id
    return nodes, edges


# ---------------------------------------------------------------- earlier durations

DURATIONS = """
    SELECT r.name, AVG(t.completed_at - t.started_at) FROM task_requests r JOIN task_results t ON t.id = r.id
     WHERE r.id > :from_id AND r.resource_group_id = :resource_group AND t.state = 'SUCCEEDED'
       AND t.started_at IS NOT NULL AND r.name {in_text:names}
     GROUP BY r.name
"""
OLDEST_OF_NEWEST = "SELECT id FROM task_requests ORDER BY id DESC LIMIT 1 OFFSET :n"


def mean_durations(tx: Tx, group_id: int, names: Sequence[str], *, sample: int) -> dict[str, float]:
    """The mean duration in seconds of earlier successful tasks by name, among the newest ``sample`` tasks."""
    oldest = tx.one(OLDEST_OF_NEWEST, n=sample)
    rows = tx.all(DURATIONS, from_id=oldest[0] if oldest else 0, resource_group=group_id, names=list(names))
    return {name: float(micros) / 1e6 for name, micros in rows}
