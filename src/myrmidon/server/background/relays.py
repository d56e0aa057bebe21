"""The relays of this server: one for each sink, and the sender of webhooks."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from myrmidon.relays.amqp import AmqpSink
from myrmidon.relays.relay import Relay, Sink
from myrmidon.relays.webhooks import WebhookQueue, WebhookSender
from myrmidon.server.context import ServerContext


def start(context: ServerContext) -> list[Coroutine[Any, Any, None]]:
    """What is to run for as long as the server does."""
    settings, webhook_rules = context.settings, context.settings.webhook_rules
    sinks: list[Sink] = [WebhookQueue(context.db, webhook_rules, context.now)]
    if settings.amqp.url:
        sinks.append(AmqpSink(settings.amqp.url, settings.amqp.exchange_prefix, ca_file=settings.amqp.ca_file))
    relays = [
        Relay(sink, context.db, holder=context.server.id, now=context.now, observer=context.metrics) for sink in sinks
    ]
    sender = WebhookSender(
        context.db,
        webhook_rules,
        holder=context.server.id,
        now=context.now,
        secret_of=context.keys.webhook_secret,
    )
    return [*(relay.run() for relay in relays), sender.run()]
