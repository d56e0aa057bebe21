"""Messages per second to RabbitMQ: those of the relay, read from the outbox, against bare publishes of the same bytes.

Both use publisher confirms in batches of the same size on the same broker; the bare ones come from pika's own asyncio
connection, which the relay uses too.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.bars import Bar, measure_each, note
from bench.bed import Bed
from myrmidon.relays import relay
from myrmidon.relays.amqp import AmqpSink
from myrmidon.relays.messages import Message, build
from myrmidon.server.database import AsyncDatabase, Executor
from myrmidon.server.metrics import Metrics
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import outbox, sink
from tests.servers import rabbitmq

TASKS, QUICK_TASKS = 10_000, 500
ROUNDS = 3


def _messages(tx: Tx) -> list[Message]:
    found: list[Message] = []
    position = 0
    while events := outbox.after(tx, position, relay.BATCH):
        found += build(tx, events)
        position = events[-1].position
    return found


def _cursor(tx: Tx) -> int:
    position: int = tx.all("SELECT position FROM sinks")[0][0]
    return position


async def _bare(url: str, messages: Sequence[Message]) -> float:
    """Publish messages that are ready, batch by batch."""
    target = AmqpSink(url)
    await target.deliver(messages[:1])
    began = time.perf_counter()
    for start in range(0, len(messages), relay.BATCH):
        await target.deliver(messages[start : start + relay.BATCH])
    seconds = time.perf_counter() - began
    await target.close()
    return len(messages) / seconds


async def _relayed(url: str, database: AsyncDatabase, bed: Bed, *, last: int, count: int) -> float:
    """Let a relay deliver everything in the outbox."""
    target = AmqpSink(url)
    await database.write(lambda tx: tx.run("DELETE FROM sinks"))
    await database.write(lambda tx: sink.lease(tx, "amqp", 1, now=bed.now(), until=bed.now()))
    await database.write(lambda tx: tx.run("UPDATE sinks SET position = 0"))
    worker = relay.Relay(target, database, holder=1, now=bed.now, observer=Metrics())
    began = time.perf_counter()
    running = asyncio.create_task(worker.run())
    while (await database.read(_cursor)) < last:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.005)
    seconds = time.perf_counter() - began
    running.cancel()
    await asyncio.wait({running})
    return count / seconds


def measure_bars(wanted: Sequence[Bar], *, quick: bool) -> None:
    broker = rabbitmq()
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure_each(wanted, (broker.url, folder, quick))
    finally:
        broker.stop()


def measure(given: tuple[str, str, bool]) -> float:
    url, folder, quick = given
    bed = Bed(f"sqlite:///{Path(folder) / 'relay.db'}")
    bed.greet()
    for _ in range((QUICK_TASKS if quick else TASKS) // 250):
        bed.live(bed.requests(250))
    messages = bed.db.read(_messages)
    last = bed.db.read(outbox.newest)
    executor = Executor(bed.db, lambda _: None)
    database = AsyncDatabase(bed.db, executor)
    bare, relayed = 0.0, 0.0
    for _ in range(ROUNDS):  # alternating, so that both see the same machine
        bare = max(bare, asyncio.run(_bare(url, messages)))
        relayed = max(relayed, asyncio.run(_relayed(url, database, bed, last=last, count=len(messages))))
    executor.close()
    note("relay: messages a second, from the outbox", f"{relayed:.0f}")
    note("  bare publishes of the same messages", f"{bare:.0f}")
    bed.close()
    return relayed / bare


BARS = (Bar("relay", "0.5", measure, at_least=True),)
