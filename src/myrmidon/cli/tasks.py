"""`tasks` and `task`: list, inspect, cancel, rerun and reproduce tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from myrmidon.cli import exit_codes, job_refs, output
from myrmidon.cli.context import CliContext, connected, fetch_pages
from myrmidon.cli.function_errors import deciding_run, error_lines, print_error
from myrmidon.cli.job_refs import TaskName, task_id_of
from myrmidon.cli.logs import follow_log, log_tail_lines, print_log
from myrmidon.cli.request_options import Duration, Tag
from myrmidon.sdk.errors import CallFailed, NotFound, Refused
from myrmidon.sdk.exit_code import as_in_a_shell, exit_code_text
from myrmidon.sdk.job_graph import FAILED

if TYPE_CHECKING:
    from myrmidon.wire.tasks import Cancelled, RequestInfo, RunInfo, TaskInfo, TaskSummary

STATES = (
    "WAITING", "READY", "RUNNING", "SUCCEEDED", "FAILED", "TIMED_OUT", "BOT_DIED",
    "EXPIRED", "CANCELLED", "KILLED", "NO_RESOURCE", "CLIENT_ERROR",
)  # fmt: skip
_TASK_ARGUMENT = click.argument("task_id", metavar="TASK", type=TaskName())
_TAG_OPTION = ("--tag", "-t", "tags")


@click.command()
@click.option(
    "--state", "-s", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False),
    help="Only tasks in this state. Repeatable; any may match.",
)  # fmt: skip
@click.option(
    *_TAG_OPTION,
    type=Tag(),
    multiple=True,
    metavar="KEY:VALUE",
    help="Only tasks with this tag. Repeatable; all must match.",
)
@click.option("--name", "-n", help="Only tasks with exactly this name.")
@click.option("--pool", help="Only tasks in this pool.")
@click.option("--bot", metavar="BOT", help="Only tasks whose latest run is on this bot.")
@click.option("--group", help="Only tasks of this resource group.")
@click.option("--since", type=Duration(), help="Only tasks created in the last TIME, such as 90, 15m, 2h or 1d.")
@click.option(
    "--limit", "-l", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Maximum number of tasks."
)
@connected
def tasks(
    cli: CliContext, states: tuple[str, ...], tags: tuple[str, ...], since: float | None, limit: int, **filters: Any
) -> None:
    """List tasks, newest first."""
    start = None if since is None else max(0, int((time.time() - since) * 1e6))
    listing = fetch_pages(cli.client.tasks, "tasks", limit, state=list(states), tag=list(tags), start=start, **filters)
    if cli.prints(listing):
        return
    output.table(
        ("task", "state", "created", "duration", "bot", "name"),
        [_row(task) for task in listing.tasks],
        empty="No tasks.",
    )
    if listing.cursor:
        output.note(f"There are more tasks; use a higher --limit, such as {limit * 10}.")


def _row(task: TaskSummary) -> tuple[object, ...]:
    started, ended = task.started_at, task.completed_at
    duration = (ended - started) / 1e6 if started and ended else None
    state = output.state(task.state) + (" (deduped)" if task.deduped_from else "")
    return (
        task.task_id,
        state,
        output.ago(task.created_at),
        output.duration(duration),
        task.bot_id,
        task.name,
    )


@click.group()
def task() -> None:
    """Inspect or change a task.

    TASK is the id of a task or of one of its runs, or JOB/LABEL for a task of a job; @latest/LABEL is one of your last
    job.
    """


@task.command(name="show")
@_TASK_ARGUMENT
@connected
def show_task(cli: CliContext, task_id: str) -> None:
    """Show a task's request, result and runs."""
    task = _get_task(cli, task_id)
    if cli.prints(task):
        return
    output.fields(_summary(task))
    if task.runs:
        output.echo()
        output.table(
            ("run", "state", "exit", "bot", "started", "duration", "reason"),
            [_run_row(run) for run in task.runs],
            empty="",
        )
    run = deciding_run(task)
    if run is not None and run.error is not None:
        output.echo()
        for line in error_lines(run.error):
            output.echo(line)
    if task.annotation:
        output.echo()
        output.echo_lines(task.annotation.content.rstrip())
    _print_next_step(task)


def _get_task(cli: CliContext, task_id: str) -> TaskInfo:
    """The task with this id or name, or with a run of this id. Raises NotFound if it has no such run."""
    task_id = job_refs.task_id(cli, task_id)
    task = cli.client.task(task_id)
    if task_id not in (task.task_id, *(run.run for run in task.runs)):
        raise NotFound(f"Task {task.task_id} has no run {task_id}.")
    return task


