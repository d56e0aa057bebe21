"""Messages on a real RabbitMQ, from a real server, while tasks run: nothing is lost whatever happens to the broker."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from contextlib import ExitStack, suppress
from itertools import count
from warnings import catch_warnings, simplefilter

import pytest

from myrmidon.relays.amqp import AmqpSink
from myrmidon.relays.messages import Message
from myrmidon.relays.relay import SinkUnavailable
from tests import databases, servers
from tests.live import LiveServer, live_server
from tests.relays.consumers import Consumer, check_order
from tests.server.test_two_servers import a_pair
from tests.server.wire import WireBot, wait_for

pytestmark = pytest.mark.untraced
_numbers = count(1)
KINDS = ["task-pending", "task-running", "task-completed"]


@pytest.fixture
def prefix():
    """What the names of one test's exchanges begin with."""
    return f"test{next(_numbers)}/"


@pytest.fixture
def server(broker, prefix, tmp_path):
    with live_server(folder=tmp_path, amqp={"url": broker.url, "exchange_prefix": prefix}) as started:
        yield started


@pytest.fixture
def consumer(broker, prefix, server):
    wait_until_leased(server)
    return Consumer(broker, prefix)


def wait_until_leased(server):
    """A new sink begins with the next event: wait until it has its cursor."""
    wait_for(lambda: b"myrmidon_sink_lag_events{" in server.get("/metrics")[1])


def lag(server: LiveServer) -> float:
    line = next(line for line in server.get("/metrics")[1].decode().splitlines() if "sink_lag_events{" in line)
    return float(line.split()[-1])


def a_bot(server) -> WireBot:
    bot = WireBot(server, "b1")
    bot.shake()
    return bot


def run_tasks(server, bot, n=3, **fields):
    """Submit tasks and run them; their ids."""
    properties = {"dimensions": {"pool": ["default"]}, "command": ["true"]}
    task = {"name": "t", "slices": [{"properties": properties}], **fields}
    status, answer = server.post("/api/v1/tasks", {"tasks": [task] * n})
    assert status == 200, answer
    for _ in range(n):
        for run in bot.work():
            bot.start(run)
            bot.finish(run)
    return [made["task_id"] for made in answer["tasks"]]


def check_story(consumer, tasks):
    """Every change of these tasks was reported, in order."""
    bodies = consumer.without_repeats()
    check_order(bodies)
    for task in tasks:
        assert [body["kind"] for body in bodies if body.get("task") == task] == KINDS


def test_messages_are_persistent_versioned_and_carry_their_routes(server, consumer):
    tasks = run_tasks(server, a_bot(server), 1, routing="nightly", tags=["route:index.latest"])
    bodies = consumer.until_completed(tasks)
    check_story(consumer, tasks)
    assert {body["version"] for body in bodies} == {1}
    last = consumer.properties[-1]
    assert (last.delivery_mode, last.content_type, last.message_id) == (2, "application/json", f"{tasks[0]}.3")
    assert (last.type, last.headers) == ("task-completed", {"CC": ["route.index.latest"]})


def test_a_queue_that_is_bound_to_a_routing_or_a_route_gets_only_those(broker, prefix, server, consumer):
    by_routing = Consumer(broker, prefix, keys=["*.*.*.*.*.*.myrmidon.*.*.nightly"])
    by_route = Consumer(broker, prefix, keys=["route.index.#"])
    bot = a_bot(server)
    run_tasks(server, bot, 1)
    (routed,) = run_tasks(server, bot, 1, routing="nightly")
    (indexed,) = run_tasks(server, bot, 1, tags=["route:index.x"])
    assert [body["task"] for body in by_routing.until_completed([routed])] == [routed] * 3
    assert [body["task"] for body in by_route.until_completed([indexed])] == [indexed] * 3


def test_a_graph_is_announced_with_its_tasks(server, consumer):
    document = {
        "name": "g", "external_id": "push-1", "routing": "r",
        "tasks": {
            label: {"requires": parents, "task": {"slices": [{"properties": {
                "dimensions": {"pool": ["default"]}, "command": ["true"]}}]}}
            for label, parents in (("a", []), ("b", ["a"]))
        },
    }  # fmt: skip
    status, answer = server.post("/api/v1/jobs", {"job": document})
    assert status == 200, answer
    bot = a_bot(server)
    for _ in range(2):
        (run,) = bot.work()
        bot.finish(run)
    bodies = consumer.until(lambda bodies: bodies[-1]["kind"] == "task-graph-finished")
    kinds = [body["kind"] for body in bodies if body["kind"].startswith("task-graph")]
    assert kinds == ["task-graph-running", "task-graph-finished"]
    assert bodies[-1]["status"] == {"taskGraphId": "push-1", "schedulerId": "myrmidon", "state": "finished"}


