from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.model import ids
from myrmidon.model.errors import BrokenPromise, InvalidRequest
from myrmidon.model.ids import EPOCH_MS, IdSource, next_run_number, parse_id, show_run, show_task

NOW = (EPOCH_MS + 1_000_000) * 1000


def test_the_layout_is_time_slot_counter_version():
    source = IdSource(5)
    first, second = source.next(NOW), source.next(NOW + 999)
    assert first == 1_000_000 << 20 | 5 << 14 | 0 << 4 | 1
    assert second == 1_000_000 << 20 | 5 << 14 | 1 << 4 | 1


def test_the_known_example_is_shown_with_a_byte_for_the_run():
    example = (((26 * 60 + 4 + 60) * 60 + 5) * 1000 << 20) | 0x0088 << 4 | 1
    assert show_run(example, 0x1F).endswith("0088" + "1" + "1f")
    assert show_task(example) == f"{example:x}00"


def test_the_epoch_is_2010():
    assert EPOCH_MS == 40 * 365 * 86_400_000 + 10 * 86_400_000


def test_ids_grow_when_the_clock_steps_back():
    source = IdSource(0)
    times = [NOW, NOW - 5_000_000, NOW - 10**12, -1, 0, NOW]
    made = [source.next(now) for now in times]
    assert made == sorted(set(made))


def test_ids_grow_across_slots_when_time_does():
    early, late = IdSource(63).next(NOW), IdSource(0).next(NOW + 1000)
    assert early < late


def test_a_burst_runs_ahead_of_the_clock_and_is_overtaken_by_it():
    source = IdSource(1)
    burst = source.block(3000, NOW)
    assert burst == sorted(set(burst))
    assert ids.created_ms(burst[-1]) == EPOCH_MS + 1_000_000 + 2999 // 1024
    assert ids.created_ms(source.next(NOW + 10_000)) == EPOCH_MS + 1_000_010


def test_a_source_goes_on_after_the_last_id_of_its_slot():
    last = IdSource(7).block(2000, NOW)[-1]
    assert IdSource(7, last).next(NOW) == IdSource(7, last).next(NOW - 10**9) > last


def test_a_million_ids_of_two_slots_are_unique():
    one, two = IdSource(0), IdSource(1)
    made = set()
    for step in range(100):
        made.update(one.block(5000, NOW + step * 1000))
        made.update(two.block(5000, NOW + step * 1000))
    assert len(made) == 1_000_000


def test_threads_share_a_source_without_doubles():
    source, made = IdSource(3), []
    threads = [threading.Thread(target=lambda: made.extend([source.next(NOW) for _ in range(2000)])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8000


def test_an_empty_block_uses_up_nothing():
    source = IdSource(0)
    before = source.next(NOW)
    assert source.block(0, NOW) == []
    assert source.next(NOW) == before + 16


def test_ids_of_a_clock_before_2010_are_shown_and_parsed_back():
    made = IdSource(0).next(0)
    assert len(show_task(made)) == 12
    assert parse_id(show_task(made)) == (made, 0)
    assert IdSource(0, made).next(0) > made


@pytest.mark.parametrize("slot", [-1, 64])
def test_a_slot_has_six_bits(slot):
    with pytest.raises(ValueError, match="slot"):
        IdSource(slot)


def test_ids_fit_in_63_bits_until_they_end():
    end = (EPOCH_MS + (1 << 43) - 1) * 1000
    assert IdSource(63).next(end) < 1 << 63
    with pytest.raises(BrokenPromise, match="2288"):
        IdSource(0).next(end + 1000)


@given(st.integers(0, 63), st.integers(NOW, NOW + 10**15), st.sampled_from([0, 1, 15, 17, 255]))
def test_what_is_shown_is_parsed_back(slot, now, run):
    made = IdSource(slot).next(now)
    assert parse_id(show_run(made, run)) == (made, run)
    assert parse_id(show_task(made)) == (made, 0)


WRONG_IDS = [
    "",
    "00",
    "100 ",
    "123",
    "12345678100",  # eleven digits
    "5cee488008200",  # version nibble 2
    "5cee4880088110",  # run 16
    "5cee48800881f0",  # run 240
    "5CEE4880088100",
    "05cee4880088100",
    "ffffffffffffffff100",
    "8000000000000001" + "00",
    "xyz100",
    "5cee4880088100\0",
    "٣" * 6 + "100",
    "1" * 100_000,
    12,
    None,
    b"5cee4880088100",
]


@pytest.mark.parametrize("text", WRONG_IDS, ids=lambda t: repr(t)[:20])
def test_what_is_not_an_id_is_refused(text):
    with pytest.raises(InvalidRequest) as refused:
        parse_id(text, "task_id")
    (problem,) = refused.value.problems
    assert problem.path == "task_id"
    assert len(problem.value) <= 100


def test_run_numbers_divisible_by_16_are_skipped_up_to_255():
    numbers, n = [], 0
    while (following := next_run_number(n)) is not None:
        numbers.append(following)
        n = following
    assert numbers == [k for k in range(1, 256) if k % 16]
    assert len(numbers) == 240
    assert next_run_number(254) == 255
    assert next_run_number(255) is None


def test_only_task_ids_end_in_zero():
    made = IdSource(0).next(NOW)
    numbers = {next_run_number(n) for n in range(256)} - {None}
    assert not any(show_run(made, n).endswith("0") for n in numbers if n)
    assert show_task(made).endswith("0")


def test_first_id_at_bounds_what_was_made_then():
    before, then = IdSource(63).block(1024, NOW - 1)[-1], IdSource(0).next(NOW)
    assert before < ids.first_id_at(NOW) <= then
    assert ids.first_id_at(-5) == 1
    assert ids.created_ms(then) == NOW // 1000
