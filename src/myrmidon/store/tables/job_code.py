"""The code and the environments that the functions of a job need, by digest, and what replaces them since a rerun."""

from collections.abc import Iterable, Mapping, Sequence

from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, RowUpdate

_CODES = Insert("job_codes", "job_id, code, runs_as")
_REPLACE = RowUpdate("job_codes", key="job_id, code", sets="runs_as", types="bigint, text, text")


def insert(tx: Tx, job_id: int, codes: Iterable[str]) -> None:
    """Store which code a job needs; what is stored already is kept."""
    tx.insert_new(_CODES, [(job_id, code, None) for code in sorted(set(codes))])


def replace(tx: Tx, job_id: int, replaced: Mapping[str, str | None]) -> None:
    """Let functions with some code get another one from now on; None for their own."""
    tx.update_rows(_REPLACE, [(job_id, code, new) for code, new in sorted(replaced.items())])


OF_JOB = "SELECT code, runs_as FROM job_codes WHERE job_id = :job ORDER BY code"


def of_job(tx: Tx, job_id: int) -> dict[str, str | None]:
    """The codes of a job, each with the code that replaces it, if one does."""
    return dict(tx.all(OF_JOB, job=job_id))


REPLACED = "SELECT job_id, code, runs_as FROM job_codes WHERE job_id {in:ids} AND runs_as IS NOT NULL"


def replaced(tx: Tx, job_ids: Sequence[int]) -> dict[tuple[int, str], str]:
    """The codes that replace others, by job and replaced code."""
    return {(row[0], row[1]): row[2] for row in tx.all(REPLACED, ids=job_ids)}


DELETE = "DELETE FROM job_codes WHERE job_id = :job"


def delete_of_job(tx: Tx, job_id: int) -> None:
    tx.run(DELETE, job=job_id)
