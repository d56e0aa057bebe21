"""Lists, sorts and counts of tasks: what they say is what looking at every task says, within their limits."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from msgspec import structs

from myrmidon.scheduler import bots, cancel
from myrmidon.store.tables import server_version
from myrmidon.store.views import listings, run_details, task_search
from myrmidon.store.views.listings import BotSearch
from myrmidon.store.views.task_search import DEDUPED, MAX_ID, START, SortPosition, TaskSearch
from tests.world import SECOND, World, a_task, finish

STATES = [
    (), ("READY", "WAITING"), ("RUNNING",), ("SUCCEEDED", DEDUPED), ("FAILED",), (DEDUPED,), ("CANCELLED",),
    ("SUCCEEDED", DEDUPED, "FAILED"), ("SUCCEEDED",),
]  # fmt: skip
TERMS: list[list[list[str]]] = [
    [], [["pool:default"]], [["k:a"]], [["k:a", "k:b"]], [["k:a"], ["size:big"]], [["pool:default"], ["k:b"]],
    [["rare:1"]], [["pool:default"], ["os:Linux"]], [["none:such"]], [["k:a"], ["k:b", "rare:1"]],
]  # fmt: skip
KEYS = sorted(task_search.SORTABLE)


@pytest.fixture
def world(db):
    return a_busy_world(db)


def a_busy_world(db: Any) -> World:
    """Two hundred tasks in all kinds of states and with all kinds of tags, over half an hour."""
    dice = random.Random(7)
    w = World(db).found()
    w.bot()
    for batch in range(20):
        w.now += dice.randrange(60, 120) * SECOND
        ids = w.submit(*[some_task(10 * batch + number, dice) for number in range(10)])
        w.do(cancel.cancel, [ids[dice.randrange(10)]])
        claimed = w.claim(n=dice.choice([8, 9]))
        w.now += SECOND
        w.report(*[finish(one, exit_code=dice.choice([0, 0, 1])) for one in claimed])
    w.submit(a_task(tags=["k:a"]))
    w.running()
    w.now += 600 * SECOND
    return w


def some_task(number: int, dice: random.Random) -> dict[str, Any]:
    tags = [f"k:{dice.choice('ab')}", f"size:{dice.choice(['big', 'small', 'small'])}"]
    tags += ["rare:1"] if number % 50 == 3 else []
    properties = {"idempotent": True, "command": ["x", str(number % 40)]} if number % 3 == 0 else {}
    dims = {"os": ["Haiku"]} if number % 29 == 5 else {}  # nobody has it: these wait for ever
    return a_task(tags=tags, properties=properties, dims=dims)


def rows(w: World) -> list[dict[str, Any]]:
    columns = "t.id, t.resource_group_id, t.state, t.deduped_from, t.started_at, t.completed_at, t.abandoned_at, t.modified_at, r.tags"  # noqa: E501
    found = w.all(f"SELECT {columns} FROM task_results t JOIN task_requests r ON r.id = t.id ORDER BY t.id DESC")
    names = [name.split(".")[1] for name in columns.split(", ")]
    return [dict(zip(names, row, strict=True)) for row in found]


def brute(found: list[dict[str, Any]], search: TaskSearch) -> list[dict[str, Any]]:
    def fits(row: dict[str, Any]) -> bool:
        state = DEDUPED if row["state"] == "SUCCEEDED" and row["deduped_from"] else row["state"]
        tags = set(json.loads(row["tags"]))
        return (
            search.low <= row["id"] < search.high
            and search.group_id in (None, row["resource_group_id"])
            and (not search.states or state in search.states)
            and all(tags & set(term) for term in search.terms)
        )

    return [row for row in found if fits(row)]


def every_search(w: World, found: list[dict[str, Any]]) -> list[TaskSearch]:
    ids = sorted(row["id"] for row in found)
    ranges = [(0, MAX_ID), (ids[37], ids[150]), (ids[100], MAX_ID), (ids[5], ids[9])]
    return [
        TaskSearch(states=states, terms=terms, low=low, high=high, group_id=group)
        for states in STATES
        for terms in TERMS
        for low, high in ranges
        for group in ((None, w.group, 12345) if not terms else (None,))
    ]


def states_of(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(DEDUPED if row["state"] == "SUCCEEDED" and row["deduped_from"] else row["state"] for row in found)


def test_counts_are_those_of_the_rows(world):
    found = rows(world)
    for search in every_search(world, found):
        wanted = states_of(brute(found, search))
        assert world.db.read(lambda tx, s=search: task_search.count_by_state(tx, s)) == (wanted, True), search


def test_a_count_of_many_tasks_is_that_of_the_newest_and_says_so(world):
    found = rows(world)
    newest = structs.replace(TaskSearch(), low=found[29]["id"])
    counts, complete = world.db.read(lambda tx: task_search.count_by_state(tx, TaskSearch(), limit=29))
    assert (counts, complete) == (states_of(brute(found, newest)), False)
    tagged = TaskSearch(terms=[["k:a"]])
    with_tag = brute(found, tagged)
    counts, complete = world.db.read(lambda tx: task_search.count_by_state(tx, tagged, limit=29))
    assert (counts, complete) == (states_of(with_tag[:30]), False)
    counts, complete = world.db.read(lambda tx: task_search.count_by_state(tx, tagged, limit=len(with_tag)))
    assert (counts, complete) == (states_of(with_tag), True)


def test_pages_are_complete_and_in_order(world):
    check_pages(world)
    found = rows(world)
    for number, search in enumerate(every_search(world, found)[::5]):
        key = KEYS[number % len(KEYS)]
        have = [row for row in brute(found, search) if row[key] is not None]
        wanted = sorted(((row[key], row["id"]) for row in have), reverse=True)
        assert sorted_pages(world, search, key, 19) == [task_id for _, task_id in wanted], (key, search)


def check_pages(w: World) -> None:
    found = rows(w)
    for search in every_search(w, found)[::7]:
        assert all_pages(w, search, 23) == [row["id"] for row in brute(found, search)], search


def all_pages(w: World, search: TaskSearch, n: int) -> list[int]:
    seen: list[int] = []
    before = None
    while True:
        ids, more = w.db.read(lambda tx, b=before: task_search.page(tx, search, n=n, before=b))
        seen += ids
        if not more:
            return seen
        before = more


def sorted_pages(w: World, search: TaskSearch, key: str, n: int) -> list[int]:
    seen: list[int] = []
    after: SortPosition | None = START
    while after is not None:
        found = w.db.read(lambda tx, a=after: task_search.sorted_page(tx, search, key, n=n, after=a))
        seen += [position.id for position in found]
        after = found[-1] if len(found) == n else None
    return seen


def test_a_page_reads_a_bounded_number_of_tasks_and_continues_from_there(world, monkeypatch):
    monkeypatch.setattr(task_search, "SCAN_LIMIT", 10)
    found = rows(world)
    for terms in ([], [["pool:default"]], [["k:a", "k:b"]]):
        search = TaskSearch(states=("CANCELLED",), terms=terms)
        assert all_pages(world, search, 50) == [row["id"] for row in brute(found, search)]


def test_only_a_search_of_few_tasks_can_be_sorted_by_another_time(world, monkeypatch):
    monkeypatch.setattr(task_search, "SCAN_LIMIT", 10)
    found = rows(world)
    few = TaskSearch(low=found[9]["id"])
    many = TaskSearch(low=found[11]["id"])
    rare, frequent = TaskSearch(terms=[["rare:1"]]), TaskSearch(terms=[["k:a"]])
    can_sort = [
        world.db.read(lambda tx, s=search: task_search.can_sort(tx, s)) for search in (few, many, rare, frequent)
    ]
    assert can_sort == [True, False, True, False]


# ---------------------------------------------------------------- bots, and what they ran


def test_bots_are_found_and_counted_by_what_they_are_like(db):
    w = World(db).found()
    w.bot("b1")
    w.bot("b2", gpu=["none"])
    w.bot("b3", pool=["other"])
    w.do(bots.quarantine, "b2", "it smells")
    w.submit(*[a_task() for _ in range(2)])
    w.running("b1", 2)
    every = BotSearch()
    assert db.read(lambda tx: listings.search_bots(tx, every, after="", n=2)) == ["b1", "b2"]
    assert db.read(lambda tx: listings.search_bots(tx, every, after="b2", n=2)) == ["b3"]
    asked = {
        BotSearch(busy=True): ["b1"],
        BotSearch(busy=False, quarantined=False): ["b3"],
        BotSearch(terms=(("pool:default",), ("gpu:none", "gpu:big"))): ["b2"],
        BotSearch(terms=(("pool:default", "pool:other"),), dead=False, maintenance=False): ["b1", "b2", "b3"],
        BotSearch(dead=True): [],
    }
    for search, names in asked.items():
        assert db.read(lambda tx, s=search: listings.search_bots(tx, s, after="", n=9)) == names
        assert db.read(lambda tx, s=search: listings.count_bots(tx, s)).count == len(names)
    numbers = db.read(lambda tx: listings.count_bots(tx, every))
    assert (numbers.count, numbers.dead, numbers.quarantined, numbers.maintenance, numbers.busy) == (3, 0, 1, 0, 1)


def test_runs_of_a_bot_come_page_by_page(db):
    w = World(db).found()
    w.bot()
    ids = w.submit(*[a_task() for _ in range(6)])
    for _ in range(5):
        w.now += 10 * SECOND
        [claimed] = w.claim()
        w.now += SECOND
        w.report(finish(claimed))
    w.now += 10 * SECOND
    w.running()
    first, more = db.read(lambda tx: run_details.runs_of_bot(tx, "b1", low=0, high=MAX_ID, n=4))
    rest, end = db.read(lambda tx: run_details.runs_of_bot(tx, "b1", low=0, high=more or 0, n=4))
    assert [one.run.task_id for one in first + rest] == ids[::-1]
    assert end is None


def test_versions_of_servers_are_noted_when_they_change(db):
    for version, now in (("1.0", 1), ("1.0", 2), ("1.1", 3), ("1.0", 4)):
        db.write(lambda tx, v=version, n=now: server_version.record(tx, v, n))
    assert db.read(server_version.read) == [(1, "1.0"), (3, "1.1"), (4, "1.0")]
