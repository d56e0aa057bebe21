"""Lists and counts of tasks: what the tallies say is what counting row by row says, whatever happens in between."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from myrmidon.scheduler import bots, cancel, rerun
from myrmidon.scheduler import tag_counts as tally
from myrmidon.scheduler.sweep_tasks import sweep_tasks
from myrmidon.store.tables import server_version
from myrmidon.store.tables import tag_counts as tallies
from myrmidon.store.views import listings, run_details, task_count, task_search
from myrmidon.store.views.listings import BotSearch
from myrmidon.store.views.task_search import DEDUPED, MAX_ID, START, TaskSearch
from tests.world import SECOND, World, a_task, finish

STATES = [
    (), ("READY", "WAITING"), ("RUNNING",), ("SUCCEEDED", DEDUPED), ("FAILED",), (DEDUPED,), ("CANCELED",),
    ("SUCCEEDED", DEDUPED, "FAILED"), ("SUCCEEDED",),
]  # fmt: skip
TERMS: list[list[list[str]]] = [
    [], [["pool:default"]], [["k:a"]], [["k:a", "k:b"]], [["k:a"], ["size:big"]], [["pool:default"], ["k:b"]],
    [["rare:1"]], [["pool:default"], ["os:Linux"]], [["none:such"]], [["k:a"], ["k:b", "rare:1"]],
]  # fmt: skip
KEYS = sorted(task_search.SORTABLE)


@pytest.fixture
def small_spans(monkeypatch):
    monkeypatch.setattr(tally, "SPAN", 16)
    monkeypatch.setattr(tally, "MAX_UNFINISHED", 4)
    monkeypatch.setattr(task_count, "RARE_TAG_ROWS", 3)


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


def check_all(w: World) -> None:
    found = rows(w)
    for search in every_search(w, found):
        wanted = brute(found, search)
        assert w.db.read(lambda tx, s=search: task_count.count(tx, s)) == len(wanted), search


def seal_all(w: World) -> int:
    done = 0
    while n := tally.update_tag_counts(w.db, now=w.now):
        done += n
        if w.value("SELECT COUNT(*) FROM task_spans WHERE check_at <= :now", now=w.now) == 0:
            break
    return done


def test_counts_are_true_whatever_happens(world, small_spans):
    """Before and after spans are sealed, after a rerun, and while the retention takes tasks away."""
    check_all(world)
    assert seal_all(world) > 5
    assert world.value("SELECT COUNT(*) FROM task_spans WHERE sealed = 1") > 5
    assert world.value("SELECT COUNT(*) FROM task_spans WHERE sealed = 1 AND unfinished <> '[]'") > 0
    check_all(world)
    world.do(rerun.rerun, world.value("SELECT MIN(id) FROM task_results WHERE state = 'FAILED'"))
    check_few(world)
    seal_all(world)
    check_few(world)
    world.now += 30 * 86_400 * SECOND - 1000 * SECOND
    while world.do(sweep_tasks):
        check_few(world)
        world.now += 200 * SECOND
    seal_all(world)
    check_few(world)


def test_a_count_of_sealed_spans_reads_no_rows_of_tasks(world, small_spans):
    seal_all(world)
    world.db.write(lambda tx: tx.run("UPDATE task_spans SET unfinished = '[]'"))
    last = world.value("SELECT MAX(until_id) FROM task_spans WHERE sealed = 1")
    first_open = world.value("SELECT MIN(first_id) FROM task_spans WHERE sealed = 0") or last
    search = TaskSearch(terms=[["pool:default"]], states=("SUCCEEDED", DEDUPED), high=min(last, first_open))
    before = world.db.read(lambda tx: task_count.count(tx, search))
    assert before > 20
    world.db.write(lambda tx: tx.run("UPDATE task_results SET state = 'FAILED'"))
    assert world.db.read(lambda tx: task_count.count(tx, search)) == before


def check_few(w: World) -> None:
    found = rows(w)
    for terms in TERMS[:6]:
        search = TaskSearch(states=("SUCCEEDED", DEDUPED), terms=terms)
        assert w.db.read(lambda tx, s=search: task_count.count(tx, s)) == len(brute(found, search))


def test_a_span_that_an_older_server_has_changed_is_found_out(world, small_spans):
    seal_all(world)
    assert tally.check_tag_counts(world.db, now=world.now) == 0
    change = "UPDATE task_results SET seq = seq + 1, state = 'FAILED' WHERE id >= :low AND id < :high AND state = 'SUCCEEDED'"  # noqa: E501
    for kind in ("unfinished = '[]'", "unfinished <> '[]'"):
        sealed = f"SELECT MAX(first_id) FROM task_spans WHERE sealed = 1 AND {kind}"
        span = world.value(sealed)
        until = world.value("SELECT until_id FROM task_spans WHERE first_id = :id", id=span)
        assert world.db.write(lambda tx, low=span, high=until: tx.run(change, low=low, high=high)) > 0
        assert tally.check_tag_counts(world.db, now=world.now) == 1
        check_few(world)
    seal_all(world)
    check_few(world)
    assert tally.check_tag_counts(world.db, now=world.now) == 0


def test_a_span_with_too_many_waiting_tasks_stays_open(db, small_spans):
    w = World(db).found()
    w.submit(*[a_task() for _ in range(40)])
    w.now += 600 * SECOND
    seal_all(w)
    assert w.value("SELECT COUNT(*) FROM task_spans WHERE sealed = 1") == 0
    assert w.db.read(lambda tx: task_count.count(tx, TaskSearch(states=("READY",)))) == 40
    w.bot()
    w.run_all()
    w.now += 600 * SECOND
    seal_all(w)
    assert w.value("SELECT COUNT(*) FROM task_spans WHERE sealed = 1") == 2
    assert w.db.read(lambda tx: task_count.count(tx, TaskSearch(states=("SUCCEEDED",)))) == 40


def test_pages_are_complete_and_in_order(world, small_spans):
    check_pages(world)
    seal_all(world)
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
    after = START
    while True:
        ids, more = w.db.read(lambda tx, a=after: task_search.sorted_page(tx, search, key, n=n, after=a))
        seen += ids
        if more is None:
            return seen
        after = more


def test_a_page_looks_at_a_bounded_number_of_tasks_and_goes_on_from_there(world, small_spans, monkeypatch):
    seal_all(world)
    monkeypatch.setattr(task_search, "SPANS_PER_PAGE", 2)
    monkeypatch.setattr(task_search, "SCAN_LIMIT", 10)
    found = rows(world)
    for terms in ([], [["pool:default"]], [["k:a", "k:b"]]):
        search = TaskSearch(states=("CANCELED",), terms=terms)
        assert all_pages(world, search, 50) == [row["id"] for row in brute(found, search)]
    search = TaskSearch(terms=[["pool:default"]], states=("FAILED",))
    wanted = sorted(((r["completed_at"], r["id"]) for r in brute(found, search)), reverse=True)
    assert sorted_pages(world, search, "completed_at", 5) == [task_id for _, task_id in wanted]


def test_a_rare_state_is_found_in_one_page_however_far_back(db, small_spans, monkeypatch):
    monkeypatch.setattr(task_search, "SCAN_LIMIT", 20)
    monkeypatch.setattr(task_search, "SCANS_PER_PAGE", 3)
    w = World(db).found()
    w.bot()
    early = w.submit(*[a_task(tags=["k:v"]) for _ in range(3)], a_task(tags=["k:v"], dims={"os": ["Haiku"]}))
    w.do(cancel.cancel, early[:2])
    w.submit(*[a_task(tags=["k:v"]) for _ in range(160)])
    w.run_all()
    w.now += 600 * SECOND
    seal_all(w)
    for terms in ([], [["k:v"]]):
        for states, found in ((("CANCELED",), [early[1], early[0]]), (("WAITING", "READY", "RUNNING"), [early[3]])):
            search = TaskSearch(states=states, terms=terms)
            assert w.db.read(lambda tx, s=search: task_search.page(tx, s, n=5)) == (found, 0)


def test_counts_stay_true_while_spans_are_sealed_and_tasks_run_again_at_once(db, small_spans):
    w = World(db).found()
    w.bot()
    ids = w.submit(*[a_task(tags=["k:v"]) for _ in range(64)])
    w.run_all()
    w.now += 600 * SECOND
    dice = random.Random(5)
    with ThreadPoolExecutor(1) as beside:
        sealing = beside.submit(lambda: [tally.update_tag_counts(db, now=w.now + 61 * SECOND * n) for n in range(40)])
        for _ in range(25):
            w.do(rerun.rerun, dice.choice(ids), force=True)
            w.report(*[finish(one, exit_code=dice.choice([0, 1])) for one in w.claim(n=9)])
        sealing.result()
    w.now += 86_400 * SECOND
    seal_all(w)
    assert w.value("SELECT COUNT(*) FROM task_spans WHERE sealed = 1") >= 3
    found = rows(w)
    for states in (("SUCCEEDED",), ("FAILED",)):
        search = TaskSearch(states=states, terms=[["k:v"]])
        assert w.db.read(lambda tx, s=search: task_count.count(tx, s)) == len(brute(found, search))


def test_opening_nothing_changes_nothing(sqlite_db):
    assert sqlite_db.write(lambda tx: tallies.open_spans(tx, [], 0)) == 0
    assert sqlite_db.write(lambda tx: tallies.open_spans(tx, [12345], 0)) == 0


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
