"""When output was written and in which order: marks in the bot, on their way, and in the server."""

from __future__ import annotations

from functools import partial

import pytest

from myrmidon.bot.storage import log_marks
from myrmidon.bot.storage.log_marks import MAX_PENDING, MIN_INTERVAL, LogMarks
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import clock
from myrmidon.server.botapi.conversion import parse_marks
from myrmidon.server.botapi.messages import MAX_MARKS
from myrmidon.store.engine.db import Db
from myrmidon.store.tables import log, log_times
from myrmidon.store.tables.log_times import Mark

NOW = 1_767_225_600_000_000


def test_a_mark_is_made_when_time_has_passed_or_the_stream_changes():
    marks = LogMarks()
    marks.add(0, 0, NOW)
    marks.add(0, 10, NOW + MIN_INTERVAL - 1)
    marks.add(1, 0, NOW + MIN_INTERVAL - 1)
    marks.add(0, 20, NOW + MIN_INTERVAL - 1)
    marks.add(0, 30, NOW + 3 * MIN_INTERVAL)
    assert [offset for _, offset in marks.pending[0]] == [0, 20, 30]
    assert [offset for _, offset in marks.pending[1]] == [0]
    times = [at for stream in marks.pending for at, _ in stream]
    assert len(set(times)) == len(times), "so that the times are the order"
    marks.remove(0, 20)
    assert [offset for _, offset in marks.before(0, 30)] == [20]


def test_a_clock_that_goes_back_does_not_change_the_order():
    marks = LogMarks()
    for number in range(5):
        marks.add(number % 2, number, NOW - number * 1000)
    assert [at for at, _ in sorted(marks.pending[0] + marks.pending[1])] == [NOW + n for n in range(5)]


def test_many_marks_are_limited_and_the_server_takes_them_all():
    marks = LogMarks()
    for number in range(4 * MAX_PENDING):
        marks.add(number % 2, 1 << 30, NOW + number)
    assert len(marks.pending[0]) == MAX_PENDING == MAX_MARKS
    text = log_marks.header(marks.pending[0])
    assert len(text) < 8_000, "a proxy takes so long a header"
    assert [(mark.at, mark.offset) for mark in parse_marks(text)] == marks.pending[0]


@pytest.mark.parametrize(
    "text",
    ["", "x", "1", "1.", ".1", "1.2,", "1.-2", "1.2.3", "9" * 19 + ".1", "1.2\n", ",".join(["9" * 18 + ".1"] * 20)],
)
def test_marks_that_make_no_sense_are_none(text):
    assert parse_marks(text) == []


def test_the_spool_marks_what_is_written_and_forgets_what_is_delivered(tmp_path, monkeypatch):
    spool = LogSpool(str(tmp_path))
    monkeypatch.setattr(clock, "server_time", lambda: None)
    spool.append("r1", "t", 0, b"before the first handshake", 0)
    assert spool.marks("r1", 0, 99) == []
    times = iter(range(100))
    monkeypatch.setattr(clock, "server_time", lambda: 1000.0 + next(times))
    spool.append("r2", "t", 0, b"abc", 0)
    spool.append("r2", "t", 1, b"de", 0)
    spool.append("r2", "t", 0, b"f", 3)
    assert spool.marks("r2", 0, 4) == [(1_000_000_000, 0), (1_002_000_000, 3)]
    assert spool.marks("r2", 0, 3) == [(1_000_000_000, 0)]
    assert spool.marks("r2", 1, 2) == [(1_001_000_000, 0)]
    spool.remove_delivered("r2", 0, 3)
    assert spool.marks("r2", 0, 4) == [(1_002_000_000, 3)]
    spool.remove("r2")
    assert spool.run_marks.keys() <= {"r1"}


def test_marks_are_stored_once_read_in_order_and_deleted_with_their_log(db: Db):
    add = partial(log_times.add, task_id=7, run=1)
    for _ in range(2):  # a reply was lost
        db.write(partial(add, stream=0, marks=[Mark(10, 0), Mark(30, 5)]))
        db.write(partial(add, stream=1, marks=[Mark(20, 0)]))
    db.write(partial(add, stream=0, marks=[Mark(40, 9)]))
    db.write(partial(add, stream=0, marks=[]))
    read = partial(log_times.page, task_id=7, run=1)
    marks, more = db.read(partial(read, after=0, n=10))
    assert [(stream, mark.at, mark.offset) for stream, mark in marks] == [
        (0, 10, 0),
        (1, 20, 0),
        (0, 30, 5),
        (0, 40, 9),
    ]
    assert more is None
    first, more = db.read(partial(read, after=0, n=2))
    rest, end = db.read(partial(read, after=more, n=2))
    assert (len(first), more, [mark.at for _, mark in rest], end) == (3, 20, [40], None)
    assert db.read(partial(log_times.page, task_id=7, run=2, after=0, n=2)) == ([], None)
    db.write(partial(log.delete, task_ids=[7]))
    assert db.read(partial(read, after=0, n=10)) == ([], None)
