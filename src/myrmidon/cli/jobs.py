"""`jobs` and `job`: submit graphs of tasks, inspect, change and delete them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.graph_file import parse_parameters, read_document
from myrmidon.cli.job_lines import counts_text, describe_end_on_bot
from myrmidon.cli.job_plan import show_plan
from myrmidon.cli.job_refs import JobName, job_id
from myrmidon.cli.request_options import Duration, Pair, Tag
from myrmidon.cli.values import short_text
from myrmidon.sdk.exit_code import as_in_a_shell

if TYPE_CHECKING:
    from myrmidon.sdk.jobs import Job
    from myrmidon.wire import jobs as wire
    from myrmidon.wire.job_actions import JobChanged

STATES = ("RUNNING", "PENDING_RETRY", "SUCCEEDED", "FAILED", "CANCELLED")
JOB_ARGUMENT = click.argument("name", metavar="JOB", type=JobName())
_FILE_ARGUMENT = click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
_PARAMETER_OPTION = click.option(
    "--param", "-p", "pairs", type=Pair(), multiple=True, metavar="NAME=VALUE", help="A parameter. Repeatable."
)
_SHOWN_LABELS = 20


@click.command()
@click.option(
    "--state", "-s", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False),
    help="Only jobs in this state. Repeatable; any may match.",
)  # fmt: skip
@click.option("--tag", "-t", "tags", type=Tag(), multiple=True, metavar="KEY:VALUE", help="Only jobs with this tag.")
@click.option("--name", "-n", help="Only jobs with exactly this name.")
@click.option("--group", help="Only jobs of this resource group.")
@click.option("--since", type=Duration(), help="Only jobs created in the last TIME, such as 90, 15m, 2h or 1d.")
@click.option("--limit", "-l", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number.")
@connected
def jobs(
    cli: CliContext, states: tuple[str, ...], tags: tuple[str, ...], since: int | None, limit: int, **filters: Any
) -> None:
    """List jobs, newest first."""
    start = None if since is None else max(0, int((time.time() - since) * 1e6))
    page = cli.client.jobs(state=list(states), tag=list(tags), start=start, limit=limit, **filters)
    if cli.prints(page):
        return
    titles = ("job", "state", "tasks", "failed", "created", "duration", "name")
    output.table(titles, [_row(job) for job in page.jobs], empty="No jobs.")
    if page.cursor:
        output.note(f"There are more jobs; use a higher --limit, such as {limit * 10}.")


def _row(job: wire.JobSummary) -> tuple[object, ...]:
    state = output.state(job.state) + (" (blocked)" if job.state == "RUNNING" and job.view == "blocked" else "")
    ended = job.ended_at or (int(time.time() * 1e6) if job.state == "RUNNING" else None)
    return (
        job.external_id or job.job_id,
        state,
        f"{job.num_succeeded}/{job.num_tasks}",
        job.num_failed or None,
        output.ago(job.created_at),
        output.duration((ended - job.created_at) / 1e6 if ended else None),
        job.name,
    )


@click.group()
def job() -> None:
    """Submit a graph of tasks, inspect or change it.

    JOB is an id, an external id, or @latest. Commands that take a task accept JOB/LABEL.
    """


def handle(cli: CliContext, name: str) -> Job:
    return cli.client.job(job_id(cli, name))


# ---------------------------------------------------------------- submit, check, extend


@job.command()
@_FILE_ARGUMENT
@_PARAMETER_OPTION
@click.option("--group", help="Resource group of the job.")
@click.option("--watch", "-w", is_flag=True, help="Watch the job until it has ended; exit with its result.")
@click.option("--plan", is_flag=True, help="Store nothing; show what would happen.")
@click.option("--resume", is_flag=True, help="Go on with the job of this external id; run only what has changed.")
@click.option("--id", "external_id", metavar="ID", help="The external id; default: that of the document.")
@connected
def submit(
    cli: CliContext,
    file: str,
    pairs: Sequence[tuple[str, str]],
    group: str | None,
    external_id: str | None,
    *,
    watch: bool,
    plan: bool,
    resume: bool,
) -> int:
    """Submit a graph document, JSON or YAML; - reads stdin.

    With --resume the same document again is the same job, and what has failed in it runs again. A changed document
    becomes the next revision of the job: what has not changed is answered by earlier results.

    \b
      myrmidon job submit build.yaml -p arch=arm64 --watch
      myrmidon job submit build.yaml --plan
      myrmidon job submit build.yaml --id nightly --resume
    """
    document, parameters = read_document(file), parse_parameters(pairs)
    if external_id is not None:
        document = {**document, "external_id": external_id}
    if resume and not document.get("external_id"):
        raise click.UsageError("--resume needs an id: give --id, or write external_id into the document.")
    if plan:
        check = cli.client.check_job(document, parameters=parameters, group=group, resume=resume)
        return show_plan(cli, check, resume=resume)
    submitted = cli.client.submit_job(document, parameters=parameters, group=group, resume=resume)
    if watch:
        from myrmidon.cli.job_watch import watch_job  # late, for startup time

        output.note(f"job {submitted.id}")
        return watch_job(cli, submitted)
    if cli.as_json:
        output.print_struct(submitted.info())
    else:
        output.echo(submitted.id)
        output.next_step(f"myrmidon job watch {submitted.id}")
    return exit_codes.OK


@job.command()
@_FILE_ARGUMENT
@_PARAMETER_OPTION
@click.option("--group", help="Resource group of the job.")
@connected
def check(cli: CliContext, file: str, pairs: Sequence[tuple[str, str]], group: str | None) -> int:
    """Check a graph document, and match it with the bots. It is not stored."""
    document, parameters = read_document(file), parse_parameters(pairs)
    return show_plan(cli, cli.client.check_job(document, parameters=parameters, group=group))


@job.command()
@JOB_ARGUMENT
@_FILE_ARGUMENT
@_PARAMETER_OPTION
@connected
def extend(cli: CliContext, name: str, file: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Add the tasks of a document to a running job. Tasks that it already has are skipped."""
    extended = handle(cli, name).extend(read_document(file), parameters=parse_parameters(pairs))
    cli.tell(extended, f"Added {output.plural(extended.num_new, 'task')} to job {extended.job_id}.")


