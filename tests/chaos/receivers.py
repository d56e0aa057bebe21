"""Receivers of messages: a webhook that fails now and then, and a queue of RabbitMQ. Both note what they accept."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pika
import pika.exceptions

from myrmidon.relays.messages import KINDS
from tests.chaos.ledger import Ledger
from tests.chaos.site import Site

QUEUE = "storm"


@contextmanager
def receiving(site: Site, ledger: Ledger, seed: int, calm: threading.Event) -> Iterator[None]:
    """A webhook, and a queue where there is RabbitMQ, that get all messages; the webhook fails until ``calm``."""
    chance = random.Random(seed)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            fate = 1.0 if calm.is_set() else chance.random()
            if fate < 0.004:
                self.close_connection = True
                return  # it has not been accepted, or nobody knows that it has
            if fate > 0.008:
                message = json.loads(body)
                ledger.received["webhook"].append((self.headers["X-Myrmidon-Message-Id"], message))
            self.send_response(200 if fate > 0.012 else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    hook = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{hook.server_address[1]}/"
    ledger.received["webhook"] = []
    status, answer = site.servers[0].post("/api/v1/webhooks", {"url": url})
    assert status == 200, answer
    over = threading.Event()
    consumer = threading.Thread(target=_consume, args=(site, ledger, over), daemon=True)
    if site.broker is not None:
        ledger.received["amqp"] = []
        with pika.BlockingConnection(pika.URLParameters(site.broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare(QUEUE, durable=True)
            for kind in KINDS:
                channel.exchange_declare(kind, exchange_type="topic", durable=True)
                channel.queue_bind(QUEUE, kind, "#")
        consumer.start()
    try:
        yield
    finally:
        over.set()
        hook.shutdown()
        hook.server_close()
        if consumer.is_alive():
            consumer.join()


def _consume(site: Site, ledger: Ledger, over: threading.Event) -> None:
    """Take what comes; connect again after each restart of the broker."""
    assert site.broker is not None
    while not over.is_set():
        try:
            connection = pika.BlockingConnection(pika.URLParameters(site.broker.url))
            channel = connection.channel()
            channel.basic_qos(prefetch_count=100)
            for method, properties, body in channel.consume(QUEUE, inactivity_timeout=0.5):
                if over.is_set():
                    break
                if method is not None:
                    ledger.received["amqp"].append((properties.message_id, json.loads(body)))
                    channel.basic_ack(method.delivery_tag)
            connection.close()
        except (pika.exceptions.AMQPError, OSError):
            over.wait(0.3)
