"""Replace the code of functions: what a rerun with new code does.

Requests are immutable and keep the code that they were submitted with. What replaces it is kept with the job and given
to bots from the next claim on. Tasks whose code was replaced neither use nor give results to equal tasks, because their
dedupe keys name the code that they do not run.
"""

from collections.abc import Mapping

from myrmidon.model.errors import InvalidRequest, Problem, UnknownFile
from myrmidon.model.ids import Micros
from myrmidon.scheduler.files import check_files
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import job_code
from myrmidon.store.tables.job import Job


def replace_code(tx: Tx, job: Job, replaced: Mapping[str, str], *, now: Micros) -> None:
    """Let functions of a locked job run other code, by digest. The old digest may be one that replaced another."""
    job_id = job.id
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
    missing = check_files(tx, job.resource_group_id, replaced.values(), now=now)
    if missing:
        raise UnknownFile(missing)
    job_code.replace(tx, job_id, rows)
