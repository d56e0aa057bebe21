"""Waiting writes share a commit, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Any

import pytest

from myrmidon.model.errors import StoreUnavailable
from myrmidon.store.engine import group_commit
from myrmidon.store.engine.db import ConnectionLost, Db, LostReply, Tx
from myrmidon.store.engine.group_commit import BULK, BackgroundWrites, GroupCommit
from tests.deadline import HANG_S

CREATE = "CREATE TABLE item (id {id}, n BIGINT REFERENCES item (id) DEFERRABLE INITIALLY DEFERRED)"
ADD = "INSERT INTO item (id, n) VALUES (:id, :n)"


class Events:
    """Counts what happens and may raise once at the n-th event of a kind."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.raises: dict[str, BaseException] = {}

    def __call__(self, event: str, sql: str) -> None:
        self.seen.append(event)
        if error := self.raises.pop(event, None):
            raise error

    @property
    def commits(self) -> int:
        return self.seen.count("commit")


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def db(sqlite_url: str, open_test_db: Callable[..., Db], events: Events) -> Db:
    db = open_test_db(sqlite_url, probe=events, sleep=lambda _: None)
    db.write(lambda tx: tx.run(CREATE))
    events.seen.clear()
    return db


@pytest.fixture
def group(db: Db, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupCommit]:
    monkeypatch.setattr(group_commit, "GROUP_S", inf)  # else a slow machine would need more commits
    monkeypatch.setattr(group_commit, "SMALL_TURN_S", inf)  # and would give large writes their turn earlier
    group = GroupCommit(db)
    yield group
    group.close()


class Gate:
    """A write that holds the writer until it is let go, so that others gather behind it."""

    def __init__(self, group: GroupCommit) -> None:
        self.inside, self.free = threading.Event(), threading.Event()
        self.future = group.submit(self._wait)
        assert self.inside.wait(HANG_S)

    def _wait(self, tx: Tx) -> None:
        self.inside.set()
        assert self.free.wait(HANG_S)

    def open(self) -> None:
        self.free.set()
        self.future.result(HANG_S)


def add(number: int, parent: int | None = None) -> Callable[[Tx], int]:
    def fn(tx: Tx) -> int:
        tx.run(ADD, id=number, n=parent)
        return number

    return fn


def ids(db: Db) -> list[int]:
    return [row[0] for row in db.read(lambda tx: tx.all("SELECT id FROM item ORDER BY id"))]


def test_waiting_writes_share_one_commit(db: Db, group: GroupCommit, events: Events) -> None:
    gate = Gate(group)
    futures = [group.submit(add(n)) for n in range(50)]
    gate.open()
    assert [future.result(HANG_S) for future in futures] == list(range(50))
    assert ids(db) == list(range(50))
    assert events.commits == 2


