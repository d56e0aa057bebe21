"""`queues` and `pools`: waiting tasks by dimensions, and the task order of pools."""

from __future__ import annotations

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected, fetch_pages

_MAX_ROWS = 10_000


@click.command()
@connected
def queues(cli: CliContext) -> None:
    """List waiting tasks by dimensions, with the number of bots that can run them."""
    listing = fetch_pages(cli.client.queues, "queues", _MAX_ROWS)
    if cli.prints(listing):
        return
    output.table(
        ("ready", "oldest", "bots", "group", "dimensions"),
        [
            (
                queue.num_ready,
                output.ago(queue.oldest_at),
                queue.num_bots,
                queue.group,
                output.dimensions(queue.dimensions),
            )
            for queue in sorted(listing.queues, key=lambda queue: -queue.num_ready)
        ],
        empty="No queues: no tasks were submitted recently.",
    )
    if stuck := [queue for queue in listing.queues if queue.num_ready and not queue.num_bots]:
        output.note(f"{output.plural(len(stuck), 'queue')} without a matching bot; `myrmidon task why TASK` explains.")


@click.command()
@connected
def pools(cli: CliContext) -> None:
    """List pools and their task order."""
    listing = fetch_pages(cli.client.pools, "pools", _MAX_ROWS)
    cli.table(
        listing,
        ("pool", "bots", "order", "ageing"),
        [
            (
                pool.name,
                pool.num_bots,
                pool.task_order,
                output.duration(pool.ageing / 1e6) if pool.ageing else None,
            )
            for pool in listing.pools
        ],
        empty="No pools: no bot has connected and no task was submitted yet.",
    )
