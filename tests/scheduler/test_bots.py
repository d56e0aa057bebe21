"""The fleet: bots come, change, are put aside, and go."""

from __future__ import annotations

import re

import pytest

from myrmidon.bot.system import dimensions
from myrmidon.model.bot import Handshake
from myrmidon.model.errors import InvalidRequest, NotFound, WrongState
from myrmidon.scheduler import bot_end
from myrmidon.scheduler import bots as fleet
from myrmidon.scheduler.cancel import cancel_tagged
from myrmidon.scheduler.rerun import rerun, rerun_once
from myrmidon.scheduler.terminate import TAG, terminate_bot
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event
from tests.builders import in_doubt


def events(w, bot_id="b1"):
    return [kind for _, _, kind, _ in w.read(bot_event.read, bot_id, before=1 << 62, n=100)][::-1]


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def test_a_bot_that_shakes_hands_is_known(world):
    welcome = world.bot("b1", os="Linux", address="10.0.0.1", version="v1", state='{"disk": 1}', authenticated="bot:b1")
    row = world.bot_row("b1")
    assert (welcome.quarantined, row.alive, row.serving, row.session) == (None, 1, 1, 1)
    assert (row.address, row.version, row.state, row.authenticated) == ("10.0.0.1", "v1", '{"disk": 1}', "bot:b1")
    assert events(world) == ["bot_connected"]


def test_a_bot_that_restarts_loses_what_it_does_not_hold(w):
    held, lost, fresh = w.submit_many(3)
    runs = {run.task_id: run for run in w.claim("b1", 3)}
    w.start(runs[held])
    w.start(runs[lost])
    welcome = w.bot("b1", holds=[runs[held]], boot_id="boot-8")
    assert welcome.keep == [(held, 1)]
    assert [w.state(task) for task in (held, lost, fresh)] == ["RUNNING", "READY", "READY"]
    assert [w.task(task).num_retries for task in (lost, fresh)] == [1, 0]
    assert "boot-8" in (w.last_run(lost).evidence or "")


def test_a_run_that_its_bot_had_begun_is_not_lost_for_free(w):
    w.bot("b1", boot_id="boot-7")
    begun, waited = w.submit_many(2, retries=0)
    w.claim("b1", 2)
    w.bot("b1", boot_id="boot-7", begun=[begun])
    assert [w.state(task) for task in (begun, waited)] == ["BOT_DIED", "READY"]
    assert [w.last_run(task).reason for task in (begun, waited)] == ["bot_restarted", "not_started"]


@pytest.mark.parametrize(
    ("before", "after", "knows"), [("boot-7", "boot-8", True), ("boot-7", "boot-7", False), ("", "", True)]
)
def test_a_task_that_may_run_once_has_begun_unless_its_bot_surely_knows_better(w, before, after, knows):
    w.bot("b1", boot_id=before)
    (waited,) = w.submit_many(1, retries=0)
    w.claim("b1")
    w.bot("b1", boot_id=after, begun=[waited + 1] if knows else [])
    assert (w.state(waited), w.last_run(waited).reason) == ("BOT_DIED", "bot_restarted")


def test_a_run_that_nobody_sees_begin_is_lost_for_free_only_twice(w):
    w.bot("b2")
    task = w.submit(retries=1)
    states = []
    for number in range(4):
        w.claim("b1" if number < 3 else "b2")
        w.advance(30)
        w.sweep()
        states.append((w.state(task), w.task(task).num_retries))
    assert states == [("READY", 0), ("READY", 0), ("READY", 1), ("BOT_DIED", 1)]


def test_a_run_that_was_kept_goes_on_in_the_new_process(w):
    task = w.submit()
    run = w.take("b1")
    w.bot("b1", holds=[run])
    w.finish(run)
    assert w.state(task) == "SUCCEEDED"


def test_a_handshake_that_comes_late_ends_nothing(w):
    task = w.submit()
    run = w.take("b1")
    w.bot("b1", session=1)
    assert w.state(task) == "RUNNING"
    w.finish(run)


