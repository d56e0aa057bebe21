"""Spider's API on a real server with a real bot, and the shapes of its graphs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from myrmidon import Client, task
from myrmidon.functions.graph_builder import GraphBuilder
from myrmidon.functions.signature import signature_of
from myrmidon.functions.task_graph import graph_of
from myrmidon.functions.types import TypeProblem
from myrmidon.sdk.errors import CallFailed
from myrmidon.spider import Data, Driver, Int8, Int32, Int64, JobStatus, TaskContext, TaskGraph, chain, group
from tests.deadline import HANG_S
from tests.functions import spider_tasks as tasks
from tests.live import LiveServer


@pytest.fixture
def driver(server: LiveServer, client: Client) -> Any:
    with Driver(server.url, server.token) as made:
        yield made


def results(driver: Driver, graph: Any, *args: Any, **options: Any) -> Any:
    [job] = driver.submit_jobs([graph], [args], **options)
    assert job.wait_complete() is JobStatus.Succeeded, job.get_error()
    return job.get_results()


# ---------------------------------------------------------------- on a bot


def test_many_jobs_are_submitted_with_their_arguments(driver: Driver):
    graph = chain(group([tasks.add, tasks.add]), tasks.swap)
    jobs = driver.submit_jobs([graph, tasks.add, graph], [[1, 2, 3, 4], [5, 6], (7, 8, 9, 10)])
    assert [job.wait_complete() for job in jobs] == [JobStatus.Succeeded] * 3
    assert [job.get_results() for job in jobs] == [(7, 3), (11,), (19, 15)]
    assert results(driver, tasks.AT_THE_TOP, 1, 2, 5) == (10, 3)
    assert results(driver, group([tasks.double, chain(tasks.double, tasks.double)]), 1, 2) == (2, 8)


def test_every_type_of_spider_arrives_as_it_was_sent(driver: Driver):
    point = tasks.Point(Int32(1 << 30), [Int8(-1)])
    sent = (-128, 32767, -(1 << 31), 1 << 62, 1.5, 0.1, True, b"\x00\xff", [1, -2], {-5: [0.5], 7: []}, point)
    assert results(driver, tasks.every_type, *sent) == sent


def test_none_is_an_argument_like_others(driver: Driver):
    assert results(driver, tasks.or_seven, None) == (7,)
    assert results(driver, tasks.or_seven, 0) == (0,)


def test_the_failed_part_of_a_job_is_retried_five_times(driver: Driver, client: Client, tmp_path: Path):
    assert results(driver, tasks.fails_twice, str(tmp_path)) == (2,)
    [job] = driver.submit_jobs([tasks.always_fails], [[]], max_num_retries=1)
    assert client.call("GET", f"jobs/{job.id}", dict)["max_num_retries"] == 1
    assert job.wait_complete() is JobStatus.Failed
    assert (job.get_results(), "FAILED" in str(job.get_error())) == (None, True)


def test_a_job_without_results_yet_has_none_and_can_be_cancelled(driver: Driver, tmp_path: Path):
    [job] = driver.submit_jobs([task(dimensions={"pool": "nowhere"})(tasks.write)], [[str(tmp_path / "x")]])
    assert (job.get_status(), job.get_results()) == (JobStatus.Running, None)
    job.cancel()
    assert job.wait_complete() is JobStatus.Cancelled


def test_data_is_created_once_and_read_by_many_jobs(driver: Driver, client: Client):
    data = driver.create_data(Data.from_value(b"x" * 5_000, ["10.0.0.1"]))
    with pytest.raises(ValueError, match="already"):
        driver.create_data(data)
    assert data.id is not None
    assert client.localities(data.id).addresses == ["10.0.0.1"]
    jobs = driver.submit_jobs([tasks.size_of, tasks.size_of], [[data], [data]])
    driver.drop_data(data)
    assert [job.wait_complete() and job.get_results() for job in jobs] == [(5_000,), (5_000,)]
    assert client.shared_value(data.id).groups == []
    assert results(driver, tasks.size_of, Data.from_value(b"abc")) == (3,)
    assert results(driver, chain(tasks.make, tasks.size_of), 2_000) == (2_000,)


def test_a_running_function_creates_data_and_shares_values(driver: Driver, client: Client):
    [job] = driver.submit_jobs([tasks.shares], [[3_000]])
    assert job.wait_complete() is JobStatus.Succeeded, job.get_error()
    assert job.get_results() == (3_000,)
    kept = client.shared_values(job=job.id).values
    assert sorted(one.type for one in kept) == ["Map<string,int64>", "myrmidon.functions.task_context.Data"]
    assert {one.num_groups for one in kept} == {0}


def test_a_chain_orders_functions_without_values_too(driver: Driver, tmp_path: Path):
    file = str(tmp_path / "file")
    assert results(driver, chain(tasks.write, tasks.done), file) == (True,)
    builder = GraphBuilder()
    chain(tasks.write, tasks.done).build(builder, [file])
    assert builder.nodes["done"].requires == ["write"]


def test_a_soft_timeout_is_given_to_functions_that_have_none(driver: Driver, client: Client):
    [job] = driver.submit_jobs([tasks.add], [[1, 2]], timeout=90)
    [one] = client.job(job.id).tasks()
    assert client.task(one.task_id).request.max_instances == 2
    for graph, soft in ((tasks.add, 90), (task(soft_timeout=5)(tasks.add), 5)):
        builder = GraphBuilder()
        graph_of(graph).build(builder, [1, 2], soft_timeout=90)
        assert f'"soft_timeout_s":{soft},' in builder.tasks_text(lambda _: "")
    assert job.wait_complete() is JobStatus.Succeeded


# ---------------------------------------------------------------- refused before anything is sent


def test_wrong_arguments_are_refused_before_the_first_job_is_sent(driver: Driver, client: Client):
    before = len(client.jobs(limit=1000).jobs)
    cases: list[tuple[list[Any], list[list[Any]], type[Exception]]] = [
        ([tasks.add], [[1]], ValueError),
        ([tasks.add], [[1, 2, 3]], ValueError),
        ([tasks.add, tasks.add], [[1, 2]], ValueError),
        ([tasks.add, tasks.add], [[1, 2], [1, "a"]], TypeError),
        ([tasks.add], [[1, 128]], TypeError),
        ([tasks.add], [[1, None]], TypeError),
        ([3], [[]], TypeError),
    ]
    for graphs, args, error in cases:
        with pytest.raises(error):
            driver.submit_jobs(graphs, args)
    assert len(client.jobs(limit=1000).jobs) == before


def dropped(driver: Driver) -> Data:
    """Data that the server refuses as an argument, because it was deleted."""
    data = driver.create_data(Data.from_value(b"x"))
    driver.drop_data(data)
    return data


def test_if_the_server_refuses_one_job_none_is_stored(driver: Driver, client: Client):
    before = client.jobs(limit=1).jobs[0].job_id
    with pytest.raises(CallFailed, match="no shared value"):
        driver.submit_jobs([tasks.add, tasks.size_of, tasks.add], [[1, 2], [dropped(driver)], [3, 4]])
    assert client.jobs(limit=1).jobs[0].job_id == before
    assert [job.wait_complete() for job in driver.submit_jobs([tasks.add, tasks.add], [[1, 2], [3, 4]])] == [
        JobStatus.Succeeded,
        JobStatus.Succeeded,
    ]


def test_jobs_of_more_than_a_thousand_tasks_are_sent_in_parts_and_cancelled_if_a_later_part_is_refused(
    driver: Driver, client: Client
):
    many = group([tasks.add] * 700)
    args = [[1, 2] * 700, [1, 2] * 700]
    jobs = driver.submit_jobs([many, many, tasks.add], [*args, [5, 6]])
    assert len({job.id for job in jobs}) == 3
    assert jobs[2].wait_complete() is JobStatus.Succeeded
    assert jobs[2].get_results() == (11,)
    for job in jobs:
        job.cancel()
    newest = client.jobs(limit=1).jobs[0].job_id
    with pytest.raises(CallFailed, match="no shared value"):
        driver.submit_jobs([many, many, tasks.size_of], [*args, [dropped(driver)]])
    stored = client.jobs(limit=1).jobs[0]
    assert stored.job_id != newest
    assert client.job(stored.job_id).wait().state == "CANCELLED"


def test_a_lost_answer_does_not_store_jobs_twice(driver: Driver, client: Client, monkeypatch: pytest.MonkeyPatch):
    """The client repeats the call with the same request key."""
    transport = driver.client.transport
    call, keys = transport.call, []

    def twice(method: str, path: str, **options: Any) -> Any:
        if path.endswith("/jobs/batch"):
            keys.append(options["key"])
            call(method, path, **options)  # the server has stored the jobs, and the answer was lost
        return call(method, path, **options)

    monkeypatch.setattr(transport, "call", twice)
    jobs = driver.submit_jobs([tasks.add, tasks.add], [[1, 2], [3, 4]])
    assert [client.jobs(limit=3).jobs[at].job_id for at in (0, 1)] == [job.id for job in reversed(jobs)]
    assert not {job.job_id for job in client.jobs(limit=3).jobs[2:]} & {job.id for job in jobs}
    assert len(keys) == 1


# ---------------------------------------------------------------- shapes


def shape(graph: TaskGraph) -> list[tuple[str, list[Any]]]:
    return [(node.function.__name__, [one and tuple(one) for one in node.sources]) for node in graph.nodes]


def test_groups_and_chains_keep_the_order_of_inputs_and_outputs():
    both = group([tasks.add, tasks.double])
    assert shape(both) == [("add", [None, None]), ("double", [None])]
    assert [one.name for one in both.inputs] == ["x", "y", "x"]
    chained = chain(both, tasks.swap)
    assert shape(chained)[2:] == [("swap", [(0, 0), (1, 0)])]
    assert [(tuple(source), annotation) for source, annotation in chained.outputs] == [((2, 0), Int8), ((2, 1), Int8)]
    twice = group([chained, chained])
    assert shape(twice)[3:] == [("add", [None, None]), ("double", [None]), ("swap", [(3, 0), (4, 0)])]
    assert shape(chain(tasks.swap, group([tasks.double, tasks.double])))[1:] == [
        ("double", [(0, 0)]), ("double", [(0, 1)]),
    ]  # fmt: skip
    assert shape(chain(chain(tasks.double, tasks.double), tasks.double))[2] == ("double", [(1, 0)])


@pytest.mark.parametrize(
    ("parent", "child", "words"),
    [
        (tasks.swap, tasks.double, "has 2 outputs, the second takes 1"),
        (tasks.done, tasks.double, "output 0 is bool, x takes int8"),
        (tasks.write, tasks.double, "has 0 outputs"),
    ],
)
def test_a_chain_that_does_not_fit_is_refused(parent, child, words):
    with pytest.raises(TypeError, match=words):
        chain(parent, child)


def test_an_empty_group_and_what_is_no_function_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        group([])
    with pytest.raises(TypeError):
        group([3])


def bad_list(_: TaskContext, x: list) -> Int64: ...  # type: ignore[empty-body]
def bad_star(_: TaskContext, *x: Int64) -> Int64: ...  # type: ignore[empty-body]
def bad_result(_: TaskContext, x: Int64): ...
def bad_second(x: Int64, _: TaskContext) -> Int64: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("function", [bad_list, bad_star, bad_result, bad_second])
def test_functions_whose_types_cannot_be_sent_are_refused(function):
    with pytest.raises(TypeProblem):
        signature_of(function)


def test_the_context_is_no_parameter_of_the_signature():
    signature = signature_of(tasks.add)
    assert (signature.text, signature.takes_context) == ("add(x:int8,y:int8)->int8", True)
    assert signature.call(tasks.add, [1, 2]) == 3


# ---------------------------------------------------------------- the documentation


def test_the_program_of_the_documentation_runs(server: LiveServer, client: Client, tmp_path: Path):
    text = (Path(__file__).parents[2] / "docs" / "spider.md").read_text()
    program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / "word_lengths.py").write_text(program)
    env = {
        "MYRMIDON_SERVER": server.url,
        "MYRMIDON_TOKEN": server.token,
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "word_lengths.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=HANG_S,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "(11, 110)\n(7,)\n"), done.stderr
