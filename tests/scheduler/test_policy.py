"""The pure decisions, as tables."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.model.limits import DEFAULT_LIMITS
from myrmidon.model.states import TaskState
from myrmidon.model.task_result import Finish, TaskResult, TaskRun
from myrmidon.model.task_to_run import LIFO, Head, Order, TaskToRun, rank, standing
from myrmidon.scheduler import policy
from myrmidon.scheduler.policy import DAY, DEFAULT_RULES, SECOND, GroupShares, Verdict

T = TaskState


def a_task(**given):
    fields = dict.fromkeys(TaskResult.__struct_fields__, 0)
    return TaskResult(**{**fields, "state": T.RUNNING, "reason": "cancelled", "run_number": 1, **given})


def a_finish(**given):
    return Finish(task_id=1, run=1, token="t", **given)


@pytest.mark.parametrize(
    ("task", "finish", "reruns", "verdict"),
    [
        ({}, {"exit_code": 0}, 0, Verdict(T.SUCCEEDED, "")),
        ({}, {"exit_code": 1}, 0, Verdict(T.FAILED, "exit_code")),
        ({}, {"exit_code": 127, "start_failed": True}, 0, Verdict(T.FAILED, "start_failed")),
        ({}, {}, 0, Verdict(T.FAILED, "exit_code")),
        ({}, {"exit_code": 1}, 1, Verdict(T.READY, "rerun", rerun=True)),
        ({"num_reruns": 1}, {"exit_code": 1}, 1, Verdict(T.FAILED, "exit_code")),
        ({}, {"exit_code": 0, "hard_timeout": True}, 0, Verdict(T.TIMED_OUT, "hard_timeout")),
        ({}, {"io_timeout": True, "hard_timeout": True}, 0, Verdict(T.TIMED_OUT, "hard_timeout")),
        ({}, {"io_timeout": True}, 0, Verdict(T.TIMED_OUT, "io_timeout")),
        ({}, {"io_timeout": True}, 1, Verdict(T.READY, "rerun", rerun=True)),
        ({}, {"exit_code": 0, "killed": True}, 3, Verdict(T.KILLED, "killed_on_bot")),
        ({"killing": 1}, {"exit_code": 0}, 3, Verdict(T.KILLED, "cancelled")),
        ({"killing": 1}, {"hard_timeout": True}, 3, Verdict(T.KILLED, "cancelled")),
        ({"run_number": 255}, {"exit_code": 1}, 3, Verdict(T.FAILED, "run_cap")),
        ({"run_number": 255}, {"io_timeout": True}, 3, Verdict(T.TIMED_OUT, "run_cap")),
        ({"run_number": 255}, {"exit_code": 0}, 3, Verdict(T.SUCCEEDED, "")),
    ],
)
def test_the_end_of_a_run(task, finish, reruns, verdict):
    assert policy.judge_finish(a_task(**task), a_finish(**finish), reruns=reruns) == verdict


@pytest.mark.parametrize(
    ("task", "retries", "verdict"),
    [
        ({}, 1, Verdict(T.READY, "retry", retried=True)),
        ({}, 0, Verdict(T.BOT_DIED, "lost")),
        ({"num_retries": 1}, 1, Verdict(T.BOT_DIED, "lost")),
        ({"killing": 1}, 5, Verdict(T.KILLED, "cancelled")),
        ({"run_number": 255}, 5, Verdict(T.BOT_DIED, "run_cap")),
    ],
)
def test_the_loss_of_a_run(task, retries, verdict):
    assert policy.judge_lost(a_task(**task), "lost", retries=retries) == verdict


@pytest.mark.parametrize(
    ("task", "verdict"),
    [
        ({}, Verdict(T.READY, "given_back")),
        ({"num_retries": 9}, Verdict(T.READY, "given_back")),
        ({"killing": 1}, Verdict(T.CANCELLED, "cancelled")),
        ({"run_number": 255}, Verdict(T.BOT_DIED, "run_cap")),
    ],
)
def test_a_run_that_never_began(task, verdict):
    assert policy.judge_unstarted(a_task(**task)) == verdict


class Piece:
    def __init__(self, queue, wait):
        self.queue = queue
        self.wait_for_capacity = wait


@pytest.mark.parametrize(
    ("slices", "first", "served", "chosen"),
    [
        ([(1, 0)], 0, {1}, 0),
        ([(1, 0)], 0, set(), None),
        ([(1, 1)], 0, set(), 0),
        ([(1, 0), (2, 0)], 0, {2}, 1),
        ([(1, 0), (2, 1)], 0, set(), 1),
        ([(1, 1), (2, 1)], 1, set(), 1),
        ([(1, 1)], 1, {1}, None),
    ],
)
def test_the_slice_that_runs(slices, first, served, chosen):
    assert policy.choose_slice([Piece(*one) for one in slices], first, served) == chosen


# ---------------------------------------------------------------- dispatch


FIFO = Order()
NEW_YEAR = 1_798_761_600_000_000
EPOCH = 1_262_304_000_000_000
TICK = 64


NOW = EPOCH + 1000 * TICK
CREATED = st.integers(EPOCH, NEW_YEAR + 36_500 * DAY)


def a_head(queue, priority=100, task_rank=0, group=1, ageing=0):
    found = rank(priority, EPOCH + task_rank * TICK, Order("fifo", ageing))
    return Head(queue, group, "{}", 0, found, ageing)


def heads_of(groups):
    return {queue: a_head(queue, group=group) for queue, group in groups.items()}


@pytest.mark.parametrize(
    ("heads", "running", "order"),
    [
        ([a_head(1, 20), a_head(2, 10)], {}, [2, 1]),
        ([a_head(1, task_rank=9), a_head(2, task_rank=3)], {}, [2, 1]),
        ([a_head(1, group=1), a_head(2, group=2, task_rank=9)], {1: 5}, [2, 1]),
        ([a_head(1, 10, group=1), a_head(2, 20, group=2)], {1: 5}, [1, 2]),
        ([a_head(2), a_head(1)], {}, [1, 2]),
        ([], {}, []),
        # 1,000 ticks have passed: 100 steps with an ageing of 10 ticks
        ([a_head(1, 50), a_head(2, 149, ageing=10 * TICK)], {}, [2, 1]),
        ([a_head(1, 50), a_head(2, 151, ageing=10 * TICK)], {}, [1, 2]),
        ([a_head(1, 0, 999), a_head(2, 50, ageing=10 * TICK)], {}, [2, 1]),
        ([a_head(1, 0, 900, ageing=10 * TICK), a_head(2, 80, ageing=10 * TICK)], {}, [2, 1]),
        ([a_head(1, 50), a_head(2, 150, group=2, ageing=10 * TICK)], {2: 1}, [1, 2]),
        ([a_head(1, 50, 3), a_head(2, 60, ageing=500 * TICK)], {}, [1, 2]),
    ],
)
def test_the_order_of_queues(heads, running, order):
    assert [head.queue for head in policy.best_queues(heads, GroupShares(running), NOW)] == order


@given(
    priority=st.integers(0, 255),
    created=CREATED,
    ageing=st.integers(1_000_000, 30 * DAY),
    waited=st.integers(0, 60 * DAY),
)
def test_each_ageing_of_waiting_is_one_step_of_priority(priority, created, ageing, waited):
    now = created + waited
    effective, since = standing(rank(priority, created, Order("fifo", ageing)), ageing, now)
    assert abs(effective - (priority - waited // ageing)) <= int(ageing - waited % ageing <= TICK)
    assert now - ageing - 2 * TICK <= EPOCH + since * TICK <= now
    assert standing(rank(priority, created, FIFO), 0, now) == (priority, (created - EPOCH) // TICK)


@given(priority=st.integers(0, 255), created=CREATED, waited=st.integers(0, 60 * DAY))
def test_a_rank_from_before_the_pool_had_ageing_stands_for_the_same(priority, created, waited):
    created -= (created - EPOCH) % TICK
    before, after = (rank(priority, created, order) for order in (FIFO, Order("fifo", 640 * TICK)))
    assert standing(before, 640 * TICK, created + waited) == standing(after, 640 * TICK, created + waited)


def a_row(queue, task, priority=100, task_rank=0):
    return TaskToRun(task, 0, queue, rank(priority, EPOCH + task_rank * TICK, FIFO), 0, 0, 1, 0, None)


def rows(queue, n, priority=100):
    return [a_row(queue, i, priority, i) for i in range(n)]


@pytest.mark.parametrize(
    ("candidates", "groups", "running", "n", "picks"),
    [
        ({1: rows(1, 5)}, {1: 1}, {}, 3, [1, 1, 1]),
        ({1: rows(1, 5), 2: rows(2, 5)}, {1: 1, 2: 2}, {}, 4, [1, 2, 1, 2]),
        ({1: rows(1, 5), 2: rows(2, 5)}, {1: 1, 2: 2}, {1: 2}, 4, [2, 2, 1, 2]),
        ({1: rows(1, 5, 10), 2: rows(2, 5, 20)}, {1: 1, 2: 2}, {1: 99}, 4, [1, 1, 1, 1]),
        ({1: rows(1, 1), 2: rows(2, 1)}, {1: 1, 2: 2}, {}, 9, [1, 2]),
        ({1: rows(1, 3), 2: rows(2, 3)}, {1: 1, 2: 1}, {}, 4, [1, 2, 1, 2]),
        ({1: []}, {1: 1}, {}, 2, []),
        ({}, {}, {}, 2, []),
    ],
)
def test_the_shares_of_queues(candidates, groups, running, n, picks):
    assert policy.pick_queues(candidates, heads_of(groups), GroupShares(running), n, NOW) == picks


@given(
    priorities=st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=5),
    running=st.dictionaries(st.integers(0, 2), st.integers(0, 9)),
    turns=st.dictionaries(st.integers(0, 2), st.integers(0, 9)),
    n=st.integers(0, 20),
)
def test_the_shares_are_those_of_choosing_one_by_one(priorities, running, turns, n):
    """The heap gives what looking at every queue for every single task would give."""
    candidates = {q: [a_row(q, i, p, i) for i, p in enumerate(sorted(one))] for q, one in enumerate(priorities)}
    groups = {queue: queue % 3 for queue in candidates}
    shares, taken, expected = GroupShares(running, turns), dict.fromkeys(candidates, 0), []
    for _ in range(n):
        left = [(rows[taken[q]], q) for q, rows in candidates.items() if taken[q] < len(rows)]
        if not left:
            break
        _, _, _, best = min((r.task_rank & 255, shares.of(groups[q]), r.task_rank, q) for r, q in left)
        expected.append(best)
        taken[best] += 1
        shares.take(groups[best])
    given = GroupShares(running, turns)
    assert policy.pick_queues(candidates, heads_of(groups), given, n, NOW) == expected


@pytest.mark.parametrize("num_bots", range(1, 8))
@pytest.mark.parametrize("sizes", [(400, 40), (40, 400), (40, 90, 400)])
def test_groups_with_a_backlog_get_equal_numbers_of_claims(num_bots, sizes):
    """Bots that hold one task each, which end in the order of their start."""
    left = {group: [a_row(group, i, task_rank=group) for i in range(size)] for group, size in enumerate(sizes)}
    heads = heads_of({group: group for group in left})
    turns: dict[int, int] = {}
    held: deque[int] = deque(maxlen=num_bots)
    claims: Counter[int] = Counter()
    while all(left.values()):
        shares = GroupShares(Counter(list(held)[len(held) == num_bots :]), turns)
        [group] = policy.pick_queues(left, heads, shares, 1, NOW)
        left[group].pop(0)
        turns[group] = shares.take(group)
        held.append(group)
        claims[group] += 1
        assert max(claims.values()) - min(claims[one] for one in left) <= 1


@pytest.mark.parametrize(
    ("rows", "local", "order"),
    [
        ([], {1}, []),
        ([a_row(1, 1), a_row(1, 2)], {2}, [2, 1]),
        ([a_row(1, 1, 10), a_row(1, 2, 20)], {2}, [1, 2]),
        ([a_row(1, 1), a_row(1, 2), a_row(1, 3)], {3, 2}, [2, 3, 1]),
        ([a_row(1, 1)], set(), [1]),
        ([a_row(1, i) for i in range(5)], {4}, [0, 1, 2, 3, 4]),
    ],
)
def test_what_lies_near_goes_first_among_equals(rows, local, order):
    assert [row.task_id for row in policy.local_first(rows, local, 3, ageing=0, now=NOW)] == order


# ---------------------------------------------------------------- rank


@pytest.mark.parametrize(
    ("order", "first", "second"),
    [
        (FIFO, (10, 5), (20, 1)),
        (FIFO, (10, TICK), (10, 2 * TICK)),
        (FIFO, (10, NEW_YEAR - TICK), (10, NEW_YEAR + TICK)),
        (FIFO, (10, 9 * 10**15), (11, 1)),
        (Order(LIFO, 0), (10, 2 * TICK), (10, TICK)),
        (Order(LIFO, 0), (10, TICK), (11, 2 * TICK)),
        (Order("fifo", 10 * TICK), (10, TICK), (11, TICK)),
        (Order("fifo", 10 * TICK), (11, 0), (10, 11 * TICK)),
        (Order("fifo", 10 * TICK), (10, 9 * TICK), (11, 0)),
    ],
)
def test_the_smaller_rank_runs_first(order, first, second):
    (priority, created), (other, later) = first, second
    assert rank(priority, EPOCH + created, order) < rank(other, EPOCH + later, order)


@given(priority=st.integers(0, 255), created=st.integers(EPOCH, 10**16), ageing=st.integers(0, 30 * DAY))
def test_every_rank_tells_its_priority(priority, created, ageing):
    for order in (FIFO, Order(LIFO, 0), Order("fifo", ageing)):
        found = rank(priority, created, order)
        assert 0 <= found < 1 << 63
        assert standing(found, 0, created)[0] == priority


# ---------------------------------------------------------------- time


def a_run(**given):
    fields = dict.fromkeys(TaskRun.__struct_fields__)
    return TaskRun(**{**fields, "claimed_at": 100, "lease": 50, **given})


@pytest.mark.parametrize(
    ("run", "heartbeat", "resumed_at", "end"),
    [
        ({"started_at": 110}, 0, 0, 160),
        ({"started_at": 110}, 140, 0, 190),
        ({"started_at": 110}, 140, 500, 550),
        ({}, 0, 0, 150),
    ],
)
def test_the_end_of_a_lease(run, heartbeat, resumed_at, end):
    assert policy.lease_end(a_run(**run), heartbeat, resumed_at) == end


@pytest.mark.parametrize(("resumed_at", "end"), [(0, 130), (500, 530)])
def test_the_end_of_the_time_to_start(resumed_at, end):
    assert policy.start_deadline(a_run(), resumed_at, 30) == end


@pytest.mark.parametrize(
    ("now", "last_alive", "away"),
    [(100, 0, False), (100, 40, False), (100, 39, True), (100, 101, False), (100, 104, False), (100, 105, True)],
)
def test_when_the_service_was_away(now, last_alive, away):
    assert policy.service_was_away(now * SECOND, last_alive * SECOND, DEFAULT_RULES) is away


@pytest.mark.parametrize(("skew", "may"), [(0, True), (2, True), (-2, True), (3, False), (-3, False)])
def test_when_a_clock_may_be_trusted(skew, may):
    assert policy.may_sweep(100 * SECOND, (100 + skew) * SECOND, DEFAULT_RULES) is may


def test_the_rules_are_the_documented_ones():
    rules = DEFAULT_RULES
    assert (rules.start_within, rules.dead_after, rules.claim_limit) == (30 * SECOND, 600 * SECOND, 256)
    assert (rules.dedupe_window, rules.retention, rules.keep_keys) == tuple(n * policy.DAY for n in (7, 30, 7))
    assert (rules.log_head + rules.log_tail, rules.default_deadline) == (100 << 20, 7 * policy.DAY)
    assert (DEFAULT_LIMITS.lease_default_s, DEFAULT_LIMITS.retries_default) == (300, 1)
