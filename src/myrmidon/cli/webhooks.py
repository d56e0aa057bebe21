"""`webhook`: create, list and delete webhooks, look at their deliveries, send a message again."""

from __future__ import annotations

from typing import get_args

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.request_options import Id
from myrmidon.wire.webhooks import MessageKind, WebhookInfo


@click.group()
def webhook() -> None:
    """Send messages about tasks and jobs to a URL."""


@webhook.command()
@click.argument("url")
@click.option(
    "-k", "--kind", "kinds", multiple=True, type=click.Choice(get_args(MessageKind)), metavar="KIND",
    help="Only this kind of message, such as task-failed; repeatable.",
)  # fmt: skip
@click.option("--group", help="Resource group whose messages are sent. Default: that of the token.")
@connected
def create(cli: CliContext, url: str, kinds: tuple[str, ...], group: str | None) -> None:
    """Send messages to URL from now on. Prints the secret that they are signed with."""
    created = cli.client.create_webhook(url, kinds=kinds, group=group)
    if cli.prints(created):
        return
    output.echo(created.secret or "")
    output.note(f"webhook {created.id}; the secret of its signatures cannot be shown again")


@webhook.command(name="list")
@connected
def list_webhooks(cli: CliContext) -> None:
    """List webhooks, without their secrets."""
    listing = cli.client.webhooks()
    cli.table(
        listing,
        ("id", "group", "state", "waiting", "dropped", "kinds", "url"),
        [
            (hook.id, hook.group, _state(hook), str(hook.num_pending), str(hook.num_dropped), _kinds(hook), hook.url)
            for hook in listing.webhooks
        ],
        empty="No webhooks.",
    )


def _state(hook: WebhookInfo) -> str:
    return f"failing ({output.plural(hook.num_failures, 'attempt')})" if hook.num_failures else "ok"


def _kinds(hook: WebhookInfo) -> str:
    return " ".join(hook.kinds) or "all"


@webhook.command()
@click.argument("webhook_id", metavar="ID", type=Id())
@connected
def delete(cli: CliContext, webhook_id: str) -> None:
    """Delete a webhook. Messages that wait are not sent."""
    answer = cli.client.delete_webhook(webhook_id)
    cli.tell(answer, f"Webhook {webhook_id} is deleted.")


@webhook.command()
@click.argument("webhook_id", metavar="ID", type=Id())
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many to list.")
@connected
def deliveries(cli: CliContext, webhook_id: str, limit: int) -> None:
    """List the messages of a webhook, newest first."""
    listing = cli.client.webhook_deliveries(webhook_id, limit=limit)
    cli.table(
        listing,
        ("id", "state", "kind", "message", "attempts", "last attempt", "error"),
        [
            (
                line.id,
                line.state,
                line.kind,
                line.message_id,
                str(line.num_attempts),
                output.ago(line.attempted_at) if line.attempted_at else "",
                line.error or "",
            )
            for line in listing.deliveries
        ],
        empty="No deliveries.",
    )


@webhook.command()
@click.argument("webhook_id", metavar="ID", type=Id())
@click.argument("delivery", type=Id())
@connected
def replay(cli: CliContext, webhook_id: str, delivery: str) -> None:
    """Send a message again. DELIVERY is an id of `webhook deliveries`."""
    answer = cli.client.replay_delivery(webhook_id, delivery)
    cli.tell(answer, f"Delivery {delivery} is sent again.")
