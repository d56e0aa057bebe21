"""Shared values as arguments of functions, on a real server with a real bot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from myrmidon import AsyncClient, Client, GraphError, HandleMisuse, Shared, WiringError
from myrmidon.sdk.errors import CallFailed, NotFound
from myrmidon.sdk.transport import Transport
from tests.functions import remote_tasks as tasks
from tests.functions.live import a_client
from tests.live import LiveServer

TABLE = {f"word {number}": number for number in range(1_000)}
WORDS = list(TABLE)[:20]


def test_a_value_is_stored_once_and_read_by_a_map_a_job_and_a_single_call(client: Client):
    with client.share(TABLE) as table:
        assert list(client.map(tasks.look_up, WORDS, table)) == list(range(20))
        assert client.submit(tasks.look_up, "word 7", table).result() == 7
        with client.new_job() as job:
            known = job.map(tasks.look_up, WORDS, table)
            later = job.map(tasks.look_up, tasks.split("word 1|word 2"), table)
        assert job.result((known, later)) == (list(range(20)), [1, 2])
        listed = client.shared_values(job=job.id).values
        assert [(one.type, one.num_groups) for one in listed] == [("Map<string,int64>", 1)]
    kept = client.shared_value(listed[0].id)
    assert (kept.groups, kept.value.num_jobs > 0) == ([], True), "jobs keep what their tasks read"


def test_the_last_reference_deletes_the_value(client: Client):
    shared = client.share([1.5, 2.5])
    assert (shared.get(), shared.type) == ([1.5, 2.5], "List<double>")
    assert shared.drop() is True
    assert shared.drop() is False
    with pytest.raises(NotFound):
        shared.get()
    with pytest.raises(CallFailed) as refused:
        client.submit(tasks.total_of, shared.ref).result()
    assert refused.value.code == "unknown_value"


def test_a_value_that_is_too_large_is_refused_before_it_is_sent(client: Client):
    with pytest.raises(ValueError, match=r"the value has 65.0 MiB; at most 64 MiB; share it in pieces"):
        client.share(bytes(65 << 20))


def test_a_value_fits_as_a_result_would(client: Client):
    with client.share([1, 2, 3], localities=["10.0.0.1"]) as numbers, client.new_job() as job:
        total = tasks.total_of(numbers, numbers)  # type: ignore[arg-type]
    assert job.result(total) == 12


def test_the_type_is_that_of_the_value_or_the_given_one(client: Client):
    cases: list[tuple[object, Any, str]] = [
        (7, None, "int64"),
        ((1, "a"), None, "Tuple<int64,string>"),
        ([], list[str], "List<string>"),
        ({"a": [1]}, None, "Map<string,List<int64>>"),
        (None, int | None, "Optional<int64>"),
        (tasks.Item("pen", tasks.Colour.RED, [1.0]), None, "tests.functions.remote_tasks.Item"),
    ]
    for value, annotation, expected in cases:
        with client.share(value, annotation) as ref:
            shared: object = ref
            assert isinstance(shared, Shared)
            assert (shared.type, shared.get()) == (expected, value)


@pytest.mark.parametrize(
    ("value", "annotation"), [([], None), ({}, None), ([1, "a"], None), (None, None), (object(), None), ("a", int)]
)
def test_a_value_without_one_type_is_refused_before_it_is_sent(client: Client, value: object, annotation: object):
    before = len(client.shared_values().values)
    with pytest.raises(TypeError):
        client.share(value, annotation)
    assert len(client.shared_values().values) == before


def test_a_reference_that_is_used_as_a_value_is_refused(client: Client):
    with client.share({"a": 1}) as table:
        for misuse in (lambda: table["a"], lambda: list(table), lambda: bool(table), lambda: tasks.look_up("a", table)):
            with pytest.raises(HandleMisuse, match="argument of a task function"):
                misuse()
        with pytest.raises(WiringError, match="expected string"):
            client.submit(tasks.count, table)  # type: ignore[call-overload]
        with pytest.raises(WiringError):
            client.submit(tasks.merge, [table])
        with pytest.raises(WiringError, match="word of a command"), client.new_job() as job:
            job.command(["echo", table])


def test_asyncio_programs_share_too(server: LiveServer, client: Client):
    async def story() -> list[int]:
        async with AsyncClient(Transport(server.url, server.token)) as own, await own.share(TABLE) as table:
            return [number async for number in own.map(tasks.look_up, WORDS[:3], table)]

    assert asyncio.run(story()) == [0, 1, 2]


def test_a_value_of_another_group_is_refused(server: LiveServer, client: Client):
    client.create_group("neighbours")
    with a_client(server, group="neighbours") as theirs, theirs.share(TABLE) as table:
        with pytest.raises(CallFailed) as refused:
            client.submit(tasks.look_up, "word 1", table).result()
    assert refused.value.code == "unknown_value"


def test_a_function_makes_a_shared_value_that_outlives_its_job(client: Client):
    with client.new_job() as job:
        table = tasks.make_table(1_000)
        number = tasks.look_up("word 7", table)
    assert job.result(number) == 7
    with job.share(table) as shared:
        assert client.submit(tasks.look_up, "word 8", shared).result() == 8
        client.job(job.id).delete()
        assert client.submit(tasks.look_up, "word 9", shared).result() == 9


def test_only_results_of_functions_that_share_them_can_be_kept(client: Client):
    with client.new_job() as job:
        plain = tasks.two(1)
    with pytest.raises(GraphError, match="shared=True"):
        job.share(plain[0])


def test_resource_groups_are_created_listed_shown_and_deleted(client: Client):
    assert client.create_group("farm").name == "farm"
    assert {"default", "farm"} <= {group.name for group in client.groups().groups}
    shown = client.group("farm")
    assert (shown.jobs, shown.num_values, shown.deleting) == ({}, 0, False)
    client.delete_group("farm", force=True)
    while "farm" in {group.name for group in client.groups().groups}:
        pass
