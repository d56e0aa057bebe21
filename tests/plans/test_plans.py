"""The plans of the hot statements on the three databases, with a hundred thousand tasks and fresh statistics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import edge, task_run, task_to_run
from myrmidon.store.tables import value as values
from tests.plans import scale
from tests.plans.explain import Explainer
from tests.plans.hot import HOT, NAMED, prepare
from tests.plans.page import PAGE, READS_ALL
from tests.plans.scale import multiply
from tests.snapshot import Snapshot
from tests.world import World

pytestmark = pytest.mark.untraced
BIG = 1000
WHOLE_QUEUE = {" ".join(text.split()) for text in (task_to_run.CLEAR_AVOID_BOT, task_to_run.UNSERVED)}
"""Run when a queue has lost its last bots: then all of it is looked at, and it may be most of the table."""
ALL_LIVE_RUNS = {" ".join(task_run.COUNT_BY_GROUP.split())}
"""Reads all of an index that has live runs only."""


class _Undo(Exception):
    """Leave the tables as they were for the next one."""


def test_no_hot_statement_reads_all_of_a_big_table_or_sorts_it(
    new_db_url: str, open_test_db: Callable[..., Any]
) -> None:
    from tests.databases import migrate_url

    migrate_url(new_db_url)
    db = open_test_db(new_db_url)
    world = World(db).found()
    facts = prepare(world)
    shot = Snapshot(new_db_url)
    counts = multiply(world, shot)
    shot.close()
    for table in ("task_results", "task_to_run", "task_runs", "task_edges", "outbox"):
        assert counts[table] >= 100_000, f"{table} has only {counts[table]} rows"
    big = {table for table, count in counts.items() if count >= BIG}
    assert len(_bad_plans(db, world, facts, _ask_badly, big, set())) == 2, "a bad plan is not recognised"
    bad: list[str] = []
    seen: set[str] = set()
    for name, call in (HOT | PAGE).items():
        bad += [f"{name}: {line}" for line in _bad_plans(db, world, facts, call, big, seen)]
    assert not bad, "\n".join(["Bad plans:", *bad])
    assert not (missing := {text for text in NAMED if text not in seen}), f"not explained: {missing}"


def _ask_badly(tx: Any, world: World, facts: Any) -> None:
    tx.all("SELECT id FROM task_results WHERE reason = 'nobody has an index for this'")
    tx.all("SELECT task_id FROM task_to_run WHERE slice > 0 ORDER BY slice, shared LIMIT 5")


def _bad_plans(db: Any, world: World, facts: Any, call: Any, big: set[str], seen: set[str]) -> list[str]:
    found: dict[str, list[str]] = {}

    def explained(tx: Any) -> None:
        explainer = Explainer(tx._link, tx.dialect, big)
        for name in ("all", "one", "run", "update_rows", "delete_rows"):
            setattr(tx, name, getattr(explainer, name))
        try:
            call(tx, world.beside(db, slot=5), facts)
        finally:
            found.update(explainer.explained)
        raise _Undo

    with suppress(_Undo):
        db.write(explained)
    assert found, "nothing was asked of the database"
    seen.update(found)
    excused = {text for text in found if text in WHOLE_QUEUE | ALL_LIVE_RUNS or text.startswith(tuple(READS_ALL))}
    bad = {text: problems for text, problems in found.items() if problems and text not in excused}
    return [f"{', '.join(problems)}: {text[:300]}" for text, problems in bad.items()]


def test_the_readers_of_an_output_are_found_by_an_index_however_many_there_are(
    new_db_url: str, open_test_db: Callable[..., Any]
) -> None:
    """Twenty producers with 5,000 children each, which read their output."""
    from tests.databases import migrate_url

    migrate_url(new_db_url)
    db = open_test_db(new_db_url)
    world = World(db).found()
    edges = [(parent, parent * 10_000 + child) for parent in range(1, 21) for child in range(5000)]

    def fill(tx: Any) -> None:
        edge.insert(tx, edges)
        tx.insert(Insert("task_inputs", "task_id, position, type, value_id"), [(c, 0, "VALUE", p) for p, c in edges])
        parts = [(c, 1, 0, p) for p, c in edges]
        tx.insert(Insert("task_input_parts", "task_id, position, part, value_id"), parts)

    db.write(fill)
    db.write(scale.analyze)
    big = {"task_edges", "task_inputs", "task_input_parts"}

    def link(tx: Any, world: World, facts: Any) -> None:
        values.link_consumers(tx, 7, 7, 99)
        assert tx.one("SELECT COUNT(*) FROM task_inputs WHERE shared_value_id = 99") == (5000,)
        assert tx.one("SELECT COUNT(*) FROM task_input_parts WHERE shared_value_id = 99") == (5000,)

    bad = _bad_plans(db, world, {}, link, big, set())
    assert [line for line in bad if "COUNT" not in line] == []


def test_the_edges_below_a_task_are_found_by_an_index(new_db_url: str, open_test_db: Callable[..., Any]) -> None:
    """A task with 100 descendants beside 100,000 edges of others."""
    from tests.databases import migrate_url

    migrate_url(new_db_url)
    db = open_test_db(new_db_url)
    world = World(db).found()
    others = [(1_000 + child // 2, 1_000 + child) for child in range(2, 100_000)]
    db.write(lambda tx: edge.insert(tx, [(number, number + 1) for number in range(1, 101)] + others))
    db.write(scale.analyze)

    def below(tx: Any, world: World, facts: Any) -> None:
        assert len(edge.below(tx, 1)) == 100

    assert _bad_plans(db, world, {}, below, {"task_edges"}, set()) == []


def test_live_runs_are_counted_in_an_index_alone(sqlite_db: Any) -> None:
    [plan, *_] = sqlite_db.read(lambda tx: tx.all(f"EXPLAIN QUERY PLAN {task_run.COUNT_BY_GROUP}"))
    assert "COVERING INDEX task_runs_due" in plan[-1]
