"""Logs: bytes by offset, in any order, any number of times, and cut in the middle when there are too many."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from myrmidon.model.errors import WrongState
from myrmidon.scheduler.report import LogBytes, append_log, check_log
from myrmidon.store.tables import log as logs
from tests.builders import RULES

SMALL = structs.replace(RULES, log_head=10, log_tail=10)


def bytes_at(offset, content, **given):
    return LogBytes(
        **{"task_id": 1, "run": 1, "token": "t", "stream": 0, "offset": offset, "content": content, **given}
    )


def write(w, offset, content, rules=RULES, **given):
    return w.db.write(lambda tx: append_log(tx, bytes_at(offset, content, **given), rules))


def read(w, start=0, length=1 << 20, stream=0):
    return [(p.start, p.content, p.missing) for p in w.read(logs.read, 1, 1, stream=stream, start=start, length=length)]


def text(w, **given):
    return b"".join(content for _, content, _ in read(w, **given))


def test_bytes_are_read_as_they_were_written(world):
    write(world, 0, b"hello ")
    assert write(world, 6, b"world\n").length == 12
    assert text(world) == b"hello world\n"


def test_binary_output_survives(world):
    write(world, 0, bytes(range(256)))
    assert text(world) == bytes(range(256))


def test_the_two_streams_are_kept_apart(world):
    write(world, 0, b"out")
    write(world, 0, b"err", stream=1)
    assert (text(world), text(world, stream=1)) == (b"out", b"err")


def test_the_same_bytes_again_change_nothing(world):
    write(world, 0, b"abc")
    assert (write(world, 0, b"abc").length, text(world), world.count("log_chunks")) == (3, b"abc", 1)


def test_bytes_may_come_out_of_order(world):
    write(world, 3, b"def")
    assert read(world) == [(3, b"def", 3)]
    write(world, 0, b"abc")
    assert text(world) == b"abcdef"


def test_overlapping_bytes_are_joined(world):
    write(world, 0, b"abcd")
    write(world, 6, b"gh")
    write(world, 2, b"cdefghij")
    assert text(world) == b"abcdefghij"


def test_bytes_that_are_there_are_not_replaced(world):
    write(world, 0, b"abc")
    write(world, 0, b"XYZW")
    assert text(world) == b"abcW"


def test_a_part_of_a_log_can_be_read(world):
    write(world, 0, b"abcdef")
    write(world, 6, b"ghij")
    assert read(world, start=4, length=4) == [(4, b"ef", 0), (6, b"gh", 0)]


def test_an_empty_stretch_is_welcome(world):
    assert (write(world, 0, b"").length, read(world)) == (0, [])


def test_a_log_that_is_too_long_keeps_its_head_and_its_tail(world):
    for at in range(0, 50, 5):
        info = write(world, at, b"%05d" % at, SMALL)
    assert (info.length, info.cut_from, info.cut_to) == (50, 10, 40)
    assert read(world) == [(0, b"00000", 0), (5, b"00005", 0), (40, b"00040", 30), (45, b"00045", 0)]


def test_bytes_of_the_middle_that_come_late_stay_cut(world):
    for at in (0, 5, 40, 45):
        write(world, at, b"%05d" % at, SMALL)
    before = world.read(logs.info, 1, 1, 0)
    write(world, 20, b"late!", SMALL)
    assert (world.read(logs.info, 1, 1, 0), [start for start, _, _ in read(world)]) == (before, [0, 5, 40, 45])


def test_bytes_of_the_head_that_come_late_are_kept(world):
    for at in (5, 20, 25, 30, 35, 40, 45):
        write(world, at, b"%05d" % at, SMALL)
    write(world, 0, b"first", SMALL)
    assert read(world)[0] == (0, b"first", 0)


def test_a_stretch_over_the_cut_keeps_both_ends(world):
    for at in range(0, 50, 5):
        if at != 5:
            write(world, at, b"%05d" % at, SMALL)
    write(world, 5, b"-" * 40, SMALL)
    parts = read(world)
    assert (parts[1][0], parts[1][1][:1]) == (5, b"-")
    assert b"00040" in text(world)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_is_not_cut_is_what_was_written(lite, data):
    """Any order, overlaps and repeats: what is stored is the log, and only the marked middle is missing."""
    lite.db.write(lambda tx: logs.delete(tx, [1]))
    whole = bytes(data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=80)))
    cuts = sorted({0, len(whole), *data.draw(st.lists(st.integers(0, len(whole)), max_size=12))})
    pieces = [(a, whole[a:b]) for a, b in pairwise(cuts)]
    for at, piece in data.draw(st.permutations([*pieces, *pieces])):
        info = write(lite, at, piece, SMALL)
    stored = dict.fromkeys(range(len(whole)))
    for start, content, _ in read(lite):
        for i, byte in enumerate(content):
            assert whole[start + i] == byte
            stored.pop(start + i)
    assert info.length == len(whole)
    assert all(info.cut_from is not None and info.cut_from <= lost < info.cut_to for lost in stored)


@pytest.mark.parametrize("given", [{"offset": -1}, {"stream": 2}])
def test_bytes_that_belong_nowhere_are_refused(lite, given):
    with pytest.raises(WrongState):
        lite.db.write(lambda tx: append_log(tx, structs.replace(bytes_at(0, b"x"), **given)))
    assert lite.count("log_chunks") == 0


def test_only_the_bot_of_a_run_may_add_to_its_log(world):
    world.bot("b1")
    world.submit()
    run = world.take("b1")
    mine = LogBytes(task_id=run.task_id, run=run.run, token=run.token, stream=0, offset=0, content=b"x")
    forged = structs.replace(mine, token="guess")
    asked = [
        ("b1", mine),
        ("b2", mine),
        ("b1", forged),
        ("b1", structs.replace(mine, run=2)),
        ("b1", bytes_at(0, b"x")),
    ]
    assert [world.read(check_log, bot, item) for bot, item in asked] == [True, False, False, False, False]


def test_late_bytes_of_an_ended_run_are_still_its_log(world):
    world.bot("b1")
    world.submit()
    run = world.take("b1")
    world.finish(run)
    late = LogBytes(task_id=run.task_id, run=run.run, token=run.token, stream=0, offset=0, content=b"x")
    assert world.read(check_log, "b1", late)
