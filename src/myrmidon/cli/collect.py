"""`collect`: wait until tasks and jobs have ended."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import click

from myrmidon.cli import exit_codes, job_refs, output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.function_errors import print_error
from myrmidon.cli.job_refs import JobName, TaskName, task_id_of
from myrmidon.cli.logs import exit_on_broken_pipe, print_log
from myrmidon.cli.request_options import Duration, looks_like_task_id
from myrmidon.sdk.errors import NotFound, WaitedTooLong
from myrmidon.sdk.exit_code import as_in_a_shell

if TYPE_CHECKING:
    from myrmidon.wire import jobs as wire
    from myrmidon.wire.tasks import TaskInfo


@click.command()
@click.argument("names", nargs=-1, metavar="TASK|JOB...")
@click.option("--timeout", type=Duration(), help="How long to wait; exits with 75 after that. The tasks continue.")
@click.option("--log", "logs", is_flag=True, help="Print each task's output when it, or its job, has ended.")
@connected
def collect(cli: CliContext, names: Sequence[str], timeout: float | None, *, logs: bool) -> int:
    """Wait until tasks and jobs have ended; exit with the code of the first that did not succeed.

    A task is given by its id or as JOB/LABEL, a job by its id, its external id or @latest. Without names, or with -,
    names are read from stdin: one per line, or the output of `trigger --json` or `job submit --json`.
    """
    given = [name for word in names or ("-",) for name in (_names_from_stdin() if word == "-" else [word])]
    if not given:
        raise click.UsageError("Give task ids as arguments or on stdin.")
    tasks, jobs = _tasks_and_jobs(cli, list(dict.fromkeys(given)))
    if not jobs:
        return collect_tasks(cli, tasks, timeout, logs=logs)
    return _collect_jobs(cli, tasks, jobs, timeout, logs=logs)


def _tasks_and_jobs(cli: CliContext, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The ids of tasks and jobs. An id may be either; a name that is no id is a job's."""
    tasks, jobs = list[str](), list[str]()
    for name in names:
        if "/" in name:
            tasks.append(job_refs.task_id(cli, TaskName().convert(name, None, None)))
        elif looks_like_task_id(name):
            tasks.append(task_id_of(name))
        else:
            jobs.append(_find_job(cli, JobName().convert(name, None, None)))
    tasks = list(dict.fromkeys(tasks))
    also_jobs = [name for name in tasks if _is_job(cli, name)] if _has_unknown_tasks(cli, tasks) else []
    return [name for name in tasks if name not in also_jobs], list(dict.fromkeys([*also_jobs, *jobs]))


def _find_job(cli: CliContext, name: str) -> str:
    try:
        return cli.client.job(job_refs.job_id(cli, name)).info().job_id
    except NotFound as error:
        if name == job_refs.LATEST:
            raise
        text = f"{name!r} is not a task id, and there is no such job; a complete id looks like 7c07a39dc80000100."
        raise NotFound(text) from error


def _has_unknown_tasks(cli: CliContext, ids: Sequence[str]) -> bool:
    from myrmidon.sdk.api.tasks import MAX_TASKS_PER_WAIT

    try:
        for start in range(0, len(ids), MAX_TASKS_PER_WAIT):
            cli.client.wait(ids[start : start + MAX_TASKS_PER_WAIT], all_of=True, wait_s=0)
    except NotFound:
        return True
    return False


def _is_job(cli: CliContext, name: str) -> bool:
    try:
        cli.client.job(name).info()
    except NotFound:
        return False
    return True


def _names_from_stdin() -> list[str]:
    """Ids and names on stdin: words, or JSON if it begins with { or [. A single id may look like a JSON number."""
    text = sys.stdin.buffer.read().decode(errors="replace")
    if not text.lstrip().startswith(("{", "[")):
        return text.split()
    try:
        document = json.loads(text)
        if isinstance(document, dict) and "job_id" in document:
            return [document["job_id"]]
        tasks = document["tasks"] if isinstance(document, dict) else document
        names = [task["task_id"] if isinstance(task, dict) else task for task in tasks]
    except (ValueError, KeyError, TypeError):
        names = [None]
    if any(not isinstance(name, str) for name in names):
        message = "No task ids on stdin: give one per line, or the output of `trigger --json` or `job submit --json`."
        raise click.UsageError(message)
    return names


# -- jobs ----------------------------------------------------------------------------------------------------


@exit_on_broken_pipe()
def _collect_jobs(cli: CliContext, tasks: list[str], jobs: list[str], timeout: float | None, *, logs: bool) -> int:
    """Wait for tasks, then for jobs; the exit code of the first that did not succeed."""
    until = None if timeout is None else time.monotonic() + timeout
    results, waiting = _wait_for_tasks(cli, tasks, timeout, logs=logs) if tasks else ([], [])
    ended: list[wire.JobInfo] = []
    for name in jobs:
        try:
            info = cli.client.job(name).wait(None if until is None else max(0.0, until - time.monotonic()))
        except WaitedTooLong:
            waiting.append(name)
            continue
        ended.append(info)
        output.echo(_ended_job_line(info), err=cli.as_json or logs)
        if logs:
            from myrmidon.cli.job_log import STARTED, print_job_log  # late, for startup time

            print_job_log(cli, cli.client.job(name), None, STARTED)
    if cli.as_json:
        output.print_struct({"tasks": results, "jobs": ended, "waiting": waiting})
    codes = [_exit_code(results, waiting), *(exit_codes.of_job(info) for info in ended)]
    return exit_codes.BUSY if waiting else next((code for code in codes if code), exit_codes.OK)


