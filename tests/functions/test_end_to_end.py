"""Graphs of functions on a real server with a real bot."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from myrmidon import AsyncClient, Client, TaskFailed
from myrmidon.sdk.transport import Transport
from myrmidon.store.tables.chunked_work import WHOLE
from tests.functions import remote_tasks as tasks
from tests.functions.remote_tasks import Colour, Item, Refused
from tests.live import LiveServer


def test_word_count_with_a_width_that_is_known_at_run_time_only(client: Client):
    with client.new_job("word count") as job:
        job.command(["true"])
        total = tasks.merge(job.map(tasks.count, tasks.split("a b a|b c|a"), top=2))
    assert job.result(total) == {"a": 3, "b": 2, "c": 1}
    assert job.wait().state == "SUCCEEDED"
    assert job.errors() == {}


def test_a_map_over_a_known_list_and_over_an_empty_one(client: Client):
    with client.new_job() as job:
        counts = job.map(tasks.count, ["a", "b b"])
        total = tasks.merge(counts)
        none = tasks.merge(job.map(tasks.count, []))
    assert job.result([counts, total, none]) == [[{"a": 1}, {"b": 2}], {"a": 1, "b": 2}, {}]


def test_tuples_lists_dicts_defaults_and_conversions(client: Client):
    with client.new_job() as job:
        both = tasks.two(1)
        number, text = both
        whole = tasks.joined(both)
        deep = tasks.joined((number, text), {"a": [number, 7], "b": []})
        halved = tasks.half(number)
        coming = tasks.later(number)
    assert job.result(both) == (2, "<1>")
    assert job.result(whole) == "(2, '<1>') None"
    assert job.result(deep) == "(2, '<1>') {'a': [2, 7], 'b': []}"
    assert (job.result(halved), job.result(coming)) == (1.0, 3)


def test_classes_travel_by_their_fields(client: Client):
    item = Item("pen", Colour.RED, [1.0, 2.5])
    with client.new_job() as job:
        painted = tasks.paint(tasks.paint(item, Colour.BLUE), Colour.RED)
    assert job.result(painted) == Item("pen", Colour.RED, [4.0, 10.0])


def test_large_values_go_through_files(client: Client):
    with client.new_job() as job:
        made = tasks.make(300_000)
        size = tasks.size_of(made)
        sent = tasks.size_of(b"y" * 200_000)
    assert job.result((size, sent)) == (300_000, 200_000)
    assert job.result(made) == b"x" * 300_000


def test_functions_without_output_are_ordered_by_after(client: Client, tmp_path: Path):
    file = str(tmp_path / "file")
    with client.new_job() as job:
        done = tasks.touches(file)
        seen = tasks.exists.options(after=[done])(file)
    assert job.result(seen) is True
    assert job.result(done) is None


def test_reduce_in_layers(client: Client):
    with client.new_job() as job:
        total = job.reduce(tasks.merge, job.map(tasks.count, ["a"] * 25), fan_in=4)
    assert job.result(total) == {"a": 25}


def test_commands_read_and_give_values(client: Client):
    with client.new_job() as job:
        number, _ = tasks.two(4)
        written = job.command(
            ["sh", "-c", 'echo "[\\"a b\\", \\"$0\\"]" > "$MYRMIDON_OUTPUT_DIR/0"', number], returns=list[str]
        )
        total = tasks.merge(job.map(tasks.count, written))
    assert job.result(total) == {"5": 1, "a": 1, "b": 1}


def test_an_exception_is_raised_with_its_class_traceback_bot_and_log(client: Client):
    with client.new_job() as job:
        behind = tasks.half(tasks.fails(3))
    with pytest.raises(ValueError, match="bad 3") as caught:
        job.result(behind)
    failure = caught.value
    assert isinstance(failure, TaskFailed)
    assert failure.args == ("bad 3",)
    assert failure.label == "fails"
    assert failure.bot == "worker"
    assert failure.run
    assert "raise ValueError" in failure.remote_traceback
    assert "about to fail" in failure.log_tail
    assert job.wait().state == "FAILED"
    ((what, failures),) = job.errors().items()
    assert what == f"ValueError: bad 3, raised at {failure.place}"
    assert failure.place.startswith("tests/functions/remote_tasks.py:")
    assert failure.place.endswith(" in fails")
    assert [one.label for one in failures] == ["fails"]


def test_an_exception_of_the_programs_own_class(client: Client):
    with pytest.raises(Refused) as caught:
        client.submit(tasks.refuses, 7).result()
    assert caught.value.code == 7
    assert isinstance(caught.value, TaskFailed)


def test_errors_are_grouped_by_place_and_other_branches_go_on_if_asked(client: Client):
    with client.new_job(fail_fast=False) as job:
        job.map(tasks.fails, [1, 1, 2])
        tasks.refuses(1)
        fine = tasks.half(1.0)
    assert job.result(fine) == 0.5
    assert job.wait().state == "FAILED"
    assert sorted(len(failures) for failures in job.errors().values()) == [1, 3]
    by_id = client.job(job.id).errors()
    assert sorted(len(failures) for failures in by_id.values()) == [1, 3]
    assert all(", raised at tests/functions/remote_tasks.py:" in what for what in [*job.errors(), *by_id])


def test_a_result_of_the_wrong_type_and_a_crash_have_reasons(client: Client):
    with pytest.raises(TaskFailed, match="expected int"):
        client.submit(tasks.wrong_type, 1).result()
    with pytest.raises(TaskFailed, match="signal 11"):
        client.submit(tasks.kills_itself, 1).result()


def test_a_rerun_runs_what_failed(client: Client, tmp_path: Path):
    file = tmp_path / "file"
    with client.new_job() as job:
        text = tasks.needs(str(file))
        total = tasks.count(text)
    with pytest.raises(FileNotFoundError):
        job.result(total)
    job.wait()
    file.write_text("a a")
    job.rerun()
    assert job.result(total) == {"a": 2}


def test_a_function_extends_its_job_and_delegates_its_result(client: Client):
    with client.new_job() as job:
        doubled = tasks.half(tasks.factorial(5))
    assert job.result(doubled) == 5.0


def test_map_submit_and_as_completed_without_a_graph(client: Client):
    assert list(client.map(tasks.count, ["a", "b b"], top=1)) == [{"a": 1}, {"b": 2}]
    futures = [client.submit(tasks.half, number) for number in (1.0, 2.0)]
    assert {future.result() for future in client.as_completed(futures)} == {0.5, 1.0}
    results = client.map(tasks.needs, ["/nowhere", "/dev/null"])
    with pytest.raises(FileNotFoundError):
        next(results)


def test_many_calls_become_jobs_that_are_stored_in_one_transaction_each(client: Client):
    mapped = [client.submit(tasks.half, 2.0) for _ in range(1_500)]
    assert sum(future.result() for future in mapped) == 1_500
    by_job = Counter(future.job_id for future in mapped)  # type: ignore[attr-defined] # of this client's futures
    assert max(by_job.values()) <= WHOLE


def test_the_async_client(server: LiveServer, client: Client):
    async def program() -> tuple[object, ...]:
        async with AsyncClient(Transport(server.url, server.token)) as asynchronous:
            async with asynchronous.new_job("a") as job:
                total = tasks.merge(job.map(tasks.count, ["a", "b"]))
            mapped = [one async for one in asynchronous.map(tasks.half, [1.0, 2.0])]
            single, coming = await asyncio.gather(
                asynchronous.submit(tasks.half, 3.0), asynchronous.submit(tasks.later, 1)
            )
            return await job.result(total), mapped, single, coming

    assert asyncio.run(program()) == ({"a": 1, "b": 1}, [0.5, 1.0], 1.5, 2)


def test_cached_calls_do_not_run_again(client: Client, tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("one")
    cached = tasks.needs.options(cache=True)
    assert client.submit(cached, str(file)).result() == "one"
    file.write_text("two")
    assert client.submit(cached, str(file)).result() == "one"
    assert client.submit(tasks.needs, str(file)).result() == "two"


def test_a_cached_function_that_submits_says_what_to_remove_and_works_without_it(client: Client):
    cached = tasks.factorial.options(cache="1h")
    with client.new_job() as job:
        refused = cached(5)
    with pytest.raises(TaskFailed, match=r"remove cache, or call it with \.options\(cache=False\)") as failure:
        job.result(refused)
    assert "context().submit" in failure.value.remote_traceback, "the line that submits"
    with client.new_job() as job:
        done = cached.options(cache=False)(5)
    assert job.result(done) == 10