def test_tasks_run_while_the_broker_is_down_and_all_messages_arrive_when_it_is_back(broker, server, consumer):
    bot = a_bot(server)
    tasks = run_tasks(server, bot)
    consumer.until_completed(tasks)
    broker.kill()
    tasks += run_tasks(server, bot)
    wait_for(lambda: "sink is unavailable" in server.log)
    tasks += run_tasks(server, bot)
    assert lag(server) >= 9
    assert server.get("/readyz")[0] == 200
    broker.start()
    consumer.until_completed(tasks)
    check_story(consumer, tasks)
    wait_for(lambda: lag(server) == 0)
    assert '"sink is available again"' in server.log
    assert broker.url not in server.log


@pytest.mark.full
def test_a_deleted_queue_delays_nobody_and_gets_what_comes_after_it_was_made_again(broker, prefix, server, consumer):
    other = Consumer(broker, prefix)
    bot = a_bot(server)
    consumer.until_completed(run_tasks(server, bot))
    consumer.delete()
    missed = run_tasks(server, bot)
    other.until_completed(missed)
    consumer.bind()
    tasks = run_tasks(server, bot)
    consumer.until_completed(tasks)
    check_story(consumer, tasks)
    assert not {body["task"] for body in consumer.bodies} & set(missed)


@pytest.mark.full
def test_a_consumer_that_never_acknowledges_gets_its_messages_again_and_delays_nobody(server, consumer):
    bot = a_bot(server)
    tasks = run_tasks(server, bot)
    consumer.until_completed(tasks, ack=False)
    wait_for(lambda: lag(server) == 0)
    consumer.until(lambda bodies: len(bodies) == 18)
    check_story(consumer, tasks)
    assert len(consumer.without_repeats()) == 9


def test_a_broker_that_refuses_the_password_is_reported_without_it(broker, tmp_path):
    url = broker.url.replace("guest:guest", "guest:wrongsecret")
    with live_server(folder=tmp_path, amqp={"url": url}) as server:
        wait_until_leased(server)
        run_tasks(server, a_bot(server), 1)
        wait_for(lambda: "sink is unavailable" in server.log)
        assert "wrongsecret" not in server.log
        warning = next(json.loads(line) for line in server.log.splitlines() if "sink is unavailable" in line)
        assert warning["sink"] == "amqp"
        assert server.get("/readyz")[0] == 200


def relayed(server) -> float:
    """How many messages this server has delivered."""
    lines = [line for line in server.get("/metrics")[1].decode().splitlines() if "relayed_total{" in line]
    return float(lines[0].split()[-1]) if lines else 0.0


@pytest.mark.full
@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True)
def test_of_two_servers_one_relays_and_the_other_takes_over_when_it_dies(dialect, broker, prefix, tmp_path):
    url = servers.new_database(databases.server_url(dialect))
    with ExitStack() as stack:
        settings = {"amqp": {"url": broker.url, "exchange_prefix": prefix}}
        pair = a_pair(stack, url, tmp_path, **settings)
        wait_until_leased(pair[0])
        consumer = Consumer(broker, prefix)
        bot = a_bot(pair[0])
        tasks = run_tasks(pair[0], bot, 10)
        consumer.until_completed(tasks)
        assert len(consumer.received) == len(consumer.without_repeats()) == 30
        wait_for(lambda: lag(pair[0]) == 0)
        holder, other = sorted(pair, key=relayed, reverse=True)
        assert (relayed(holder), relayed(other)) == (30, 0)
        bot.server = other
        holder.kill()
        tasks += run_tasks(other, bot, 10)
        consumer.until_completed(tasks)
        check_story(consumer, tasks)
        wait_for(lambda: relayed(other) >= 30)
        assert len(consumer.received) == 60, "what was confirmed before is not repeated"


def test_pika_logs_an_outage_once_and_the_next_one_again(broker, caplog):
    def deliver(url: str) -> int:
        """Deliver twice; the number of lines that pika has logged."""
        message = Message(1, KINDS[0], "1.1", 1, 1, "key", [], b"{}")

        async def twice() -> None:
            sink = AmqpSink(url)
            for _ in range(2):
                with suppress(SinkUnavailable):
                    await sink.deliver([message])
            await sink.close()

        with catch_warnings():
            simplefilter("ignore", ResourceWarning)  # pika leaves the socket of an attempt that failed to the collector
            asyncio.run(twice())
            gc.collect()
        lines = [record for record in caplog.records if record.name.startswith("pika")]
        caplog.clear()
        return len([record for record in lines if record.levelno >= logging.WARNING])

    nobody = "amqp://127.0.0.1:1/"
    first, second = deliver(nobody), deliver(nobody)
    assert first > 0
    assert second == 0
    assert deliver(broker.url) == 0
    assert deliver(nobody) == first
