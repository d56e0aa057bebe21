"""Names of jobs and of their tasks on the command line: ids, external ids, ``JOB/LABEL`` and ``@latest``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from myrmidon.cli.request_options import Id, TaskId
from myrmidon.sdk.errors import NotFound

if TYPE_CHECKING:
    from myrmidon.cli.context import CliContext

LATEST: Final = "@latest"


class JobName(Id):
    """The id or external id of a job, or ``@latest``: the last one that was submitted with the caller's token."""

    name = "job"


class TaskName(TaskId):
    """The id of a task or run, or ``JOB/LABEL``."""

    name = "task"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        job, slash, label = text.partition("/")
        if slash and job and label:
            return text
        if text == LATEST:
            self.fail(f"{LATEST} is a job; name one of its tasks: {LATEST}/LABEL.", param, ctx)
        return super().convert(value, param, ctx)


def job_id(cli: CliContext, name: str) -> str:
    """The job's id as the server shows it; ``@latest`` is the caller's newest one."""
    if name != LATEST:
        return name
    found = cli.client.jobs(limit=1, mine=True).jobs
    if not found:
        raise NotFound("There is no job that was submitted with this token; `myrmidon jobs` lists all.")
    return found[0].job_id


def task_id_of(task_or_run_id: str) -> str:
    """The task's id, also for the id of one of its runs: the last byte is the run's number, 0 for the task."""
    return f"{task_or_run_id[:-2]}00"


def task_id(cli: CliContext, name: str) -> str:
    """The id of a task that was given as an id or as ``JOB/LABEL``. Ids are not looked up."""
    job, slash, label = name.partition("/")
    if not slash:
        return name
    found = cli.client.job(job_id(cli, job)).task(label)
    if found is None:
        raise NotFound(f"Job {job} has no task {label!r}; `myrmidon job tree {job}` lists its tasks.")
    return found.task_id
