"""`run`, `trigger` and `collect`: submit commands, follow their logs, wait for their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import click
from click.core import ParameterSource

from myrmidon.cli import exit_codes, output, standard_input
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.logs import exit_on_broken_pipe, follow_log, print_log
from myrmidon.cli.option_names import with_options
from myrmidon.cli.request_options import (
    REQUEST_PARAMETERS,
    Duration,
    TaskId,
    build_request,
    optional_command,
    request_options,
)
from myrmidon.cli.task_file import submit_file
from myrmidon.sdk.errors import CallFailed, error_for_item

_EXPLAIN_AFTER_S: Final = 3.0
_OPTIONS_BEFORE_COMMAND: Final = {"allow_interspersed_args": False}


@click.command(context_settings=_OPTIONS_BEFORE_COMMAND)
@request_options
@connected
@exit_on_broken_pipe()
def run(cli: CliContext, **options: Any) -> int:
    """Run a command on a bot, show its output, and exit with its exit code.

    The command's stdout and stderr are written to stdout and stderr; notes, such as the task's id, go to stderr. Stdin
    is passed on with -i only. The first Ctrl-C prints a warning, the second cancels the task. With --json, the
    command's output goes to stderr and the task as JSON to stdout.

    \b
      myrmidon run -- make test
      myrmidon run -i -- sort < names.txt
      myrmidon run -d os=Linux --timeout 10m -e CI=1 -- sh -c 'echo hello; exit 3'
    """
    task = _submit(cli, **options)
    if options["evaluate_only"]:
        return _print_valid(cli, task)
    output.note(f"task {task['task_id']}" + (" (deduped)" if task.get("deduped_from") else ""))
    if not options["stdin"] and options["secret_file"] != "-":
        standard_input.warn_if_ignored()
    with _confirm_ctrl_c(cli, task["task_id"]), _explain_long_wait(cli, task["task_id"]):
        follow_log(cli, task.get("deduped_from") or task["task_id"])
        ended = cli.client.task(task["task_id"])
    if cli.as_json:
        output.print_json(ended)
    else:
        _print_end(cli, ended)
    return exit_codes.of_results([ended["result"]])


@click.command(context_settings=_OPTIONS_BEFORE_COMMAND)
@click.option("--wait", "-w", is_flag=True, help="Wait until the tasks have ended, as `collect` does.")
@click.option(
    "--file",
    "-f",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Submit many tasks: one JSON request per line of FILE, or - for stdin. Only --group and --wait apply to them.",
)
@optional_command
@connected
def trigger(cli: CliContext, *, wait: bool, file: str | None, **options: Any) -> int:
    """Submit a command and print the task's id, without waiting for it; or submit many tasks with --file.

    \b
      id=$(myrmidon trigger -- make test)
      myrmidon collect $id
      myrmidon trigger --file tasks.jsonl | myrmidon collect
    """
    if file is not None:
        _refuse_request_options()
        return _trigger_file(cli, file, options["group"], wait=wait)
    if not options["command"]:
        raise click.UsageError("Give a COMMAND, or a file of task requests with --file.")
    task = _submit(cli, **options)
    if options["evaluate_only"]:
        return _print_valid(cli, task)
    if wait:
        return _collect(cli, [task["task_id"]], timeout=None, logs=False)
    if cli.as_json:
        output.print_json({"tasks": [task]})
    else:
        output.echo(task["task_id"])
        output.next_step(f"myrmidon task log -f {task['task_id']}")
    return exit_codes.OK


def _trigger_file(cli: CliContext, file: str, group: str | None, *, wait: bool) -> int:
    submitted = submit_file(cli, file, group)
    if wait and submitted.task_ids:
        code = _collect(cli, submitted.task_ids, timeout=None, logs=False)
        return submitted.exit_code or code
    if cli.as_json:
        output.print_json({"tasks": submitted.entries})
    return submitted.exit_code


def _refuse_request_options() -> None:
    """With --file, requests come from the file; an option that would be ignored is an error."""
    ctx = click.get_current_context()
    for option in ctx.command.params:
        given = ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name in REQUEST_PARAMETERS and option.name != "group":
            raise click.UsageError(f"{option.opts[0]} cannot be used with --file: write it into the requests.")


@click.command()
@click.argument("task_ids", nargs=-1, metavar="TASK...")
@click.option("--timeout", type=Duration(), help="How long to wait; exits with 75 after that. The tasks continue.")
@click.option("--log", "logs", is_flag=True, help="Print each task's output when it has ended.")
@connected
def collect(cli: CliContext, task_ids: Sequence[str], timeout: float | None, *, logs: bool) -> int:
    """Wait until tasks have ended; exit with the code of the first that did not succeed.

    Without ids, or with -, ids are read from stdin: one per line, or the output of `trigger --json`.
    """
    given_ids = [given for word in task_ids or ("-",) for given in (_ids_from_stdin() if word == "-" else [word])]
    if not given_ids:
        raise click.UsageError("Give task ids as arguments or on stdin.")
    parsed = [task_id_of(TaskId().convert(given, None, None)) for given in given_ids]
    return _collect(cli, list(dict.fromkeys(parsed)), timeout, logs=logs)


def task_id_of(task_or_run_id: str) -> str:
    """The task's id, also for the id of one of its runs: the last byte is the run's number, 0 for the task."""
    return f"{task_or_run_id[:-2]}00"


def _submit(cli: CliContext, command: Sequence[str], **options: Any) -> dict[str, Any]:
    """Submit one task. Raises the server's error, with the options that it is about."""
    request, group = build_request(command, **options)
    [answer] = cli.client.submit([request], group=group)
    if answer.get("error"):
        error = error_for_item(answer["error"])
        error.problems = with_options(error.problems)
        raise error
    return answer