def test_a_bot_cannot_hold_what_is_not_its_own(w):
    w.bot("b2")
    w.submit()
    run = w.take("b1")
    assert w.bot("b2", holds=[run]).keep == []


def test_an_older_process_of_a_bot_must_end(w):
    w.bot("b1", session=5)
    with pytest.raises(WrongState):
        w.bot("b1", session=4)


def test_the_same_process_may_say_that_it_has_changed(w):
    linux = w.submit(os="Linux")
    w.bot("b1", session=1, os="Linux")
    assert [run.task_id for run in w.claim("b1")] == [linux]


def test_a_dead_bot_comes_back_by_shaking_hands(w):
    w.advance(601)
    w.sweep()
    assert (w.bot_row("b1").alive, events(w)[-1]) == (0, "bot_missing")
    w.bot("b1")
    w.submit()
    assert len(w.claim("b1")) == 1


def test_a_bot_that_was_heard_of_is_not_buried(w):
    w.advance(599)
    w.beat("b1")
    w.advance(2)
    w.sweep()
    assert w.bot_row("b1").alive == 1


def test_a_bot_that_was_buried_twice_is_buried_once(w):
    w.advance(601)
    w.sweep()
    assert w.db.write(lambda tx: bot_end.mark_bot_dead(UnitOfWork(tx, w.now, w.ids, w.rules), "b1")) is False
    assert events(w).count("bot_missing") == 1


def test_a_bot_that_has_said_goodbye_is_dead_at_once_and_nothing_waits_for_it(w):
    task = w.submit(wait_for_capacity=False)
    w.do(bot_end.mark_bot_stopped, "b1", session=0)
    w.carry()
    assert (w.bot_row("b1").alive, w.state(task)) == (1, "READY"), "that was an earlier process"
    w.do(bot_end.mark_bot_stopped, "b1", session=1)
    w.carry()
    assert (w.bot_row("b1").alive, w.state(task)) == (0, "NO_RESOURCE")
    w.bot("b1", session=2)
    assert w.bot_row("b1").alive == 1


# ---------------------------------------------------------------- quarantine


@pytest.mark.parametrize(
    "dimensions",
    [{"id": ["other"]}, {"pool": []}, {"os": ["a|b"]}, {"os": [5]}, {"os": "Linux"}, {"os": ["x" * 300]}, {"": ["x"]}],
)
def test_a_bot_with_nonsense_for_dimensions_is_put_aside_but_can_speak(lite, dimensions):
    welcome = lite.bot("b1", dimensions=dimensions)
    assert welcome.quarantined
    lite.submit()
    assert (lite.claim("b1"), lite.beat("b1")) == ([], [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"bot_id": "x" * 257}, {"bot_id": ""}, {"bot_id": "a\x00"}, {"address": "x" * 41}, {"version": "x" * 65},
        {"boot_id": "x" * 65}, {"authenticated": "x" * 257}, {"state": "a\x00b"}, {"session": 1 << 64}, {"session": -1},
        {"quarantined": "a\x00b"}, {"maintenance": "\x00"},
    ],
)  # fmt: skip
def test_a_handshake_that_cannot_be_stored_is_refused(world, wrong):
    hello = {"bot_id": "b1", "session": 1, "dimensions": {"id": ["b1"], "pool": ["default"]}, **wrong}
    with pytest.raises(InvalidRequest):
        world.do(fleet.handshake, Handshake(**hello))
    assert world.count("bots") == 0


WRONG_IDS = [
    "a/b", ".", "..", "a\nb", "a\x7f", "a\x9bb", "a\u2028", "/", " a", "a ", "\xa0a", "a\u3000", "a\u202eb",
    "\u200fa", "a\u2066b", "a\u200bb", "\ufeffa", "a\xadb", "\u061ca",
]  # fmt: skip


