"""Every transition of a task through HTTP, on a real server with SQLite: one test for each, as Swarming counts them.

Swarming's states have other names here, and some are two: PENDING is READY, COMPLETED is SUCCEEDED (exit code 0) or
FAILED (any other), PENDING of a retry is READY with ``num_retries`` 1. *Killing* is a flag of a RUNNING task, *deduped*
a SUCCEEDED one without a run. A claim and the start of its command are two steps; either is RUNNING.

The bots are calls by hand, so that each step is the test's own. What must not come by time has all the time in the
world; what must, comes after a second, unless that was too short for the steps before it: then they are done again with
more. The events of all tasks are compared, at the end, with what the tests have seen.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.live import LiveServer, live_server
from tests.server.wire import WireBot, wait_for

pytestmark = pytest.mark.untraced

NEVER_RAN = {"EXPIRED", "CANCELLED", "NO_RESOURCE"}
FINAL = {"SUCCEEDED", "FAILED", "TIMED_OUT", "KILLED", "CLIENT_ERROR", "BOT_DIED", *NEVER_RAN}
_names = itertools.count(1)
_stories: dict[str, list[str]] = {}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(folder=tmp_path_factory.mktemp("transitions"), sweep_s=0.1, shortest_lease_s=1) as started:
        yield started


SECONDS = (1, 10, 80)
"""For something that must come by time, but not before the test is ready for it."""
LONG_S = 3600


class Lane:
    """A bot that no other test's tasks go to, and tasks that no other test's bots take."""

    def __init__(self, server: LiveServer, *, bots: int = 1) -> None:
        self.server = server
        self.lane = f"lane{next(_names)}"
        self.bots = [WireBot(server, f"{self.lane}-{number}") for number in range(bots)]
        for bot in self.bots:
            self.shake(bot)

    @property
    def bot(self) -> WireBot:
        return self.bots[0]

    def shake(self, bot: WireBot) -> None:
        bot.dimensions["lane"] = [self.lane]
        bot.shake()

    def slice(self, *, expiration_s: int = LONG_S, lane: str = "", wait: bool = True, **properties: Any) -> Any:
        wanted = {"dimensions": {"pool": ["default"], "lane": [lane or self.lane]}, "command": ["true"], **properties}
        return {"properties": wanted, "expiration_s": expiration_s, "wait_for_capacity": wait}

    def submit(self, *slices: Any, **fields: Any) -> str:
        task = {"name": self.lane, "slices": list(slices) or [self.slice()], "lease_s": LONG_S, **fields}
        status, answer = self.server.post("/api/v1/tasks", {"tasks": [task]})
        assert (status, answer["tasks"][0].get("error")) == (200, None)
        _stories[answer["tasks"][0]["task_id"]] = [answer["tasks"][0]["state"]]
        return str(answer["tasks"][0]["task_id"])

    def run(self, **fields: Any) -> tuple[str, Any]:
        """A task whose command has begun."""
        task_id = self.submit(**fields)
        (run,) = self.bot.work()
        assert self.report("start", run) == accepted()
        self.see(task_id, "RUNNING")
        return task_id, run

    def run_for_a_while(self, **fields: Any) -> tuple[str, Any]:
        """A task whose command has begun, and whose bot says nothing more: its lease ends soon, or already has."""
        for lease_s in SECONDS:
            task_id = self.submit(lease_s=lease_s, **fields)
            (run,) = self.bot.work()
            if self.report("start", run) == accepted():
                _stories[task_id].append("RUNNING")
                return task_id, run
        raise AssertionError("no lease was long enough")

    def look(self, task_id: str) -> Any:
        """The task, and that it is what its state says."""
        told = self.server.get(f"/api/v1/tasks/{task_id}")[1]
        result = told["result"]
        ends = (result["exit_code"], result["duration"])
        if result["state"] in FINAL:
            assert result["completed_at"] >= told["request"]["created_at"]
            assert all(run["ended_at"] for run in told["runs"])
        else:
            assert (ends, result["completed_at"]) == ((None, None), None)
        if result["state"] in NEVER_RAN:
            assert ends == (None, None)
        if result["state"] in ("FAILED", "SUCCEEDED") and not result["deduped_from"]:
            assert None not in ends
        return told

    def see(self, task_id: str, state: str) -> Any:
        """The task has come to a state; the end of the wait for it, if it comes by time."""
        wait_for(lambda: self.look(task_id)["result"]["state"] == state)
        _stories[task_id].append(state)
        return self.look(task_id)["result"]

    def cancel(self, task_id: str, *, kill_running: bool = False) -> Any:
        return self.server.post(f"/api/v1/tasks/{task_id}/cancel", {"kill_running": kill_running})[1]

    def report(self, what: str, run: Any, **fields: Any) -> Any:
        said = {"type": what, "run": run["run"], "token": run["token"], **fields}
        return self.bot.exchange(n=0, reports=[said])["replies"][0]


def accepted(**more: Any) -> Any:
    return {"outcome": "accepted", "stop": False, **more}


STALE = {"outcome": "stale", "stop": True}


# ---------------------------------------------------------------- from nothing


def test_new_to_pending_when_a_slice_has_capacity(server):
    lane = Lane(server)
    task_id = lane.submit(lane.slice(lane="nobody", wait=False), lane.slice(wait=False))
    result = lane.look(task_id)["result"]
    assert (result["state"], result["slice"]) == ("READY", 1), "the slice that nobody can run is passed over"


def test_new_to_no_resource_when_no_slice_has_capacity(server):
    lane = Lane(server)
    task_id = lane.submit(lane.slice(lane="nobody", wait=False))
    assert lane.look(task_id)["result"]["state"] == "NO_RESOURCE"
    assert lane.look(task_id)["runs"] == []


def test_new_to_completed_by_dedupe(server):
    lane = Lane(server)
    same = lane.slice(idempotent=True, command=["true", lane.lane])
    first = lane.submit(same)
    lane.bot.finish(lane.bot.work()[0])
    lane.see(first, "SUCCEEDED")
    again = lane.submit(same)
    result = lane.look(again)["result"]
    assert (result["state"], result["deduped_from"], result["run"]) == ("SUCCEEDED", f"{first[:-1]}1", None)
    assert lane.bot.exchange()["tasks"] == []


# ---------------------------------------------------------------- while it waits


def test_pending_to_pending_when_a_slice_expires(server):
    lane = Lane(server)
    task_id = lane.submit(lane.slice(lane="nobody", expiration_s=1), lane.slice())
    (run,) = lane.bot.work()
    assert run["run"][:-1] == task_id[:-1]
    assert lane.see(task_id, "RUNNING")["slice"] == 1
    told = lane.look(task_id)
    assert told["runs"][0]["claimed_at"] - told["request"]["created_at"] >= 1_000_000, "when the first had expired"


def test_pending_to_expired_with_the_last_slice(server):
    lane = Lane(server)
    task_id = lane.submit(lane.slice(lane="nobody", expiration_s=1))
    result = lane.see(task_id, "EXPIRED")
    assert (result["reason"], result["run"]) == ("expired", None)


def test_pending_to_cancelled(server):
    lane = Lane(server)
    task_id = lane.submit()
    assert lane.cancel(task_id) == {"task_id": task_id, "ok": True, "state": "CANCELLED", "was_running": False}
    lane.see(task_id, "CANCELLED")
    assert lane.bot.exchange()["tasks"] == [], "the right to start it is gone in the same moment"
    assert lane.cancel(task_id)["ok"] is True, "and to ask again changes nothing"


def test_pending_to_no_resource_when_the_last_bot_that_could_run_it_goes(server):
    lane = Lane(server)
    task_id = lane.submit(lane.slice(wait=False))
    assert server.delete(f"/api/v1/bots/{lane.bot.name}?force=true")[0] == 200
    lane.see(task_id, "NO_RESOURCE")


def test_pending_to_running_by_a_claim(server):
    lane = Lane(server)
    task_id = lane.submit()
    (run,) = lane.bot.work()
    result = lane.see(task_id, "RUNNING")
    assert (result["run"], result["bot_id"]) == (run["run"], lane.bot.name)
    assert lane.cancel(task_id) == {"task_id": task_id, "ok": False, "state": "RUNNING", "was_running": True}


def test_running_to_pending_when_a_claim_is_given_back(server):
    """Only here: a claim is not yet a start, and costs the task nothing."""
    lane = Lane(server)
    task_id = lane.submit()
    (run,) = lane.bot.work()
    lane.see(task_id, "RUNNING")
    assert lane.report("give_back", run) == accepted()
    lane.see(task_id, "READY")
    told = lane.look(task_id)
    assert [(one["state"], one["exit_code"]) for one in told["runs"]] == [("CANCELLED", None)]
    assert told["result"]["num_retries"] == 0


def test_running_to_pending_when_a_claim_is_never_started(tmp_path):
    with live_server(folder=tmp_path, sweep_s=0.1, start_within_s=1) as hasty:
        lane = Lane(hasty)
        task_id = lane.submit()
        (run,) = lane.bot.work()
        lane.see(task_id, "READY")
        assert lane.report("start", run) == STALE
        told = lane.look(task_id)
        assert [(one["state"], one["exit_code"]) for one in told["runs"]] == [("BOT_DIED", None)]
        assert told["result"]["num_retries"] == 0
        del _stories[task_id]  # of another server


# ---------------------------------------------------------------- the end of a run


@pytest.mark.parametrize(("code", "state"), [(0, "SUCCEEDED"), (7, "FAILED"), (-9, "FAILED")])
def test_running_to_completed(server, code, state):
    lane = Lane(server)
    task_id, run = lane.run()
    finish = {"exit_code": code, "duration": 1.5}
    assert lane.report("finish", run, **finish) == accepted()
    result = lane.see(task_id, state)
    assert (result["exit_code"], result["duration"]) == (code, 1.5)
    assert lane.report("finish", run, **finish) == accepted(), "the same again is fine"
    assert lane.report("finish", run, exit_code=code + 1, duration=1.5)["outcome"] == "conflict"
    assert lane.report("finish", run, exit_code=code, duration=2.5)["outcome"] == "conflict"
    assert lane.look(task_id)["result"] == result, "a contradiction changes nothing"
    assert lane.cancel(task_id, kill_running=True)["ok"] is False


@pytest.mark.parametrize("why", ["hard_timeout", "io_timeout"])
def test_running_to_timed_out(server, why):
    lane = Lane(server)
    task_id, run = lane.run()
    assert lane.report("finish", run, exit_code=None, duration=3.0, **{why: True}) == accepted()
    result = lane.see(task_id, "TIMED_OUT")
    assert (result["reason"], result["exit_code"], result["duration"]) == (why, None, 3.0)


def test_running_to_timed_out_at_the_deadline_of_the_task(server):
    lane = Lane(server)
    for deadline_s in SECONDS:
        task_id = lane.submit(deadline_s=deadline_s)
        tasks = lane.bot.exchange()["tasks"]
        if tasks and lane.report("start", tasks[0]) == accepted():
            break
    assert lane.see(task_id, "TIMED_OUT")["reason"] == "deadline"
    assert lane.report("finish", tasks[0], exit_code=0, duration=9.0) == STALE


def test_running_to_killing(server):
    lane = Lane(server)
    task_id, run = lane.run()
    assert lane.cancel(task_id)["ok"] is False, "not while it runs, unless that is asked for"
    asked = lane.cancel(task_id, kill_running=True)
    assert asked == {"task_id": task_id, "ok": True, "state": "RUNNING", "was_running": True}
    result = lane.look(task_id)["result"]
    assert (result["state"], result["killing"], result["abandoned_at"] is not None) == ("RUNNING", True, True)
    holds = [[run["run"], run["token"]]]
    assert lane.bot.exchange(n=0, holds=holds)["stop"] == [run["run"]]
    assert lane.bot.call("/bot/v1/heartbeat", {"session": lane.bot.session, "holds": holds})[1]["stop"] == [run["run"]]


@pytest.mark.parametrize("said", ["finish", "timeout", "fault"])
def test_killing_to_killed(server, said):
    """By the bot's word, whatever it is, for being killed beats a timeout and even success."""
    lane = Lane(server)
    task_id, run = lane.run()
    lane.cancel(task_id, kill_running=True)
    if said == "fault":
        assert lane.report("fault", run, message="out of paper") == accepted()
    else:
        ended = {"hard_timeout": True} if said == "timeout" else {"killed": True, "exit_code": -15}
        assert lane.report("finish", run, duration=1.0, **ended) == accepted()
    _is_killed(lane, task_id)


