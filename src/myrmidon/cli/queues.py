"""`queues` and `pools`: what waits, and in which order."""

from __future__ import annotations

import click

from myrmidon.cli import output
from myrmidon.cli.context import Hand, connected, pages

_EVERYTHING = 10_000


@click.command()
@connected
def queues(hand: Hand) -> None:
    """What waits, by what it wants, and how many bots could run it."""
    found = pages(hand.client.queues, "queues", _EVERYTHING)
    if hand.as_json:
        output.as_json(found)
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
def pools(hand: Hand) -> None:
    """Pools, and how they order their tasks."""
    found = pages(hand.client.pools, "pools", _EVERYTHING)
    if hand.as_json:
        output.as_json(found)
        return
    output.table(
        ("pool", "bots", "order", "ageing"),
        [
            (
                one["name"],
                one["num_bots"],
                one["task_order"],
                output.span(one["ageing"] / 1e6) if one["ageing"] else None,
            )
            for one in found["pools"]
        ],
        empty="No pools: no bot was seen and nothing was submitted yet.",
    )
