"""`run` and `trigger`: submit commands, follow their logs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from myrmidon.cli import exit_codes, output, standard_input
from myrmidon.cli.collect import collect_tasks
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.logs import exit_on_broken_pipe, follow_log
from myrmidon.cli.option_names import with_options
from myrmidon.cli.request_options import (
    REQUEST_PARAMETERS,
    build_request,
    optional_command,
    request_options,
)
from myrmidon.cli.task_file import submit_file
from myrmidon.sdk.errors import CallFailed, error_for_item

if TYPE_CHECKING:
    from myrmidon.wire.tasks import TaskAnswer, TaskInfo

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
    if task.task_id is None:
        return _print_valid(cli, task)
    output.note(f"task {task.task_id}" + (" (deduped)" if task.deduped_from else ""))
    if not options["stdin"] and options["secret_bytes"] != "-":
        standard_input.warn_if_ignored()
    with _confirm_ctrl_c(cli, task.task_id):
        follow_log(cli, task.deduped_from or task.task_id)
        ended = cli.client.task(task.task_id)
    if cli.as_json:
        output.print_struct(ended)
    else:
        _print_end(cli, ended)
    return exit_codes.of_results([ended.result])


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
    if task.task_id is None:
        return _print_valid(cli, task)
    if wait:
        return collect_tasks(cli, [task.task_id], timeout=None, logs=False)
    if cli.as_json:
        output.print_struct({"tasks": [task]})
    else:
        output.echo(task.task_id)
        output.next_step(f"myrmidon task log -f {task.task_id}")
    return exit_codes.OK


def _trigger_file(cli: CliContext, file: str, group: str | None, *, wait: bool) -> int:
    submitted = submit_file(cli, file, group)
    if wait and submitted.task_ids:
        code = collect_tasks(cli, submitted.task_ids, timeout=None, logs=False)
        return submitted.exit_code or code
    if cli.as_json:
        output.print_struct({"tasks": submitted.entries})
    return submitted.exit_code


def _refuse_request_options() -> None:
    """With --file, requests come from the file; an option that would be ignored is an error."""
    ctx = click.get_current_context()
    for option in ctx.command.params:
        given = ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name in REQUEST_PARAMETERS and option.name != "group":
            raise click.UsageError(f"{option.opts[0]} cannot be used with --file: write it into the requests.")


def _submit(cli: CliContext, command: Sequence[str], **options: Any) -> TaskAnswer:
    """Submit one task. Raises the server's error, with the options that it is about."""
    request, group = build_request(command, **options)
    [answer] = cli.client.submit_tasks([request], group=group)
    if answer.error is not None:
        error = error_for_item(answer.error)
        error.problems = with_options(error.problems)
        raise error
    return answer


def _print_valid(cli: CliContext, answer: TaskAnswer) -> int:
    """The result of --evaluate-only: there is no task."""
    if cli.as_json:
        output.print_struct({"tasks": [answer]})
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


def _cancel(cli: CliContext, task_id: str) -> None:
    """Runs in a thread: the main thread is following the log, where it sees the task end."""
    try:
        cli.client.cancel(task_id, kill_running=True)
    except CallFailed as error:
        output.echo(f"The task could not be cancelled: {error.message}", err=True)


def _print_end(cli: CliContext, task: TaskInfo) -> None:
    """Print how the task ended, unless the command ended by itself: then its output and exit code say it."""
    state, reason = task.result.state, task.result.reason
    if state == "SUCCEEDED" or (state == "FAILED" and task.result.exit_code):
        return
    why = f" ({reason})" if reason else ""
    output.echo(f"Task {task.task_id} ended: {output.state(state)}{why}.", err=True)
    if state in ("EXPIRED", "NO_RESOURCE"):
        _print_missing(cli, task.task_id)
    output.next_step(f"myrmidon task show {task.task_id}")


def _print_missing(cli: CliContext, task_id: str) -> None:
    """Print what the fleet lacked for a task that found no bot."""
    with contextlib.suppress(CallFailed):
        if capacity := cli.client.why(task_id).capacity:
            output.echo(capacity, err=True)
