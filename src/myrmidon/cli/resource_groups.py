"""`resource-group`: create, list, show and delete the owners of jobs, tasks and shared values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected, fetch_pages

if TYPE_CHECKING:
    from myrmidon.wire.resource_groups import GroupDetails


@click.group(name="resource-group")
def resource_group() -> None:
    """Create, list, show and delete resource groups, which own jobs, tasks, files and shared values."""


@resource_group.command()
@click.argument("name")
@connected
def create(cli: CliContext, name: str) -> None:
    """Create a resource group."""
    created = cli.client.create_group(name)
    if cli.prints(created):
        return
    output.echo(f"Resource group {created.name} is created.")
    output.note(f"to let somebody use it: myrmidon token create SOMEBODY --group {created.name}")


@resource_group.command(name="list")
@connected
def list_groups(cli: CliContext) -> None:
    """List resource groups."""
    listing = fetch_pages(cli.client.groups, "groups", 10_000)
    cli.table(
        listing,
        ("name", "created", "state"),
        [
            (group.name, output.local_time(group.created_at), "being deleted" if group.deleting else "")
            for group in listing.groups
        ],
        empty="No resource groups.",
    )


@resource_group.command()
@click.argument("name")
@connected
def show(cli: CliContext, name: str) -> None:
    """Show the jobs, tasks, shared values and files of a resource group."""
    found = cli.client.group(name)
    if cli.prints(found):
        return
    output.fields([("resource group", found.name), *_lines(found)])


def _lines(found: GroupDetails) -> list[tuple[str, str]]:
    return [
        ("created", output.local_time(found.created_at) or ""),
        *([("state", "being deleted")] if found.deleting else []),
        ("jobs", _by_state(found.jobs)),
        ("tasks" if found.tasks_complete else "recent tasks", _by_state(found.tasks)),
        ("running", str(found.num_running)),
        ("shared values", f"{found.num_values} ({output.size(found.value_bytes)})"),
        ("files", f"{found.num_files} ({output.size(found.file_bytes)})"),
        ("webhooks", str(found.num_webhooks)),
    ]


def _by_state(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(numbers.items()) if number) or "none"


@resource_group.command()
@click.argument("name")
@click.option(
    "--force", is_flag=True, help="Cancel its tasks that have not ended; without it they are a reason to refuse."
)
@connected
def delete(cli: CliContext, name: str, force: bool) -> None:
    """Delete a resource group with everything that it owns.

    These are its jobs, tasks, logs, files and references to shared values.
    """
    cli.client.group(name)  # a repeated deletion succeeds, and so would that of a group that never existed
    answer = cli.client.delete_group(name, force=force)
    cli.tell(answer, f"Resource group {name} is being deleted.")
