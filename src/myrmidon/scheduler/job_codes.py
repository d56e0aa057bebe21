"""Replace the code of functions: what a rerun with new code does.

Requests are immutable and keep the code that they were submitted with. What replaces it is kept with the job and given
to bots from the next claim on. Tasks whose code was replaced neither use nor give results to equal tasks, because their
dedupe keys name the code that they do not run.
"""

from collections.abc import Mapping
from typing import Any

from myrmidon.model.errors import InvalidRequest, Problem, UnknownFile
from myrmidon.model.ids import Micros
from myrmidon.scheduler.new_values import check_files
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


def with_submitted_code(tx: Tx, job_id: int, *documents: Any) -> list[Any]:
    """Documents that a running task has sent, with the code that its job was submitted with.

    The task knows only the code that it runs. Its tasks get that one all the same, and the next rerun replaces it with
    the others of the job. And a task that adds the same tasks as before the rerun adds none.
    """
    submitted = {runs_as: code for code, runs_as in job_code.of_job(tx, job_id).items() if runs_as is not None}
    return [_with_code(document, submitted) if submitted else document for document in documents]


def _with_code(document: Any, codes: Mapping[str, str]) -> Any:
    tasks = document.get("tasks") if isinstance(document, dict) else None
    if isinstance(tasks, dict):
        return {**document, "tasks": {label: _node_with_code(node, codes) for label, node in tasks.items()}}
    if isinstance(tasks, list):
        return {**document, "tasks": [_node_with_code(node, codes) for node in tasks]}
    return document


def _node_with_code(node: Any, codes: Mapping[str, str]) -> Any:
    task = node.get("task") if isinstance(node, dict) else None
    function = task.get("function") if isinstance(task, dict) else None
    if not isinstance(task, dict) or not isinstance(function, dict):
        return node
    code = function.get("code")
    if not isinstance(code, str) or code not in codes:
        return node
    return {**node, "task": {**task, "function": {**function, "code": codes[code]}}}