# ---------------------------------------------------------------- show


@job.command()
@JOB_ARGUMENT
@connected
def show(cli: CliContext, name: str) -> None:
    """Show the state of a job, its tasks, and its first failure."""
    info = handle(cli, name).info()
    if cli.prints(info):
        return
    failure = info.first_failure
    output.fields(
        [
            ("job", info.job_id),
            ("external id", info.external_id),
            ("name", info.name),
            ("state", output.state(info.state) + (f" ({info.view})" if info.view == "blocked" else "")),
            ("progress", f"{info.progress:.0%} of {output.plural(info.num_tasks, 'task')}"),
            ("tasks", counts_text(info.counts)),
            ("first failure", f"{failure.label}: {describe_end_on_bot(failure)}" if failure else None),
            ("error", info.error),
            ("retries", f"{info.num_retries} of {info.max_num_retries}" if info.max_num_retries else None),
            ("sealed", output.local_time(info.sealed_at)),
            ("group", info.group),
            ("tags", " ".join(info.tags)),
            ("created", output.local_time(info.created_at)),
            ("ended", output.local_time(info.ended_at)),
        ]
    )
    if failure is not None:
        output.next_step(f"myrmidon task log {failure.task_id}")
    elif info.state == "RUNNING":
        output.next_step(f"myrmidon job watch {info.job_id}")


@job.command()
@JOB_ARGUMENT
@connected
def result(cli: CliContext, name: str) -> int:
    """Wait for a job and show the results of its last tasks. Exits with its result."""
    the_job = handle(cli, name)
    info = the_job.wait()
    outputs = the_job.outputs()
    if cli.as_json:
        output.print_struct(outputs)
    else:
        rows = [
            (
                task.label,
                output.state(task.state),
                None if task.exit_code is None else as_in_a_shell(task.exit_code),
                task.task_id,
                ", ".join(map(short_text, task.values)),
            )
            for task in outputs.tasks
        ]
        output.table(("label", "state", "exit", "task", "outputs"), rows, empty="No results.")
        if info.state != "SUCCEEDED":
            output.next_step(f"myrmidon job why {info.job_id}")
    return exit_codes.of_job(info)