def test_threads_that_write_at_the_same_time_need_few_commits(
    db: Db, group: GroupCommit, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(group)
    results: list[int] = []
    queued = threading.Semaphore(0)
    submit = group.submit

    def counted(fn: Callable[[Tx], int]) -> Future[int]:
        future = submit(fn)
        queued.release()
        return future

    monkeypatch.setattr(group, "submit", counted)
    threads = [threading.Thread(target=lambda n=n: results.append(group.write(add(n)))) for n in range(16)]
    for thread in threads:
        thread.start()
    assert all(queued.acquire(timeout=HANG_S) for _ in threads)
    gate.open()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(results) == ids(db) == list(range(16))
    assert events.commits == 2


def test_a_failing_write_does_not_harm_its_neighbours(db: Db, group: GroupCommit, events: Events) -> None:
    def half(tx: Tx) -> None:
        add(2)(tx)
        raise KeyError("mine")

    gate = Gate(group)
    futures = [group.submit(fn) for fn in (add(1), half, add(1), add(3))]
    gate.open()
    assert futures[0].result(HANG_S) == 1
    assert isinstance(futures[1].exception(HANG_S), KeyError)
    assert "UNIQUE" in str(futures[2].exception(HANG_S))
    assert futures[3].result(HANG_S) == 3
    assert ids(db) == [1, 3]
    assert events.commits == 2


def test_results_are_given_out_only_after_the_commit(group: GroupCommit, events: Events) -> None:
    done_at: list[list[str]] = []
    gate = Gate(group)
    for n in (1, 2):
        group.submit(add(n)).add_done_callback(lambda _: done_at.append(list(events.seen)))
    gate.open()
    group.close()
    assert [seen[-1] for seen in done_at] == ["committed", "committed"]


def test_a_group_whose_commit_fails_is_run_again_one_by_one(db: Db, group: GroupCommit) -> None:
    """A parent that is missing shows only at COMMIT; only its own write may fail."""
    gate = Gate(group)
    futures = [group.submit(fn) for fn in (add(1), add(2, parent=99), add(3, parent=1))]
    gate.open()
    assert [future.exception(HANG_S) is None for future in futures] == [True, False, True]
    assert ids(db) == [1, 3]


@pytest.mark.parametrize("event", ["statement", "commit"])
def test_an_error_of_the_whole_group_is_survived(db: Db, group: GroupCommit, events: Events, event: str) -> None:
    gate = Gate(group)
    futures = [group.submit(add(n)) for n in (1, 2, 3)]
    events.raises[event] = ConnectionLost()
    gate.open()
    assert [future.result(HANG_S) for future in futures] == [1, 2, 3]
    assert ids(db) == [1, 2, 3]


def test_a_write_without_space_does_not_repeat_the_writes_before_it(db: Db, group: GroupCommit) -> None:
    """SQLite rolls back the whole transaction when the file may not grow, and not the savepoint alone."""
    db.write(lambda tx: tx.run("CREATE TABLE note (n BIGINT, body BLOB)"))

    def note(number: int, size: int) -> Callable[[Tx], int]:
        return lambda tx: tx.run("INSERT INTO note (n, body) VALUES (:n, :body)", n=number, body=bytes(size))

    def count(number: int) -> int:
        return int(db.read(lambda tx: tx.all("SELECT COUNT(*) FROM note WHERE n = :n", n=number))[0][0])

    db.write(lambda tx: tx.run("PRAGMA max_page_count = 12"))
    sizes = {1: 10, 2: 10, 3: 10, 4: 30_000_000, 5: 10, 6: 10}  # the fourth is also larger than the writer's cache
    gate = Gate(group)
    futures = {number: group.submit(note(number, size)) for number, size in sizes.items()}
    gate.open()
    found = {number: (future.exception(HANG_S) is None, count(number)) for number, future in futures.items()}
    assert found == {number: (number != 4, int(number != 4)) for number in sizes}


def test_a_lost_reply_reaches_every_caller_and_nothing_is_run_twice(db: Db, group: GroupCommit, events: Events) -> None:
    gate = Gate(group)
    gate.future.add_done_callback(lambda _: events.raises.update(committed=LostReply()))
    futures = [group.submit(add(n)) for n in (1, 2)]
    gate.open()
    assert [type(future.exception(HANG_S)) for future in futures] == [LostReply, LostReply]
    assert ids(db) == [1, 2]
    assert events.commits == 2


def test_an_unknown_outcome_runs_the_group_again_with_a_higher_attempt(db: Db, events: Events) -> None:
    group = GroupCommit(db)
    attempts: list[int] = []

    def fn(tx: Tx) -> int:
        attempts.append(tx.attempt)
        return tx.run("INSERT INTO item (id) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM item WHERE id = 1)")

    events.raises["committed"] = ConnectionLost()
    assert group.write(fn) == 0
    group.close()
    assert attempts == [1, 2]


def test_a_group_is_not_endless(db: Db, group: GroupCommit, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MAX_GROUP_SIZE", 10)
    gate = Gate(group)
    futures = [group.submit(add(n)) for n in range(25)]
    gate.open()
    assert [future.result(HANG_S) for future in futures] == list(range(25))
    assert events.commits == 4


def test_a_group_that_has_taken_long_is_committed_before_its_other_writes(
    db: Db, group: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "GROUP_S", 0)
    gate = Gate(group)
    seen: list[list[int]] = []
    writes: list[Callable[[Tx], Any]] = [add(1), lambda tx: seen.append(ids(db)), add(2)]
    futures = [group.submit(write) for write in writes]
    gate.free.set()
    group.close()
    assert [future.done() for future in futures] == [True, True, True]
    assert (seen, ids(db)) == ([[1]], [1, 2]), "readers saw the first write while the second one ran"


def test_an_attempt_after_an_unknown_outcome_runs_the_same_writes_again(
    db: Db, group: GroupCommit, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "GROUP_S", 0)
    attempts: list[tuple[str, int]] = []

    def first(tx: Tx) -> None:
        attempts.append(("first", tx.attempt))
        if tx.attempt == 1:
            events.raises["committed"] = ConnectionLost()

    gate = Gate(group)
    futures = [group.submit(first), group.submit(lambda tx: attempts.append(("second", tx.attempt)))]
    gate.open()
    for future in futures:
        future.result(HANG_S)
    assert attempts == [("first", 1), ("first", 2), ("second", 1)]


def test_small_writes_are_committed_before_bulk_ones(db: Db, group: GroupCommit, events: Events) -> None:
    gate = Gate(group)
    seen: list[list[int]] = []

    def large(tx: Tx) -> int:
        seen.append(ids(db))
        return add(10)(tx)

    futures = [group.submit(large, size=200), group.submit(add(1)), group.submit(add(2))]
    gate.open()
    assert [future.result(HANG_S) for future in futures] == [10, 1, 2]
    assert seen == [[1, 2]], "readers saw the small writes while the large one ran"
    assert events.commits == 3


def test_a_small_write_that_arrives_while_a_large_one_is_run_is_the_next(db: Db, group: GroupCommit) -> None:
    gate = Gate(group)
    order: list[str] = []
    small: list[Future[None]] = []

    def first(tx: Tx) -> None:
        order.append("first")
        small.append(group.submit(lambda _: order.append("small")))

    futures = [group.submit(first, size=200), group.submit(lambda _: order.append("second"), size=200)]
    gate.open()
    for future in futures:
        future.result(HANG_S)
    small[0].result(HANG_S)
    assert order == ["first", "small", "second"]


def test_a_large_write_that_is_not_bulk_shares_the_commit_of_small_ones(
    db: Db, group: GroupCommit, events: Events
) -> None:
    gate = Gate(group)
    futures = [group.submit(add(1), size=BULK - 1), group.submit(add(2)), group.submit(add(3))]
    gate.open()
    assert [future.result(HANG_S) for future in futures] == [1, 2, 3]
    assert events.commits == 2


def test_results_and_errors_of_both_kinds_reach_their_callers(db: Db, group: GroupCommit) -> None:
    def fails(name: str) -> Callable[[Tx], None]:
        def fn(tx: Tx) -> None:
            add(99)(tx)
            raise KeyError(name)

        return fn

    gate = Gate(group)
    results = [group.submit(add(1), size=200), group.submit(add(2)), group.submit(add(3), size=200)]
    errors = [group.submit(fails("large"), size=200), group.submit(fails("small"))]
    gate.open()
    assert [future.result(HANG_S) for future in results] == [1, 2, 3]
    assert [str(future.exception(HANG_S)) for future in errors] == ["'large'", "'small'"]
    assert ids(db) == [1, 2, 3]


def test_large_writes_that_fail_together_are_run_again_one_by_one(db: Db, group: GroupCommit) -> None:
    gate = Gate(group)
    futures = [group.submit(fn, size=BULK - 1) for fn in (add(1), add(2, parent=99), add(3, parent=1))]
    futures.append(group.submit(add(4)))
    gate.open()
    assert [future.exception(HANG_S) is None for future in futures] == [True, False, True, True]
    assert ids(db) == [1, 3, 4]


def test_a_database_that_cannot_begin_fails_one_write_and_the_others_wait_for_their_turn(
    db: Db, group: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(group)
    futures = [group.submit(add(n)) for n in (1, 2)]
    write, failures = db.write, [StoreUnavailable("gone")]
    monkeypatch.setattr(db, "write", lambda fn: write(fn) if not failures else _raise(failures.pop()))
    gate.open()
    assert isinstance(futures[0].exception(HANG_S), StoreUnavailable)
    assert futures[1].result(HANG_S) == 2
    assert ids(db) == [2]


def _raise(error: Exception) -> Any:
    raise error


def test_background_work_lets_small_writes_go_first_and_sees_only_its_own_effects(db: Db, group: GroupCommit) -> None:
    gate = Gate(group)
    order: list[str] = []
    background = BackgroundWrites(db, group)

    def enqueue(tx: Tx) -> None:
        tx.effects.enqueued[1] = 1
        order.append("large")

    def sweep(tx: Tx) -> dict[int, int]:
        order.append("sweep")
        return dict(tx.effects.enqueued)

    large = group.submit(enqueue, size=200)
    with ThreadPoolExecutor(1) as threads:
        queued = threading.Event()
        submit = group.submit

        def submit_and_tell(fn: Callable[[Tx], Any], size: int = 1) -> Future[Any]:
            future = submit(fn, size)
            queued.set()
            return future

        group.submit = submit_and_tell  # type: ignore[method-assign]
        swept = threads.submit(background.write, sweep)
        assert queued.wait(HANG_S)
        small = submit(lambda _: order.append("small"))
        gate.open()
        assert swept.result(HANG_S) == {}
    large.result(HANG_S)
    small.result(HANG_S)
    assert order == ["small", "large", "sweep"]
    assert background.read(lambda tx: tx.one("SELECT COUNT(*) FROM item")) == (0,)


def test_close_finishes_what_waits_of_both_kinds(db: Db, group: GroupCommit) -> None:
    gate = Gate(group)
    futures = [group.submit(add(n), size=size) for n, size in ((1, 200), (2, 1), (3, 1000), (4, 1))]
    gate.free.set()
    group.close()
    assert [future.done() for future in futures] == [True] * 4
    assert ids(db) == [1, 2, 3, 4]
    with pytest.raises(StoreUnavailable):
        BackgroundWrites(db, group).write(add(5))


def test_close_finishes_what_waits_and_refuses_more(db: Db, group: GroupCommit) -> None:
    gate = Gate(group)
    futures = [group.submit(add(n)) for n in (1, 2)]
    gate.free.set()
    group.close()
    group.close()
    assert [future.done() for future in futures] == [True, True]
    assert ids(db) == [1, 2]
    with pytest.raises(StoreUnavailable):
        group.write(add(3))


def test_a_write_cancelled_before_its_turn_is_not_run(db: Db, group: GroupCommit) -> None:
    gate = Gate(group)
    futures = [group.submit(add(n)) for n in (1, 2, 3)]
    assert futures[1].cancel()
    gate.open()
    assert [futures[n].result(HANG_S) for n in (0, 2)] == ids(db) == [1, 3]


def test_inline_runs_in_the_caller(db: Db, events: Events) -> None:
    group = GroupCommit(db, inline=True)
    assert group.write(lambda tx: threading.get_ident()) == threading.get_ident()
    assert group.submit(add(1)).result(0) == 1
    assert isinstance(group.submit(add(1)).exception(0), Exception)
    group.close()
    assert ids(db) == [1]