def test_killing_to_killed_when_the_bot_says_nothing(server):
    lane = Lane(server)
    for lease_s in SECONDS:
        task_id = lane.submit(lease_s=lease_s, retries=0)
        (run,) = lane.bot.work()
        if lane.report("start", run) == accepted() and lane.cancel(task_id, kill_running=True)["ok"]:
            break
    _is_killed(lane, task_id)


def _is_killed(lane: Lane, task_id: str) -> None:
    result = lane.see(task_id, "KILLED")
    assert (result["reason"], result["killing"]) == ("cancelled", False)
    assert len(lane.look(task_id)["runs"]) == 1, "what was killed is not tried again"


def test_killing_to_cancelled_when_the_command_had_not_begun(server):
    lane = Lane(server)
    task_id = lane.submit()
    (run,) = lane.bot.work()
    lane.see(task_id, "RUNNING")
    lane.cancel(task_id, kill_running=True)
    assert lane.report("start", run) == STALE
    lane.see(task_id, "CANCELLED")


@pytest.mark.parametrize("said", ["fault", "nothing"])
def test_running_to_bot_died(server, said):
    """The bot says that its machine has failed, or says nothing for a lease; and there is no retry."""
    lane = Lane(server)
    task_id, run = lane.run(retries=0) if said == "fault" else lane.run_for_a_while(retries=0)
    if said == "fault":
        assert lane.report("fault", run, kind="disk_full", message="no space", signal=9) == accepted()
    result = lane.see(task_id, "BOT_DIED")
    (last,) = lane.look(task_id)["runs"]
    if said == "fault":
        assert (result["reason"], last["evidence"]) == ("disk_full", {"message": "no space", "signal": 9})
    else:
        assert (result["reason"], "last_heartbeat" in last["evidence"]) == ("bot_lost", True)


