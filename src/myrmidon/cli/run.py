"""`run`, `trigger` and `collect`: submit commands, watch them, wait for them."""

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

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.request_options import Duration, TaskId, build_request, request_options
from myrmidon.sdk.errors import CallFailed, error_for_item

_PATIENT_S: Final = 3.0
_PLAIN_ARGUMENTS: Final = {"allow_interspersed_args": False}


@contextlib.contextmanager
def exit_on_broken_pipe() -> Iterator[None]:
    """Whoever stops reading before a task has ended does not learn how it ends; the task goes on."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(exit_codes.BROKEN_PIPE) from None


@click.command(context_settings=_PLAIN_ARGUMENTS)
@request_options
@connected
@exit_on_broken_pipe()
def run(cli: CliContext, **given: Any) -> int:
    """Run a command on a bot, show its output as it comes, and exit with its code.

    Stdout and stderr stay apart. The first Ctrl-C asks, the second cancels the task. With --json the output of the
    command goes to stderr and one JSON object about the task to stdout.

    \b
      myrmidon run -- make test
      myrmidon run -d os=Linux --timeout 10m -e CI=1 -- sh -c 'echo hello; exit 3'
    """
    task = _submit(cli, **given)
    if sys.stderr.isatty():
        output.note(f"task {task['task_id']}" + (" (deduped)" if task.get("deduped_from") else ""))
    with _ctrl_c_asks_first(cli, task["task_id"]), _says_why_it_waits(cli, task["task_id"]):
        follow_log(cli, task.get("deduped_from") or task["task_id"])
        ended = cli.client.task(task["task_id"])
    if cli.as_json:
        output.print_json(ended)
    else:
        _tell_end(ended)
    return exit_codes.of_results([ended["result"]])


@click.command(context_settings=_PLAIN_ARGUMENTS)
@click.option("--wait", "-w", is_flag=True, help="Wait for the end as `collect` does.")
@request_options
@connected
def trigger(cli: CliContext, *, wait: bool, **given: Any) -> int:
    """Submit a command and return at once with the task's id.

    \b
      id=$(myrmidon trigger -- make test)
      myrmidon collect $id
    """
    task = _submit(cli, **given)
    if wait:
        return _collected(cli, [task["task_id"]], timeout=None, logs=False)
    if cli.as_json:
        output.print_json({"tasks": [task]})
    else:
        click.echo(task["task_id"])
        output.next_step(f"myrmidon task log -f {task['task_id']}")
    return exit_codes.OK


@click.command()
@click.argument("task_ids", nargs=-1, metavar="TASK...")
@click.option("--timeout", type=Duration(), help="How long to wait; then exit with 75, the tasks go on.")
@click.option("--log", "logs", is_flag=True, help="Show each task's output when it has ended.")
@connected
def collect(cli: CliContext, task_ids: Sequence[str], timeout: int | None, *, logs: bool) -> int:
    """Wait for tasks to end; exit with the code of the first that did not succeed.

    Without ids, or with -, they are read from stdin: one per line, or what `trigger --json` printed.
    """
    given = [one for word in task_ids or ("-",) for one in (_ids_from_stdin() if word == "-" else [word])]
    if not given:
        raise click.UsageError("Give the ids of tasks, as arguments or on stdin.")
    wanted = [task_id_of(TaskId().convert(one, None, None)) for one in given]
    return _collected(cli, list(dict.fromkeys(wanted)), timeout, logs=logs)


def task_id_of(shown: str) -> str:
    """The id of the task, where that of one of its runs was given: the last byte is the run's number."""
    return f"{shown[:-2]}00"


def _submit(cli: CliContext, command: Sequence[str], **given: Any) -> dict[str, Any]:
    request, group = build_request(command, **given)
    [answer] = cli.client.submit([request], group=group)
    if answer.get("error"):
        raise error_for_item(answer["error"])
    return answer


# -- watching one --------------------------------------------------------------------------------------------


@exit_on_broken_pipe()
def follow_log(cli: CliContext, task_id: str, *, run: int | None = None, stream: str = "both") -> None:
    """Write the log where it belongs until the task has ended."""
    for piece in cli.client.follow(task_id, run=run, stream=stream):
        if isinstance(piece, dict):
            return
        write_log(cli, piece.data, to_stderr=bool(piece.stream))


def write_log(cli: CliContext, data: bytes, *, to_stderr: bool) -> None:
    """Bytes as they are: what a command prints need not be text. A program that wants JSON gets stdout to itself."""
    out = sys.stderr if to_stderr or cli.as_json else sys.stdout
    out.buffer.write(data)
    out.flush()


def print_log(cli: CliContext, task_id: str, *, run: int | None = None, stream: str = "both") -> None:
    """All there is of it now."""
    for one in ("stdout", "stderr") if stream == "both" else (stream,):
        for data in cli.client.log(task_id, run=run, stream=one):
            write_log(cli, data, to_stderr=one == "stderr")


@contextlib.contextmanager
def _ctrl_c_asks_first(cli: CliContext, task_id: str) -> Iterator[None]:
    """The first Ctrl-C tells what a second one does: cancel. The third leaves at once."""
    pressed = 0

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1:
            _tell_at_once(f"\nCtrl-C again cancels task {task_id}; until then it goes on.\n")
        elif pressed == 2:
            _tell_at_once(f"\nCancelling {task_id}; Ctrl-C once more leaves without waiting for its end.\n")
            threading.Thread(target=_cancel, args=(cli, task_id), daemon=True).start()
        else:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _tell_at_once(text: str) -> None:
    """Past all buffers: a signal may come while one of them is being written."""
    os.write(2, text.encode())