@job.command()
@JOB_ARGUMENT
@click.option("--limit", "-l", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Maximum number.")
@connected
def timing(cli: CliContext, name: str, limit: int) -> None:
    """Show how long the tasks of a job ran and waited. The slowest come first."""
    tasks = sorted(handle(cli, name).tasks(), key=lambda task: task.duration_s or 0.0, reverse=True)
    if cli.prints(tasks[:limit]):
        return
    rows = [
        (
            task.label,
            output.state(task.state),
            output.duration(task.duration_s),
            output.duration(task.waited_s),
            task.bot_id,
        )
        for task in tasks[:limit]
    ]
    output.table(("label", "state", "duration", "waited", "bot"), rows, empty="No tasks.")


# ---------------------------------------------------------------- change


def _print_change(cli: CliContext, changed: JobChanged, text: str) -> None:
    cli.tell(changed, f"Job {changed.job_id} {text}.")


@job.command()
@JOB_ARGUMENT
@connected
def cancel(cli: CliContext, name: str) -> None:
    """Cancel a job and all its tasks. Running commands get SIGTERM, then SIGKILL."""
    changed = handle(cli, name).cancel()
    text = "is being cancelled" if changed.busy else f"is {changed.state}"
    _print_change(cli, changed, text)


@job.command()
@JOB_ARGUMENT
@connected
def seal(cli: CliContext, name: str) -> None:
    """Refuse further extensions of a job."""
    _print_change(cli, handle(cli, name).seal(), "accepts no more tasks")


_LABEL_OPTION = click.option("--task", "label", metavar="LABEL", help="Only this task; default: the whole job.")


@job.command()
@JOB_ARGUMENT
@_LABEL_OPTION
@connected
def hold(cli: CliContext, name: str, label: str | None) -> None:
    """Keep tasks that have not started from starting."""
    _print_change(cli, handle(cli, name).hold(label), f"holds {label or 'its tasks'}")


@job.command()
@JOB_ARGUMENT
@_LABEL_OPTION
@connected
def release(cli: CliContext, name: str, label: str | None) -> None:
    """Release held tasks."""
    _print_change(cli, handle(cli, name).release(label), f"releases {label or 'its tasks'}")


@job.command()
@JOB_ARGUMENT
@click.argument("number", metavar="PRIORITY", type=click.IntRange(0, 255))
@_LABEL_OPTION
@connected
def priority(cli: CliContext, name: str, number: int, label: str | None) -> None:
    """Change the priority of tasks that have not ended. A lower number runs first."""
    changed = handle(cli, name).priority(number, label)
    _print_change(cli, changed, f"has priority {number} for {label or 'its tasks'}")


@job.command()
@JOB_ARGUMENT
@click.option("--failed", is_flag=True, help="What did not succeed, and what waits for it (default).")
@click.option("--from", "label", metavar="LABEL", help="This task and everything that depends on it.")
@click.option("--task", "only", metavar="LABEL", help="Only this task.")
@click.option("--full", is_flag=True, help="Everything, also what has succeeded.")
@click.option("--dry-run", is_flag=True, help="Only show what would run again.")
@connected
def rerun(
    cli: CliContext, name: str, label: str | None, only: str | None, *, failed: bool, full: bool, dry_run: bool
) -> None:
    """Run tasks of a job again."""
    if sum((failed, full, label is not None, only is not None)) > 1:
        raise click.UsageError("Give one of --failed, --from, --task and --full.")
    answer = handle(cli, name).rerun(
        label or only, cascade=label is not None, force=bool(label or only), full=full, dry_run=dry_run
    )
    if cli.as_json:
        output.print_struct(answer)
    elif dry_run:
        labels = answer.labels or []
        for one in labels[:_SHOWN_LABELS]:
            output.echo(one)
        more = (answer.num_tasks or 0) - len(labels[:_SHOWN_LABELS])
        output.note(
            f"{output.plural(answer.num_tasks or 0, 'task')} would run again"
            + (f"; {more} are not shown." if more else ".")
        )
    else:
        output.echo(f"Job {answer.job_id} runs again.")
        output.next_step(f"myrmidon job watch {answer.job_id}")


@job.command()
@JOB_ARGUMENT
@connected
def delete(cli: CliContext, name: str) -> None:
    """Delete an ended job with its tasks and their output."""
    the_job = handle(cli, name)
    the_job.delete()
    cli.tell({"job_id": the_job.id, "deleted": True}, f"Job {the_job.id} is being deleted.")
