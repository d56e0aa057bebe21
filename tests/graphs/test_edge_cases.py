"""Every row of the table of edge cases of task graphs, over HTTP.

Real bots run the tasks. Where a row is about what a bot reports twice, late or at the same moment as another, the test
itself speaks as the bot: a real one cannot be made to do so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Barrier

import pytest

from tests.bot.bots import alive, wait_for
from tests.bot.test_live import live_bot
from tests.deadline import HANG_S
from tests.graphs.live import Graphs, checked, rows
from tests.live import LiveServer, live_server

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(sweep_s=0.1) as started:
        yield started


@pytest.fixture(scope="module")
def with_bots(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graphs]:
    """Two real bots, which all tests share."""
    folder = tmp_path_factory.mktemp("graphs")
    with ExitStack() as stack:
        for number in (1, 2):
            stack.enter_context(live_bot(server, folder / f"graph-bot-{number}", "real"))
        yield Graphs(server, "real")


@pytest.fixture
def graphs(with_bots: Graphs) -> Iterator[Graphs]:
    """Jobs on real bots; the invariants are checked afterwards."""
    yield with_bots
    checked(with_bots.server)


@pytest.fixture
def played(server: LiveServer) -> Iterator[Graphs]:
    """Jobs in a pool without real bots: the test plays them."""
    yield Graphs(server, f"played-{next(_numbers)}")
    checked(server)


def gate(path: Path) -> str:
    """A script that runs until the file is there."""
    return f"while [ ! -e {path} ]; do sleep 0.02; done"


# ---------------------------------------------------------------- reports


def test_a_completion_that_is_reported_twice_counts_once(played):
    job = played.submit({"a": played.node(), "b": played.node("true", "a"), "c": played.node("true", "a", "b")})
    bot = played.bot("twice")
    for _ in range(3):
        [task] = bot.work()
        first, again = bot.finish(task), bot.finish(task)
        assert (first["replies"][0]["outcome"], again["replies"][0]["outcome"]) == ("accepted", "accepted")
    assert job.wait()["state"] == "SUCCEEDED"
    assert job.events() == ["running", "finished"]
    assert {task["run"][-2:] for task in job.tasks().values()} == {"01"}


def test_a_failure_that_is_reported_twice_costs_one_rerun(played):
    job = played.submit({"a": played.node(reruns=2)})
    bot = played.bot("fails-twice")
    [task] = bot.work()
    bot.finish(task, 1)
    bot.finish(task, 1)
    told = job.tasks()["a"]
    assert (told["state"], told["reruns"], told["reruns_left"]) == ("READY", 2, 1)
    bot.finish(bot.work()[0])
    assert job.wait()["state"] == "SUCCEEDED"


def test_a_failure_after_a_success_changes_nothing_and_is_answered(played):
    job = played.submit({"a": played.node(reruns=1), "b": played.node("true", "a")})
    bot = played.bot("late")
    [task] = bot.work()
    bot.finish(task)
    [reply] = bot.finish(task, 1)["replies"]
    assert reply["outcome"] != "accepted"
    assert job.states() == {"a": "SUCCEEDED", "b": "READY"}
    bot.finish(bot.work()[0])
    assert job.wait()["view"] == "finished"


def test_a_report_on_a_task_that_nobody_knows_is_answered_and_keeps_no_other_one_out(played):
    job = played.submit({"a": played.node()})
    bot = played.bot("stranger")
    [task] = bot.work()
    unknown = bot.finish_of({"run": f"{int(task['run'], 16) ^ (1 << 20):x}", "token": task["token"]})
    lost, taken = bot.exchange(n=0, reports=[unknown, bot.finish_of(task)])["replies"]
    assert (lost["outcome"], taken["outcome"]) == ("unknown", "accepted")
    assert job.wait()["state"] == "SUCCEEDED"


def test_parents_that_end_at_the_same_moment_release_their_child_once(played):
    parents = [f"p{number}" for number in range(8)]
    job = played.submit({label: played.node() for label in parents} | {"child": played.node("true", *parents)})
    bots = [played.bot(f"{played.pool}-{label}") for label in parents]
    tasks = [bot.work()[0] for bot in bots]
    together = Barrier(len(bots))

    def finish(bot, task):
        together.wait(HANG_S)
        return bot.finish(task)["replies"][0]["outcome"]

    with ThreadPoolExecutor(len(bots)) as threads:
        assert set(threads.map(finish, bots, tasks)) == {"accepted"}
    claimed = [task for bot in bots for task in bot.exchange(n=8)["tasks"]]
    assert [task["name"] for task in claimed] == ["child"]
    assert job.tasks()["child"]["requires_left"] == []
    job.do("cancel")


def test_a_lost_bot_costs_a_retry_and_no_rerun(played):
    job = played.submit({"a": played.node(task={"retries": 1}), "b": played.node("true", "a")})
    bot = played.bot("dies")
    bot.start(bot.work()[0])
    again = played.bot("dies")  # a new session: what the old one ran is lost
    [task] = again.work()
    assert task["run"].endswith("02")
    told = job.tasks()["a"]
    assert (told["reruns"], told["reruns_left"], job.show()["view"]) == (0, 0, "running")
    again.finish(task, 1)
    assert (job.wait()["state"], job.states()) == ("FAILED", {"a": "FAILED", "b": "WAITING"})


# ---------------------------------------------------------------- reruns


def test_a_success_after_a_failure_releases_the_children_and_unblocks(graphs, tmp_path):
    repaired = tmp_path / "repaired"
    job = graphs.submit({"a": graphs.node(f"test -e {repaired}"), "b": graphs.node("true", "a")})
    told = job.wait()
    assert (told["state"], told["view"], told["first_failure"]["label"]) == ("FAILED", "blocked", "a")
    repaired.touch()
    assert job.do("rerun")["state"] == "RUNNING"
    assert job.show()["view"] != "blocked"
    assert (job.wait()["state"], job.states()) == ("SUCCEEDED", {"a": "SUCCEEDED", "b": "SUCCEEDED"})
    assert job.tasks()["a"]["resolution"]["failed"] is False
    assert job.events() == ["running", "blocked", "failed", "running", "finished"]


def test_a_task_that_succeeded_runs_again_by_force_and_its_children_only_by_cascade(graphs, tmp_path):
    said = tmp_path / "said"
    script = f"echo $MYRMIDON_TASK_ID >> {said}"
    job = graphs.submit({"a": graphs.node(script), "b": graphs.node(script, "a")})
    job.wait()
    status, answer = job.call("rerun", {"task": "a"})
    assert (status, answer["error"]["code"]) == (409, "wrong_state")
    job.do("rerun", {"task": "a", "force": True})
    assert job.states()["b"] == "SUCCEEDED"
    job.wait()
    assert len(said.read_text().split()) == 3
    job.do("rerun", {"task": "a", "force": True, "cascade": True})
    assert job.wait()["state"] == "SUCCEEDED"
    assert len(said.read_text().split()) == 5
    assert job.events() == ["running", "finished"] * 3


# ---------------------------------------------------------------- extensions


def test_an_extension_before_and_one_after_the_completion_of_the_parent(graphs, tmp_path):
    go, on = tmp_path / "go", tmp_path / "on"
    job = graphs.submit({"a": graphs.node(gate(go)), "z": graphs.node(gate(on))})
    job.until("a", "RUNNING")
    job.extend({"before": graphs.node("true", "a")})
    assert job.states()["before"] == "WAITING"
    go.touch()
    job.until("before", "SUCCEEDED")
    job.extend({"after": graphs.node("true", "a"), "both": graphs.node("true", "before", "after")})
    job.until("both", "SUCCEEDED")
    on.touch()
    assert job.wait()["counts"] == {"SUCCEEDED": 5}


def test_an_extension_of_a_job_that_has_ended_or_is_sealed_is_refused(graphs):
    done = graphs.submit({"a": graphs.node()})
    done.wait()
    cancelled = graphs.submit({"a": graphs.node(hold=True)})
    cancelled.do("cancel")
    sealed = graphs.submit({"a": graphs.node(hold=True)})
    sealed.do("seal")
    for job in (done, cancelled, sealed):
        before = rows(graphs.server)
        status, answer = job.call("extend", {"job": {"tasks": {"b": graphs.node("true", "a")}}})
        assert (status, answer["error"]["code"]) == (409, "wrong_state")
        assert rows(graphs.server) == before
    sealed.do("cancel")


EXTEND = """
import json, os, urllib.request
body = {"job": {"tasks": json.loads(os.environ["MORE"])}}
url = os.environ["SERVER"] + "/api/v1/jobs/" + os.environ["JOB"] + "/extend"
headers = {"Authorization": "Bearer " + os.environ["TOKEN"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
"""


def test_a_running_task_extends_its_own_job_although_it_is_the_last_one(graphs, tmp_path):
    """A file names the job, because its id is known only after the submit."""
    job_file = tmp_path / "job"
    more = {"b": graphs.node("echo b", "a"), "c": graphs.node("echo c", "b")}
    node = graphs.node(f'{gate(job_file)}; JOB=$(cat {job_file}) exec "$PYTHON" -c "$SCRIPT"')
    node["task"]["payload"]["env"] = {
        "MORE": json.dumps(more),
        "SERVER": graphs.server.url,
        "TOKEN": graphs.server.token,
        "PYTHON": sys.executable,
        "SCRIPT": EXTEND,
    }
    job = graphs.submit({"a": node})
    (tmp_path / "new").write_text(job.id)
    (tmp_path / "new").rename(job_file)
    assert (job.wait()["state"], job.states()) == ("SUCCEEDED", dict.fromkeys("abc", "SUCCEEDED"))
    assert job.events().count("finished") == 1


def test_a_blocked_job_grows_runs_what_it_can_and_stays_blocked(graphs, tmp_path):
    go = tmp_path / "go"
    job = graphs.submit({"bad": graphs.node("exit 3"), "z": graphs.node(gate(go))})
    job.until("bad", "FAILED")
    job.extend({"free": graphs.node(), "stuck": graphs.node("true", "bad")})
    job.until("free", "SUCCEEDED")
    assert (job.show()["view"], job.states()["stuck"]) == ("blocked", "WAITING")
    go.touch()
    assert job.wait()["state"] == "FAILED"
    assert job.events().count("blocked") == 1


def test_an_extension_that_is_repeated_after_its_tasks_have_ended_adds_nothing_and_the_job_ends(graphs, tmp_path):
    go = tmp_path / "go"
    job = graphs.submit({"a": graphs.node(), "z": graphs.node(gate(go))})
    more = {"leaf": graphs.node("true", "a")}
    assert job.extend(more)["num_new"] == 1
    job.until("leaf", "SUCCEEDED")
    assert job.extend(more)["num_new"] == 0
    assert job.extend({**more, "next": graphs.node("true", "leaf")})["num_new"] == 1
    go.touch()
    assert job.wait()["counts"] == {"SUCCEEDED": 4}


def test_a_label_that_the_job_has_is_a_conflict_if_its_definition_differs(graphs):
    job = graphs.submit({"a": graphs.node(hold=True)})
    assert job.extend({"a": graphs.node(hold=True)})["num_new"] == 0
    before = rows(graphs.server)
    status, answer = job.call("extend", {"job": {"tasks": {"a": graphs.node("other"), "b": graphs.node()}}})
    assert (status, answer["error"]["code"]) == (409, "request.conflict")
    assert rows(graphs.server) == before
    job.do("cancel")


# ---------------------------------------------------------------- holds, deadlines, cancels


def test_a_gate_is_a_held_task(graphs):
    job = graphs.submit(
        {"a": graphs.node(), "gate": graphs.node("true", "a", hold=True), "b": graphs.node("true", "gate")}
    )
    job.until("a", "SUCCEEDED")
    assert job.settle()["state"] == "RUNNING"
    assert job.states() == {"a": "SUCCEEDED", "gate": "WAITING", "b": "WAITING"}
    job.do("release", {"task": "gate"})
    assert job.wait()["state"] == "SUCCEEDED"


def test_a_deadline_that_passes_while_a_task_waits_ends_it_and_its_children_wait_for_their_own(graphs, tmp_path):
    """Also what becomes of a task whose turn comes after its deadline: it has ended, and is not started."""
    go = tmp_path / "go"
    job = graphs.submit({
        "a": graphs.node(gate(go)),
        "late": graphs.node("true", "a", task={"deadline_s": 1}),
        "child": graphs.node("true", "late"),
        "free": graphs.node("true", "a"),
    })  # fmt: skip
    job.until("late", "EXPIRED")
    told = job.show()
    assert (told["state"], told["view"], told["first_failure"]["label"]) == ("RUNNING", "blocked", "late")
    go.touch()
    assert job.wait()["state"] == "FAILED"
    assert job.states() == {"a": "SUCCEEDED", "late": "EXPIRED", "child": "WAITING", "free": "SUCCEEDED"}


def test_a_deadline_that_passes_while_a_task_runs_ends_the_task_and_its_command(graphs, tmp_path):
    pid = tmp_path / "pid"
    script = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000"
    job = graphs.submit({"a": graphs.node(script, task={"deadline_s": 3}), "b": graphs.node("true", "a")})
    told = job.wait()
    assert (told["state"], told["view"], job.states()["b"]) == ("FAILED", "blocked", "WAITING")
    assert job.states()["a"] not in ("RUNNING", "SUCCEEDED")
    if pid.exists():  # on a very slow machine the deadline may have come before the command
        number = int(pid.read_text())
        wait_for(lambda: not alive(number), "the end of the command")


def test_a_waiting_task_that_is_cancelled_blocks_the_job_and_can_run_again(graphs, tmp_path):
    go = tmp_path / "go"
    job = graphs.submit({"a": graphs.node(gate(go)), "b": graphs.node("true", "a"), "c": graphs.node("true", "b")})
    status, answer = graphs.server.post(f"/api/v1/tasks/{job.ids['b']}/cancel")
    assert (status, answer["state"]) == (200, "CANCELLED")
    assert job.show()["view"] == "blocked"
    go.touch()
    assert (job.wait()["state"], job.states()["c"]) == ("FAILED", "WAITING")
    job.do("rerun", {"task": "b"})
    assert (job.wait()["state"], set(job.states().values())) == ("SUCCEEDED", {"SUCCEEDED"})


def test_a_cancelled_job_stops_what_runs_and_starts_nothing_more(graphs, tmp_path):
    pid = tmp_path / "pid"
    tasks = {"a": graphs.node(f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000")}
    tasks |= {f"w{number}": graphs.node("true", "a") for number in range(20)}
    job = graphs.submit(tasks)
    wait_for(pid.exists, "the start of the command")
    assert job.do("cancel")["state"] == "CANCELLED"
    number = int(pid.read_text())
    wait_for(lambda: not alive(number), "the end of the command")
    assert job.settle()["state"] == "CANCELLED"
    states = job.states()
    assert states.pop("a") in ("KILLED", "CANCELLED")  # the latter if the cancel came before the report of its start
    assert set(states.values()) == {"CANCELLED"}
    assert [task["run"] for label, task in job.tasks().items() if label != "a"] == [None] * 20


# ---------------------------------------------------------------- documents


@pytest.mark.parametrize(
    ("requires", "code"),
    [
        ({"a": ["nope"]}, "unknown_label"),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, "cycle"),
        ({"a": ["a"]}, "self_dependency"),
        ({}, "empty"),
    ],
)
def test_a_document_with_a_wrong_edge_or_without_tasks_is_refused_and_nothing_is_stored(graphs, requires, code):
    before = rows(graphs.server)
    document = {"name": "wrong", "tasks": {label: graphs.node("true", *several) for label, several in requires.items()}}
    status, answer = graphs.server.post("/api/v1/jobs", {"job": document})
    assert (status, [problem["code"] for problem in answer["error"]["problems"]]) == (400, [code])
    assert rows(graphs.server) == before