@pytest.mark.parametrize("name", WRONG_IDS)
def test_a_new_bot_has_an_id_that_a_path_can_hold_and_people_can_tell_apart(lite, name, monkeypatch):
    assert not dimensions.is_id(name), "nor does a bot give it to itself"
    with pytest.raises(InvalidRequest, match="without /, control characters, invisible characters and outer spaces"):
        lite.bot(name)
    with monkeypatch.context() as before:
        before.setattr(fleet, "BOT_ID", re.compile(".+", re.DOTALL))
        lite.bot(name)
    assert lite.bot(name, session=2).bot_id == name, "one that is known already stays"


@pytest.mark.parametrize("name", ["host", "host.example.com", "host--1", "vm_1", "a b", "50%", "...", "gr\u00fcn"])
def test_what_names_machines_is_an_id(lite, name):
    assert dimensions.is_id(name)
    assert lite.bot(name).quarantined is None


def test_a_bot_may_put_itself_aside(w):
    w.submit()
    w.bot("b1", quarantined="no disk")
    assert (w.bot_row("b1").quarantined, w.claim("b1")) == ("no disk", [])


def test_an_administrators_quarantine_outlives_a_restart(w):
    w.do(fleet.quarantine, "b1", "smells")
    assert w.bot("b1").quarantined == "smells"
    w.do(fleet.quarantine, "b1", None)
    w.submit()
    assert len(w.claim("b1")) == 1
    assert events(w) == ["bot_connected", "bot_quarantined", "bot_connected", "bot_released"]


def test_a_bot_in_quarantine_finishes_what_it_has(w):
    task = w.submit()
    run = w.take("b1")
    w.do(fleet.quarantine, "b1", "smells")
    w.finish(run)
    assert w.state(task) == "SUCCEEDED"


def test_a_draining_bot_is_released_again(w):
    w.do(fleet.drain_bot, "b1", True)
    w.do(fleet.drain_bot, "b1", False)
    w.submit()
    assert len(w.claim("b1")) == 1


def test_a_draining_bot_that_leaves_quarantine_is_matched(w):
    w.submit()
    w.bot("b1", quarantined="no disk")
    w.do(fleet.drain_bot, "b1", True)
    w.do(fleet.quarantine, "b1", None)
    assert w.count("bot_task_dimensions") == 1


def test_a_bot_that_is_told_to_end_may_come_back_with_a_new_session(w):
    w.do(bots.set_terminating_session, "b1", 1)
    assert w.read(bots.terminating_session, "b1") == 1
    w.do(fleet.quarantine, "b1", None)
    assert w.read(bots.terminating_session, "b1") == 1
    w.bot("b1", session=2)
    assert w.read(bots.terminating_session, "b1") == 1, "only its earlier session was meant"


def test_what_a_bot_says_of_itself_is_noted_once(w):
    assert w.do(fleet.record_event, "b1", "bot_error", "no disk", session=1)
    assert not w.do(fleet.record_event, "b1", "bot_error", "no disk", session=1)
    assert w.do(fleet.record_event, "b1", "bot_log", "hello", session=1)
    w.clock.advance(61)
    assert w.do(fleet.record_event, "b1", "bot_log", "hello", session=1)
    assert events(w) == ["bot_connected", "bot_error", "bot_log", "bot_log"]
    for bot_id, session in (("b1", 2), ("nobody", 1)):
        with pytest.raises(WrongState):
            w.do(fleet.record_event, bot_id, "bot_log", "late", session=session)


def end(w, bot_id="b1", **given):
    return w.do(terminate_bot, bot_id, w.group.id, task_id=w.ids.next(w.now), reason="", authenticated="ann", **given)


def test_an_order_to_end_is_taken_before_everything_else_by_that_bot_only(world):
    w = world
    w.bot("b1")
    w.bot("b2")
    w.submit(priority=0)
    task_id = end(w)
    assert end(w) == task_id
    assert (w.why(task_id).num_bots, w.why(task_id).num_serving) == (1, 1)
    with pytest.raises(NotFound):
        end(w, "nobody")
    assert [one.task_id for one in w.claim("b2", 5)] != [task_id]
    (first,) = w.claim("b1", 1)
    assert (first.task_id, first.work.name, end(w)) == (task_id, "Terminate b1", task_id)
    w.finish(first)
    assert w.state(task_id) == "SUCCEEDED"
    assert end(w) != task_id, "that one is done"
    assert "bot_terminating" in events(w)


