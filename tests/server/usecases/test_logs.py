"""Stored logs as readers get them: the secret is masked in every range, however the bytes were stored."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from myrmidon.model.secret_masking import SecretForms
from myrmidon.server.usecases.logs import LogReader, RunLog, missing_line, read_range
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import log as logs
from myrmidon.store.tables.log import STDERR, STDOUT

SECRET = b"correct-horse\nbattery-staple\n"
WHOLE = b"one correct-horse\nbattery-staple two battery-staple correct-hors"
SHOWN = b"one " + b"*" * 28 + b" two " + b"*" * 14 + b" correct-hors"
ENDED = SHOWN[:-12] + b"*" * 12
TASK, RUN = 7, 1
UNLIMITED = (1 << 20, 1 << 20)


def store(db, pieces, *, stream=STDOUT, limits=UNLIMITED):
    def append(tx):
        for offset, content in pieces:
            logs.append(tx, TASK, RUN, stream=stream, offset=offset, content=content, limits=limits)

    db.write(append)


def a_log(*, growing=False, secret=SECRET):
    return RunLog(TASK, RUN, growing, SecretForms(secret) if secret else None)


def read(db, log, *, offset=0, limit=1 << 20, streams=(STDOUT,)):
    return db.read(lambda tx: read_range(tx, log, streams=streams, offset=offset, limit=limit))


def pieces_of(whole, cuts):
    return [(a, whole[a:b]) for a, b in pairwise(sorted({0, len(whole), *cuts})) if a < b]


def in_steps(db, log, sizes):
    """The log read from its start in ranges of these sizes, as a client does it."""
    got, offset = b"", 0
    for size in sizes:
        one = read(db, log, offset=offset, limit=size)
        got, offset = got + one.content, one.next_offset
    return got + read(db, log, offset=offset).content


SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
CUTS = st.lists(st.integers(0, len(WHOLE)), max_size=12)
SIZES = st.lists(st.integers(1, 20), max_size=20)


@SETTINGS
@given(cuts=CUTS, sizes=SIZES, offset=st.integers(0, len(WHOLE)), limit=st.integers(1, len(WHOLE)))
def test_ranges_of_any_size_from_any_offset_show_the_masked_log(sqlite_db, cuts, sizes, offset, limit):
    sqlite_db.write(lambda tx: logs.delete(tx, [TASK]))
    store(sqlite_db, pieces_of(WHOLE, cuts))
    one = read(sqlite_db, a_log(), offset=offset, limit=limit)
    assert (one.content, one.length) == (ENDED[offset : offset + limit], len(WHOLE))
    assert in_steps(sqlite_db, a_log(), sizes) == ENDED


@SETTINGS
@given(cuts=CUTS, sizes=SIZES)
def test_a_log_that_grows_between_reads_is_shown_like_the_whole(sqlite_db, cuts, sizes):
    sqlite_db.write(lambda tx: logs.delete(tx, [TASK]))
    got, offset = b"", 0
    for piece in pieces_of(WHOLE, cuts):
        store(sqlite_db, [piece])
        for size in [*sizes, len(WHOLE)]:
            one = read(sqlite_db, a_log(growing=True), offset=offset, limit=size)
            got, offset = got + one.content, one.next_offset
            assert offset <= one.length
        assert offset == one.length  # a client that asks until it has all is not kept asking
    assert got == SHOWN[:-12]
    assert got + read(sqlite_db, a_log(), offset=offset).content == ENDED


@SETTINGS
@given(data=st.data(), cuts=CUTS)
def test_a_follower_of_pieces_in_any_order_gets_the_masked_log(sqlite_db, data, cuts):
    """A gap that may still be filled ends what is known: the bytes before it can begin a secret."""
    sqlite_db.write(lambda tx: logs.delete(tx, [TASK]))
    got = b""
    for piece in data.draw(st.permutations(pieces_of(WHOLE, cuts))):
        store(sqlite_db, [piece])
        got += follow(sqlite_db, a_log(growing=True), len(got), data.draw(st.integers(1, 40)))
    got += follow(sqlite_db, a_log(growing=True), len(got), 100)
    assert got == SHOWN[:-12]
    assert got + follow(sqlite_db, a_log(), len(got), 100) == ENDED


def follow(db, log, offset, size):
    parts = db.read(lambda tx: LogReader(tx, log, STDOUT).read(offset, size, until_gap=log.growing))
    assert [part.start for part in parts[:1]] in ([], [offset])
    return b"".join(part.content for part in parts)


@SETTINGS
@given(size=st.integers(1, 20), sizes=SIZES)
def test_nothing_of_a_secret_is_shown_beside_a_cut(sqlite_db, size, sizes):
    sqlite_db.write(lambda tx: logs.delete(tx, [TASK]))
    whole = SECRET * 20
    cuts = list(range(0, len(whole), size))
    store(sqlite_db, pieces_of(whole, cuts), limits=(100, 100))
    info = sqlite_db.read(lambda tx: logs.info(tx, TASK, RUN, STDOUT))
    marker = missing_line(info.cut_to - info.cut_from)
    shown = in_steps(sqlite_db, a_log(), sizes)
    head, tail = shown.split(marker)
    assert (len(head), len(tail)) == (info.cut_from, len(whole) - info.cut_to)
    assert not (head + tail).strip(b"*\n")


def test_the_end_of_stdout_and_the_begin_of_stderr_are_not_one_text(sqlite_db):
    store(sqlite_db, [(0, b"say correct-")])
    store(sqlite_db, [(0, b"horse!")], stream=STDERR)
    both = read(sqlite_db, a_log(), streams=(STDOUT, STDERR))
    assert (both.content, both.length, both.next_offset) == (b"say ********horse!", 18, 18)


def test_a_log_without_a_secret_is_read_with_no_further_statement(sqlite_db):
    store(sqlite_db, [(0, WHOLE)])
    statements = []

    class Counting:
        def __init__(self, tx):
            self._tx = tx

        def __getattr__(self, name):
            statements.append(name)
            return getattr(self._tx, name)

    def count(log):
        statements.clear()
        sqlite_db.read(lambda tx: read_range(cast("Tx", Counting(tx)), log, streams=[STDOUT], offset=30, limit=5))
        return len(statements)

    assert count(a_log(secret=None)) == 3 < count(a_log())


@pytest.mark.parametrize("growing", [True, False])
def test_an_empty_log_is_empty(sqlite_db, growing):
    assert read(sqlite_db, a_log(growing=growing)).content == b""