def _ended_job_line(info: wire.JobInfo) -> str:
    took = output.duration(((info.ended_at or info.created_at) - info.created_at) / 1e6)
    return f"{info.job_id}  {output.state(info.state)}  {info.name}  {took}"


# -- tasks ---------------------------------------------------------------------------------------------------


@exit_on_broken_pipe()
def collect_tasks(cli: CliContext, task_ids: list[str], timeout: float | None, *, logs: bool) -> int:
    """Wait for tasks and report each when it has ended; the exit code of the first that did not succeed."""
    results, waiting = _wait_for_tasks(cli, task_ids, timeout, logs=logs)
    if cli.as_json:
        output.print_struct({"tasks": results, "waiting": waiting})
    return _exit_code(results, waiting)


def _exit_code(results: Sequence[TaskInfo], waiting: Sequence[str]) -> int:
    if waiting:
        output.note(f"{output.plural(len(waiting), 'task')} did not end within the timeout.")
        return exit_codes.BUSY
    return exit_codes.of_results([task.result for task in results])


def _wait_for_tasks(
    cli: CliContext, task_ids: list[str], timeout: float | None, *, logs: bool
) -> tuple[list[TaskInfo], list[str]]:
    """The tasks that have ended, and the ids of those that have not within the timeout."""
    ended: dict[str, TaskInfo] = {}
    interactive = sys.stderr.isatty() and not cli.as_json
    reporter = _progress_bar(len(task_ids)) if interactive else _plain_lines(to_stderr=cli.as_json or logs)
    with reporter as report:
        for task in as_they_end(cli, task_ids, timeout):
            ended[task.task_id] = task
            report(task)
            if interactive and not logs and not sys.stdout.isatty():  # the bar is on stderr; stdout is a file or pipe
                output.echo(_ended_line(task))
            if logs:
                print_log(cli, task.result.deduped_from or task.task_id)
                print_error(task)
    return [ended[task_id] for task_id in task_ids if task_id in ended], [
        task_id for task_id in task_ids if task_id not in ended
    ]


def as_they_end(cli: CliContext, task_ids: list[str], timeout: float | None) -> Iterator[TaskInfo]:
    """Each task once, in the order of their end; stops at the timeout."""
    from myrmidon.sdk.api.tasks import MAX_TASKS_PER_WAIT, MAX_WAIT_S
    from myrmidon.sdk.wait_reasons import WaitReasons

    pending = list(task_ids)
    reasons = WaitReasons(cli.client)
    until = None if timeout is None else time.monotonic() + timeout
    while pending:
        remaining_s = None if until is None else max(0.0, until - time.monotonic())
        longest_s = min(MAX_WAIT_S, max(1, round(reasons.due_in())))
        wait_s = longest_s if remaining_s is None else min(longest_s, round(remaining_s))
        states = cli.client.wait(pending[:MAX_TASKS_PER_WAIT], wait_s=wait_s, within_s=remaining_s).tasks
        ended = [task.task_id for task in states if task.final]
        for task_id in ended:
            yield cli.client.task(task_id)
        pending = [task_id for task_id in pending if task_id not in ended]
        if not ended and until is not None and time.monotonic() >= until:
            return
        if not reasons.due_in():
            reasons.look(dict.fromkeys(pending, ""))


Report: TypeAlias = "Callable[[TaskInfo], None]"


@contextlib.contextmanager
def _plain_lines(*, to_stderr: bool) -> Iterator[Report]:
    """Prints one line per task."""
    yield lambda task: output.echo(_ended_line(task), err=to_stderr)


@contextlib.contextmanager
def _progress_bar(total: int) -> Iterator[Report]:
    """Prints one line per task above a progress bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as progress:
        bar = progress.add_task("", total=total)
        failed = 0

        def report(task: TaskInfo) -> None:
            nonlocal failed
            failed += task.result.state != "SUCCEEDED"
            line = output.render(_ended_line(task), colour=output.has_colours(err=True))
            progress.console.print(Text.from_ansi(line))
            progress.update(bar, advance=1, description=f"{failed} failed" if failed else "")

        yield report


def _ended_line(task: TaskInfo) -> str:
    result = task.result
    code = f" exit {as_in_a_shell(result.exit_code)}" if result.exit_code else ""
    took = f"  {output.duration(result.duration)}" if result.duration is not None else ""
    return f"{task.task_id}  {output.state(result.state)}{code}  {task.request.name}{took}"
