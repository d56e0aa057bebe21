"""How many runs a bot gets at once: about a tenth of a second of work for all its slots."""

from __future__ import annotations

import pytest

from myrmidon.server.dispatch.claims import claim_size
from myrmidon.server.waiting.connected_bots import ConnectedBot, WaitingBots


@pytest.mark.parametrize(
    ("slots", "mean_s", "expected"),
    [(1, 0.0, 1), (1, 0.01, 10), (1, 5.0, 1), (8, 0.0, 8), (8, 0.01, 80), (8, 0.1, 8), (8, 5.0, 8)],
)
def test_a_claim_is_enough_for_all_slots(slots: int, mean_s: float, expected: int):
    bot = ConnectedBot("b1", 1, WaitingBots(frozenset()))
    bot.slots, bot.mean_run_s = slots, mean_s
    assert claim_size(bot) == expected


def test_an_unknown_bot_gets_one():
    assert claim_size(None) == 1
