"""Since when a bot is idle: its handshakes and reports write it down, and its claims copy it to their runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from myrmidon.model.task_result import GiveBack
from myrmidon.scheduler import bot_end, report
from myrmidon.scheduler.claim import Claimed
from myrmidon.store.engine.sql import Insert, names
from myrmidon.store.tables import task_run
from myrmidon.store.views import run_details
from tests.world import SECOND, World, fault, finish, start


@pytest.fixture
def w(db: Any) -> World:
    made = World(db).found()
    made.bot()
    return made


def idle_at(w: World) -> int | None:
    found: int | None = w.value("SELECT idle_at FROM bots WHERE id = 'b1'")
    return found


def idle_since(w: World, run: Claimed) -> int | None:
    found = w.db.read(lambda tx: run_details.bots_of_runs(tx, [run.task_id]))
    since: int | None = found[run.task_id, run.run].idle_since
    return since


def a_run(w: World) -> Claimed:
    """A task that the bot has just begun, ten seconds after what was before."""
    w.now += 10 * SECOND
    w.submit()
    [run] = w.running()
    w.now += 10 * SECOND
    return run


def beat(w: World) -> None:
    w.db.write(lambda tx: report.heartbeat(tx, "b1", [], session=1, now=w.now))


# ---------------------------------------------------------------- bots


def test_a_new_process_is_idle_from_its_handshake_on(w):
    began = w.now
    assert idle_at(w) == began
    w.now += SECOND
    w.bot()
    assert idle_at(w) == began, "the same process, which says that it has changed"
    w.bot(session=2)
    assert idle_at(w) == w.now


def test_a_process_that_goes_on_with_a_run_is_idle_when_that_has_ended(w):
    began = w.now
    run = a_run(w)
    w.bot(session=2, holds=[(run.task_id, run.run)])
    assert idle_at(w) == began
    w.now += SECOND
    w.report(finish(run), session=2)
    assert idle_at(w) == w.now


def test_a_bot_that_was_forgotten_while_it_ran_something_is_not_idle(w):
    run = a_run(w)
    w.do(bot_end.delete_bot, "b1")
    w.bot(session=2, holds=[(run.task_id, run.run)])
    assert idle_at(w) is None


@pytest.mark.parametrize("end", [finish, lambda run: finish(run, exit_code=1), fault], ids=["good", "bad", "fault"])
def test_a_bot_is_idle_when_it_has_told_of_the_end_of_a_run(w, end: Callable[..., Any]):
    run = a_run(w)
    w.report(end(run))
    assert idle_at(w) == w.now


def test_a_bot_is_idle_when_it_has_given_a_run_back(w):
    w.submit()
    [run] = w.claim()
    w.now += SECOND
    w.report(GiveBack(run.task_id, run.run, run.token))
    assert idle_at(w) == w.now


def test_the_end_of_a_run_is_written_with_the_sign_of_life_in_one_statement(w, monkeypatch):
    run, said = a_run(w), []
    monkeypatch.setattr(w.db, "_probe", lambda event, sql: said.append(" ".join(sql.split())))
    w.report(finish(run))
    assert len([sql for sql in said if "UPDATE bots" in sql]) == 1
    assert w.all("SELECT heartbeat, idle_at FROM bots") == [(w.now, w.now)]


def test_an_end_in_the_moment_of_a_sign_of_life_is_not_lost_and_one_before_it_takes_nothing_back(w):
    run = a_run(w)
    beat(w)
    w.report(finish(run))
    assert idle_at(w) == w.now
    run = a_run(w)
    beat(w)
    heard = w.now
    w.now -= SECOND
    w.report(finish(run))
    assert w.all("SELECT heartbeat, idle_at FROM bots") == [(heard, w.now)]


def test_whatever_ends_no_run_makes_no_bot_idle(w):
    began = w.now
    run = a_run(w)
    w.report(start(run))
    beat(w)
    assert idle_at(w) == began
    w.report(finish(run))
    ended = w.now
    w.now += SECOND
    assert [reply.outcome for reply in w.report(finish(run))] == ["repeated"]
    w.claim()
    beat(w)
    assert idle_at(w) == ended


# ---------------------------------------------------------------- runs


def test_a_run_tells_since_when_its_bot_was_idle(w):
    began = w.now
    first = a_run(w)
    w.report(finish(first))
    ended = w.now
    second = a_run(w)
    third = a_run(w)
    assert [idle_since(w, run) for run in (first, second, third)] == [began, ended, ended]
    w.report(finish(second), finish(third))
    assert [idle_since(w, run) for run in (first, second, third)] == [began, ended, ended], "it stays"


def test_no_run_begins_before_its_bot_was_idle_though_the_clock_of_a_server_is_late(w):
    w.report(finish(a_run(w)))
    w.now -= 30 * SECOND
    w.submit()
    [run] = w.claim()
    assert idle_since(w, run) == w.now


def test_a_run_that_code_of_before_has_started_tells_nothing(w):
    """Its statement names the columns that it knows."""
    ours = a_run(w)
    known = [name for name in names(task_run._ROWS.columns) if name != "idle_since"]
    before = Insert("task_runs", ", ".join(known))
    [row] = w.all(f"SELECT {before.columns} FROM task_runs")
    theirs = tuple(2 if name == "run" else value for name, value in zip(known, row, strict=True))
    w.db.write(lambda tx: tx.insert(before, [theirs]))
    found = w.db.read(lambda tx: run_details.bots_of_runs(tx, [ours.task_id]))
    assert [found[ours.task_id, run].idle_since is None for run in (1, 2)] == [False, True]


def test_a_bot_that_code_of_before_has_met_is_idle_from_its_first_end_on(w):
    w.db.write(lambda tx: tx.run("UPDATE bots SET idle_at = NULL"))
    first = a_run(w)
    w.report(finish(first))
    ended = w.now
    assert [idle_since(w, run) for run in (first, a_run(w))] == [None, ended]
