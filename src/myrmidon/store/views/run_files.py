"""The files that a run needs: its large inputs."""

from myrmidon.store.engine.db import Tx

VALUE_INPUT = """
    SELECT 1 FROM task_inputs i JOIN "values" v ON v.id = i.value_id
     WHERE i.task_id = :task AND v.digest = :digest LIMIT 1
"""
SHARED_INPUT = """
    SELECT 1 FROM task_inputs i JOIN shared_values v ON v.id = i.shared_value_id
     WHERE i.task_id = :task AND v.digest = :digest LIMIT 1
"""
NEEDS = (VALUE_INPUT, SHARED_INPUT)


def needs(tx: Tx, task_id: int, digest: str) -> bool:
    """Whether a run of the task needs this file."""
    return any(tx.one(text, task=task_id, digest=digest) is not None for text in NEEDS)
