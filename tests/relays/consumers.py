"""A consumer of messages on RabbitMQ, with a durable queue of its own that is bound to every exchange."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import pika
import pika.exceptions

from myrmidon.relays.messages import KINDS
from tests.deadline import HANG_S
from tests.servers import RabbitMQ

_numbers = count(1)


class Consumer:
    """Receives what arrives in its queue. It opens a connection for each call, because the broker comes and goes."""

    def __init__(self, broker: RabbitMQ, prefix: str = "", keys: Sequence[str] = ("#",)) -> None:
        self._broker = broker
        self._prefix = prefix
        self._keys = keys
        self.queue = f"consumer{next(_numbers)}-{prefix}"
        self.received: list[tuple[str, dict[str, Any]]] = []
        """Message ids and bodies."""
        self.properties: list[Any] = []
        self.bind()

    def bind(self) -> None:
        """Declare the queue and bind it; the exchanges are declared as the server declares them."""
        with self._channel() as channel:
            channel.queue_declare(self.queue, durable=True)
            for kind in KINDS:
                channel.exchange_declare(self._prefix + kind, exchange_type="topic", durable=True)
                for key in self._keys:
                    channel.queue_bind(self.queue, self._prefix + kind, key)

    def delete(self) -> None:
        with self._channel() as channel:
            channel.queue_delete(self.queue)

    def until(self, done: Callable[[list[dict[str, Any]]], bool], *, ack: bool = True) -> list[dict[str, Any]]:
        """Receive messages until ``done`` says so of all bodies so far."""
        with self._channel() as channel:
            for method, properties, body in channel.consume(self.queue, inactivity_timeout=HANG_S):
                assert method is not None, f"nothing more came after {self.kinds}"
                self.received.append((properties.message_id, json.loads(body)))
                self.properties.append(properties)
                if ack:
                    channel.basic_ack(method.delivery_tag)
                if done(self.bodies):
                    break
        return self.bodies

    def until_completed(self, tasks: Sequence[str], **options: Any) -> list[dict[str, Any]]:
        """Receive messages until each of these tasks was reported completed."""
        wanted = set(tasks)
        return self.until(
            lambda bodies: wanted <= {b["task"] for b in bodies if b["kind"] == "task-completed"}, **options
        )

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.received]

    @property
    def kinds(self) -> list[str]:
        return [body["kind"] for body in self.bodies]

    def without_repeats(self) -> list[dict[str, Any]]:
        """The first copy of each message. Repeats must be equal to it."""
        first: dict[str, dict[str, Any]] = {}
        for message_id, body in self.received:
            assert first.setdefault(message_id, body) == body
        return list(first.values())

    def _channel(self) -> Any:
        return _OpenChannel(self._broker.url)


class _OpenChannel:
    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Any:
        self._connection = pika.BlockingConnection(pika.URLParameters(self._url))
        channel = self._connection.channel()
        channel.basic_qos(prefetch_count=1000)
        return channel

    def __exit__(self, *_: object) -> None:
        with suppress(pika.exceptions.AMQPError):
            self._connection.close()


def check_order(bodies: Sequence[dict[str, Any]]) -> None:
    """The messages of each task and job are in the order of its changes."""
    last: dict[str, int] = {}
    for body in bodies:
        subject = body.get("task") or body["job"]
        assert body["seq"] > last.get(subject, 0), f"{subject} went back to {body['seq']}"
        last[subject] = body["seq"]
