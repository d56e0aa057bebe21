"""The relays of this server: one for each sink that the settings name."""

from __future__ import annotations

from myrmidon.relays.amqp import AmqpSink
from myrmidon.relays.relay import Relay, Sink
from myrmidon.server.context import ServerContext


def configured(context: ServerContext) -> list[Relay]:
    """A relay for each configured sink."""
    amqp = context.settings.amqp
    sinks: list[Sink] = [AmqpSink(amqp.url, amqp.exchange_prefix)] if amqp.url else []
    return [
        Relay(sink, context.db, holder=context.server.id, now=context.now, observer=context.metrics) for sink in sinks
    ]
