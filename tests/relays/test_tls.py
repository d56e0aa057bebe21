"""Messages over TLS, to a real broker and to real HTTPS servers: certificates are checked, by authority and by name."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import pytest

from tests.certificates import Authority, Certificate
from tests.live import LiveServer, a_source, live_server
from tests.relays.consumers import Consumer
from tests.relays.test_amqp import KINDS, a_bot, check_story, lag, run_tasks, wait_until_leased
from tests.server.wire import wait_for

pytestmark = [pytest.mark.full, pytest.mark.untraced]
_numbers = count(1)


@pytest.fixture
def other(tmp_path) -> Authority:
    """An authority that has signed nothing that is trusted here."""
    return Authority(tmp_path / "other")


# ---------------------------------------------------------------- RabbitMQ


@contextmanager
def publishing(tmp_path, **amqp: str) -> Iterator[LiveServer]:
    with live_server(folder=tmp_path, amqp=amqp) as server:
        wait_until_leased(server)
        yield server


@pytest.fixture
def prefix() -> str:
    return f"tls{next(_numbers)}/"


@pytest.mark.short
def test_messages_reach_a_broker_whose_authority_is_named_in_the_settings(broker, authority, prefix, tmp_path):
    amqp = {"url": broker.tls_url, "exchange_prefix": prefix, "ca_file": str(authority.file)}
    with publishing(tmp_path, **amqp) as server:
        consumer = Consumer(broker, prefix)
        tasks = run_tasks(server, a_bot(server))
        consumer.until_completed(tasks)
        check_story(consumer, tasks)


def test_a_broker_of_another_authority_gets_nothing_until_it_is_trusted(broker, authority, other, prefix, tmp_path):
    consumer = Consumer(broker, prefix)
    amqp = {"url": broker.tls_url, "exchange_prefix": prefix, "ca_file": str(other.file)}
    with publishing(tmp_path, **amqp) as server:
        tasks = run_tasks(server, a_bot(server))
        wait_for(lambda: "certificate verify failed" in server.log)
        assert lag(server) >= len(KINDS) * len(tasks)
        server.stop()
        server.settings["amqp"] = {**amqp, "ca_file": str(authority.file)}
        server.start()
        consumer.until_completed(tasks)
        check_story(consumer, tasks)


# ---------------------------------------------------------------- webhooks


@contextmanager
def receiving(certificate: Certificate, host: str) -> Iterator[tuple[list[dict[str, Any]], str]]:
    """An HTTPS server with this certificate: the messages that it has got, and its URL."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A caller that does not trust the certificate is no error here."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.file, certificate.key)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield got, f"https://{host}:{server.server_address[1]}/hook"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The server with short pauses after failed attempts."""
    change = ("relays/webhooks.py", "LONGEST_PAUSE: Micros = 3600 * SECOND", "LONGEST_PAUSE: Micros = 1")
    return a_source(tmp_path_factory.mktemp("source"), change)


@pytest.fixture(scope="module")
def server(source, authority, tmp_path_factory):
    webhooks = {"allowed_networks": ["127.0.0.0/8", "::1/128"], "ca_file": str(authority.file)}
    with live_server(folder=tmp_path_factory.mktemp("webhooks"), source=source, webhooks=webhooks) as started:
        yield started


def create(server, url) -> str:
    status, made = server.post("/api/v1/webhooks", {"url": url})
    assert status == 200, made
    return str(made["id"])


def deliveries(server, webhook) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = server.get(f"/api/v1/webhooks/{webhook}/deliveries")[1]["deliveries"]
    return lines


@pytest.mark.parametrize(("name", "host"), [("IP:127.0.0.1", "127.0.0.1"), ("DNS:localhost", "localhost")])
def test_a_webhook_whose_authority_is_named_in_the_settings_gets_its_messages(server, authority, name, host):
    with receiving(authority.certificate(name), host) as (got, url):
        webhook = create(server, url)
        [task] = run_tasks(server, a_bot(server), 1)
        wait_for(lambda: [body["kind"] for body in got if body["task"] == task] == KINDS)
        wait_for(lambda: {line["state"] for line in deliveries(server, webhook)} == {"delivered"})


def test_a_webhook_of_another_authority_gets_nothing_and_its_log_says_why(server, other):
    with receiving(other.certificate("IP:127.0.0.1"), "127.0.0.1") as (got, url):
        webhook = create(server, url)
        run_tasks(server, a_bot(server), 1)
        failed = "certificate verify failed"
        wait_for(lambda: any(failed in (line["error"] or "") for line in deliveries(server, webhook)))
        assert {line["state"] for line in deliveries(server, webhook)} == {"pending"}
        assert got == []


@pytest.mark.short
def test_a_certificate_for_another_name_is_refused(server, authority):
    with receiving(authority.certificate("DNS:elsewhere.example"), "127.0.0.1") as (got, url):
        webhook = create(server, url)
        run_tasks(server, a_bot(server), 1)
        wait_for(lambda: any("IP address mismatch" in (line["error"] or "") for line in deliveries(server, webhook)))
        assert got == []
