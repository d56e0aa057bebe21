"""Small writes are run before large ones, and no large one waits for ever."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from myrmidon.store.engine.group_commit import BULK, SMALL, SMALL_TURN_S, Write, WriteQueue
from tests.deadline import HANG_S

QUICK_S = SMALL_TURN_S / 10


@pytest.fixture
def queue() -> WriteQueue:
    return WriteQueue()


def a_write(name: str, size: int) -> Write[Any]:
    return Write(lambda _: name, size)


def put(queue: WriteQueue, **sizes: int) -> None:
    for name, size in sizes.items():
        queue.put(a_write(name, size))


def name_of(write: Write[Any] | None) -> str | None:
    return write.fn(None) if write is not None else None  # type: ignore[arg-type]


def taken(queue: WriteQueue, run_s: float = QUICK_S) -> list[str | None]:
    """The names of all writes in the order in which they come, if each takes this long."""
    names = []
    while (write := queue.take()) is not None:
        names.append(name_of(write))
        queue.record_run(write, run_s)
    return names


def test_small_writes_come_before_large_ones_and_each_kind_in_order_of_arrival(queue: WriteQueue) -> None:
    put(queue, chunk=200, submit=1, report=SMALL, reports=SMALL + 1, claim=3)
    assert taken(queue) == ["submit", "report", "claim", "chunk", "reports"]


def test_a_small_write_that_arrives_later_is_next(queue: WriteQueue) -> None:
    put(queue, first=200, second=200)
    assert name_of(queue.take()) == "first"
    put(queue, submit=1)
    assert taken(queue) == ["submit", "second"]


def test_a_large_write_has_its_turn_when_small_ones_have_taken_theirs(queue: WriteQueue) -> None:
    put(queue, one=1, two=1, three=1, four=1, large=200, larger=1000)
    assert taken(queue, SMALL_TURN_S * 0.6) == ["one", "two", "large", "three", "four", "larger"]


def test_large_writes_are_run_however_many_small_ones_arrive(queue: WriteQueue) -> None:
    put(queue, **{f"chunk-{number}": 200 for number in range(10)})
    seen = []
    for number in range(1_000):
        put(queue, **{f"small-{number}": 1})
        write = queue.take()
        assert write is not None
        seen.append(name_of(write))
        queue.record_run(write, QUICK_S)
    assert [name for name in seen if str(name).startswith("chunk")] == [f"chunk-{number}" for number in range(10)]


def test_a_bulk_write_joins_no_group_and_stays_the_next(queue: WriteQueue) -> None:
    put(queue, chunk=BULK, reports=BULK - 1)
    assert queue.take(to_join=True) is None
    put(queue, submit=1)
    assert name_of(queue.take(to_join=True)) == "submit"
    assert taken(queue) == ["chunk", "reports"]


def test_a_large_write_that_is_not_bulk_joins_a_group(queue: WriteQueue) -> None:
    put(queue, reports=BULK - 1)
    assert name_of(queue.take(to_join=True)) == "reports"


def test_cancelled_writes_of_both_kinds_are_left_out(queue: WriteQueue) -> None:
    writes = {name: a_write(name, size) for name, size in (("a", 1), ("b", 1), ("c", 200), ("d", 200))}
    for write in writes.values():
        queue.put(write)
    assert writes["a"].future.cancel()
    assert writes["c"].future.cancel()
    assert taken(queue) == ["b", "d"]


def test_what_waits_of_both_kinds_is_given_out_before_the_end(queue: WriteQueue) -> None:
    put(queue, chunk=200, submit=1)
    queue.close()
    assert [name_of(queue.take(wait=True)) for _ in range(3)] == ["submit", "chunk", None]
    assert queue.take(wait=True) is None


def test_a_waiting_thread_gets_the_write_that_arrives(queue: WriteQueue) -> None:
    names: list[str | None] = []
    thread = threading.Thread(target=lambda: names.append(name_of(queue.take(wait=True))))
    thread.start()
    put(queue, chunk=200)
    thread.join(HANG_S)
    assert names == ["chunk"]


def test_a_thread_whose_only_write_was_cancelled_goes_on_waiting(queue: WriteQueue) -> None:
    cancelled = a_write("cancelled", 1)
    assert cancelled.future.cancel()
    queue.put(cancelled)
    put(queue, next=1)
    assert name_of(queue.take(wait=True)) == "next"