def test_an_order_to_end_reaches_a_bot_that_gets_no_work_and_one_that_has_moved(world):
    w = world
    w.bot("b1", quarantined="no disk")
    w.submit()
    task_id = end(w)
    assert [one.task_id for one in w.claim("b1", 5)] == [task_id]
    w.bot("b2")
    other = end(w, "b2")
    w.bot("b2", session=2, pool="elsewhere")
    assert [one.task_id for one in w.claim("b2", 5)] == [other]


def test_an_order_to_end_that_nobody_takes_expires(world):
    w = world
    w.bot("b1")
    task_id = end(w)
    w.advance(86_401)
    w.sweep()
    assert w.state(task_id) == "EXPIRED"


def test_an_order_to_end_is_never_run_again(w):
    task_id = end(w)
    w.finish(w.take("b1"))
    assert w.state(task_id) == "SUCCEEDED"
    with pytest.raises(WrongState, match="terminate the bot again"):
        w.do(rerun, task_id, force=True, cascade=True)
    with pytest.raises(WrongState, match="terminate the bot again"):
        w.do(rerun_once, task_id, "a key", force=True)
    assert w.state(task_id) == "SUCCEEDED"


def test_a_mass_cancel_spares_orders_to_end_unless_they_are_meant(w):
    looks_like_one = w.submit(priority=0, tags=[TAG], env_prefixes={"command": []})
    task_id = end(w)
    w.do(cancel_tagged, [TAG], group_id=w.group.id, kill_running=True)
    w.carry()
    assert [w.state(looks_like_one), w.state(task_id)] == ["CANCELLED", "READY"]
    w.do(cancel_tagged, [TAG], group_id=w.group.id, terminate_tasks=True)
    w.carry()
    assert w.state(task_id) == "CANCELLED"


def change(w, bot_id="b1", session=1, **given):
    return w.do(fleet.change_bot, fleet.BotChange(bot_id=bot_id, session=session, **given))


def test_a_bot_that_has_changed_leaves_queues_and_finds_others(world):
    w = world
    w.bot("b1", os="Linux")
    w.submit(dimensions={"pool": ["default"], "os": ["Linux"]})
    here = {"id": ["b1"], "pool": ["default"], "os": ["Other"]}
    bot = change(w, dimensions=here)
    assert bot.serving
    assert w.claim("b1") == []
    w.submit(dimensions={"pool": ["default"], "os": ["Other"]})
    assert len(w.claim("b1")) == 1
    assert events(w)[-1] == "request_sleep"
    told = len(events(w))
    change(w, dimensions=here)
    assert len(events(w)) == told, "nothing is new"


def test_only_the_present_session_of_a_living_bot_may_change(world):
    w = world
    w.bot("b1")
    for bot_id, session in (("b1", 2), ("nobody", 1)):
        with pytest.raises(WrongState):
            change(w, bot_id, session)


@pytest.mark.parametrize("verb", [fleet.quarantine, fleet.drain_bot, bot_end.delete_bot])
def test_a_bot_that_is_not_there_cannot_be_changed(world, verb):
    with pytest.raises(NotFound):
        world.do(verb, "nobody", *([None] if verb is fleet.quarantine else [True] if verb is fleet.drain_bot else []))


def test_a_deleted_bot_leaves_only_its_story(w):
    w.submit()
    w.do(fleet.quarantine, "b1", "smells")
    w.do(bot_end.delete_bot, "b1")
    assert [w.count(t) for t in ("bots", "bot_dimensions", "bot_task_dimensions", "bot_settings")] == [0] * 4
    assert events(w)[-1] == "bot_deleted"


