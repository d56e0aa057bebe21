"""The files that a run needs: its large inputs, the parts of gathered inputs, its code and its environment."""

from myrmidon.store.engine.db import Tx

VALUE_INPUT = """
    SELECT 1 FROM task_inputs i JOIN "values" v ON v.id = i.value_id
     WHERE i.task_id = :task AND v.digest = :digest LIMIT 1
"""
SHARED_INPUT = """
    SELECT 1 FROM task_inputs i JOIN shared_values v ON v.id = i.shared_value_id
     WHERE i.task_id = :task AND v.digest = :digest LIMIT 1
"""
VALUE_PART = """
    SELECT 1 FROM task_input_parts p JOIN "values" v ON v.id = p.value_id
     WHERE p.task_id = :task AND v.digest = :digest LIMIT 1
"""
SHARED_PART = """
    SELECT 1 FROM task_input_parts p JOIN shared_values v ON v.id = p.shared_value_id
     WHERE p.task_id = :task AND v.digest = :digest LIMIT 1
"""
CODE = """
    SELECT 1 FROM task_requests r JOIN job_codes c ON c.job_id = r.job_id AND c.code = r.code
     WHERE r.id = :task AND (c.code = :digest OR c.runs_as = :digest)
"""
ENVIRONMENT = """
    SELECT 1 FROM task_requests r JOIN job_codes c ON c.job_id = r.job_id AND c.code = r.environment
     WHERE r.id = :task AND (c.code = :digest OR c.runs_as = :digest)
"""
NEEDS = (VALUE_INPUT, CODE, ENVIRONMENT, VALUE_PART, SHARED_INPUT, SHARED_PART)


def needs(tx: Tx, task_id: int, digest: str) -> bool:
    """Whether a run of the task needs this file."""
    return any(tx.one(text, task=task_id, digest=digest) is not None for text in NEEDS)
