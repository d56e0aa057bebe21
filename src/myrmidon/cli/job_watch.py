"""`job watch`: follow a job until it has ended.

On a terminal a live tree, refreshed in place; without one a line per change; with --json a JSON object per change. The
job goes on when the command is interrupted.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.job_views import FAILED, group_lines, tree_lines
from myrmidon.cli.jobs import JOB_ARGUMENT, describe_end, handle

if TYPE_CHECKING:
    from myrmidon.sdk.jobs import Job
    from myrmidon.wire import jobs as wire

REFRESH_S: Final = 1.0
LOG_LINES: Final = 5
BAR: Final = 30


@click.command()
@JOB_ARGUMENT
@connected
def watch(cli: CliContext, name: str) -> int:
    """Watch a job until it has ended, and exit with its result: 0 succeeded, 1 failed, 125 cancelled, 124 deadline.

    Ctrl-C leaves the job running.
    """
    return watch_job(cli, handle(cli, name))


def watch_job(cli: CliContext, job: Job) -> int:
    """Follow a job; the exit code of its result."""
    try:
        info = _print_changes(cli, job) if cli.as_json or not sys.stdout.isatty() else _show_live(job)
    except KeyboardInterrupt:
        output.note(f"The job goes on. To come back: myrmidon job watch {job.id}")
        return exit_codes.INTERRUPTED
    if not cli.as_json:
        _print_end(cli, job, info)
    return exit_codes.of_job(info)


# ---------------------------------------------------------------- without a terminal


def _print_changes(cli: CliContext, job: Job) -> wire.JobInfo:
    """One line per change of a task or of the job."""
    states: dict[str, str] = {}
    while True:
        waited = job.poll(wait_s=REFRESH_S)
        for task in _changed(job, states):
            if cli.as_json:
                output.print_struct(task)
            else:
                output.echo(f"{task.label}  {describe_end(task)}")
        if waited.done:
            if cli.as_json:
                output.print_struct(waited.job)
            else:
                output.echo(f"job {waited.job.job_id}  {waited.job.state}")
            return waited.job


def _changed(job: Job, states: dict[str, str]) -> Iterator[wire.JobTask]:
    """Tasks whose state has changed since the last call; ``states`` is updated."""
    for task in job.tasks():
        if states.get(task.label) != task.state:
            states[task.label] = task.state
            yield task


# ---------------------------------------------------------------- on a terminal


def _show_live(job: Job) -> wire.JobInfo:
    from rich.console import Console  # late, for startup time
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            waited = job.poll(wait_s=REFRESH_S)
            width, height = shutil.get_terminal_size()
            lines = [
                output.render(line, colour=output.has_colours(err=False))
                for line in frame(job, waited.job, width=width, height=height - 1)
            ]
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
            if waited.done:
                return waited.job


def frame(job: Job, info: wire.JobInfo, *, width: int, height: int) -> list[str]:
    """The lines of one refresh: a head with a progress bar, failures, then as much of the tree as fits."""
    head = [_title(info), _progress(info, width)]
    failed = list(job.tasks(state=FAILED)) if info.num_failed else []
    room = height - len(head)
    failures = _failure_lines(failed, limit=max(1, room // 3))
    room -= len(failures)
    body = tree_lines(list(job.tasks())) if info.num_tasks <= room else []
    if not body:
        body = _cut(group_lines(job.graph(max_nodes=1).groups), room)
    return [*head, *failures, *body]


def _title(info: wire.JobInfo) -> str:
    seconds = ((info.ended_at or int(time.time() * 1e6)) - info.created_at) / 1e6
    blocked = " (blocked)" if info.view == "blocked" and info.state == "RUNNING" else ""
    return f"{info.name}  {output.state(info.state)}{blocked}  {output.duration(max(seconds, 0.0))}"


def _progress(info: wire.JobInfo, width: int) -> str:
    size = min(BAR, max(10, width - 50))
    done = round(info.progress * size)
    counts = "  ".join(f"{output.state(state)} {n}" for state, n in sorted(info.counts.items()))
    return f"[{'#' * done}{'.' * (size - done)}] {info.progress:4.0%}  {counts}"


def _failure_lines(failed: Sequence[wire.JobTask], *, limit: int) -> list[str]:
    lines = [output.style(f"  x {task.label}  {describe_end(task)}", fg="red") for task in failed[:limit]]
    if len(failed) > limit:
        lines[-1] = output.style(f"  x ... and {len(failed) - limit + 1} more failed tasks", fg="red")
    return lines


def _cut(lines: Sequence[str], room: int) -> list[str]:
    if len(lines) <= room:
        return list(lines)
    return [*lines[: max(room - 1, 0)], f"... {len(lines) - room + 1} more groups"]


# ---------------------------------------------------------------- the end


def _print_end(cli: CliContext, job: Job, info: wire.JobInfo) -> None:
    """What a reader of a failed job needs: the failed tasks, their last lines, and the command that repeats one."""
    if info.state == "SUCCEEDED":
        return
    failed = list(job.tasks(state=FAILED)) if info.num_failed else []
    for task in [task for task in failed if task.run is not None][:3]:
        output.echo(f"{output.style(task.label, bold=True)}: {describe_end(task)}", err=True)
        for line in _last_lines(cli, task):
            output.echo(f"  | {line}", err=True)
        output.note(f"  log: myrmidon task log {task.task_id}   again here: myrmidon task reproduce {task.task_id}")
    if len(failed) > 3:
        output.note(
            f"... and {output.plural(len(failed) - 3, 'more task')} without success: myrmidon job log --failed {job.id}"
        )
    unreachable = list(job.tasks(state=["WAITING"]))
    for task in unreachable[:5]:
        output.note(f"{task.label} did not run: it waits for {', '.join(task.requires_left[:3])}.")
    if info.state == "FAILED":
        output.note(f"Run the failed part again: myrmidon job rerun {job.id}")


def _last_lines(cli: CliContext, task: wire.JobTask) -> list[str]:
    tail = b"".join(cli.client.log(task.task_id))[-8192:]
    return tail.decode(errors="replace").splitlines()[-LOG_LINES:]
