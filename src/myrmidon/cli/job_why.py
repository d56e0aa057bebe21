"""`job why`: what a job waits for, and which failures block the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.job_failures import unreachable_lines
from myrmidon.cli.job_lines import counts_text, shortened
from myrmidon.cli.jobs import JOB_ARGUMENT, handle

if TYPE_CHECKING:
    from myrmidon.sdk.jobs import Job
    from myrmidon.wire import jobs as wire

_READY_SHOWN = 3
_BLOCKERS_SHOWN = 20


@click.command()
@JOB_ARGUMENT
@connected
def why(cli: CliContext, name: str) -> None:
    """Explain why a job has not succeeded: what runs, waits for a bot or is held, and which failures block the rest."""
    job = handle(cli, name)
    info = job.info()
    errors, unreachable = job.errors(), job.unreachable()
    waiting = _waiting(cli, job, info)
    if cli.as_json:
        failures = [{"text": text, "labels": [task.label for task in tasks]} for text, tasks in errors.items()]
        facts = {"job_id": info.job_id, "state": info.state, "counts": info.counts, "failures": failures}
        output.print_json({**facts, "unreachable": unreachable, "waiting": waiting})
        return
    state = "The job is running." if info.ended_at is None else f"The job has ended: {output.state(info.state)}."
    output.echo(f"{state} Its tasks: {counts_text(info.counts)}.")
    if info.busy:
        output.echo("A change of many tasks is being carried out.")
    for text, tasks in errors.items():
        labels = ", ".join(shortened([task.label for task in tasks]))
        output.echo(f"{output.plural(len(tasks), 'task')} ended {text}: {labels}.")
    for line in unreachable_lines(unreachable, most=_BLOCKERS_SHOWN):
        output.echo(f"{line}.")
    for label, text in waiting.items():
        output.echo(f"{label}: {text}")
    if errors:
        output.next_step(f"myrmidon job log --failed {info.job_id}")


def _waiting(cli: CliContext, job: Job, info: wire.JobInfo) -> dict[str, str]:
    """The first tasks that wait for a bot or are held, each with what it waits for."""
    tasks = list(job.tasks(state=["READY"], limit=_READY_SHOWN)) if info.counts.get("READY") else []
    if not tasks and not info.counts.get("RUNNING") and info.ended_at is None:
        tasks = [task for task in job.tasks(state=["WAITING"]) if task.held][:_READY_SHOWN]
    return {task.label: cli.api.why(task.task_id).summary for task in tasks}
