"""Real bots on machines whose clocks are wrong: they appear, work, and come back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bot.bots import wait_for
from tests.bot.test_live import ended, live_bot, submit
from tests.live import LiveServer, live_server
from tests.wrong_clock import WrongClock

YEAR_S = 365 * 86_400


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> WrongClock:
    return WrongClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def server(clock: WrongClock) -> Iterator[LiveServer]:
    with live_server(source=clock.bot_source()) as started:
        yield started


def started_at(server: LiveServer, bot_id: str) -> int:
    """When the bot started, by its own clock."""
    return int(server.get(f"/api/v1/bots/{bot_id}")[1]["state"]["started_at"])


def is_dead(server: LiveServer, bot_id: str) -> bool:
    return not server.get(f"/api/v1/bots/{bot_id}")[1]["alive"]


@pytest.mark.parametrize("ahead_s", [YEAR_S, -YEAR_S], ids=["ahead", "behind"])
def test_a_bot_whose_clock_is_wrong_by_a_year_works_and_comes_back(
    server: LiveServer, clock: WrongClock, tmp_path: Path, ahead_s: int
):
    name = f"wrong{ahead_s}"
    server_time = server.get("/api/v1/server")[1]["time"]
    # The third process has lost its folder, with everything that it knew of the ones before.
    for number, error_s in enumerate((ahead_s, 0, -ahead_s)):
        clock.set(ahead_s=error_s)
        if number == 2:
            shutil.rmtree(tmp_path / name)
        with live_bot(server, tmp_path / name, name) as bot:
            assert ended(server, submit(server, name, "true"))["result"]["state"] == "SUCCEEDED"
            assert abs(started_at(server, name) - server_time - error_s * 1_000_000) < YEAR_S * 1_000_000 // 2
            bot.end()
        wait_for(lambda: is_dead(server, name), "its goodbye")