def test_a_deletion_in_doubt_is_done_once(w):
    w.do(bot_end.delete_bot, "b1")
    w.do(in_doubt(bot_end.delete_bot), "b1")
    assert events(w).count("bot_deleted") == 1


@pytest.mark.parametrize(
    ("verb", "given", "kind"),
    [(fleet.quarantine, "smells", "bot_quarantined"), (fleet.drain_bot, True, "bot_draining")],
)
def test_a_change_in_doubt_is_told_once(w, verb, given, kind):
    w.do(verb, "b1", given)
    w.do(in_doubt(verb), "b1", given)
    assert events(w) == ["bot_connected", kind]


# ---------------------------------------------------------------- capacity


@pytest.mark.parametrize("how", ["deleted", "dead", "quarantined", "draining", "aside", "changed", "maintenance"])
def test_tasks_that_would_not_wait_hear_that_their_last_bot_is_gone(world, how):
    w = world
    w.bot("b1", os="Linux")
    task, patient = w.submit(os="Linux", wait_for_capacity=False), w.submit(os="Linux")
    match how:
        case "deleted":
            w.do(bot_end.delete_bot, "b1")
        case "dead":
            w.advance(601)
            w.sweep()
        case "quarantined":
            w.do(fleet.quarantine, "b1", "smells")
        case "draining":
            w.do(fleet.drain_bot, "b1", True)
        case "aside":
            w.bot("b1", os="Linux", quarantined="no disk")
        case "changed":
            w.bot("b1", os="Mac")
        case "maintenance":
            w.bot("b1", os="Linux", maintenance="new disk")
    w.carry()
    assert (w.state(task), w.state(patient)) == ("NO_RESOURCE", "READY")


def test_the_last_but_one_bot_makes_no_difference(w):
    w.bot("b2")
    task = w.submit(wait_for_capacity=False)
    w.do(bot_end.delete_bot, "b2")
    w.carry()
    assert w.state(task) == "READY"


def test_a_task_whose_last_bot_is_gone_falls_back_to_its_next_slice(w):
    w.bot("b2", os="Linux")
    task = w.submit(slices=[{"os": "Linux", "wait_for_capacity": False}, {}])
    w.do(bot_end.delete_bot, "b2")
    w.carry()
    assert (w.state(task), w.task(task).current_task_slice, w.task(task).reason) == ("READY", 1, "next_slice")


def test_a_retry_whose_last_bot_is_gone_dies(w):
    task = w.submit(wait_for_capacity=False)
    w.fault(w.take("b1"), "reboot")
    w.do(bot_end.delete_bot, "b1")
    w.carry()
    assert (w.state(task), w.task(task).reason) == ("BOT_DIED", "no_resource")


def test_a_bot_that_comes_back_in_time_saves_the_queue(w):
    task = w.submit(wait_for_capacity=False)
    w.do(bot_end.delete_bot, "b1")
    w.bot("b2")
    w.carry()
    assert w.state(task) == "READY"


def test_a_deep_queue_without_bots_is_emptied_in_chunks(w, small_chunks):
    tasks = w.submit_many(8, wait_for_capacity=False)
    w.do(bot_end.delete_bot, "b1")
    w.carry()
    assert {w.state(task) for task in tasks} == {"NO_RESOURCE"}


def test_a_queue_is_looked_at_once(w):
    w.bot("b2")
    w.submit(wait_for_capacity=False)
    w.do(bot_end.delete_bot, "b1")
    w.do(bot_end.delete_bot, "b2")
    w.bot("b1")
    w.do(bot_end.delete_bot, "b1")
    assert w.count("chunked_work") == 1


def test_signs_of_life_of_idle_bots_are_written_together(w):
    w.bot("b2")
    w.advance(5)
    w.do(bots.heartbeat_many, [("b1", 1, w.now), ("b2", 99, w.now)])
    assert [w.now - w.bot_row(bot).heartbeat for bot in ("b1", "b2")] == [0, 5_000_000]
