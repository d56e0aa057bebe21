"""Runs that were claimed for a bot and never reached it, through the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import HANG_S, POLL_S
from tests.live import LiveServer, live_server
from tests.server.wire import WireBot, a_task, held

pytestmark = pytest.mark.untraced


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server(f"sqlite:///{tmp_path}/myrmidon.db", folder=tmp_path) as started:
        yield started


@pytest.fixture
def bot(own_server: LiveServer) -> WireBot:
    bot = WireBot(own_server, "b1")
    bot.shake(token=own_server.new_token("bot-bootstrap"))
    assert bot.exchange(n=0, received=0)["tasks"] == []  # now the server has it in memory
    return bot


def submit(server: LiveServer) -> str:
    status, answer = server.post("/api/v1/tasks", {"tasks": [a_task()]})
    assert status == 200
    return str(answer["tasks"][0]["task_id"])


def runs_of(answer: Any) -> list[str]:
    return [task["run"] for task in answer["tasks"]]


def test_a_run_that_has_not_reached_its_bot_is_given_back_with_the_next_request(own_server: LiveServer, bot: WireBot):
    task = submit(own_server)
    assert runs_of(bot.exchange(received=0)) == [f"{task[:-1]}1"]  # this answer is lost
    assert runs_of(bot.exchange(received=0)) == [f"{task[:-1]}2"]
    received = bot.nonce
    assert runs_of(bot.exchange(received=received)) == []
    assert own_server.get(f"/api/v1/tasks/{task}")[1]["result"]["state"] == "RUNNING", (
        "what it has received stays with it"
    )


def test_a_bot_of_an_earlier_release_keeps_its_runs(own_server: LiveServer, bot: WireBot):
    task = submit(own_server)
    assert runs_of(bot.exchange()) == [f"{task[:-1]}1"]
    assert runs_of(bot.exchange()) == []
    assert own_server.get(f"/api/v1/tasks/{task}")[1]["result"]["state"] == "RUNNING"


def test_a_repeated_poll_gets_the_same_run(own_server: LiveServer, bot: WireBot):
    task = submit(own_server)
    for _ in range(2):
        assert runs_of(bot.exchange(nonce=7, received=0)) == [f"{task[:-1]}1"]


def test_a_poll_that_its_bot_has_given_up_claims_nothing(own_server: LiveServer, bot: WireBot):
    task = submit(own_server)
    assert runs_of(bot.exchange(nonce=7, n=0, received=0)) == []
    assert runs_of(bot.exchange(nonce=6, received=0)) == [], "nobody reads this answer"
    assert runs_of(bot.exchange(nonce=8, received=0)) == [f"{task[:-1]}2"]


def test_a_held_poll_ends_when_its_bot_sends_another_request(own_server: LiveServer, bot: WireBot):
    with held(own_server, bot.exchange, wait_s=POLL_S, received=0) as poll:
        assert runs_of(bot.exchange(n=0, received=0)) == []
        assert runs_of(poll.result(HANG_S)) == []
