"""Edges between tasks: parent to child, and which of them are satisfied."""

from collections.abc import Sequence

from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, RowDelete

_EDGES = Insert("task_edges", "parent, child")
_COMPLETED = Insert("completed_task_edges", "parent, child, run")


def insert(tx: Tx, edges: Sequence[tuple[int, int]]) -> None:
    tx.insert(_EDGES, edges)


def complete(tx: Tx, rows: Sequence[tuple[int, int, int | None]]) -> None:
    """Satisfy edges (parent, child, run); under the job's lock, so each only once."""
    tx.insert(_COMPLETED, rows)


UNSATISFIED = """
    SELECT e.parent, e.child FROM task_edges e
      LEFT JOIN completed_task_edges c ON c.parent = e.parent AND c.child = e.child
     WHERE e.parent = :parent AND e.child > :after AND c.parent IS NULL
     ORDER BY e.child LIMIT :n
"""


def unsatisfied(tx: Tx, parent: int, *, after: int, n: int) -> list[int]:
    """The next n children whose edge from this parent is not satisfied."""
    return [row[1] for row in tx.all(UNSATISFIED, parent=parent, after=after, n=n)]


UNSATISFIED_OF = """
    SELECT e.parent, e.child FROM task_edges e
      LEFT JOIN completed_task_edges c ON c.parent = e.parent AND c.child = e.child
     WHERE e.parent {in:parents} AND c.parent IS NULL
     ORDER BY e.parent, e.child LIMIT :n
"""


def unsatisfied_of(tx: Tx, parents: Sequence[int], n: int) -> list[tuple[int, int]]:
    """Up to n edges from these parents that are not satisfied."""
    return [(row[0], row[1]) for row in tx.all(UNSATISFIED_OF, parents=parents, n=n)]


PARENTS = "SELECT parent, child FROM task_edges WHERE child {in:ids} ORDER BY child, parent"
WAITING_ON = """
    SELECT e.parent FROM task_edges e
      LEFT JOIN completed_task_edges c ON c.parent = e.parent AND c.child = e.child
     WHERE e.child = :child AND c.parent IS NULL ORDER BY e.parent LIMIT :n
"""
RUNNING_PARENTS = """
    SELECT e.parent, e.child FROM task_edges e JOIN task_results p ON p.id = e.parent
      LEFT JOIN completed_task_edges c ON c.parent = e.parent AND c.child = e.child
     WHERE e.child {in:ids} AND c.parent IS NULL AND p.state = 'RUNNING'
"""
WAITING_CHILDREN = """
    SELECT e.child FROM task_edges e JOIN task_results c ON c.id = e.child
     WHERE e.parent = :parent AND c.state = 'WAITING' ORDER BY e.child
"""
CHILDREN_OF_RERUNS = """
    SELECT DISTINCT e.child FROM task_edges e JOIN task_results p ON p.id = e.parent
      JOIN completed_task_edges c ON c.parent = e.parent AND c.child = e.child
     WHERE e.child {in:ids} AND COALESCE(c.run, 0) <> COALESCE(p.instance_id, 0)
"""
COMPLETED_BY = "SELECT parent, child FROM completed_task_edges WHERE parent {in:ids} ORDER BY child, parent"
COMPLETED_BETWEEN = """
    SELECT parent, child FROM completed_task_edges WHERE child {in:children} AND parent {in:parents}
     ORDER BY child, parent
"""
OF_JOB = "SELECT e.parent, e.child FROM task_results r JOIN task_edges e ON e.parent = r.id WHERE r.job_id = :job"
# CROSS JOIN keeps SQLite from looking for each edge among the tasks below.
BELOW = """
    WITH RECURSIVE below (id) AS (
        SELECT child FROM task_edges WHERE parent = :root
        UNION SELECT e.child FROM below b CROSS JOIN task_edges e WHERE e.parent = b.id
    )
    SELECT parent, child FROM task_edges WHERE parent = :root
    UNION ALL SELECT e.parent, e.child FROM below b CROSS JOIN task_edges e WHERE e.parent = b.id
"""
_REOPEN = RowDelete("completed_task_edges", key="parent, child", types="bigint, bigint")


def parents(tx: Tx, ids: Sequence[int]) -> list[tuple[int, int]]:
    """The edges (parent, child) to these tasks."""
    return [(row[0], row[1]) for row in tx.all(PARENTS, ids=ids)]


def waiting_on(tx: Tx, child: int, n: int) -> list[int]:
    """Up to n parents of a task whose edges to it are not satisfied."""
    return [row[0] for row in tx.all(WAITING_ON, child=child, n=n)]


def running_parents(tx: Tx, ids: Sequence[int]) -> list[tuple[int, int]]:
    """The edges (parent, child) to these tasks that are not satisfied and whose parents are running."""
    return [(row[0], row[1]) for row in tx.all(RUNNING_PARENTS, ids=ids)]


def waiting_children(tx: Tx, parent: int) -> list[int]:
    """The children of a task that wait."""
    return [row[0] for row in tx.all(WAITING_CHILDREN, parent=parent)]


def children_of_reruns(tx: Tx, ids: Sequence[int]) -> set[int]:
    """Those of the tasks that were started by the result of a parent that has run again since, or runs again now."""
    return {row[0] for row in tx.all(CHILDREN_OF_RERUNS, ids=ids)}


def completed_by(tx: Tx, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Edges that these parents have satisfied."""
    return [(row[0], row[1]) for row in tx.all(COMPLETED_BY, ids=ids)]


def completed_between(tx: Tx, parents: Sequence[int], children: Sequence[int]) -> list[tuple[int, int]]:
    """Edges from these parents to these children that are satisfied."""
    return [(row[0], row[1]) for row in tx.all(COMPLETED_BETWEEN, parents=parents, children=children)]


def of_job(tx: Tx, job_id: int) -> list[tuple[int, int]]:
    """All edges (parent, child) of a job."""
    return [(row[0], row[1]) for row in tx.all(OF_JOB, job=job_id)]


def below(tx: Tx, task_id: int) -> list[tuple[int, int]]:
    """The edges (parent, child) from a task and its descendants."""
    return [(row[0], row[1]) for row in tx.all(BELOW, root=task_id)]


def reopen(tx: Tx, edges: Sequence[tuple[int, int]]) -> None:
    """Make satisfied edges unsatisfied, because their parents run again. The caller lowers the counters."""
    tx.delete_rows(_REOPEN, edges)


DELETES = tuple(
    f"DELETE FROM {table} WHERE {column} {{in:ids}}"
    for table, column in (
        ("completed_task_edges", "parent"),
        ("task_edges", "parent"),
        ("task_edges", "child"),
    )
)


def delete_of_tasks(tx: Tx, task_ids: Sequence[int]) -> None:
    """Delete the edges from and to these tasks. Only edges have an index of their children."""
    reopen(tx, parents(tx, task_ids))
    for text in DELETES:
        tx.run(text, ids=task_ids)
