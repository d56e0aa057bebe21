"""`queues` and `pools`: what waits, and in which order."""

from __future__ import annotations

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected, fetch_pages

_EVERYTHING = 10_000


@click.command()
@connected
def queues(cli: CliContext) -> None:
    """What waits, by what it wants, and how many bots could run it."""
    found = fetch_pages(cli.client.queues, "queues", _EVERYTHING)
    if cli.as_json:
        output.print_json(found)
        return
    output.table(
        ("ready", "oldest", "bots", "group", "wants"),
        [
            (
                one["num_ready"],
                output.ago(one["oldest_at"]),
                one["num_bots"],
                one["group"],
                output.dimensions(one["dimensions"]),
            )
            for one in sorted(found["queues"], key=lambda one: -one["num_ready"])
        ],
        empty="No queues: nothing was submitted lately.",
    )
    if stuck := [one for one in found["queues"] if one["num_ready"] and not one["num_bots"]]:
        output.note(
            f"{output.plural(len(stuck), 'queue')} without a bot; `myrmidon task why TASK` tells what is missing."
        )


@click.command()
@connected
def pools(cli: CliContext) -> None:
    """Pools, and how they order their tasks."""
    found = fetch_pages(cli.client.pools, "pools", _EVERYTHING)
    if cli.as_json:
        output.print_json(found)
        return
    output.table(
        ("pool", "bots", "order", "ageing"),
        [
            (
                one["name"],
                one["num_bots"],
                one["task_order"],
                output.duration(one["ageing"] / 1e6) if one["ageing"] else None,
            )
            for one in found["pools"]
        ],
        empty="No pools: no bot was seen and nothing was submitted yet.",
    )
