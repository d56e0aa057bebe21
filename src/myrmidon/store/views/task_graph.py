"""Read-only queries about a graph as TaskCluster's clients see it: tasks with the ids that clients chose, and edges."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.store.engine.db import Tx

_READ_SIZE = 1_000


class GraphTask(Struct, frozen=True):
    id: int
    job_id: int
    label: str
    external_id: str | None
    state: str
    reason: str
    reruns: int
    num_reruns: int


class GraphEdge(Struct, frozen=True):
    """``satisfied_by`` is the parent, or None while the child waits for it."""

    parent: int
    child: int
    satisfied_by: int | None


_TASK = "t.id, t.job_id, l.label, r.external_id, t.state, t.reason, r.max_num_retries, t.num_reruns"
_TASK_SOURCE = "task_results t JOIN task_labels l ON l.task_id = t.id JOIN task_requests r ON r.id = t.id"
_EDGE = "e.parent, e.child, c.parent"
_SATISFIED = "LEFT JOIN completed_task_edges c ON c.parent = e.parent AND c.child = e.child"
TASKS = f"SELECT {_TASK} FROM {_TASK_SOURCE} WHERE t.job_id = :job AND t.id > :after ORDER BY t.id LIMIT :n"
EDGES = f"""
    SELECT {_EDGE} FROM task_results t JOIN task_edges e ON e.parent = t.id {_SATISFIED}
     WHERE t.job_id = :job AND t.id > :after AND t.id <= :until ORDER BY e.parent, e.child
"""


def graph(tx: Tx, job_id: int) -> tuple[list[GraphTask], list[GraphEdge]]:
    """Return all tasks of a job by id, and its edges."""
    tasks: list[GraphTask] = []
    edges: list[GraphEdge] = []
    after = 0
    while page := [GraphTask(*row) for row in tx.all(TASKS, job=job_id, after=after, n=_READ_SIZE)]:
        edges += [GraphEdge(*row) for row in tx.all(EDGES, job=job_id, after=after, until=page[-1].id)]
        tasks += page
        after = page[-1].id
    return tasks, edges


TASKS_BY_ID = f"SELECT {_TASK} FROM {_TASK_SOURCE} WHERE t.id {{in:ids}}"
EDGES_TO = f"SELECT {_EDGE} FROM task_edges e {_SATISFIED} WHERE e.child = :task ORDER BY e.parent"
EDGES_FROM = f"SELECT {_EDGE} FROM task_edges e {_SATISFIED} WHERE e.parent = :task ORDER BY e.child"


def tasks_by_id(tx: Tx, task_ids: Sequence[int]) -> dict[int, GraphTask]:
    return {row[0]: GraphTask(*row) for row in tx.all(TASKS_BY_ID, ids=task_ids)} if task_ids else {}


def edges_of(tx: Tx, task_id: int) -> list[GraphEdge]:
    """The edges from the parents of a task, and those to its children."""
    return [GraphEdge(*row) for text in (EDGES_TO, EDGES_FROM) for row in tx.all(text, task=task_id)]


NAMES = """
    SELECT l.label, l.task_id, r.external_id FROM task_labels l JOIN task_requests r ON r.id = l.task_id
     WHERE l.job_id = :job
"""


def names(tx: Tx, job_id: int) -> list[tuple[str, int, str | None]]:
    """The label, the id and the id that the client chose, of every task of a job."""
    return [(row[0], row[1], row[2]) for row in tx.all(NAMES, job=job_id)]
