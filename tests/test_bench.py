"""The benchmark runs and says what it has to say; how fast anything is, is not a test's business."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bench import functions
from bench.bars import chosen
from bench.bed import Bed, a_request
from bench.core import BARS
from bench.floor import Floor
from myrmidon.store.engine.table_copy import tables
from tests.deadline import HANG_S

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"bar (\S+) (\d+\.\d\d|nan|missing) (\d+(?:\.\d+)?) (ok|short|missing)")
NAMES = [
    "life-sqlite", "life-postgresql", "life-mariadb", "deep-1-queue", "deep-1000-queues", "many-queues",
    "flat-postgresql", "flat-mariadb", "flat-sqlite", "fan-out", "memory",
]  # fmt: skip
COUNTED = ("statements", "inserted", "updated", "deleted", "commits")
WHOLE = [
    *(f"{what}-{life}" for life in ("W1", "W2", "chain", "submit") for what in COUNTED),
    "W4", "W4-latency", "W4-latency-p99", "log-rate", "log-flood", "fleet-memory", "fleet-cpu", "fleet-wake",
    "submit-rate", "v1-submit", "v1-list-1M", "v1-count-1M", "graph-submit", "graph-feed", "relay",
    "W1", "W1-bullmq", "W1-each", "W1-native", "W1-postgresql", "W1-mariadb", "W2", "W3", "W3-chain", "W6",
    "late", "efficiency-1", "efficiency-10", "efficiency-100",
    "W1-two-bots", "W2-two-bots", "W3-two-bots", "W3-chain-two-bots", "resume",
]  # fmt: skip
WRITTEN = ("task_requests", "task_tags", "task_results", "task_runs", "task_to_run", "outbox")


def bench(*args, module="bench.core"):
    limit_s = HANG_S * len(WHOLE)  # a bar at a time, each of them a test of its own length
    return subprocess.run(
        [sys.executable, "-m", module, *args], cwd=ROOT, capture_output=True, text=True, timeout=limit_s
    )


def bars_of(printed):
    """The names of the bars in their order; each line of a bar is one that a script can read."""
    matched = [LINE.fullmatch(line) for line in printed.splitlines() if line.startswith("bar ")]
    assert all(matched), printed
    return [found[1] for found in matched if found]


def test_there_is_a_bar_for_everything_that_was_promised():
    assert [bar.name for bar in BARS] == NAMES


def test_a_quick_run_prints_one_line_per_bar():
    only = ["life-sqlite", "deep-1000-queues", "many-queues", "flat-sqlite", "fan-out", "memory"]
    ran = bench("--quick", "--only", ",".join(only))
    assert ran.returncode == 0, ran.stderr
    assert bars_of(ran.stdout) == only


def test_no_life_costs_the_database_more_than_it_did():
    """Counts of statements, rows and commits do not depend on the machine, so they are compared here."""
    ran = bench("--only", ",".join(COUNTED), module="bench")
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("bar ")]
    assert len(lines) == 20
    assert [line for line in lines if not line.endswith(" ok")] == []


@pytest.mark.full
def test_a_quick_run_of_the_whole_prints_one_line_per_bar():
    ran = bench("--quick", module="bench")
    assert ran.returncode == 0, ran.stderr
    assert bars_of(ran.stdout) == WHOLE


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("W1", ["W1"]),
        ("efficiency", ["efficiency-1", "efficiency-10", "efficiency-100"]),
        ("W2,efficiency-10", ["W2", "efficiency-10"]),
    ],
)
def test_a_bar_is_chosen_by_its_name_or_with_others_by_how_their_names_begin(asked: str, meant: list[str]):
    assert [bar.name for bar in chosen(functions.BARS, asked)] == meant


def test_a_bar_that_does_not_exist_is_refused():
    ran = bench("--only", "life-oracle")
    assert ran.returncode == 2
    assert "there is no life-oracle" in ran.stderr


@pytest.mark.parametrize(
    ("bar", "value", "line"),
    [
        ("life-sqlite", 0.5, "bar life-sqlite 0.50 0.5 ok"),
        ("life-sqlite", 0.499, "bar life-sqlite 0.50 0.5 short"),
        ("fan-out", 2.0, "bar fan-out 2.00 2 ok"),
        ("fan-out", 2.1, "bar fan-out 2.10 2 short"),
        ("memory", float("nan"), "bar memory nan 20 short"),
    ],
)
def test_a_bar_is_short_beyond_its_limit(bar, value, line):
    assert next(b for b in BARS if b.name == bar).line(value) == line


def test_the_floor_writes_the_rows_that_the_verbs_write(db_url):
    """Else the share that the verbs reach would mean nothing."""
    with closing(Bed(db_url, durable=False)) as bed, closing(Floor(bed)) as floor:
        (ours,) = bed.submit([a_request()])
        bed.finish(bed.claim(1))
        batch = floor.prepare(1)
        floor.live(batch)
        for table in WRITTEN:
            assert rows_of(bed, table, batch.ids[0]) == rows_of(bed, table, ours), table


def rows_of(bed, table, task_id):
    """What a table says of a task, without ids, times, numbers of events and what is secret to a run."""
    key = {"task_requests": "id", "task_results": "id", "outbox": "subject"}.get(table, "task_id")
    columns = next(one.columns for one in tables() if one.name == table)
    moving = {"id", "task_id", "subject", "token_hash", "nonce", "at", "task_rank"}
    shown = [name for name in columns if name not in moving]
    found = bed.db.read(lambda tx: tx.all(f"SELECT {', '.join(shown)} FROM {table} WHERE {key} = :id", id=task_id))
    own = ("_at", "_since", "position")
    flags = [tuple(v is not None if n.endswith(own) else v for n, v in zip(shown, row, strict=True)) for row in found]
    return sorted(flags, key=repr)
