"""A real server whose machine has the wrong time: nothing that it keeps is lost."""

from __future__ import annotations

import re

import pytest

from tests.cli.terminal import Terminal
from tests.live import live_server
from tests.server.contexts import a_task
from tests.server.wire import wait_for
from tests.wrong_clock import WrongClock

DAY_S = 86_400


@pytest.fixture
def clock(tmp_path):
    return WrongClock(tmp_path / "clock")


def submit(server, *, expiration_s=DAY_S):
    task = a_task()
    task["slices"][0]["expiration_s"] = expiration_s
    status, reply = server.post("/api/v1/tasks", {"tasks": [task]})
    assert status == 200, reply
    return reply["tasks"][0]["task_id"]


def state(server, task_id):
    status, task = server.get(f"/api/v1/tasks/{task_id}")
    return task["result"]["state"] if status == 200 else status


def an_ended_and_a_waiting_task(server):
    ended, waiting = submit(server), submit(server)
    assert server.post(f"/api/v1/tasks/{ended}/cancel")[0] == 200
    assert (state(server, ended), state(server, waiting)) == ("CANCELLED", "READY")
    return ended, waiting


def let_one_expire(server):
    """Proof that the server has swept since now: a task that waited for too long ends."""
    task_id = submit(server, expiration_s=1)
    wait_for(lambda: state(server, task_id) == "EXPIRED")


def metric(server, name):
    [value] = re.findall(rf"^{name} (\S+)$", server.get("/metrics")[1].decode(), re.MULTILINE)
    return float(value)


@pytest.mark.parametrize("ahead_s", [31 * DAY_S, pytest.param(-31 * DAY_S, marks=pytest.mark.full)])
def test_a_jump_of_the_clock_destroys_nothing_and_is_told(clock, ahead_s):
    with live_server(source=clock.folder, sweep_s=0.05) as server:
        ended, waiting = an_ended_and_a_waiting_task(server)
        let_one_expire(server)
        clock.set(ahead_s=ahead_s)
        late = submit(server, expiration_s=1)
        wait_for(lambda: "clocks disagree; nothing expires" in server.log)
        status, told = server.get("/readyz")
        assert (status, len(told["problems"])) == (503, 1)
        assert "time differs from this machine's clock" in told["problems"][0]
        assert abs(metric(server, "myrmidon_clock_skew_seconds") + ahead_s) < DAY_S
        clock.set(ahead_s=0)
        wait_for(lambda: state(server, late) == "EXPIRED")
        assert (state(server, ended), state(server, waiting)) == ("CANCELLED", "READY")
        assert server.get("/readyz")[0] == 200
        wait_for(lambda: "clocks agree again" in server.log)


def test_a_jump_that_the_database_does_not_share_is_not_seen_at_all(clock, db_url, dialect):
    if dialect == "sqlite":
        pytest.skip("SQLite has no clock of its own")
    with live_server(db_url, source=clock.folder, sweep_s=0.05) as server:
        ended, waiting = an_ended_and_a_waiting_task(server)
        clock.set(ahead_s=31 * DAY_S)
        let_one_expire(server)
        assert (state(server, ended), state(server, waiting)) == ("CANCELLED", "READY")
        assert server.get("/readyz")[0] == 200


def test_a_start_under_a_wrong_clock_deletes_nothing_for_an_hour_and_says_so(clock, tmp_path):
    with live_server(source=clock.folder, sweep_s=0.05) as server:
        ended, _ = an_ended_and_a_waiting_task(server)
        let_one_expire(server)
        server.stop()
        clock.set(ahead_s=31 * DAY_S)
        server.start()
        let_one_expire(server)
        assert state(server, ended) == "CANCELLED"
        assert "nothing old is deleted for a while" in server.log
        assert metric(server, "myrmidon_retention_wait_seconds") > 0
        shell = Terminal(tmp_path / "home", MYRMIDON_SERVER=server.url, MYRMIDON_TOKEN=server.token)
        assert "deletes no old tasks for" in shell.run("doctor").stdout
        server.stop()
        clock.set(ahead_s=0)
        server.start()
        let_one_expire(server)
        assert state(server, ended) == "CANCELLED"
        assert metric(server, "myrmidon_retention_wait_seconds") == 0


def test_a_clock_that_was_set_right_is_followed_after_it_has_proved_stable(clock):
    """The server started before the clock of its machine was right, as some do at boot."""
    clock.set(ahead_s=-600)
    with live_server(source=clock.folder, sweep_s=0.05, clock_settle_s=0.5) as server:
        clock.set(ahead_s=0)
        wait_for(lambda: "clocks disagree" in server.log)
        wait_for(lambda: server.get("/readyz")[0] == 200)
        let_one_expire(server)
        assert abs(metric(server, "myrmidon_clock_skew_seconds")) < 2
