"""`job watch`: follow a job until it has ended.

On a terminal a live tree, refreshed in place; without one a line per change; with --json a JSON object per change. The
job goes on when the command is interrupted.

A refresh reads the counts of the job and the tasks that have changed; a job that is too large for the screen is read as
groups. The next refresh waits for longer than the last one has taken, so that watching a large job does not load the
server.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.job_changes import JobChanges
from myrmidon.cli.job_failures import FAILED_ITSELF, FailureReporter
from myrmidon.cli.job_lines import counts_text, describe_end_on_bot, fit_groups, num_failed, task_line, tree_lines
from myrmidon.cli.jobs import JOB_ARGUMENT, handle

if TYPE_CHECKING:
    from myrmidon.sdk.jobs import Job
    from myrmidon.wire import jobs as wire

REFRESH_S: Final = 1.0
MAX_REFRESH_S: Final = 20.0
WAIT_PER_WORK: Final = 9.0
"""A refresh that took one second is followed by a wait of nine."""
BAR: Final = 40
HEAD_LINES: Final = 3
SHOWN_RUNNING: Final = 4
SHOWN_FAILED: Final = 7


@click.command()
@JOB_ARGUMENT
@connected
def watch(cli: CliContext, name: str) -> int:
    """Watch a job until it has ended. Exits with its result: 0 succeeded, 1 failed, 125 cancelled, 124 deadline.

    Ctrl-C leaves the job running. Without a terminal, one line is printed per change; with --json, one JSON object.
    """
    return watch_job(cli, handle(cli, name))


def watch_job(cli: CliContext, job: Job) -> int:
    """Follow a job; the exit code of its result."""
    reporter = FailureReporter(cli, job)
    try:
        if cli.as_json:
            info = _follow(cli, job, _print_json_change)
            output.print_struct({"job": info}, indent=False)
        elif sys.stdout.isatty():
            info = _show_live(cli, job, reporter)
        else:
            info = _follow(cli, job, lambda task: _print_change(task, reporter))
            output.echo(f"job {info.job_id}  {info.state}")
    except KeyboardInterrupt:
        output.note("The job goes on.")
        output.note(f"  watch it again: myrmidon job watch {job.id}")
        output.note(f"  stop it: myrmidon job cancel {job.id}")
        return exit_codes.INTERRUPTED
    if not cli.as_json:
        for line in reporter.summary(info):
            output.echo(line, err=True)
    return exit_codes.of_job(info)


class _Pace:
    """The time between two refreshes, by the time that the last one took."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def begin(self) -> None:
        self._began = time.monotonic()

    def wait_s(self) -> float:
        return min(MAX_REFRESH_S, max(REFRESH_S, WAIT_PER_WORK * (time.monotonic() - self._began)))


# ---------------------------------------------------------------- without a terminal


def _follow(cli: CliContext, job: Job, report: Callable[[wire.JobTask], None]) -> wire.JobInfo:
    """Report every task that runs or has ended, then every change, until the job has ended."""
    from myrmidon.sdk.wait_reasons import WaitReasons  # late, for startup time

    changes = JobChanges(job)
    reasons = WaitReasons(cli.client)
    pace, wait_s = _Pace(), 0.0
    while True:
        waited = job.poll(wait_s=wait_s, reasons=reasons)
        pace.begin()
        first = not changes.tasks
        for task in changes.read_all() if waited.done else changes.read():
            if not (first and task.state == "WAITING"):
                report(task)
        if waited.done:
            return waited.job
        wait_s = pace.wait_s()


def _print_json_change(task: wire.JobTask) -> None:
    output.print_struct({"task": task}, indent=False)


def _print_change(task: wire.JobTask, reporter: FailureReporter) -> None:
    output.echo(f"{task.label}  {describe_end_on_bot(task)}")
    for line in reporter.lines(task):
        output.echo(line, err=True)


# ---------------------------------------------------------------- on a terminal