@contextlib.contextmanager
def _says_why_it_waits(cli: CliContext, task_id: str) -> Iterator[None]:
    """A person who sees nothing for a while is told what the task waits for."""

    def tell() -> None:
        with contextlib.suppress(CallFailed):
            found = cli.client.why(task_id)
            if found["state"] in ("WAITING", "READY"):
                output.note(f"waiting: {found['summary']}")

    timer = threading.Timer(_PATIENT_S, tell)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cancel(cli: CliContext, task_id: str) -> None:
    """In a thread of its own: the main one is reading the log, and will see the end there."""
    try:
        cli.client.cancel(task_id, kill_running=True)
    except CallFailed as failed:
        click.echo(f"The task could not be cancelled: {failed.message}", err=True)


def _tell_end(task: dict[str, Any]) -> None:
    """A command that failed by itself has said why; any other end needs a word."""
    state, reason = task["result"]["state"], task["result"]["reason"]
    if state == "SUCCEEDED" or (state == "FAILED" and task["result"]["exit_code"]):
        return
    why = f" ({reason})" if reason else ""
    click.echo(f"Task {task['task_id']} ended: {output.state(state)}{why}.", err=True)
    output.next_step(f"myrmidon task show {task['task_id']}")


# -- waiting for many ----------------------------------------------------------------------------------------


def _ids_from_stdin() -> list[str]:
    """Words, unless it begins as JSON does: an id may well look like a number."""
    text = sys.stdin.buffer.read().decode(errors="replace")
    if not text.lstrip().startswith(("{", "[")):
        return text.split()
    try:
        given = json.loads(text)
        tasks = given["tasks"] if isinstance(given, dict) else given
        return [one["task_id"] if isinstance(one, dict) else one for one in tasks]
    except (ValueError, KeyError, TypeError):
        told = "What stands on stdin holds no ids of tasks: give one per line, or what `trigger --json` printed."
        raise click.UsageError(told) from None


@exit_on_broken_pipe()
def _collected(cli: CliContext, task_ids: list[str], timeout: int | None, *, logs: bool) -> int:
    ended: dict[str, dict[str, Any]] = {}
    people = sys.stderr.isatty() and not cli.as_json
    tell = _bars(len(task_ids)) if people else _lines(to_stderr=cli.as_json or logs)
    with tell as say:
        for task in _as_they_end(cli, task_ids, timeout):
            ended[task["task_id"]] = task
            say(task)
            if people and not logs and not sys.stdout.isatty():  # the bars are on stderr; this is for a file or a pipe
                click.echo(_ended_line(task))
            if logs:
                print_log(cli, task["result"]["deduped_from"] or task["task_id"])
    found = [ended[task_id] for task_id in task_ids if task_id in ended]
    missing = [task_id for task_id in task_ids if task_id not in ended]
    if cli.as_json:
        output.print_json({"tasks": found, "waiting": missing})
    if missing:
        output.note(f"{output.plural(len(missing), 'task')} had not ended in time.")
        return exit_codes.BUSY
    return exit_codes.of_results([task["result"] for task in found])


def _as_they_end(cli: CliContext, task_ids: list[str], timeout: int | None) -> Iterator[dict[str, Any]]:
    """Each task once, in the order they end; stops early when the time is over."""
    from myrmidon.sdk.client import MAX_TASKS_PER_WAIT, MAX_WAIT_S

    left = list(task_ids)
    until = None if timeout is None else time.monotonic() + timeout
    while left:
        rest = None if until is None else max(0.0, until - time.monotonic())
        wait_s = MAX_WAIT_S if rest is None else min(MAX_WAIT_S, round(rest))
        states = cli.client.wait(left[:MAX_TASKS_PER_WAIT], wait_s=wait_s, within_s=rest)["tasks"]
        ended = [one["task_id"] for one in states if one["final"]]
        for task_id in ended:
            yield cli.client.task(task_id)
        left = [task_id for task_id in left if task_id not in ended]
        if not ended and until is not None and time.monotonic() >= until:
            return


Say: TypeAlias = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def _lines(*, to_stderr: bool) -> Iterator[Say]:
    """A line per task, for logs and pipes."""
    yield lambda task: click.echo(_ended_line(task), err=to_stderr)


@contextlib.contextmanager
def _bars(total: int) -> Iterator[Say]:
    """A line per task above a bar that moves."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as progress:
        bar = progress.add_task("all well", total=total)
        failed = 0

        def say(task: dict[str, Any]) -> None:
            nonlocal failed
            failed += task["result"]["state"] != "SUCCEEDED"
            progress.console.print(Text.from_ansi(_ended_line(task)))
            progress.update(bar, advance=1, description=f"{failed} failed" if failed else "all well")

        yield say


def _ended_line(task: dict[str, Any]) -> str:
    result = task["result"]
    code = f" exit {result['exit_code']}" if result["exit_code"] else ""
    took = f"  {output.duration(result['duration'])}" if result["duration"] is not None else ""
    return f"{task['task_id']}  {output.state(result['state'])}{code}  {task['request']['name']}{took}"
