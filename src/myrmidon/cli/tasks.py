"""`tasks` and `task`: look at tasks and change their fate."""

from __future__ import annotations

import time
from typing import Any

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected, fetch_pages
from myrmidon.cli.request_options import Duration, Tag, TaskId
from myrmidon.cli.run import follow_log, print_log, task_id_of
from myrmidon.sdk.errors import CallFailed, NotFound, Refused

STATES = (
    "WAITING", "READY", "RUNNING", "SUCCEEDED", "FAILED", "TIMED_OUT", "BOT_DIED",
    "EXPIRED", "CANCELED", "KILLED", "NO_RESOURCE", "CLIENT_ERROR",
)  # fmt: skip
_ON_WHICH = click.argument("task_id", metavar="TASK", type=TaskId())
_TAGS = ("--tag", "-t", "tags")


@click.command()
@click.option(
    "--state", "-s", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False),
    help="Only tasks in this state. Repeat for more.",
)  # fmt: skip
@click.option(*_TAGS, type=Tag(), multiple=True, metavar="KEY:VALUE", help="Only with this tag. Repeat: all of them.")
@click.option("--name", "-n", help="Only tasks with exactly this name.")
@click.option("--pool", help="Only tasks of this pool.")
@click.option("--bot", metavar="BOT", help="Only tasks whose latest run is this bot's.")
@click.option("--group", help="Only tasks of this resource group.")
@click.option("--since", type=Duration(), help="Only tasks of the last while: 90, 15m, 2h, 1d.")
@click.option("--limit", "-l", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many.")
@connected
def tasks(
    cli: CliContext, states: tuple[str, ...], tags: tuple[str, ...], since: int | None, limit: int, **more: Any
) -> None:
    """List tasks, the newest first."""
    start = None if since is None else max(0, int((time.time() - since) * 1e6))
    found = fetch_pages(cli.client.tasks, "tasks", limit, state=list(states), tag=list(tags), start=start, **more)
    if cli.as_json:
        output.print_json(found)
        return
    output.table(
        ("task", "state", "age", "took", "bot", "name"), [_row(one) for one in found["tasks"]], empty="No tasks."
    )
    if found["cursor"]:
        output.note(f"There are more; --limit {limit * 10} shows them.")


def _row(task: dict[str, Any]) -> tuple[object, ...]:
    begun, ended = task["started_at"], task["completed_at"]
    took = (ended - begun) / 1e6 if begun and ended else None
    state = output.state(task["state"]) + (" (deduped)" if task["deduped_from"] else "")
    return (task["task_id"], state, output.ago(task["created_at"]), output.duration(took), task["bot_id"], task["name"])


@click.group()
def task() -> None:
    """One task: show, log, why, cancel, rerun, reproduce."""


@task.command(name="show")
@_ON_WHICH
@connected
def show_task(cli: CliContext, task_id: str) -> None:
    """What was asked for, what became of it, and every run."""
    found = _found(cli, task_id)
    if cli.as_json:
        output.print_json(found)
        return
    output.fields(_told(found))
    if found["runs"]:
        click.echo()
        output.table(
            ("run", "state", "exit", "bot", "started", "took", "reason"),
            [_run_row(run) for run in found["runs"]],
            empty="",
        )
    _suggest(found)


def _found(cli: CliContext, task_id: str) -> dict[str, Any]:
    """The task; where the id was that of a run, there must be such a run."""
    found = cli.client.task(task_id)
    if task_id not in (found["task_id"], *(run["run"] for run in found["runs"])):
        raise NotFound(f"Task {found['task_id']} has no run {task_id}.")
    return found


def _told(task: dict[str, Any]) -> list[tuple[str, object]]:
    request, result = task["request"], task["result"]
    slices = request["slices"]
    properties = slices[result["slice"]]["properties"]
    code = "" if result["exit_code"] is None else f" (exit code {result['exit_code']})"
    flags = "".join(f" {flag}" for flag in ("held", "killing") if result[flag])
    return [
        ("task", task["task_id"]),
        ("name", request["name"]),
        ("state", f"{output.state(result['state'])}{code}{flags}"),
        ("reason", "" if result["reason"] == "exit_code" else result["reason"]),
        ("deduped from", result["deduped_from"]),
        ("command", output.command_line(properties.get("command", []))),
        ("folder", properties.get("relative_cwd")),
        ("env", "\n".join(f"{key}={value}" for key, value in properties.get("env", {}).items())),
        ("secret", "given" if request["has_secret"] else None),
        ("wants", output.dimensions(properties["dimensions"])),
        ("slice", f"{result['slice'] + 1} of {len(slices)}" if len(slices) > 1 else None),
        ("group", task["group"]),
        ("user", request["user"]),
        ("priority", request["priority"]),
        ("tags", " ".join(_own_tags(request))),
        ("parent", request["parent"]),
        ("created", output.local_time(request["created_at"])),
        ("started", output.local_time(result["started_at"])),
        ("ended", output.local_time(result["completed_at"])),
        ("took", output.duration(result["duration"])),
    ]


def _own_tags(request: dict[str, Any]) -> list[str]:
    """Without those that every task has by itself, which say nothing that is not shown already."""
    known = {"priority", "user", "service_account", "parent_task_id"}
    known.update(key for one in request["slices"] for key in one["properties"]["dimensions"])
    return [tag for tag in request["tags"] if tag.partition(":")[0] not in known]


def _run_row(run: dict[str, Any]) -> tuple[object, ...]:
    return (
        run["run"],
        output.state(run["state"]),
        run["exit_code"],
        run["bot_id"],
        output.local_time(run["started_at"]),
        output.duration(run["duration"]),
        run["reason"],
    )


def _suggest(task: dict[str, Any]) -> None:
    verb = {"WAITING": "why", "READY": "why", "RUNNING": "log -f"}.get(task["result"]["state"], "log")
    output.next_step(f"myrmidon task {verb} {task['task_id']}")


@task.command()
@_ON_WHICH
@click.option("--follow", "-f", is_flag=True, help="Go on until the task ends, and exit with its code.")
@click.option("--run", "-r", "number", type=click.IntRange(1, 255), help="This run instead of the one that counts.")
@click.option("--stream", type=click.Choice(["both", "stdout", "stderr"]), default="both", help="Only one of the two.")
@connected
def log(cli: CliContext, task_id: str, number: int | None, stream: str, *, follow: bool) -> int:
    """What a task wrote: its stdout to stdout, its stderr to stderr.

    With --json the bytes go to stderr, and the task to stdout.
    """
    found = _found(cli, task_id)
    source = found["result"]["deduped_from"] or task_id
    if follow:
        follow_log(cli, source, run=number, stream=stream)
        found = cli.client.task(task_id)
    else:
        print_log(cli, source, run=number, stream=stream)
    if cli.as_json:
        output.print_json(found)
    return exit_codes.of_results([found["result"]]) if follow else exit_codes.OK


@task.command()
@_ON_WHICH
@connected
def why(cli: CliContext, task_id: str) -> None:
    """Why a task does not run, and what would let it."""
    found = cli.client.why(task_id)
    if cli.as_json:
        output.print_json(found)
        return
    click.echo(found["summary"])
    if found.get("dimensions"):
        click.echo()
        rows = [(one["dimension"], one["left"], one["removes"]) for one in found["dimensions"]]
        output.table(("wanted", "bots left", "bots without it"), rows, empty="")


@task.command()
@click.argument("task_ids", nargs=-1, type=TaskId(), metavar="[TASK...]")
@click.option(
    *_TAGS, type=Tag(), multiple=True, metavar="KEY:VALUE", help="Everything with this tag. Repeat: all of them."
)
@click.option("--group", help="With --tag: the resource group whose tasks are meant.")
@click.option("--kill/--no-kill", default=True, show_default=True, help="Also stop what is running.")
@connected
def cancel(cli: CliContext, task_ids: tuple[str, ...], tags: tuple[str, ...], group: str | None, *, kill: bool) -> int:
    """Cancel tasks.

    A running one is sent SIGTERM, and SIGKILL after its grace period. One that cannot be cancelled does not keep the
    others from it; the exit code is that of the first such.
    """
    if not task_ids and not tags:
        raise click.UsageError("Give the ids of tasks, or --tag.")
    answers, refused = [], list[CallFailed]()
    for task_id in task_ids:
        try:
            answer = cli.client.cancel(task_id, kill_running=kill)
        except Refused as error:
            refused.append(error)
            answer = {"task_id": task_id, "error": error.as_dict()}
        answers.append(answer)
        if not cli.as_json:
            click.echo(_cancelled(answer), err="error" in answer)
    if tags:
        cli.client.cancel_tagged(tags, group=group, kill_running=kill)
        if not cli.as_json:
            click.echo(f"Everything with {' and '.join(tags)} is being cancelled.")
    if cli.as_json:
        output.print_json({"tasks": answers, "tags": list(tags)})
    return exit_codes.of_error(refused[0]) if refused else exit_codes.OK


def _cancelled(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return f"Task {answer['task_id']}: {answer['error']['message']}"
    if answer["state"] != "RUNNING":
        return f"Task {answer['task_id']}: {output.state(answer['state'])}."
    return f"Task {answer['task_id']} " + ("is being stopped." if answer["ok"] else "runs on; --kill stops it.")


@task.command()
@_ON_WHICH
@click.option("--force", is_flag=True, help="Even though its parents did not succeed, or it did.")
@click.option("--cascade", is_flag=True, help="Also everything that follows from it in its job.")
@connected
def rerun(cli: CliContext, task_id: str, *, force: bool, cascade: bool) -> None:
    """Run a task that has ended once more."""
    if task_id != task_id_of(task_id):
        task_id = _found(cli, task_id)["task_id"]
    answer = cli.client.rerun(task_id, force=force, cascade=cascade)
    if cli.as_json:
        output.print_json(answer)
        return
    click.echo(f"Task {task_id} runs again.")
    output.next_step(f"myrmidon task log -f {task_id}")


@task.command()
@_ON_WHICH
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
@click.option(
    "--folder", type=click.Path(), metavar="DIR", help="Where to run. Default: a fresh one that is removed afterwards."
)
@connected
def reproduce(cli: CliContext, task_id: str, extra: tuple[str, ...], folder: str | None) -> int:
    """Run a task's command on this machine.

    It runs as a bot would run it; further arguments are added to it. The caches are empty folders, and the secret is
    not known here.
    """
    from myrmidon.cli import reproduce as here  # late: nothing else starts commands

    found = _found(cli, task_id)
    code = here.run_locally(found, list(extra), folder, to_stderr=cli.as_json)
    if cli.as_json:
        output.print_json({"task_id": found["task_id"], "exit_code": code})
    return code
