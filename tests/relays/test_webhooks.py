"""Webhooks from a real server to a real HTTP server that answers well or badly, while tasks run."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from myrmidon.relays import webhooks
from myrmidon.store.tables import outbox, sink, webhook
from myrmidon.store.tables.webhook import Delivery, Webhook
from tests.live import a_source, live_server
from tests.relays.consumers import check_order
from tests.relays.test_amqp import a_bot, run_tasks
from tests.server.wire import wait_for

pytestmark = pytest.mark.untraced
LOCAL = {"allowed_networks": ["127.0.0.0/8"]}
KINDS = ["task-pending", "task-running", "task-completed"]


class Receiver:
    """Keeps what it gets, and answers with ``status``; None: not at all until it is set."""

    def __init__(self) -> None:
        self.status: int | None = 200
        self.answers = threading.Event()
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.accepted: list[dict[str, Any]] = []


@contextmanager
def receiving() -> Iterator[tuple[Receiver, str]]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append((dict(self.headers), body))
            if receiver.status is None:
                receiver.answers.wait()
            status = receiver.status or 500
            if status == 200:
                receiver.accepted.append(json.loads(body))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "http://127.0.0.1:65535/redirected")
            self.send_header("Content-Length", "1000000")  # a lie
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver, f"http://127.0.0.1:{server.server_address[1]}/hook"
        finally:
            receiver.answers.set()
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The server with short pauses after failed attempts."""
    folder = tmp_path_factory.mktemp("source")
    return a_source(
        folder, ("relays/webhooks.py", "LONGEST_PAUSE: Micros = 3600 * SECOND", "LONGEST_PAUSE: Micros = 1")
    )


@pytest.fixture(scope="module")
def server(source, tmp_path_factory):
    with live_server(folder=tmp_path_factory.mktemp("webhooks"), source=source, webhooks=LOCAL) as started:
        yield started


def create(server, url, **fields) -> dict[str, Any]:
    status, made = server.post("/api/v1/webhooks", {"url": url, **fields})
    assert status == 200, made
    return made


def all_of(receiver, tasks) -> list[dict[str, Any]]:
    """Wait until everything about these tasks was accepted."""
    wanted = set(tasks)
    wait_for(lambda: wanted <= {body["task"] for body in receiver.accepted if body["kind"] == "task-completed"})
    bodies = [body for body in receiver.accepted if body["task"] in wanted]
    check_order(bodies)
    for task in tasks:
        assert [body["kind"] for body in bodies if body["task"] == task] == KINDS
    return bodies


def of_webhook(server, made) -> dict[str, Any]:
    return next(hook for hook in server.get("/api/v1/webhooks")[1]["webhooks"] if hook["id"] == made["id"])


def test_messages_arrive_signed_and_in_order_and_can_be_sent_again(server):
    with receiving() as (receiver, url):
        made = create(server, url)
        all_of(receiver, run_tasks(server, a_bot(server)))
        headers, body = receiver.requests[-1]
        signed = headers["X-Myrmidon-Timestamp"].encode() + b"." + body
        expected = hmac.new(made["secret"].encode(), signed, hashlib.sha256).hexdigest()
        assert headers["X-Myrmidon-Signature"] == f"v1={expected}"
        assert headers["X-Myrmidon-Message-Id"] == json.loads(body)["message_id"]
        assert "secret" not in {name for name, value in of_webhook(server, made).items() if value}
        path = f"/api/v1/webhooks/{made['id']}/deliveries"
        wait_for(lambda: of_webhook(server, made)["num_pending"] == 0)
        lines = server.get(path)[1]["deliveries"]
        assert [line["state"] for line in lines] == ["delivered"] * 9
        assert server.post(f"{path}/{lines[0]['id']}/replay")[0] == 200
        wait_for(lambda: len(receiver.requests) == 10)
        again, first = receiver.requests[9], receiver.requests[8]
        assert again[1] == first[1]
        assert again[0]["X-Myrmidon-Message-Id"] == first[0]["X-Myrmidon-Message-Id"]
        assert server.delete(f"/api/v1/webhooks/{made['id']}")[0] == 200
        assert server.get(path)[0] == 404


def test_a_webhook_of_kinds_or_of_another_group_gets_only_those(server):
    server.post("/api/v1/groups", {"name": "others"})
    with receiving() as (completed, url), receiving() as (others, other_url):
        hooks = [create(server, url, kinds=["task-completed"]), create(server, other_url, group="others")]
        bot = a_bot(server)
        tasks = run_tasks(server, bot)
        wait_for(lambda: len(completed.accepted) == 3)
        server.post("/api/v1/tasks?group=others", {"tasks": []})
        assert [body["kind"] for body in completed.accepted] == ["task-completed"] * 3
        assert {body["task"] for body in completed.accepted} == set(tasks)
        assert others.requests == []
        for hook in hooks:
            server.delete(f"/api/v1/webhooks/{hook['id']}")


@pytest.mark.parametrize("status", [500, 302, None])
def test_a_receiver_that_fails_delays_its_own_messages_only_and_gets_all_in_the_end(server, status):
    with receiving() as (bad, bad_url), receiving() as (good, good_url):
        bad.status = status
        hooks = [create(server, bad_url), create(server, good_url)]
        bot = a_bot(server)
        tasks = run_tasks(server, bot)
        all_of(good, tasks)
        wait_for(lambda: len(bad.requests) >= (1 if status is None else 3))
        if status is not None:
            assert {json.loads(body)["message_id"] for _, body in bad.requests} == {f"{tasks[0]}.1"}, "the first waits"
            wait_for(lambda: of_webhook(server, hooks[0])["num_failures"] >= 2)
            path = f"/api/v1/webhooks/{hooks[0]['id']}/deliveries"
            assert f"status {status}" in server.get(path)[1]["deliveries"][-1]["error"]
        bad.status = 200
        bad.answers.set()
        all_of(bad, tasks)
        for hook in hooks:
            server.delete(f"/api/v1/webhooks/{hook['id']}")