def _print_valid(cli: CliContext, answer: dict[str, Any]) -> int:
    """The result of --evaluate-only: there is no task."""
    if cli.as_json:
        output.print_json({"tasks": [answer]})
    else:
        output.echo("The request is valid; no task was stored.")
    return exit_codes.OK


# -- following one task --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _confirm_ctrl_c(cli: CliContext, task_id: str) -> Iterator[None]:
    """The first Ctrl-C only prints what the second does: cancel the task. The third exits at once."""
    pressed = 0

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1:
            _write_stderr(f"\nPress Ctrl-C again to cancel task {task_id}.\n")
        elif pressed == 2:
            _write_stderr(f"\nCancelling task {task_id}; press Ctrl-C again to exit without waiting for it.\n")
            threading.Thread(target=_cancel, args=(cli, task_id), daemon=True).start()
        else:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _write_stderr(text: str) -> None:
    """Write without Python's buffers: a signal handler may interrupt a write to them."""
    os.write(2, text.encode())


@contextlib.contextmanager
def _explain_long_wait(cli: CliContext, task_id: str) -> Iterator[None]:
    """Print what the task waits for if it has not started after a few seconds."""

    def explain() -> None:
        with contextlib.suppress(CallFailed):
            explanation = cli.client.why(task_id)
            if explanation["state"] in ("WAITING", "READY"):
                output.note(f"waiting: {explanation['summary']}")

    timer = threading.Timer(_EXPLAIN_AFTER_S, explain)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cancel(cli: CliContext, task_id: str) -> None:
    """Runs in a thread: the main thread is following the log, where it sees the task end."""
    try:
        cli.client.cancel(task_id, kill_running=True)
    except CallFailed as error:
        output.echo(f"The task could not be cancelled: {error.message}", err=True)


def _print_end(cli: CliContext, task: dict[str, Any]) -> None:
    """Print how the task ended, unless the command ended by itself: then its output and exit code say it."""
    state, reason = task["result"]["state"], task["result"]["reason"]
    if state == "SUCCEEDED" or (state == "FAILED" and task["result"]["exit_code"]):
        return
    why = f" ({reason})" if reason else ""
    output.echo(f"Task {task['task_id']} ended: {output.state(state)}{why}.", err=True)
    if state in ("EXPIRED", "NO_RESOURCE"):
        _print_missing(cli, task["task_id"])
    output.next_step(f"myrmidon task show {task['task_id']}")


