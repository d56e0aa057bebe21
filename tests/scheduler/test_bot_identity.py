"""Who a bot is: epochs of its credentials, and two processes of one id."""

from __future__ import annotations

import pytest

from myrmidon.model.bot import Introduction
from myrmidon.model.errors import NotFound, WrongState
from myrmidon.scheduler import bot_end
from myrmidon.scheduler.bot_identity import DISPLACEMENT_WINDOW, record_displaced, revoke_bot
from tests.builders import in_doubt
from tests.scheduler.test_bots import events

BY_TOKEN = Introduction(7, "gpu")


def test_an_introduction_starts_an_epoch_and_its_repetition_does_not(world):
    first = world.bot("b1", introduction=BY_TOKEN)
    again = world.bot("b1", introduction=BY_TOKEN, session=1)
    assert first.epoch == again.epoch != 0
    row = world.bot_row("b1")
    assert (row.epoch, row.introducer, row.bound_pool) == (first.epoch, 7, "gpu")
    assert world.bot("b1").epoch == first.epoch, "with its credential it stays in its epoch"
    other = world.bot("b1", introduction=Introduction(8))
    assert other.epoch > first.epoch
    assert world.bot_row("b1").bound_pool is None


def test_a_bot_that_has_claimed_has_its_credential_and_needs_no_second_introduction(world):
    first = world.bot("b1", introduction=BY_TOKEN)
    world.submit()
    world.claim("b1")
    assert world.bot("b1", introduction=BY_TOKEN, session=1).epoch > first.epoch


def test_a_revoked_bot_serves_nobody_and_begins_a_new_epoch_when_it_is_introduced_again(world):
    first = world.bot("b1", introduction=BY_TOKEN)
    world.submit()
    for verb in (revoke_bot, in_doubt(revoke_bot)):
        assert world.do(verb, "b1").epoch > first.epoch
    row = world.bot_row("b1")
    assert (row.alive, row.serving, events(world).count("bot_revoked")) == (0, 0, 1)
    with pytest.raises(WrongState):
        world.claim("b1")
    assert world.bot("b1", introduction=BY_TOKEN, session=1).epoch > row.epoch
    assert world.claim("b1")
    with pytest.raises(NotFound):
        world.do(revoke_bot, "nobody")


def test_a_living_bot_is_deleted_by_force_only(world):
    world.bot("b1")
    with pytest.raises(WrongState, match="alive"):
        world.do(bot_end.delete_bot, "b1", only_dead=True)
    world.do(bot_end.mark_bot_stopped, "b1", session=1)
    world.do(bot_end.delete_bot, "b1", only_dead=True)
    assert world.count("bots") == 0


def displaced(world, session, verb=record_displaced):
    world.do(verb, world.bot_row("b1"), session, "10.0.0.9")
    return world.bot_row("b1").quarantined


def test_two_displacements_of_different_processes_within_the_window_quarantine_the_id(world):
    for _ in range(3):
        world.bot("b1")
    assert displaced(world, 1) is None
    assert displaced(world, 1) is None, "the same process again"
    assert displaced(world, 1, in_doubt(record_displaced)) is None
    world.advance(DISPLACEMENT_WINDOW // 1_000_000 + 1)
    assert displaced(world, 2) is None, "the other was long ago"
    world.bot("b1")
    assert "session 3 at 10.0.0.9" in (displaced(world, 3) or "")
    assert world.bot_row("b1").serving == 0
    assert displaced(world, 2)
    assert events(world).count("bot_quarantined") == 1