def test_running_to_client_error(server):
    lane = Lane(server)
    task_id, run = lane.run()
    assert lane.report("fault", run, kind="client_error", message="missing: a digest") == accepted()
    assert lane.see(task_id, "CLIENT_ERROR")["num_retries"] == 0


@pytest.mark.parametrize("said", ["fault", "nothing"])
def test_running_to_pending_for_a_retry(server, said):
    lane = Lane(server)
    task_id, run = lane.run() if said == "fault" else lane.run_for_a_while()
    if said == "fault":
        lane.report("fault", run, message="the machine is ill")
    result = lane.see(task_id, "READY")
    assert (result["num_retries"], result["reason"], result["exit_code"]) == (1, "retry", None)
    (first,) = lane.look(task_id)["runs"]
    assert first["state"] == "BOT_DIED"


def test_a_retry_goes_to_another_bot_and_wins(server):
    lane = Lane(server, bots=2)
    task_id, run = lane.run()
    lane.report("fault", run, message="the machine is ill")
    lane.see(task_id, "READY")
    assert lane.bot.exchange()["tasks"] == [], "not the bot that has just failed, while there is another"
    (second,) = lane.bots[1].work()
    lane.see(task_id, "RUNNING")
    lane.bots[1].finish(second)
    assert lane.see(task_id, "SUCCEEDED")["run"] == second["run"]


