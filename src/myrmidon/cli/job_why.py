"""`job why`: what a job waits for, and which failures block the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.function_errors import error_lines
from myrmidon.cli.job_failures import unreachable_lines
from myrmidon.cli.job_lines import counts_text, shortened
from myrmidon.cli.jobs import JOB_ARGUMENT, handle
from myrmidon.cli.logs import LAST_LINES
from myrmidon.sdk.exit_code import exit_code_text

if TYPE_CHECKING:
    from myrmidon.sdk.jobs import Job
    from myrmidon.wire import jobs as wire
    from myrmidon.wire.job_history import FailureGroup

_READY_SHOWN = 3
_BLOCKERS_SHOWN = 20


@click.command()
@JOB_ARGUMENT
@connected
def why(cli: CliContext, name: str) -> None:
    """Explain why a job has not succeeded.

    Shows what runs, waits for a bot or is held, and which failures block the rest.
    """
    job = handle(cli, name)
    info = job.info()
    failures, unreachable = cli.client.job_failures(info.job_id), job.unreachable()
    waiting = _waiting(cli, job, info)
    if cli.as_json:
        facts = {"job_id": info.job_id, "state": info.state, "counts": info.counts, "failures": failures.groups}
        output.print_struct({**facts, "unreachable": unreachable, "waiting": waiting})
        return
    state = "The job is running." if info.ended_at is None else f"The job has ended: {output.state(info.state)}."
    output.echo(f"{state} Its tasks: {counts_text(info.counts)}.")
    if info.busy:
        output.echo("A change of many tasks is being carried out.")
    for group in failures.groups:
        for line in _group_lines(group):
            output.echo(line)
    for line in unreachable_lines(unreachable, most=_BLOCKERS_SHOWN):
        output.echo(f"{line}.")
    for label, text in waiting.items():
        output.echo(f"{label}: {text}")
    if failures.groups:
        output.next_step(f"myrmidon job log --failed {info.job_id}")


def _group_lines(group: FailureGroup) -> list[str]:
    """The number of tasks that have failed alike, their labels, and the exception or last lines of the first one."""
    code = f" with {exit_code_text(group.exit_code)}" if group.exit_code and group.error is None else ""
    reason = f" ({group.reason})" if group.reason not in ("", "exit_code") else ""
    message = f": {group.message.partition(chr(10))[0]}" if group.message else ""
    labels = [task.label for task in group.tasks]
    more = [f"({group.num_tasks - len(labels)} more)"] if group.num_tasks > len(labels) else []
    names = ", ".join([*shortened(labels), *more])
    details = error_lines(group.error, short=True) or [f"| {line}" for line in group.tail.splitlines()[-LAST_LINES:]]
    return [
        f"{output.plural(group.num_tasks, 'task')} ended {output.state(group.state)}{code}{reason}{message}",
        f"  {names}",
        *(f"  {line}" for line in details),
    ]


def _waiting(cli: CliContext, job: Job, info: wire.JobInfo) -> dict[str, str]:
    """The first tasks that wait for a bot or are held, each with what it waits for."""
    tasks = list(job.tasks(state=["READY"], limit=_READY_SHOWN)) if info.counts.get("READY") else []
    if not tasks and not info.counts.get("RUNNING") and info.ended_at is None:
        tasks = [task for task in job.tasks(state=["WAITING"]) if task.held][:_READY_SHOWN]
    return {task.label: cli.client.why(task.task_id).summary for task in tasks}
