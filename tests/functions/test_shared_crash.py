"""Shared values survive servers that are killed at any moment: no value is lost, doubled or left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import pytest

from myrmidon import Client, Shared
from myrmidon.sdk.errors import NotFound
from myrmidon.sdk.transport import Reply, Transport
from tests.functions import remote_tasks as tasks
from tests.functions.live import a_client, function_bot
from tests.live import LiveServer, live_server

pytestmark = pytest.mark.full

T = TypeVar("T")
TABLE = {f"word {number}": number for number in range(500)}
WORDS = list(TABLE)[:150]
NUM_KILLS = 3


@pytest.fixture
def server(db_url: str, tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(db_url, folder=tmp_path / "server", sweep_s=1.0) as started, function_bot(started, tmp_path / "b"):
        yield started


class CountingTransport(Transport):
    """Counts the calls that were answered."""

    num_answers = 0

    def call(self, *args: Any, **given: Any) -> Reply:
        reply = super().call(*args, **given)
        self.num_answers += 1
        return reply


def while_killing(server: LiveServer, client: Client, work: Callable[[], T]) -> T:
    """The result of some work of a client, at whose beginning the server is killed and started again a few times.

    After each start the client gets an answer before the next kill. The last server stays, because work that goes on
    between calls may need longer than one answer. The server is started by this thread, because it dies with the thread
    that has started it.
    """
    transport = client.transport
    assert isinstance(transport, CountingTransport)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        for _ in range(NUM_KILLS):
            server.kill()
            server.start()
            seen = transport.num_answers
            while transport.num_answers == seen and not running.done():
                wait([running], timeout=0.05)
        return running.result()


def counted_client(server: LiveServer, **options: str) -> Client:
    return Client(CountingTransport(server.url, server.token), **options)


def value_ids(client: Client) -> list[str]:
    return [one.id for one in client.shared_values(limit=1000).values]


@pytest.mark.short
def test_a_map_over_a_shared_value_survives_servers_that_are_killed(server: LiveServer):
    with counted_client(server) as client:
        shared: list[Shared[dict[str, int]]] = []

        def share_and_map() -> list[int]:
            shared.extend(client.share({**TABLE, "number": number}) for number in range(5))
            return list(client.map(tasks.slow_look_up, WORDS, shared[0].ref))

        assert while_killing(server, client, share_and_map) == list(range(len(WORDS)))
        assert len(set(value_ids(client))) == len(value_ids(client)) == 5, "none was lost or stored twice"
        kept = client.shared_value(shared[0].id)
        assert (kept.groups, kept.value.num_jobs > 0) == (["default"], True)
        dropped = while_killing(server, client, lambda: [one.drop() for one in shared])
        assert dropped == [False, True, True, True, True]
        for job in kept.jobs:
            client.job(job).wait()
            client.job(job).delete()
        while value_ids(client):
            pass
        assert client.group("default").num_values == 0


def test_a_group_is_deleted_under_a_running_function_while_servers_are_killed(server: LiveServer):
    with counted_client(server) as admin:
        admin.create_group("farm")
        with a_client(server, group="farm") as farm:
            table = farm.share(TABLE)
            with farm.new_job("long") as job:
                tasks.wait_for_ever(table.ref)
            while (running := next(iter(farm.job(job.id).tasks()))).progress is None:
                assert running.state in ("READY", "RUNNING"), running

            def delete() -> None:
                admin.delete_group("farm", force=True)
                while "farm" in {group.name for group in admin.groups().groups}:
                    pass

            while_killing(server, admin, delete)
            for gone in (lambda: farm.job(job.id).info(), table.get, lambda: admin.group("farm")):
                with pytest.raises(NotFound):
                    gone()
            assert value_ids(admin) == []
            assert admin.submit(tasks.look_up, "word 7", TABLE).result() == 7, "the slot of the bot is free again"