def _summary(task: TaskInfo) -> list[tuple[str, object]]:
    request, result = task.request, task.result
    slices = request.slices
    properties = slices[result.slice].properties
    code = "" if result.exit_code is None else f" ({exit_code_text(result.exit_code)})"
    flags = "".join(f" {flag}" for flag in ("held", "killing") if getattr(result, flag))
    return [
        ("task", task.task_id),
        ("name", request.name),
        ("state", f"{output.state(result.state)}{code}{flags}"),
        ("reason", "" if result.reason == "exit_code" else result.reason),
        ("silent", "\n".join(_silence(run) for run in task.runs if run.silent_since)),
        ("deduped from", result.deduped_from),
        ("command", output.command_line(properties.get("command", []))),
        ("folder", properties.get("relative_cwd")),
        ("env", [f"{key}={value}" for key, value in properties.get("env", {}).items()]),
        ("secret", "set" if request.has_secret else None),
        ("stdin", None if request.stdin_size is None else output.plural(request.stdin_size, "byte")),
        ("dimensions", output.dimensions(properties["dimensions"])),
        ("slice", f"{result.slice + 1} of {len(slices)}" if len(slices) > 1 else None),
        ("group", task.group),
        ("user", request.user),
        ("priority", request.priority),
        ("tags", " ".join(_user_tags(request))),
        ("parent", request.parent),
        ("created", output.local_time(request.created_at)),
        ("started", output.local_time(result.started_at)),
        ("ended", output.local_time(result.completed_at)),
        ("duration", output.duration(result.duration)),
    ]


def _silence(run: RunInfo) -> str:
    """Since when the bot of a run has sent nothing, and when the run is given up."""
    since, until = output.local_time(run.silent_since), output.local_time(run.given_up_at)
    return f"{run.bot_id} since {since}; its run is given up at {until}"


def _user_tags(request: RequestInfo) -> list[str]:
    """The tags without those that the server derives from the request, which is shown already."""
    derived = {"priority", "user", "service_account", "parent_task_id"}
    derived.update(key for task_slice in request.slices for key in task_slice.properties["dimensions"])
    return [tag for tag in request.tags if tag.partition(":")[0] not in derived]


def _run_row(run: RunInfo) -> tuple[object, ...]:
    return (
        run.run,
        output.state(run.state),
        None if run.exit_code is None else as_in_a_shell(run.exit_code),
        run.bot_id,
        output.local_time(run.started_at),
        output.duration(run.duration),
        run.reason,
    )


def _print_next_step(task: TaskInfo) -> None:
    verb = {"WAITING": "why", "READY": "why", "RUNNING": "log -f"}.get(task.result.state, "log")
    output.next_step(f"myrmidon task {verb} {task.task_id}")


@task.command()
@_TASK_ARGUMENT
@click.option("--follow", "-f", is_flag=True, help="Follow the log until the task ends, and exit with its exit code.")
@click.option(
    "--run",
    "-r",
    "number",
    type=click.IntRange(1, 255),
    help="Number of the run. Default: the run that determines the result.",
)
@click.option("--stream", type=click.Choice(["both", "stdout", "stderr"]), default="both", help="Only this stream.")
@connected
def log(cli: CliContext, task_id: str, number: int | None, stream: str, *, follow: bool) -> int:
    """Print a task's log: its stdout to stdout, its stderr to stderr.

    The exception of a failed function is printed below it, to stderr. With --json, the log goes to stderr and the
    task as JSON to stdout.
    """
    task_id = job_refs.task_id(cli, task_id)
    task = _get_task(cli, task_id)
    source = task.result.deduped_from or task_id
    if follow:
        follow_log(cli, source, run=number, stream=stream)
        task = cli.client.task(task_id)
    else:
        print_log(cli, source, run=number, stream=stream)
    if stream != "stdout":
        print_error(task, number)
    if cli.as_json:
        output.print_struct(task)
    return exit_codes.of_results([task.result]) if follow else exit_codes.OK


@task.command()
@_TASK_ARGUMENT
@connected
def why(cli: CliContext, task_id: str) -> None:
    """Explain why a task is not running, or why it has failed."""
    task_id = job_refs.task_id(cli, task_id)
    explanation = cli.client.why(task_id)
    if cli.prints(explanation):
        return
    output.echo(explanation.summary)
    if explanation.state in FAILED:
        _print_failure(cli, cli.client.task(task_id))
    if explanation.dimensions:
        output.echo()
        rows = [(step.dimension, step.left, step.removes) for step in explanation.dimensions]
        output.table(("dimension", "bots left", "bots removed"), rows, empty="")
    if explanation.unavailable:
        output.echo()
        output.echo("Bots that match but get no tasks:")
        output.table(
            ("bot", "state", "seen", "reason"),
            [
                (bot.bot_id, output.state(bot.state), output.ago(bot.last_seen_at), bot.reason)
                for bot in explanation.unavailable
            ],
            empty="",
        )


def _print_failure(cli: CliContext, task: TaskInfo) -> None:
    """How the deciding run of a failed task has ended: the exception of a function, or the last lines of a command."""
    run = deciding_run(task)
    if run is None:
        return
    code = f" with {exit_code_text(run.exit_code)}" if run.exit_code and run.error is None else ""
    message = "" if run.error else str((run.evidence or {}).get("message", ""))
    output.echo(f"Its run on {run.bot_id} ended {output.state(run.state)}{code}{f': {message}' if message else ''}")
    output.echo()
    for line in error_lines(run.error) or log_tail_lines(cli, task.task_id):
        output.echo(line)
    output.next_step(f"myrmidon task log {task.task_id}")


