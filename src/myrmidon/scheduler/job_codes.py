"""Replace the code of functions: what a rerun with new code does.

Requests are immutable and keep the code that they were submitted with. What replaces it is kept with the job and given
to bots from the next claim on. Tasks whose code was replaced neither use nor give results to equal tasks, because their
dedupe keys name the code that they do not run.
"""

from collections.abc import Mapping

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job_code


def replace_code(tx: Tx, job_id: int, replaced: Mapping[str, str]) -> None:
    """Let functions of a locked job run other code, by digest. The old digest may be one that replaced another."""
    stored = job_code.of_job(tx, job_id)
    rows: dict[str, str | None] = {}
    problems: list[Problem] = []
    for old, new in replaced.items():
        found = [code for code, runs_as in stored.items() if old in (code, runs_as)]
        if not found:
            problems.append(Problem(f"code.{old}", old, "the digest of code that the job has", "unknown_code"))
        rows.update({code: new if new != code else None for code in found})
    if problems:
        raise InvalidRequest(problems)
    job_code.replace(tx, job_id, rows)
