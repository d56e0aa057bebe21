"""`job annotate` and `job meta`: the summary of a task, and the small texts that the tasks of a job share."""

from __future__ import annotations

import click

from myrmidon.cli import job_refs, output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.job_refs import TaskName
from myrmidon.cli.jobs import JOB_ARGUMENT, handle
from myrmidon.cli.standard_input import read_text
from myrmidon.sdk.errors import NotFound

_NAME_ARGUMENT = click.argument("text_name", metavar="NAME")


@click.command()
@click.argument("task_id", metavar="JOB/LABEL", type=TaskName())
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@connected
def annotate(cli: CliContext, task_id: str, file: str) -> None:
    """Show a Markdown text with a task; FILE may be -. `task show` prints it.

    It replaces an earlier one; an empty file removes it.
    """
    answer = cli.client.annotate(job_refs.task_id(cli, task_id), read_text(file, "FILE"))
    cli.tell(answer, f"Annotated {task_id}.")


@click.group()
def meta() -> None:
    """Read and change the small texts that the tasks of a job share."""


@meta.command()
@JOB_ARGUMENT
@click.argument("text_name", metavar="[NAME]", required=False)
@connected
def get(cli: CliContext, name: str, text_name: str | None) -> None:
    """Print one text of a job, or all with their names."""
    values = handle(cli, name).meta()
    if text_name is not None:
        if text_name not in values:
            raise NotFound(f"Job {name} has no text named {text_name!r}; `myrmidon job meta get {name}` lists all.")
        values = {text_name: values[text_name]}
    if cli.as_json:
        output.print_json(values)
    elif text_name is not None:
        output.echo_lines(values[text_name])
    else:
        output.table(("name", "value"), sorted(values.items()), empty="No texts.")


@meta.command(name="set")
@JOB_ARGUMENT
@_NAME_ARGUMENT
@click.argument("value")
@connected
def set_text(cli: CliContext, name: str, text_name: str, value: str) -> None:
    """Set a text of a job; it replaces an earlier one."""
    _change(cli, name, text_name, value)


@meta.command()
@JOB_ARGUMENT
@_NAME_ARGUMENT
@connected
def delete(cli: CliContext, name: str, text_name: str) -> None:
    """Delete a text of a job."""
    _change(cli, name, text_name, None)


def _change(cli: CliContext, name: str, text_name: str, value: str | None) -> None:
    values = handle(cli, name).set_meta(text_name, value)
    cli.tell(values, f"{text_name} is {'deleted' if value is None else 'set'}.")