@task.command()
@click.argument("task_ids", nargs=-1, type=TaskName(), metavar="[TASK...]")
@click.option(
    *_TAG_OPTION,
    type=Tag(),
    multiple=True,
    metavar="KEY:VALUE",
    help="Cancel all tasks with this tag. Repeatable; all must match.",
)
@click.option("--group", help="With --tag: only tasks of this resource group.")
@click.option("--kill/--no-kill", default=True, show_default=True, help="Also stop running tasks.")
@connected
def cancel(cli: CliContext, task_ids: tuple[str, ...], tags: tuple[str, ...], group: str | None, *, kill: bool) -> int:
    """Cancel tasks.

    The command of a running task gets SIGTERM, and SIGKILL after the grace period. If a task cannot be cancelled, the
    others still are; the first such error determines the exit code. Tags that no unfinished task has are an error too.
    """
    if not task_ids and not tags:
        raise click.UsageError("Give task ids or --tag.")
    answers, refused = list[object](), list[CallFailed]()
    for task_id in task_ids:
        try:
            cancelled = cli.client.cancel(job_refs.task_id(cli, task_id), kill_running=kill)
        except Refused as error:
            refused.append(error)
            answers.append({"task_id": task_id, "error": error.as_dict()})
            line, is_error = f"Task {task_id}: {error.message}", True
        else:
            answers.append(cancelled)
            line, is_error = _cancel_line(cancelled), False
        if not cli.as_json:
            output.echo(line, err=is_error)
    tagged = cli.client.cancel_tagged(tags, group=group, kill_running=kill) if tags else None
    none_found = tagged is not None and tagged.complete and not tagged.num_tasks
    if cli.as_json:
        output.print_struct({"tasks": answers, "tags": list(tags), "num_tagged": tagged.num_tasks if tagged else 0})
    elif none_found:
        left = "unfinished" if kill else "waiting"
        output.echo(f"Nothing to cancel: no {left} task has {' and '.join(tags)}.", err=True)
    elif tagged is not None:
        at_least = "" if tagged.complete else "at least "
        output.echo(f"Cancelling {at_least}{output.plural(tagged.num_tasks, 'task')} with {' and '.join(tags)}.")
    if refused:
        return exit_codes.of_error(refused[0])
    return exit_codes.NOT_FOUND if none_found else exit_codes.OK


def _cancel_line(answer: Cancelled) -> str:
    if answer.state != "RUNNING":
        what = "is" if answer.ok else "had ended already:"
        return f"Task {answer.task_id} {what} {output.state(answer.state)}."
    return f"Task {answer.task_id} " + ("is being stopped." if answer.ok else "keeps running; --kill stops it.")


@task.command()
@_TASK_ARGUMENT
@click.option("--force", is_flag=True, help="Even if its parents did not succeed, or if it succeeded itself.")
@click.option("--cascade", is_flag=True, help="Also rerun its descendants in its job.")
@connected
def rerun(cli: CliContext, task_id: str, *, force: bool, cascade: bool) -> None:
    """Rerun a task that has ended."""
    task_id = job_refs.task_id(cli, task_id)
    if task_id != task_id_of(task_id):
        task_id = _get_task(cli, task_id).task_id
    answer = cli.client.rerun(task_id, force=force, cascade=cascade)
    if cli.prints(answer):
        return
    output.echo(f"Task {task_id} runs again.")
    output.next_step(f"myrmidon task log -f {task_id}")


@task.command()
@_TASK_ARGUMENT
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
@click.option(
    "--folder",
    type=click.Path(),
    metavar="DIR",
    help="Folder to run in. Default: a temporary folder, removed afterwards.",
)
@click.option(
    "--pdb", "debug", is_flag=True, help="Start the debugger where a function raises: pdb, or gdb in a library."
)
@connected
def reproduce(cli: CliContext, task_id: str, extra: tuple[str, ...], folder: str | None, *, debug: bool) -> int:
    """Run a task's command or function on this machine.

    A command runs as on a bot, with any further arguments appended. Named caches are empty folders, and the secret
    is not available. A function runs with the code, the inputs and the requirements of the task, in this Python; its
    result or its traceback is printed. A function of a shared library runs with the library of the task; if it
    crashes, the reason is shown as a bot shows it.

    \b
      myrmidon task reproduce wc-1/count --pdb
    """
    from myrmidon.cli import reproduce as reproduction  # late, for startup time

    task = _get_task(cli, task_id)
    if task.request.function is not None:
        from myrmidon.cli.reproduce_function import run_function  # late, for startup time

        code = run_function(cli, task, folder, debug=debug, to_stderr=cli.as_json)
    else:
        code = reproduction.run_locally(task, list(extra), folder, to_stderr=cli.as_json)
    if cli.as_json:
        output.print_json({"task_id": task.task_id, "exit_code": code})
    return code
