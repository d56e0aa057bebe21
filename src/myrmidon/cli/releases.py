"""`releases`: list the releases of the bot, revert one, allow one again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.request_options import Id

if TYPE_CHECKING:
    from myrmidon.wire.releases import ReleaseInfo

_SHOWN_DIGITS = 12


@click.group(invoke_without_command=True)
@connected
@click.pass_context
def releases(ctx: click.Context, cli: CliContext) -> None:
    """List the releases of the bot, newest first. `releases revert DIGEST` reverts one, `releases allow` ends that."""
    if ctx.invoked_subcommand is not None:
        return
    listing = cli.client.releases()
    cli.table(
        listing,
        ("release", "state", "since", "servers", "failures", "by", "why"),
        [_row(release) for release in listing.releases],
        empty="No releases yet.",
    )


def _row(release: ReleaseInfo) -> tuple[Any, ...]:
    share = release.canary_share
    state = f"{release.state} ({share}%)" if share is not None else release.state
    since = output.ago(release.changed_at)
    return (
        release.digest[:_SHOWN_DIGITS],
        state,
        since,
        release.num_servers,
        release.num_failures,
        release.who,
        release.why,
    )


@releases.command()
@click.argument("digest", type=Id())
@click.option("--reason", default="", help="Reason, shown in the list.")
@connected
def revert(cli: CliContext, digest: str, reason: str) -> None:
    """Revert a release. Bots return to the previous one, and none updates to this one until it is allowed again."""
    reverted = cli.client.revert_release(_full_digest(cli, digest), reason=reason)
    cli.tell(reverted, f"Release {reverted.digest[:_SHOWN_DIGITS]} is {reverted.state}; bots no longer update to it.")


@releases.command()
@click.argument("digest", type=Id())
@click.option("--reason", default="", help="Reason, shown in the list.")
@connected
def allow(cli: CliContext, digest: str, reason: str) -> None:
    """Allow a release that was reverted. It is rolled out like a new one, and its earlier failures do not count.

    A bot that failed with it tries it again after an hour.
    """
    allowed = cli.client.allow_release(_full_digest(cli, digest), reason=reason)
    cli.tell(allowed, f"Release {allowed.digest[:_SHOWN_DIGITS]} is {allowed.state}.")


def _full_digest(cli: CliContext, digest: str) -> str:
    """The digest of the release that begins with these digits."""
    releases = cli.client.releases().releases
    matches = [release.digest for release in releases if release.digest.startswith(digest)]
    if len(matches) > 1:
        raise click.UsageError(f"{len(matches)} releases begin with {digest!r}; give more digits.")
    return matches[0] if matches else digest
