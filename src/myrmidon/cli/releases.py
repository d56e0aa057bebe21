"""`releases`: what bots run, and taking a release back."""

from __future__ import annotations

from typing import Any

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.request_options import Id

_SHOWN = 12


@click.group(invoke_without_command=True)
@connected
@click.pass_context
def releases(ctx: click.Context, cli: CliContext) -> None:
    """What bots run: every release, newest first. `releases revert DIGEST` takes one back."""
    if ctx.invoked_subcommand is not None:
        return
    found = cli.client.releases()
    if cli.as_json:
        output.print_json(found)
        return
    output.table(
        ("release", "state", "since", "servers", "failures", "by", "why"),
        [_line(one) for one in found["releases"]],
        empty="No releases: no server has offered one yet.",
    )


def _line(one: dict[str, Any]) -> tuple[Any, ...]:
    share = one["canary_share"]
    state = f"{one['state']} ({share}%)" if share is not None else one["state"]
    since = output.ago(one["changed_at"])
    return one["digest"][:_SHOWN], state, since, one["num_servers"], one["num_failures"], one["who"], one["why"]


@releases.command()
@click.argument("digest", type=Id())
@click.option("--reason", default="", help="Why; everybody sees it in the list.")
@connected
def revert(cli: CliContext, digest: str, reason: str) -> None:
    """Take a release back: bots return to the one before it, and are never told to run this one again."""
    known = [one["digest"] for one in cli.client.releases()["releases"] if one["digest"].startswith(digest)]
    if len(known) > 1:
        raise click.UsageError(f"{len(known)} releases begin with {digest!r}; say more of it.")
    done = cli.client.revert_release(known[0] if known else digest, reason=reason)
    if cli.as_json:
        output.print_json(done)
        return
    click.echo(f"{done['digest'][:_SHOWN]} is {done['state']}: no bot is told to run it any more.")
