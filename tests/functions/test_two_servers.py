"""Functions on two servers and one PostgreSQL or MariaDB, with a bot on each: any of them may be killed in mid-job.

Whatever happens, the results are those of the same calls in plain Python, and every invariant holds afterwards (the
fixture ``site`` checks them).
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from myrmidon import TaskFailed
from myrmidon.sdk.new_job import NewJob
from tests.bot.bots import alive, wait_for
from tests.functions import fault_tasks as tasks
from tests.functions.programs import gated_program, plain_map, program
from tests.functions.site import Site, executors_of, processes_behind

pytestmark = [
    pytest.mark.full,
    pytest.mark.untraced,
    pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True),
]
STEPS = 20


class Gated:
    """A random program that waits in its middle until the gate is opened."""

    def __init__(self, site: Site, folder: Path, seed: int, **options: Any) -> None:
        self.path = folder / "gate"
        self.site, self.seed = site, seed
        with site.new_job("gated", through=seed % 2) as self.job:
            self.handles = gated_program(seed, STEPS, self.job.map, str(self.path), **options)

    def processes(self, count: int = 3) -> list[int]:
        return processes_behind(self.path, count)

    def open_and_compare(self) -> None:
        self.path.touch()
        plain = gated_program(self.seed, STEPS, plain_map, str(self.path))
        assert self.job.result(self.handles) == plain
        assert set(succeeded(self.job).counts) == {"SUCCEEDED"}


def until_succeeded(site: Site, job: NewJob, count: int) -> None:
    """Wait until so many tasks have succeeded."""
    try:
        wait_for(lambda: job.info().counts.get("SUCCEEDED", 0) >= count, f"{count} tasks")
    except AssertionError:
        states = {task.label: task.state for task in site.clients[0].job(job.id).tasks() if task.state != "SUCCEEDED"}
        raise AssertionError(job.info().counts, states, [way.done[-30:] for way in site.ways]) from None


def succeeded(job: NewJob) -> Any:
    info = job.wait()
    assert info.state == "SUCCEEDED", (info, job.errors())
    return info


def test_functions_and_values_small_and_large_pass_between_bots_of_both_servers(site: Site, tmp_path: Path):
    gate = tmp_path / "gate"
    with site.new_job("values") as job:
        large = tasks.sized("large ", 50_000)
        parts = [
            tasks.who.options(dimensions={"id": f"bot{n}"})(str(gate), size) for n in (0, 1) for size in (4, 5_000)
        ]
        words = job.map(tasks.first_word, [*parts, large, "constant " * 1_000])
    gate.touch()
    for client in site.clients:  # the files are the same ones for both
        values = client.job(job.id).outputs()
        assert {task.state for task in values.tasks} <= {"SUCCEEDED", "READY", "RUNNING", "WAITING"}
    assert job.result(words) == ["bot0", "bot0", "bot1", "bot1", "large", "constant"]
    assert job.result(large) == "large " * 50_000
    assert set(succeeded(job).counts) == {"SUCCEEDED"}


@pytest.mark.short
def test_a_whole_program_runs_once_although_both_servers_hand_it_out(site: Site):
    with site.new_job("once") as job:
        handles = program(11, 40, job.map)
    assert job.result(handles) == program(11, 40, plain_map)
    succeeded(job)
    assert {len(runs) for runs in site.runs(job.id).values()} == {1}


@pytest.mark.parametrize("size", [10, 5_000], ids=["inline", "by file"])
def test_of_two_instances_that_end_together_one_gives_the_value(site: Site, tmp_path: Path, size: int):
    gates = [tmp_path / f"gate{number}" for number in range(4)]
    straggler = tasks.who.options(soft_timeout="100ms", max_instances=2)
    jobs = []
    for gate in gates:
        with site.new_job("instances") as job:
            texts = straggler(str(gate), size)
            jobs.append((job, texts, tasks.first_word(texts)))
        wait_for(lambda g=gate: set(lines(f"{g}.runs")) == {"bot0", "bot1"}, "an instance on each bot")
        assert len(lines(f"{gate}.runs")) == 2
        gate.touch()
    for job, texts, word in jobs:
        winner = job.result(word)
        assert job.result(texts) == (f"{winner} " * size)[:size]
        assert succeeded(job).counts == {"SUCCEEDED": 2}
        runs = site.runs(job.id)
        assert [run["bot_id"] for run in runs["who"] if run["state"] == "SUCCEEDED"] == [winner]
        assert len(runs["first_word"]) == 1


def lines(path: Path | str) -> list[str]:
    return Path(path).read_text().split() if Path(path).exists() else []


def test_the_failed_part_of_a_job_is_retried_with_its_maps_and_delegates(site: Site, tmp_path: Path):
    ledger = tmp_path / "ledger"
    with site.new_job("retries", max_num_retries=8) as job:
        doubled = job.map(tasks.noted, tasks.up_to(30), str(ledger))
        mapped = job.map(tasks.fails_at_first, tasks.up_to(3), path=str(tmp_path / "mapped"), times=2)
        delegated = tasks.delegates(5, str(tmp_path / "delegated"), 2)
        total = tasks.total([tasks.total(doubled), tasks.total(mapped), delegated])
    info = succeeded(job)
    assert job.result(total) == 2 * sum(range(30)) + sum(range(3)) + 5
    assert 2 <= info.num_retries <= 4, info
    assert info.counts == {"SUCCEEDED": 2 * 3 + 30 + 3 + 2 + 3}


def test_a_job_that_has_no_retries_left_fails_with_the_error_of_the_function(site: Site, tmp_path: Path):
    with site.new_job("retries", max_num_retries=1) as job:
        result = tasks.total([tasks.fails_at_first(1, str(tmp_path / "calls"), 5)])
    job.wait()
    with pytest.raises(TaskFailed, match="failed in run 2"):
        job.result(result)
    assert (job.info().state, job.info().num_retries) == ("FAILED", 1)
    assert len(lines(tmp_path / "calls")) == 2


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_kill_of_executors_costs_a_rerun_of_what_they_ran(site: Site, tmp_path: Path, seed: int):
    gated = Gated(site, tmp_path, seed, reruns=1)
    for process in gated.processes():
        os.kill(process, signal.SIGKILL)
    gated.processes(6)
    gated.open_and_compare()
    runs = site.runs(gated.job.id)
    assert {len(found) for label, found in runs.items() if not label.startswith("gate")} == {1}


def test_a_killed_executor_is_the_reason_of_a_failure_that_a_person_understands(site: Site, tmp_path: Path):
    with site.new_job("killed") as job:
        result = tasks.gate(1, str(tmp_path / "gate"))
    (process,) = processes_behind(tmp_path / "gate", 1)
    os.kill(process, signal.SIGKILL)
    with pytest.raises(TaskFailed, match="signal 9"):
        job.result(result)
    job.wait()


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.soak)])
def test_kill_of_a_bot_in_mid_job_costs_a_retry_of_what_it_ran(site: Site, tmp_path: Path, seed: int):
    gated = Gated(site, tmp_path, seed)
    gated.processes()
    orphans = executors_of(site.bots[0])
    site.kill_bot(0)
    site.start_bot(0)
    wait_for(lambda: not any(map(alive, orphans)), "the end of what the killed bot ran")
    gated.open_and_compare()


def test_kill_of_a_worker_whose_supervisor_goes_on(site: Site, tmp_path: Path):
    gated = Gated(site, tmp_path, 5)
    gated.processes()
    os.kill(site.bots[1].worker(), signal.SIGKILL)
    gated.open_and_compare()


@pytest.mark.short
@pytest.mark.parametrize("seed", [6, pytest.param(7, marks=pytest.mark.soak)])
def test_kill_of_a_server_in_mid_job_costs_nothing_but_repeated_calls(site: Site, tmp_path: Path, seed: int):
    gated = Gated(site, tmp_path, seed)
    gated.processes()
    site.kill_server(seed % 2)  # that of the client
    gated.open_and_compare()
    site.start_servers()
    runs = site.runs(gated.job.id)
    assert {len(found) for found in runs.values()} == {1}


# What the proxies do to the calls that extend a job, and how many tasks there are before the last of them.
EXPANSIONS = {
    "before the call": (["stuck"], 30, 0),
    "after the call": (["hole"], 30, 30),
    "between two calls": (["", "stuck"], 1_100, 1_000),
    "after two calls": (["", "hole"], 1_100, 1_100),
}
MOMENTS = [pytest.param(name, marks=[pytest.mark.soak] if "two" in name else []) for name in EXPANSIONS]


@pytest.mark.parametrize("victim", ["executor", "bot", "server"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_map_expands_once_although_what_expands_it_is_killed(site: Site, tmp_path: Path, moment: str, victim: str):
    faults, width, before = EXPANSIONS[moment]
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    with site.new_job("expansion") as job:
        total = tasks.total(job.map(tasks.noted, tasks.up_to(tasks.gate(width, str(gate))), str(ledger)))
    path = f"/jobs/{job.id}/extend"
    for way in site.ways:
        way.plan_for[path] = faults.copy()
    gate.touch()
    wait_for(lambda: any(not way.plan_for[path] for way in site.ways), "the call")
    until_succeeded(site, job, 2 + before)
    [number] = [number for number, way in enumerate(site.ways) if not way.plan_for[path]]
    for way in site.ways:
        way.plan_for.clear()
    kill(site, victim, number)
    assert job.result(total) == 2 * sum(range(width))
    assert succeeded(job).counts == {"SUCCEEDED": width + 5}
    assert sorted(map(int, lines(ledger))) == list(range(width))


def kill(site: Site, victim: str, number: int) -> None:
    """Kill what runs or answers the function that is stuck in a call."""
    if victim == "executor":
        for process in executors_of(site.bots[number]):
            os.kill(process, signal.SIGKILL)
    elif victim == "bot":
        site.kill_bot(number)
        site.start_bot(number)
    else:
        site.kill_server(number)
    site.ways[number].let_out()


FAULTS = ("refused", "lost", "cut", "twice")
BLOWS = ("bot", "worker", "server", "nothing")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))])
def test_a_program_through_a_bad_network_gives_what_plain_python_gives_whatever_is_killed(site: Site, seed: int):
    chance = random.Random(seed)
    for way in site.ways:
        way.faults, way.rate = FAULTS, chance.choice((0.0, 0.05, 0.15))
    victim, number, after = chance.choice(BLOWS), chance.randrange(2), chance.randrange(1, 10)
    try:
        with site.new_job("blows", through=chance.randrange(2)) as job:
            handles = program(seed, 40, job.map)
        until_succeeded(site, job, after)
        if victim == "bot":
            site.kill_bot(number)
            site.start_bot(number)
        elif victim == "worker":
            os.kill(site.bots[number].worker(), signal.SIGKILL)
        elif victim == "server":
            site.kill_server(number)
        assert job.result(handles) == program(seed, 40, plain_map), (victim, [way.done[-50:] for way in site.ways])
        succeeded(job)
    finally:
        for way in site.ways:
            way.rate = 0.0