def test_retry_pending_to_bot_died_when_it_expires(server):
    lane = Lane(server)
    for expiration_s in SECONDS:
        task_id = lane.submit(lane.slice(expiration_s=expiration_s))
        if tasks := lane.bot.exchange()["tasks"]:
            break
    assert lane.report("fault", tasks[0], message="the machine is ill") == accepted()
    result = lane.see(task_id, "BOT_DIED")
    assert (result["reason"], result["num_retries"]) == ("expired", 1)


def test_completed_to_pending_by_a_rerun_starts_a_new_generation(server):
    lane = Lane(server)
    task_id, run = lane.run()
    lane.report("finish", run, exit_code=1)
    lane.see(task_id, "FAILED")
    assert server.post(f"/api/v1/tasks/{task_id}/rerun")[1]["generation"] == 2
    lane.see(task_id, "READY")
    lane.cancel(task_id)
    lane.see(task_id, "CANCELLED")
    waited = server.post("/api/v1/tasks/wait", {"task_ids": [task_id]})[1]["tasks"][0]
    assert (waited["run"], waited["exit_code"]) == (None, None), "what ran before does not count any more"


# ---------------------------------------------------------------- zombies


def test_a_zombie_is_told_to_stop_and_resurrects_nothing_but_its_log_is_kept(server):
    lane = Lane(server)
    task_id, run = lane.run_for_a_while(retries=0)
    lane.bot.log(run, 0, 0, b"before, ")
    result = lane.see(task_id, "BOT_DIED")
    assert lane.report("start", run) == STALE
    assert lane.report("finish", run, exit_code=0, duration=1.0) == STALE
    assert lane.report("fault", run, message="too late")["stop"] is True
    assert lane.bot.exchange(n=0, holds=[[run["run"], run["token"]]])["stop"] == [run["run"]]
    assert lane.bot.log(run, 0, 8, b"and after")[0] == 200
    assert lane.look(task_id)["result"] == result
    assert server.call("GET", f"/api/v1/tasks/{task_id}/log").data == b"before, and after"


