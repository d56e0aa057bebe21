"""The files that a run needs: its large inputs."""

from myrmidon.store.engine.db import Tx

VALUE_INPUT = """
    SELECT v.size FROM task_inputs i JOIN "values" v ON v.id = i.value_id
     WHERE i.task_id = :task AND v.digest = :digest LIMIT 1
"""
SHARED_INPUT = """
    SELECT v.size FROM task_inputs i JOIN shared_values v ON v.id = i.shared_value_id
     WHERE i.task_id = :task AND v.digest = :digest LIMIT 1
"""
NEEDS = (VALUE_INPUT, SHARED_INPUT)


def size_of_input(tx: Tx, task_id: int, digest: str) -> int | None:
    """The size of a file that the task needs; None if it does not need this one."""
    for text in NEEDS:
        if (row := tx.one(text, task=task_id, digest=digest)) is not None and row[0] is not None:
            return int(row[0])
    return None
