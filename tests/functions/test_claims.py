"""What the SDK promises, on a real server with a real bot; claim_table.py names the test of each promise."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import numpy as np
import pytest

from myrmidon import Client, Int8, TaskFailed, task
from myrmidon.sdk.errors import WaitedTooLong
from tests.bot.bots import wait_for
from tests.functions import claim_tasks as tasks
from tests.functions import remote_tasks
from tests.functions.claim_table import CLAIMS
from tests.functions.claim_tasks import Colour, Everything, Pair, Record
from tests.functions.named_tests import missing_tests
from tests.functions.scenario_table import SCENARIOS

EVERYTHING = Everything(
    number=-(1 << 63), small=Int8(-5), real=1e300, text="é\0", data=b"\xff" * 2_000, flag=True, maybe=None,
    pair=(1, "a"), many=(0.5, 1.0), named=Pair(1, "x"), record=Record("r", [1.5]), colour=Colour.RED,
    time=dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC), table={"a": [1, None], "": []},
)  # fmt: skip


def test_every_type_goes_to_a_bot_and_back(client: Client):
    array = np.arange(600, dtype=np.float64).reshape(20, 30)
    with client.new_job() as job:
        given, twice = tasks.same(EVERYTHING), tasks.same(tasks.same(EVERYTHING))
        turned, nothing = tasks.transposed(array), tasks.gives_none()
    assert job.result((given, twice, nothing)) == (EVERYTHING, EVERYTHING, None)
    assert np.array_equal(job.result(turned), array.T * 2)


def test_static_methods_coroutines_and_partials_run_on_bots(client: Client):
    with client.new_job() as job:
        found = [tasks.Tools.double(1), tasks.tripled(2), tasks.tenfold(3), job.map(tasks.tenfold, [4, 5], plus=1)]
    assert job.result(found) == [2, 6, 30, [41, 51]]


def test_the_submitters_default_counts_and_not_that_of_the_bot(client: Client):
    with client.new_job() as job:
        given = tasks.with_default()
    assert job.result(given) == "submitter"


def test_options_override_the_label_and_the_dimensions_of_a_call(client: Client):
    with client.new_job() as job:
        here = tasks.version.options(label="named")(1)
        nowhere = tasks.version.options(dimensions={"gpu": "none-such"})(2)
    assert job.result(here) == (1, "named")
    with pytest.raises(WaitedTooLong):
        job.result(nowhere, timeout=0.1)
    job.cancel()


def test_a_hard_timeout_ends_the_function_and_nothing_runs_again(client: Client):
    with pytest.raises(TaskFailed) as caught:
        client.submit(tasks.sleeps.options(timeout="200ms"), 600.0).result()
    assert caught.value.state == "TIMED_OUT"
    assert client.task(caught.value.task_id).result.num_reruns == 0


def test_a_job_of_the_sdk_is_not_retried_as_a_whole(client: Client):
    with client.new_job() as job:
        remote_tasks.fails(1)
    info = job.wait()
    assert (info.state, info.max_num_retries, info.num_retries) == ("FAILED", 0, 0)


def test_a_job_fails_fast_and_calls_without_a_graph_go_on(client: Client, tmp_path: Path):
    with client.new_job() as job:
        bad = remote_tasks.fails(1)
        held = remote_tasks.held.options(after=[])(str(tmp_path / "never"))
        tasks.sleeps.options(after=[held])(0.0)
    with pytest.raises(ValueError, match="bad 1"):
        job.result(bad)
    info = job.wait()
    assert info.state == "FAILED"
    assert set(info.counts) <= {"FAILED", "KILLED", "CANCELLED"}
    with client.executor() as executor:
        executor.submit(remote_tasks.fails, 1)
        futures = [executor.submit(tasks.sleeps, 0.0) for _ in range(3)]
        assert [future.result() for future in futures] == [0.0] * 3


def test_calls_that_come_together_are_few_jobs(client: Client):
    futures = [client.submit(tasks.scaled, number, 2) for number in range(300)]
    assert [future.result() for future in futures] == [2 * number for number in range(300)]
    assert len({future.job_id for future in futures}) < 100  # type: ignore[attr-defined]


def test_waiting_inside_a_function_for_what_it_has_submitted_raises_there(client: Client):
    with pytest.raises(TaskFailed, match="a function cannot wait for what it has submitted"):
        client.submit(tasks.waits_for_a_submitted_call, 1).result()


def test_the_default_dimension_is_the_version_of_python(client: Client):
    with client.new_job() as job:
        tasks.scaled(1, 2)
    job.wait()
    (label,) = client.job(job.id).tasks()
    properties = client.task(label.task_id).request.slices[0].properties
    assert properties["dimensions"] == {"pool": ["default"], "python": ["{}.{}".format(*sys.version_info[:2])]}


def test_a_whole_program_with_a_failure_and_its_rerun(client: Client, tmp_path: Path):
    """Commands and functions in one graph, a width that is known at run time, a failure, and its rerun."""
    corpus = tmp_path / "corpus"
    with client.new_job("word count") as job:
        made = job.command(["true"])
        text = remote_tasks.needs.options(after=[made], label="corpus")(str(corpus))
        total = remote_tasks.merge(job.map(remote_tasks.count, remote_tasks.split(text), top=5))
    with pytest.raises(FileNotFoundError) as caught:
        job.result(total)
    failure = caught.value
    assert isinstance(failure, TaskFailed)
    assert (failure.bot, failure.label) == ("worker", "corpus")
    assert "read_text" in failure.remote_traceback
    corpus.write_text("a b a|b c|a")
    job.wait()
    job.rerun(failed=True)
    assert job.result(total) == {"a": 3, "b": 2, "c": 1}
    assert list(client.map(remote_tasks.count, ["a b a", "c"], top=1)) == [{"a": 2}, {"c": 1}]


def test_progress_of_a_running_function_is_shown(client: Client, tmp_path: Path):
    gate = tmp_path / "gate"
    with client.new_job() as job:
        remote_tasks.half_done(str(gate))
    (made,) = client.job(job.id).tasks()
    wait_for(lambda: [run.progress for run in client.task(made.task_id).runs] == [0.5], "the progress")
    gate.touch()
    assert job.wait().state == "SUCCEEDED"


def test_a_function_inside_of_a_test_is_refused_with_the_reason():
    with pytest.raises(TypeError, match="top of a module"):

        @task
        def inner(x: int) -> int:
            return x


@pytest.mark.parametrize("table", [CLAIMS, SCENARIOS], ids=["claims", "scenarios"])
def test_the_tables_name_tests_that_exist(table: dict[str, list[str]]):
    assert missing_tests(table) == []