def test_a_zombie_cannot_touch_the_run_that_came_after_it(server):
    lane = Lane(server, bots=2)
    task_id, old = lane.run_for_a_while()
    lane.see(task_id, "READY")  # its lease has run out
    (new,) = lane.bots[1].work()  # not begun, so it has longer than the lease
    lane.see(task_id, "RUNNING")
    assert lane.report("finish", old, exit_code=3, duration=1.0) == STALE
    stolen = {**new, "token": old["token"]}
    assert lane.report("finish", stolen, exit_code=3, duration=1.0) == {"outcome": "unknown", "stop": True}
    assert lane.report("finish", new, exit_code=3)["outcome"] == "unknown", "nor with the other bot's token"
    lane.bot.log(old, 0, 0, b"old words")
    lane.bots[1].log(new, 0, 0, b"new words")
    lane.bots[1].exchange(n=0, reports=[lane.bots[1].finish_of(new, duration=2.0)])
    result = lane.see(task_id, "SUCCEEDED")
    assert (result["run"], result["exit_code"], result["duration"]) == (new["run"], 0, 2.0)
    logs = [server.call("GET", f"/api/v1/tasks/{task_id}/log?run={number}").data for number in (1, 2)]
    assert logs == [b"old words", b"new words"]


def test_a_report_that_comes_late_but_before_anybody_gave_up_is_taken(server):
    """The state decides, not the clock: the lease is over, but nobody has looked yet, or the bot has beaten since."""
    lane = Lane(server)
    for lease_s in SECONDS:
        task_id = lane.submit(lease_s=lease_s, retries=0)
        (run,) = lane.bot.work()
        if _outlives_its_lease(lane, run, lease_s) and lane.report("finish", run, exit_code=0) == accepted():
            break
    lane.see(task_id, "SUCCEEDED")


def _outlives_its_lease(lane: Lane, run: Any, lease_s: int) -> bool:
    """Start a run, and beat until its first lease is over; False when a beat came too late."""
    alive = lane.report("start", run) == accepted()
    began = _now(lane)
    while alive and _now(lane) <= began + lease_s * 1_000_000:
        alive = lane.bot.exchange(n=0, holds=[[run["run"], run["token"]]])["stop"] == []
    return alive


def _now(lane: Lane) -> int:
    return int(lane.server.get("/api/v1/server")[1]["time"])


# ---------------------------------------------------------------- numbers and events


def test_the_metrics_count_what_becomes_of_tasks(server):
    lane = Lane(server)
    task_id, run = lane.run()
    lane.report("finish", run, exit_code=0, duration=1.5)
    lane.see(task_id, "SUCCEEDED")
    lane.submit()
    page = server.get("/metrics")[1].decode()
    for name in (
        'queue_depth{pool="default"}', 'queue_age_seconds{pool="default"}', "pending_seconds_count",
        'run_seconds_count{outcome="succeeded"}', 'bots{state="alive"}', "commit_batch_size_count",
        "writer_wait_seconds_count", 'maintenance_overdue_seconds{kind="runs"}', "outbox_age_seconds",
        "clock_skew_seconds", "request_seconds_count",
    ):  # fmt: skip
        (value, *_) = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(f"myrmidon_{name}")]
        assert float(value) > 0 or name.endswith(('"runs"}', "age_seconds", "skew_seconds")), name


def test_the_events_tell_what_was_seen_in_that_order(server):
    """For every task of the tests before, as far as they were looked at: once each, with growing numbers."""
    heard: dict[str, list[tuple[int, str]]] = {}
    stream = server.call("GET", "/api/v1/events?after=0", preload_content=False)
    missing = dict(_stories)
    while missing:
        for line in stream.readline().decode().splitlines():
            if line.startswith("data: "):
                told = json.loads(line[6:])
                heard.setdefault(told["id"], []).append((told["seq"], told["state"]))
                if [state for _, state in heard[told["id"]]][-1] == missing.get(told["id"], [""])[-1]:
                    missing.pop(told["id"], None)
    stream.close()
    for task_id, seen in _stories.items():
        numbers = [seq for seq, _ in heard[task_id]]
        assert numbers == sorted(set(numbers))
        states = iter(state for _, state in heard[task_id])
        assert all(state in states for state in seen), (seen, heard[task_id])