def _print_missing(cli: CliContext, task_id: str) -> None:
    """Print what the fleet lacked for a task that found no bot."""
    with contextlib.suppress(CallFailed):
        if capacity := cli.client.why(task_id).get("capacity"):
            output.echo(capacity, err=True)


# -- waiting for many tasks ----------------------------------------------------------------------------------


def _ids_from_stdin() -> list[str]:
    """Ids on stdin: words, or JSON if it begins with { or [. A single id may look like a JSON number."""
    text = sys.stdin.buffer.read().decode(errors="replace")
    if not text.lstrip().startswith(("{", "[")):
        return text.split()
    try:
        document = json.loads(text)
        tasks = document["tasks"] if isinstance(document, dict) else document
        return [task["task_id"] if isinstance(task, dict) else task for task in tasks]
    except (ValueError, KeyError, TypeError):
        message = "No task ids on stdin: give one per line, or the output of `trigger --json`."
        raise click.UsageError(message) from None


@exit_on_broken_pipe()
def _collect(cli: CliContext, task_ids: list[str], timeout: float | None, *, logs: bool) -> int:
    ended: dict[str, dict[str, Any]] = {}
    interactive = sys.stderr.isatty() and not cli.as_json
    reporter = _progress_bar(len(task_ids)) if interactive else _plain_lines(to_stderr=cli.as_json or logs)
    with reporter as report:
        for task in _as_they_end(cli, task_ids, timeout):
            ended[task["task_id"]] = task
            report(task)
            if interactive and not logs and not sys.stdout.isatty():  # the bar is on stderr; stdout is a file or pipe
                output.echo(_ended_line(task))
            if logs:
                print_log(cli, task["result"]["deduped_from"] or task["task_id"])
    results = [ended[task_id] for task_id in task_ids if task_id in ended]
    missing = [task_id for task_id in task_ids if task_id not in ended]
    if cli.as_json:
        output.print_json({"tasks": results, "waiting": missing})
    if missing:
        output.note(f"{output.plural(len(missing), 'task')} did not end within the timeout.")
        return exit_codes.BUSY
    return exit_codes.of_results([task["result"] for task in results])


def _as_they_end(cli: CliContext, task_ids: list[str], timeout: float | None) -> Iterator[dict[str, Any]]:
    """Each task once, in the order of their end; stops at the timeout."""
    from myrmidon.sdk.client import MAX_TASKS_PER_WAIT, MAX_WAIT_S

    pending = list(task_ids)
    until = None if timeout is None else time.monotonic() + timeout
    while pending:
        remaining_s = None if until is None else max(0.0, until - time.monotonic())
        wait_s = MAX_WAIT_S if remaining_s is None else min(MAX_WAIT_S, round(remaining_s))
        states = cli.client.wait(pending[:MAX_TASKS_PER_WAIT], wait_s=wait_s, within_s=remaining_s)["tasks"]
        ended = [task["task_id"] for task in states if task["final"]]
        for task_id in ended:
            yield cli.client.task(task_id)
        pending = [task_id for task_id in pending if task_id not in ended]
        if not ended and until is not None and time.monotonic() >= until:
            return


Report: TypeAlias = Callable[[dict[str, Any]], None]


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

        def report(task: dict[str, Any]) -> None:
            nonlocal failed
            failed += task["result"]["state"] != "SUCCEEDED"
            line = output.render(_ended_line(task), colour=output.has_colours(err=True))
            progress.console.print(Text.from_ansi(line))
            progress.update(bar, advance=1, description=f"{failed} failed" if failed else "")

        yield report


def _ended_line(task: dict[str, Any]) -> str:
    result = task["result"]
    code = f" exit {exit_codes.as_in_a_shell(result['exit_code'])}" if result["exit_code"] else ""
    took = f"  {output.duration(result['duration'])}" if result["duration"] is not None else ""
    return f"{task['task_id']}  {output.state(result['state'])}{code}  {task['request']['name']}{took}"