def _show_live(cli: CliContext, job: Job, reporter: FailureReporter) -> wire.JobInfo:
    from rich.console import Console  # late, for startup time
    from rich.live import Live
    from rich.text import Text

    from myrmidon.sdk.wait_reasons import WaitReasons

    console = Console(highlight=False)
    view = _View(job)
    reasons = WaitReasons(cli.client)
    pace, wait_s = _Pace(), 0.0

    def shown(lines: Sequence[str]) -> Text:
        text = "\n".join(output.render(line, colour=output.has_colours(err=False)) for line in lines)
        return Text.from_ansi(text, no_wrap=True, overflow="ellipsis")

    with Live(console=console, auto_refresh=False) as live:
        while True:
            waited = job.poll(wait_s=wait_s, reasons=reasons)
            pace.begin()
            for task in view.read(waited.job, done=waited.done):
                for line in reporter.lines(task):
                    console.print(shown([line]))
            width, height = shutil.get_terminal_size()
            live.update(shown(view.frame(waited.job, width=width, height=height - 1)), refresh=True)
            if waited.done:
                return waited.job
            wait_s = pace.wait_s()


class _View:
    """What is known of a job: all tasks of a small one, groups and the failed and running tasks of a large one."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._changes = JobChanges(job)
        self._groups: list[wire.GraphGroup] = []
        self._failed: list[wire.JobTask] = []
        self._running: list[wire.JobTask] = []

    def read(self, info: wire.JobInfo, *, done: bool) -> list[wire.JobTask]:
        """Read what has changed; the tasks that have changed, of a large job some that failed."""
        if info.num_tasks <= shutil.get_terminal_size().lines - 1 - HEAD_LINES:
            return self._changes.read_all() if done else self._changes.read()
        self._groups = self._job.graph(max_nodes=1).groups
        self._running = list(self._job.tasks(state=["RUNNING"], limit=SHOWN_RUNNING))
        has_failed = any(info.counts.get(state) for state in FAILED_ITSELF)
        self._failed = list(self._job.tasks(state=FAILED_ITSELF, limit=SHOWN_FAILED)) if has_failed else []
        return self._failed

    def frame(self, info: wire.JobInfo, *, width: int, height: int) -> list[str]:
        """The lines of one refresh: a head with a progress bar, then the tree, or failures and groups."""
        if not self._groups:
            return [*head_lines(info, width), *tree_lines(self._changes.tasks.values())][:height]
        return large_frame(info, self._failed, self._running, self._groups, width=width, height=height)


def large_frame(
    info: wire.JobInfo,
    failed: Sequence[wire.JobTask],
    running: Sequence[wire.JobTask],
    groups: Sequence[wire.GraphGroup],
    *,
    width: int,
    height: int,
) -> list[str]:
    """A job that does not fit on the screen as a tree: some failed and running tasks, and groups of all."""
    head = head_lines(info, width)
    room = height - len(head)
    shown = failure_lines(failed, num_failed(info.counts), room=max(1, room // 3))
    tasks = [task_line(task) for task in running[: max(0, room - len(shown) - 1)]]
    return [*head, *shown, *tasks, *fit_groups(groups, room - len(shown) - len(tasks))]


def head_lines(info: wire.JobInfo, width: int) -> list[str]:
    """The name, state and age of a job; its progress as a bar; the number of its tasks by state."""
    seconds = ((info.ended_at or int(time.time() * 1e6)) - info.created_at) / 1e6
    blocked = " (blocked)" if info.view == "blocked" and info.state == "RUNNING" else ""
    size = max(10, min(BAR, width - 40))
    done = int(info.progress * size)
    ended = round(info.progress * info.num_tasks)
    return [
        f"{output.state(info.state)}{blocked}  {output.duration(max(seconds, 0.0))}  {info.name or info.job_id}",
        f"[{'#' * done}{'.' * (size - done)}] {info.progress:4.0%}  {ended} of {info.num_tasks} tasks ended",
        counts_text(info.counts),
    ]


def failure_lines(failed: Sequence[wire.JobTask], total: int, *, room: int) -> list[str]:
    """Failed tasks; the last line counts those that are not shown, also the cancelled ones."""
    if not total:
        return []
    lines = [task_line(task) for task in (failed[:room] if total == len(failed) <= room else failed[: room - 1])]
    if total > len(lines):
        lines.append(output.style(f"{total - len(lines)} {'more ' if lines else ''}without success", fg="red"))
    return lines