@pytest.mark.full
def test_a_backlog_is_capped_with_an_alarm(source, tmp_path):
    limited = {**LOCAL, "max_backlog": 4}
    with receiving() as (receiver, url), live_server(folder=tmp_path, source=source, webhooks=limited) as server:
        receiver.status = 500
        made = create(server, url)
        run_tasks(server, a_bot(server))
        wait_for(lambda: of_webhook(server, made)["num_dropped"] == 5)
        wait_for(lambda: "webhook backlog is full; messages dropped" in server.log)
        assert b"myrmidon_webhook_dropped 5.0" in server.get("/metrics")[1]
        receiver.status = 200
        wait_for(lambda: of_webhook(server, made)["num_pending"] == 0)
        assert len(receiver.accepted) == 4


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/", "http://localhost:8080/", "http://[::1]:8080/", "http://169.254.169.254/latest/",
        "http://0x7f.1:8080/", "ftp://h/", "http://u:p@example.com/", "http://nowhere.invalid/", "http://h:70000/",
    ],
)  # fmt: skip
def test_a_webhook_to_a_private_address_is_refused_and_not_stored(tmp_path_factory, strict_server, url):
    status, answer = strict_server.post("/api/v1/webhooks", {"url": url})
    assert (status, answer["error"]["problems"][0]["path"]) == (400, "url")
    assert strict_server.get("/api/v1/webhooks")[1] == {"webhooks": []}


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory):
    with live_server(folder=tmp_path_factory.mktemp("strict")) as started:
        yield started


# ---------------------------------------------------------------- the queue, on each database

DAY = 86_400 * 1_000_000


@pytest.fixture
def hook(world) -> Webhook:
    return world.do(webhook.insert, Webhook(5, world.group.id, "http://h/", "[]", world.now, 0))


def add(w, *positions, most=100):
    rows = [Delivery(5, position, f"1.{position}", "task-pending", "{}", "pending", w.now) for position in positions]
    return w.do(webhook.enqueue, 5, rows, most=most)


def lease(w, holder=1):
    return w.do(webhook.lease, 5, holder, until=w.now + 1)


def positions(w):
    return [delivery.position for delivery in w.read(webhook.pending, 5, 100)]


def test_a_delivery_is_queued_once_and_dropped_beyond_the_cap(world, hook):
    assert add(world, 1, 2) == 0
    assert add(world, 2, 3, 4, most=3) == 1
    assert positions(world) == [1, 2, 3]
    stored = world.read(webhook.read, 5)
    assert (stored.num_pending, stored.num_dropped, stored.next_at) == (3, 1, world.now)
    assert world.read(webhook.backlog) == (3, 1)


def test_one_server_sends_to_a_webhook_and_its_guard_holds(world, hook):
    add(world, 1)
    assert lease(world, 1) is not None
    assert lease(world, 2) is None
    (delivery,) = world.read(webhook.pending, 5, 10)
    assert world.do(webhook.delivered, delivery, 2, status=200, until=world.now) is False
    assert world.do(webhook.delivered, delivery, 1, status=200, until=world.now) is True
    assert positions(world) == []
    assert world.read(webhook.due, world.now, 10) == []


def test_a_failed_attempt_waits_and_what_is_older_than_a_day_is_given_up(world, hook):
    add(world, 1, 2)
    world.advance(86_401)
    add(world, 3)
    held = lease(world)
    (first, *_) = world.read(webhook.pending, 5, 10)
    failure = {"status": 500, "error": "e", "next_at": world.now + 10, "expire_before": world.now - DAY}
    assert world.do(webhook.attempt_failed, held, first, 1, **failure) is True
    assert positions(world) == [3]
    stored = world.read(webhook.read, 5)
    assert (stored.num_pending, stored.num_failures, stored.next_at) == (1, 1, world.now + 10)
    states = {line.position: line.state for line in world.read(webhook.log, 5, before=99, n=10)}
    assert states == {3: "pending", 2: "failed", 1: "failed"}
    world.do(webhook.replay, 5, 2)
    world.do(webhook.replay, 5, 2)
    assert positions(world) == [2, 3]
    assert world.read(webhook.read, 5).num_pending == 2


def test_old_deliveries_and_those_of_a_deleted_webhook_are_deleted(world, hook):
    add(world, 1, 2)
    held = lease(world)
    assert held
    (first, _) = world.read(webhook.pending, 5, 10)
    world.do(webhook.delivered, first, 1, status=200, until=world.now)
    assert world.do(webhook.delete_old, 5, world.now, 10) == 0
    assert world.do(webhook.delete_old, 5, world.now + 1, 10) == 1
    assert [line.position for line in world.read(webhook.log, 5, before=99, n=10)] == [2]
    world.do(webhook.delete_of_group, world.group.id)
    assert world.read(webhook.log, 5, before=99, n=10) == []
    assert not world.read(webhook.any_stored)


def test_a_webhook_gets_no_event_that_was_before_it(world):
    world.submit()
    world.sweep()
    made = world.do(webhook.insert, Webhook(5, world.group.id, "http://h/", "[]", world.now, 0))
    assert made.after_position == world.read(outbox.newest) == 1
    world.submit()
    world.sweep()
    assert world.do(sink.lease, webhook.SINK, 1, until=world.now + 1) == 1, "whenever the relay comes"


def test_pauses_grow_up_to_an_hour():
    pauses = [webhooks.pause_after(n) / webhooks.SECOND for n in (0, 1, 2, 10, 100)]
    assert pauses == [2, 4, 8, 2048, 3600]
