"""The scenarios of Spider's own tests, as functions with values, over HTTP on SQLite.

The test plays the bots where a real one cannot be made to report at that moment. scenario_table.py says which
test of the project has which scenario.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any

import msgspec
import pytest

from tests.bot.bots import wait_for
from tests.graphs.live import Graphs, Job, checked
from tests.live import LiveServer, a_source, live_server
from tests.server.wire import WireBot

_pools = count(1)
INT = "int64"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(sweep_s=0.1, shortest_lease_s=1) as started:
        yield started


@pytest.fixture
def play(server: LiveServer) -> Iterator[Play]:
    yield Play(server, f"scenario{next(_pools)}")
    checked(server)


def packed(value: Any) -> str:
    return b64encode(msgspec.msgpack.encode(value)).decode()


def constant(value: int) -> dict[str, Any]:
    return {"kind": "constant", "type": INT, "payload": {"inline": packed(value)}}


def output_of(label: str, position: int = 0, kind: str = INT) -> dict[str, Any]:
    return {"kind": "output_of", "type": kind, "label": label, "position": position}


class Play(Graphs):
    """Jobs of functions whose bots the test plays."""

    def function(self, *inputs: Any, outputs: tuple[str, ...] = (INT,), **task: Any) -> dict[str, Any]:
        properties = {"dimensions": {"pool": [self.pool]}}
        described = {
            "function": {"package_name": "p", "func_name": "f"},
            "inputs": list(inputs),
            "outputs": [{"type": one} for one in outputs],
            "slices": [{"properties": properties}],
        }
        return {"task": {**described, **task}}

    def bots(self, number: int) -> list[WireBot]:
        return [self.bot(f"{self.pool}-{n}") for n in range(number)]

    def diamond(self) -> Job:
        return self.submit({
            "a": self.function(constant(5), outputs=(INT, "string")),
            "b": self.function(output_of("a")),
            "c": self.function(output_of("a", 1, "string")),
            "d": self.function(output_of("b"), output_of("c"), output_of("a")),
        })  # fmt: skip


def reported(bot: WireBot, run: Any, *values: Any, exit_code: int = 0, **fields: Any) -> str:
    """What the server says to the end of a run with these outputs."""
    outputs = [
        {"type": kind, "payload": {"inline": packed(value)}}
        for kind, value in zip(run["output_types"], values, strict=False)
    ]
    report = bot.finish_of(run, exit_code, outputs=outputs, **fields)
    (reply,) = bot.exchange(n=0, reports=[report])["replies"]
    return str(reply["outcome"])


def inputs_of(run: Any) -> list[Any]:
    return [msgspec.msgpack.decode(b64decode(one["payload"])) for one in run["inputs"]]


def one_run(bot: WireBot) -> Any:
    (run,) = bot.work()
    bot.start(run)
    return run


def values_of(job: Job) -> dict[str, list[Any]]:
    status, answer = job.server.get(f"/api/v1/jobs/{job.id}/outputs")
    assert status == 200
    return {
        task["label"]: [
            msgspec.msgpack.decode(b64decode(one["data"])) if one["data"] else None for one in task["values"]
        ]
        for task in answer["tasks"]
    }


def runs_of(job: Job, label: str) -> list[Any]:
    return list(job.server.get(f"/api/v1/tasks/{job.ids[label]}")[1]["runs"])


# ---------------------------------------------------------------- jobs


def test_outputs_and_the_error_are_asked_for_in_every_state(play: Play):
    good, bad, stopped = (play.submit({"f": play.function(constant(n))}) for n in range(3))
    (bot,) = play.bots(1)
    for job in (good, bad, stopped):
        told = job.server.get(f"/api/v1/jobs/{job.id}/outputs")[1]
        assert (told["ready"], told["state"], told["error"]) == (False, "RUNNING", None)
        assert values_of(job) == {"f": [None]}
    runs = {run["job_id"]: run for run in (one_run(bot), one_run(bot), one_run(bot))}
    assert [inputs_of(runs[job.id]) for job in (good, bad, stopped)] == [[0], [1], [2]]
    assert reported(bot, runs[good.id], 7) == "accepted"
    error = {"type": "ValueError", "message": "no words", "traceback": "...", "bases": []}
    assert reported(bot, runs[bad.id], exit_code=1, error=error) == "accepted"
    stopped.do("cancel")
    ends = {}
    for job in (good, bad, stopped):
        told = job.server.get(f"/api/v1/jobs/{job.id}/outputs")[1]
        ends[job.id] = (told["ready"], told["state"], told["error"])
        assert job.server.get(f"/api/v1/jobs/{job.id}")[1]["state"] == told["state"]
    assert ends[good.id] == (True, "SUCCEEDED", None)
    assert ends[stopped.id][:2] == (False, "CANCELLED")
    assert ends[bad.id][:2] == (False, "FAILED")
    assert ends[bad.id][2] == f"task {bad.ids['f']} ended FAILED (exit_code)"
    assert bad.show()["first_failure"]["error"]["message"] == "no words"
    assert values_of(good) == {"f": [7]}


def test_a_job_that_has_ended_is_not_cancelled_and_one_that_was_cancelled_stays_so(play: Play):
    (bot,) = play.bots(1)
    job = play.submit({"f": play.function()})
    assert reported(bot, one_run(bot), 1) == "accepted"
    assert job.do("cancel")["state"] == "SUCCEEDED"
    other = play.submit({"f": play.function(), "g": play.function(output_of("f"))})
    run = one_run(bot)
    assert other.do("cancel")["state"] == "CANCELLED"
    assert other.do("cancel")["state"] == "CANCELLED"
    assert reported(bot, run, 1) == "accepted"  # it ends as killed, and starts nothing
    assert other.settle()["state"] == "CANCELLED"
    assert other.states() == {"f": "KILLED", "g": "CANCELLED"}
    assert bot.exchange()["tasks"] == []


@pytest.mark.parametrize("seed", range(3))
def test_successes_that_race_a_cancel_have_one_end(play: Play, seed: int):
    job = play.submit({f"f{n}": play.function(constant(n)) for n in range(12)})
    bots = play.bots(4)
    runs = [(bot, one_run(bot)) for _ in range(3) for bot in bots]
    start = Barrier(len(bots) + 1)

    def finish(bot: WireBot) -> list[str]:
        start.wait()
        return [reported(bot, run, inputs_of(run)[0]) for owner, run in runs if owner is bot]

    with ThreadPoolExecutor(len(bots) + 1) as threads:
        ends = [threads.submit(finish, bot) for bot in bots]
        start.wait()
        time.sleep(seed * 0.005)  # another moment of the race; any of them is right
        job.do("cancel")
        assert {outcome for end in ends for outcome in end.result()} <= {"accepted", "stale"}
    told = job.settle()
    states = set(job.states().values())
    assert told["state"] in ("SUCCEEDED", "CANCELLED")
    assert states == {"SUCCEEDED"} if told["state"] == "SUCCEEDED" else states <= {"SUCCEEDED", "KILLED", "CANCELLED"}
    assert job.events().count("finished") == (told["state"] == "SUCCEEDED")


def test_tasks_that_always_fail_use_their_reruns_and_fail_the_job(play: Play):
    job = play.submit({f"f{n}": play.function(reruns=3) for n in range(3)})
    (bot,) = play.bots(1)
    while job.show()["state"] == "RUNNING":
        reported(bot, one_run(bot), exit_code=1)
    assert {label: len(runs_of(job, label)) for label in job.ids} == {"f0": 4, "f1": 4, "f2": 4}
    assert job.show()["state"] == "FAILED"


@pytest.mark.full
def test_an_old_job_is_purged_with_its_values_and_one_that_runs_is_kept(tmp_path: Path):
    short = ("server/settings.py", "retention=self.retention_days * DAY", "retention=SECOND // 2")
    with live_server(source=a_source(tmp_path / "source", short), sweep_s=0.1) as server:
        play = Play(server, "purged")
        (bot,) = play.bots(1)
        status = 404
        while status == 404:  # again, where the job was deleted before it was read
            job = play.submit({"f": play.function()})
            reported(bot, one_run(bot), 1)
            status, told = server.get(f"/api/v1/jobs/{job.id}/outputs")
        value = told["tasks"][0]["values"][0]["value_id"]
        kept = play.submit({"f": play.function()})
        wait_for(lambda: server.get(f"/api/v1/jobs/{job.id}")[0] == 404, "the end of the retention")
        for path in (f"jobs/{job.id}/outputs", f"tasks/{job.ids['f']}", f"values/{value}"):
            wait_for(lambda at=path: server.get(f"/api/v1/{at}")[0] == 404, path)
        assert kept.show()["state"] == "RUNNING"
        reported(bot, one_run(bot), 2)
        checked(server)


@pytest.mark.full
def test_a_restart_of_the_server_goes_on_with_the_job_and_refuses_what_has_ended(tmp_path: Path):
    with live_server(folder=tmp_path / "server", sweep_s=0.1) as server:
        play = Play(server, "restarted")
        one, two = play.bots(2)
        job = play.diamond()
        run = one_run(one)
        server.kill()
        server.start()
        assert reported(one, run, 6, "six") == "accepted"
        runs = [one_run(one), one_run(two)]
        server.kill()
        server.start()
        assert [reported(bot, run, 1) for bot, run in zip((one, two), runs, strict=True)] == ["accepted"] * 2
        last = one_run(one)
        assert inputs_of(last) == [1, 1, 6]
        assert reported(one, last, 9) == "accepted"
        assert (job.wait()["state"], values_of(job)) == ("SUCCEEDED", {"d": [9]})
        server.kill()
        server.start()
        assert two.exchange()["tasks"] == []
        assert reported(one, last, 10) == "accepted"  # as if repeated
        assert values_of(job) == {"d": [9]}
        checked(server)


# ---------------------------------------------------------------- tasks and their instances


def instances(play: Play, number: int, max_instances: int, **task: Any) -> tuple[Job, list[tuple[WireBot, Any]]]:
    """A task with so many instances, each on its own bot."""
    fields = {"soft_timeout_s": 0.1, "max_instances": max_instances, **task}
    job = play.submit({"f": play.function(**fields), "g": play.function(output_of("f"))})
    found: list[tuple[WireBot, Any]] = []
    for bot in play.bots(number):
        found.append((bot, one_run(bot)))
        assert job.states()["f"] == "RUNNING"
    return job, found


def test_bots_that_ask_together_get_as_many_instances_as_are_allowed(play: Play):
    job = play.submit({"f": play.function(soft_timeout_s=0.1, max_instances=3)})
    bots = play.bots(6)
    got: list[tuple[WireBot, Any]] = []

    def ask(bot: WireBot) -> list[tuple[WireBot, Any]]:
        found = [(bot, run) for run in bot.exchange(wait_s=0.3)["tasks"]]
        for _, run in found:
            bot.start(run)
        return found

    with ThreadPoolExecutor(6) as threads:
        while len(got) < 3:
            asked = [bot for bot in bots if bot not in [owner for owner, _ in got]]
            for found in threads.map(ask, asked):
                got += found
        wait_for(lambda: len(runs_of(job, "f")) == 3, "three runs")
        assert [run for found in threads.map(ask, bots) for run in found] == []
    assert len(got) == 3
    for bot, run in got:
        reported(bot, run, 1)
    assert job.wait()["state"] == "SUCCEEDED"


def test_no_instance_is_registered_after_the_success_and_a_late_one_is_refused(play: Play):
    job, [(one, first), (two, second)] = instances(play, 2, 3)
    assert reported(one, first, 11) == "accepted"
    assert two.exchange(n=0, holds=[[second["run"], second["token"]]])["stop"] == [second["run"]]
    child = one_run(one)
    assert inputs_of(child) == [11]
    assert reported(two, second, 22) in ("stale", "accepted")
    assert play.bot(f"{play.pool}-third").exchange()["tasks"] == []
    assert reported(one, child, 1) == "accepted"
    assert job.wait()["state"] == "SUCCEEDED"
    assert [run["state"] for run in runs_of(job, "f")].count("SUCCEEDED") == 1


def test_a_failed_instance_leaves_the_task_to_the_other_and_its_value_counts(play: Play):
    job, [(one, first), (two, second)] = instances(play, 2, 2)
    assert reported(one, first, exit_code=1) == "accepted"
    assert job.states() == {"f": "RUNNING", "g": "WAITING"}
    assert reported(two, second, 5) == "accepted"
    assert inputs_of(one_run(one)) == [5]
    job.do("cancel")


def test_a_task_fails_with_its_last_instance_and_a_rerun_may_succeed(play: Play):
    job, [(one, first), (two, second)] = instances(play, 2, 2, reruns=1)
    reported(one, first, exit_code=1)
    reported(two, second, exit_code=2)
    third = one_run(one)
    assert job.show()["state"] == "RUNNING"
    assert reported(two, second, 5) == "conflict"
    assert reported(one, third, 6) == "accepted"
    assert inputs_of(one_run(two)) == [6]
    job.do("cancel")


def test_a_diamond_hands_its_values_on_one_task_after_the_other(play: Play):
    job = play.diamond()
    (bot,) = play.bots(1)
    answers = {"a": (6, "six"), "b": (60,), "c": (3,), "d": (69,)}
    given = {}
    for _ in answers:
        run = one_run(bot)
        given[run["label"]] = inputs_of(run)
        assert reported(bot, run, *answers[run["label"]]) == "accepted"
    assert given == {"a": [5], "b": [6], "c": ["six"], "d": [60, 3, 6]}
    assert (job.wait()["state"], values_of(job)) == ("SUCCEEDED", {"d": [69]})


def test_both_sides_of_a_diamond_that_end_together_release_the_last_task_once(play: Play):
    one, two = play.bots(2)
    for _ in range(5):
        job = play.diamond()
        assert reported(one, one_run(one), 6, "six") == "accepted"
        runs = [(one, one_run(one)), (two, one_run(two))]
        start = Barrier(2)

        def end(bot: WireBot, run: Any, start: Barrier = start) -> Any:
            report = bot.finish_of(run, 0, outputs=[{"type": INT, "payload": {"inline": packed(len(run["label"]))}}])
            start.wait()
            return bot.exchange(reports=[report])["tasks"]

        with ThreadPoolExecutor(2) as threads:
            ended = [threads.submit(end, bot, run) for bot, run in runs]
            got = [(bot, task) for (bot, _), done in zip(runs, ended, strict=True) for task in done.result()]
        got = got or [(one, one_run(one))]
        ((bot, last),) = got
        assert inputs_of(last) == [1, 1, 6]
        assert reported(bot, last, 9) == "accepted"
        assert job.wait()["state"] == "SUCCEEDED"
        assert len(runs_of(job, "d")) == 1


def test_a_bot_that_loses_the_only_instance_makes_the_task_ready_and_its_report_is_refused(play: Play):
    job = play.submit({"f": play.function()})
    one, two = play.bots(2)
    lost = one_run(one)
    again = WireBot(one.server, one.name, session=one.session + 1)
    again.dimensions = one.dimensions
    again.shake()  # a new process of the bot, which holds nothing
    run = one_run(two)
    assert reported(two, run, 2) == "accepted"
    status, answer = one.call(
        "/bot/v1/exchange", {"session": one.session, "nonce": 99, "reports": [one.finish_of(lost)]}
    )
    assert status != 200 or answer["replies"][0]["outcome"] == "stale"
    assert reported(again, lost, 1) == "stale"
    assert (job.wait()["state"], values_of(job)) == ("SUCCEEDED", {"f": [2]})


def test_a_bot_that_loses_one_of_two_instances_leaves_the_other_alone(play: Play):
    job, [(one, first), (two, second)] = instances(play, 2, 2)
    again = WireBot(one.server, one.name, session=one.session + 1)
    again.dimensions = one.dimensions
    again.shake()
    assert job.states()["f"] == "RUNNING"
    assert reported(again, first, 1) == "stale"
    assert reported(two, second, 2) == "accepted"
    assert inputs_of(one_run(two)) == [2]
    job.do("cancel")


def test_a_soft_timeout_adds_an_instance_and_keeps_the_first(play: Play):
    job, [(one, first), _] = instances(play, 2, 2)
    assert [run["state"] for run in runs_of(job, "f")] == ["RUNNING", "RUNNING"]
    assert reported(one, first, 3) == "accepted"
    assert inputs_of(one_run(one)) == [3]
    job.do("cancel")


def test_a_bot_that_sends_nothing_for_its_lease_loses_its_instances_and_what_has_ended_stays(play: Play):
    job = play.submit({"f": play.function(), "g": play.function(lease_s=1)})
    one, two = play.bots(2)
    done, lost = sorted((one_run(one), one_run(one)), key=lambda run: str(run["label"]))
    assert reported(one, done, 1) == "accepted"
    wait_for(lambda: job.states()[lost["label"]] == "READY", "the end of the lease")
    (run,) = two.work()  # not started, so it has longer than the lease
    assert run["label"] == lost["label"]
    assert reported(one, lost, 1) == "stale"
    assert reported(two, run, 2) == "accepted"
    assert job.wait()["state"] == "SUCCEEDED"
    assert len(runs_of(job, done["label"])) == 1
    assert [ended["state"] for ended in runs_of(job, lost["label"])] == ["BOT_DIED", "SUCCEEDED"]


def test_a_bot_with_one_slot_is_serial(play: Play):
    play.submit({f"f{n}": play.function() for n in range(3)})
    (bot,) = play.bots(1)
    for _ in range(3):
        (run,) = bot.work(n=1)
        assert reported(bot, run, 1) == "accepted"
    assert bot.exchange()["tasks"] == []


def test_outputs_of_another_number_or_type_fail_the_task(play: Play):
    (bot,) = play.bots(1)
    for outputs in ([], [(INT, 1), (INT, 2)], [("string", "x")]):
        job = play.submit({"f": play.function()})
        run = one_run(bot)
        told = [{"type": kind, "payload": {"inline": packed(value)}} for kind, value in outputs]
        bot.exchange(n=0, reports=[bot.finish_of(run, 0, outputs=told)])
        assert job.wait()["state"] == "FAILED"
        assert "returned" in runs_of(job, "f")[0]["evidence"]["message"]


# ---------------------------------------------------------------- graphs


@pytest.mark.parametrize(
    ("tasks", "code"),
    [
        ({}, "empty"),
        ({"f": ["missing", 0, INT]}, "unknown_label"),
        ({"a": None, "f": ["a", 1, INT]}, "position"),
        ({"a": None, "f": ["a", 0, "string"]}, "type_mismatch"),
        ({"f": ["f", 0, INT]}, "self_dependency"),
        ({"a": ["f", 0, INT], "f": ["a", 0, INT]}, "cycle"),
    ],
)
def test_a_graph_that_is_wrong_is_refused_and_nothing_is_stored(play: Play, tasks: dict[str, Any], code: str):
    nodes = {label: play.function(*([output_of(*edge)] if edge else [])) for label, edge in tasks.items()}
    before = play.server.get("/api/v1/jobs?limit=1000")[1]["jobs"]
    status, answer = play.server.post("/api/v1/jobs", {"job": {"name": "wrong", "tasks": nodes}})
    assert (status, answer["error"]["problems"][0]["code"]) == (400, code), answer
    assert len(play.server.get("/api/v1/jobs?limit=1000")[1]["jobs"]) == len(before)
