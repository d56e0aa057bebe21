"""Publishes messages to RabbitMQ: one durable topic exchange per kind, persistent messages, publisher confirms.

pika's connection runs on an event loop in a thread of its own. Encoding a batch takes tens of milliseconds, which would
delay every caller on the server's loop; there heartbeats are answered too, however busy the server is. There is no
automatic reconnect: after any error the connection is dropped, and the relay's next batch opens a new one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPError

from myrmidon.relays import tls
from myrmidon.relays.messages import KINDS, Message
from myrmidon.relays.relay import SinkUnavailable

T = TypeVar("T")
_PIKA = logging.getLogger("pika")

HEARTBEAT_S = 15
CONNECT_S = 10.0
_PERSISTENT = 2


class AmqpSink:
    """Delivers messages to RabbitMQ, from a thread with a connection of its own."""

    name = "amqp"

    def __init__(self, url: str, exchange_prefix: str = "", *, ca_file: str = "") -> None:
        self._url = url
        self._ca_file = ca_file
        self._prefix = exchange_prefix
        self._thread: _LoopThread | None = None
        self._connection: _Connection | None = None

    async def active(self) -> bool:
        return True

    async def deliver(self, batch: Sequence[Message]) -> None:
        """Publish messages; returns when the broker has confirmed all."""
        if self._thread is None:
            self._thread = _LoopThread("amqp")
        await self._thread.run(self._publish(batch))

    async def close(self) -> None:
        if self._thread is not None:
            await self._thread.run(self._disconnect())
            self._thread.stop()
            self._thread = None

    async def _publish(self, batch: Sequence[Message]) -> None:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = _Connection(self._url, self._ca_file)
                async with asyncio.timeout(CONNECT_S):
                    await self._connection.open([self._prefix + kind for kind in KINDS])
            await self._connection.publish([(self._prefix + message.kind, message) for message in batch])
            _PIKA.setLevel(logging.NOTSET)
        except (AMQPError, OSError, SinkUnavailable, TimeoutError) as error:
            await self._disconnect()
            _PIKA.setLevel(logging.CRITICAL)  # it has logged why: seven lines, which would come again with every try
            raise SinkUnavailable(_describe(error)) from error
        except asyncio.CancelledError:
            await self._disconnect()  # nobody waits for the confirmation: the next batch must not get it
            raise

    async def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.drop()
            self._connection = None


class _Connection:
    """One connection with one channel in confirm mode, made for a single life: after an error it is dropped."""

    def __init__(self, url: str, ca_file: str) -> None:
        parameters = pika.URLParameters(url)
        if parameters.ssl_options is not None:
            parameters.ssl_options = pika.SSLOptions(tls.client_context(ca_file), parameters.host)
        parameters.heartbeat = HEARTBEAT_S
        parameters.connection_attempts = 1
        parameters.socket_timeout = parameters.stack_timeout = CONNECT_S
        self._parameters = parameters
        self._connection: Any = None
        self._channel: Any = None
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when the connection or the channel is closed."""
        self._unconfirmed: set[int] = set()
        self._last_tag = 0
        self._confirmed: asyncio.Future[None] | None = None

    @property
    def closed(self) -> bool:
        return self._failure.done()

    async def open(self, exchanges: Sequence[str]) -> None:
        """Connect, enter confirm mode and declare the exchanges."""
        await self._wait(self._connect)
        self._channel = await self._wait(lambda done: self._connection.channel(on_open_callback=done))
        self._channel.add_on_close_callback(lambda _, error: self._fail(error))
        await self._wait(lambda done: self._channel.confirm_delivery(self._on_confirmation, callback=done))
        for exchange in exchanges:
            await self._wait(partial(self._declare, exchange))

    def _declare(self, exchange: str, done: Callable[[Any], None]) -> None:
        self._channel.exchange_declare(exchange, exchange_type="topic", durable=True, callback=done)

    async def publish(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Publish messages to their exchanges; returns when all are confirmed."""
        confirmed = self._confirmed = asyncio.get_running_loop().create_future()
        self._unconfirmed = set(range(self._last_tag + 1, self._last_tag + 1 + len(messages)))
        self._last_tag += len(messages)
        for exchange, message in messages:
            self._channel.basic_publish(exchange, message.key, message.body, _properties(message))
        await self._until(confirmed)

    def drop(self) -> None:
        """Close the connection without waiting for the broker."""
        self._fail(SinkUnavailable("the connection was closed"))
        if self._connection is not None and not (self._connection.is_closing or self._connection.is_closed):
            with suppress(AMQPError):
                self._connection.close()

    def _connect(self, done: Callable[[Any], None]) -> None:
        self._connection = AsyncioConnection(
            self._parameters,
            on_open_callback=done,
            on_open_error_callback=lambda _, error: self._fail(error),
            on_close_callback=lambda _, error: self._fail(error),
            custom_ioloop=asyncio.get_running_loop(),
        )

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # retrieved: a connection that is lost while nobody waits is no unhandled error

    def _on_confirmation(self, frame: Any) -> None:
        method = frame.method
        if isinstance(method, pika.spec.Basic.Nack):
            self._fail(SinkUnavailable("the broker has refused a message"))
            return
        if method.multiple:
            self._unconfirmed = {tag for tag in self._unconfirmed if tag > method.delivery_tag}
        else:
            self._unconfirmed.discard(method.delivery_tag)
        if not self._unconfirmed and self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_result(None)

    async def _wait(self, start: Callable[[Callable[[Any], None]], Any]) -> Any:
        """Start an operation and return what its callback gets."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        start(lambda result: None if answer.done() else answer.set_result(result))
        return await self._until(answer)

    async def _until(self, answer: asyncio.Future[T]) -> T:
        """The result of a future, or the failure of the connection."""
        waiting: set[asyncio.Future[Any]] = {answer, self._failure}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self._failure.result()
        return answer.result()


def _properties(message: Message) -> Any:
    return pika.BasicProperties(
        content_type="application/json",
        delivery_mode=_PERSISTENT,
        message_id=message.message_id,
        timestamp=message.at // 1_000_000,
        type=message.kind,
        app_id="myrmidon",
        headers={"CC": message.routes} if message.routes else None,
    )


def _describe(error: BaseException) -> str:
    """Describe what went wrong; pika nests the reasons why no connection could be opened."""
    text = str(error) or repr(error)
    return text[:300]


class _LoopThread:
    """A daemon thread with an event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this thread's loop; cancelled with its caller."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def stop(self) -> None:
        """End the thread after what its loop has already begun to close."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
