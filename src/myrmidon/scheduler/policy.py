"""Scheduling decisions as pure functions of facts and the time: no database, no clock.

Which tasks a bot gets, what a lost bot or a nonzero exit code means for a task, when a lease has expired. The other
files of this package read the facts and apply the verdicts in guarded writes.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

from msgspec import Struct

from myrmidon.model.ids import Micros, next_run_number
from myrmidon.model.states import TaskState
from myrmidon.model.task_result import START_FAILED, Finish, TaskResult, TaskRun
from myrmidon.model.task_to_run import Head, TaskToRun, standing

SECOND: Micros = 1_000_000
DAY: Micros = 86_400 * SECOND


class Rules(Struct, frozen=True, kw_only=True):
    """Settings of the scheduler that an installation may change; durations are in microseconds."""

    default_deadline: Micros = 7 * DAY
    start_within: Micros = 30 * SECOND
    dead_after: Micros = 600 * SECOND
    dedupe_window: Micros = 7 * DAY
    retention: Micros = 30 * DAY
    keep_keys: Micros = 7 * DAY
    staging_limit: Micros = 3600 * SECOND
    queue_idle: Micros = 60 * DAY
    slot_lease: Micros = 120 * SECOND
    outage: Micros = 60 * SECOND
    max_skew: Micros = 2 * SECOND
    long_gap: Micros = 3600 * SECOND
    retention_wait: Micros = 3600 * SECOND
    claim_limit: int = 256
    look_ahead: int = 16
    quick_failures: int = 5
    quick_failure_window: Micros = 600 * SECOND
    secret_key: bytes = b""
    log_head: int = 64 << 20
    log_tail: int = 36 << 20

    @property
    def silent_after(self) -> Micros:
        """A bot without a heartbeat for this time is shown as silent; heartbeats are stored twice as often."""
        return min(120 * SECOND, self.dead_after // 2)


DEFAULT_RULES = Rules()
PARENT_RERUN = "parent_rerun"
"""The reason of a task that waits for the new result of a parent, and of a kill that lets it wait."""


class Verdict(Struct, frozen=True):
    """The next state of a task after a run has ended, and the reason."""

    state: TaskState
    reason: str
    retried: bool = False
    rerun: bool = False

    @property
    def is_loss(self) -> bool:
        """Whether the infrastructure ended the run, not the task itself."""
        return self.state == TaskState.BOT_DIED or (self.state == TaskState.READY and not self.rerun)


_SUCCEEDED = Verdict(TaskState.SUCCEEDED, "")


# ---------------------------------------------------------------- ends of runs


def judge_finish(task: TaskResult, report: Finish, *, reruns: int) -> Verdict:
    """The verdict when a command or function has ended. A kill request takes precedence over its result."""
    if task.killing:
        return Verdict(TaskState.KILLED, task.reason)
    if report.clean:
        return _SUCCEEDED
    if report.hard_timeout or report.io_timeout:
        failed = Verdict(TaskState.TIMED_OUT, "hard_timeout" if report.hard_timeout else "io_timeout")
    elif report.killed:
        failed = Verdict(TaskState.KILLED, "killed_on_bot")
    else:
        failed = Verdict(TaskState.FAILED, START_FAILED if report.start_failed else "exit_code")
    if task.num_reruns >= reruns or failed.state == TaskState.KILLED:
        return failed
    return _requeue_unless_capped(task, Verdict(TaskState.READY, "rerun", rerun=True), failed.state)


def judge_lost(task: TaskResult, why: str, *, retries: int) -> Verdict:
    """The verdict when the infrastructure failed during a run: a retry is counted, not a failure of the task."""
    if task.killing:
        return Verdict(TaskState.KILLED, task.reason)
    if task.num_retries >= retries:
        return Verdict(TaskState.BOT_DIED, why)
    return _requeue_unless_capped(task, Verdict(TaskState.READY, "retry", retried=True), TaskState.BOT_DIED)


def judge_unstarted(task: TaskResult) -> Verdict:
    """The verdict when a claimed run never started: the task is queued again, and no retry is counted."""
    if task.killing:
        return Verdict(TaskState.CANCELLED, task.reason)
    return _requeue_unless_capped(task, Verdict(TaskState.READY, "given_back"), TaskState.BOT_DIED)


def judge_outdated(task: TaskResult) -> Verdict:
    """The verdict when a run of an earlier generation has ended: it does not count, and the task waits again.

    A cancellation since then belongs to the present generation, which has not started.
    """
    if task.killing and task.reason != PARENT_RERUN:
        return Verdict(TaskState.CANCELLED, task.reason)
    return Verdict(TaskState.WAITING, PARENT_RERUN)


def _requeue_unless_capped(task: TaskResult, verdict: Verdict, otherwise: TaskState) -> Verdict:
    """The verdict, or the state ``otherwise`` when the task has no run numbers left."""
    if next_run_number(task.run_number) is None:
        return Verdict(otherwise, "run_cap")
    return verdict


# ---------------------------------------------------------------- slices


class SliceFacts(Protocol):
    """The facts about a slice that choose_slice uses."""

    @property
    def queue(self) -> int: ...
    @property
    def wait_for_capacity(self) -> int: ...


def choose_slice(slices: Sequence[SliceFacts], first: int, served: set[int]) -> int | None:
    """The first slice from ``first`` on that a bot serves, or that may wait for a bot; None if there is none."""
    for number in range(first, len(slices)):
        if slices[number].wait_for_capacity or slices[number].queue in served:
            return number
    return None


# ---------------------------------------------------------------- dispatch


class GroupShares:
    """What each resource group has got of the bots: its running tasks, and the number of its last turn.

    Among tasks of equal priority the group with fewer running tasks is next, and of equal ones that whose last turn is
    longer ago. Without turns a single bot, which has no running tasks whenever it chooses, would go by age alone.
    """

    def __init__(self, running: Mapping[int, int], turns: Mapping[int, int] | None = None) -> None:
        self._running = dict(running)
        self._turns = dict(turns or {})
        self._last_turn = max(self._turns.values(), default=0)

    def of(self, group_id: int) -> tuple[int, int]:
        """Smaller is next. It only grows with ``take``."""
        return self._running.get(group_id, 0), self._turns.get(group_id, 0)

    def take(self, group_id: int) -> int:
        """Count a task that the group gets; the number of this turn."""
        self._last_turn += 1
        self._running[group_id] = self._running.get(group_id, 0) + 1
        self._turns[group_id] = self._last_turn
        return self._last_turn

    def copy(self) -> "GroupShares":
        return GroupShares(self._running, self._turns)


def best_queues(heads: Iterable[Head], shares: GroupShares, now: Micros) -> list[Head]:
    """The queues in order of preference: by effective priority, then by what the groups have got, then by age."""
    return sorted(heads, key=lambda h: _sort_key(h.task_rank, h, shares, now))


def pick_queues(
    candidates: Mapping[int, Sequence[TaskToRun | Head]],
    heads: Mapping[int, Head],
    shares: GroupShares,
    n: int,
    now: Micros,
) -> list[int]:
    """From which queue to take each of n tasks, in the order in which they should start.

    Each pick counts at once as a running task of its group, so that groups with tasks of equal priority alternate. A
    share only increases, so a heap entry with an outdated one is replaced when it reaches the top.
    """
    shares = shares.copy()
    groups = {queue: head.resource_group_id for queue, head in heads.items()}
    taken = dict.fromkeys(candidates, 0)
    picks: list[int] = []
    heap = [_sort_key(rows[0].task_rank, heads[queue], shares, now) for queue, rows in candidates.items() if rows]
    heapify(heap)
    for _ in range(n):
        while heap and heap[0][1] != shares.of(groups[heap[0][3]]):
            priority, _share, since, queue = heap[0]
            heapreplace(heap, (priority, shares.of(groups[queue]), since, queue))
        if not heap:
            break
        queue = heappop(heap)[3]
        picks.append(queue)
        taken[queue] += 1
        shares.take(groups[queue])
        if taken[queue] < len(candidates[queue]):
            heappush(heap, _sort_key(candidates[queue][taken[queue]].task_rank, heads[queue], shares, now))
    return picks


def _sort_key(task_rank: int, head: Head, shares: GroupShares, now: Micros) -> tuple[int, tuple[int, int], int, int]:
    priority, since = standing(task_rank, head.ageing, now)
    return (priority, shares.of(head.resource_group_id), since, head.queue)


def local_first(
    rows: Sequence[TaskToRun], local: set[int], look_ahead: int, *, ageing: Micros, now: Micros
) -> list[TaskToRun]:
    """The same rows, reordered: of the first ``look_ahead``, tasks in ``local`` precede others of the same priority."""
    if not rows or not local:
        return list(rows)
    best, _ = standing(rows[0].task_rank, ageing, now)
    near = [r for r in rows[:look_ahead] if r.task_id in local and standing(r.task_rank, ageing, now)[0] == best]
    chosen = {row.task_id for row in near}
    return near + [row for row in rows if row.task_id not in chosen]


# ---------------------------------------------------------------- time


def lease_end(run: TaskRun, heartbeat: Micros, resumed_at: Micros) -> Micros:
    """When a started run counts as lost.

    ``resumed_at`` is when the service came back from an outage or a clock jump. Heartbeats could not arrive before,
    so every lease starts again at that time.
    """
    return max(run.started_at or run.claimed_at, heartbeat, resumed_at) + run.lease


def given_up_at(run: TaskRun, heartbeat: Micros, resumed_at: Micros) -> Micros:
    """When a live run ends as lost if its bot stays silent. Sweeps keep ``due_at`` of a run that has not started."""
    if run.started_at is None:
        return run.due_at or 0
    return lease_end(run, heartbeat, resumed_at)


def start_deadline(run: TaskRun, resumed_at: Micros, start_within: Micros) -> Micros:
    """When a claimed run that was never started is ended and its task queued again."""
    return max(run.claimed_at, resumed_at) + start_within


def known_not_started(run: TaskRun, heartbeat: Micros, rules: Rules) -> bool:
    """Whether a run surely has not started: its bot sent a heartbeat after the time to start without reporting it."""
    return run.started_at is None and heartbeat >= run.claimed_at + rules.start_within


def may_have_started(run: TaskRun, *, retries: int, not_started: bool) -> bool:
    """Whether the loss of a run counts as a retry.

    A task without retries must not run twice, so it counts as started unless ``not_started`` says that it was not.
    """
    return run.started_at is not None or (retries == 0 and not not_started)


def service_was_away(now: Micros, last_alive: Micros, rules: Rules) -> bool:
    """Whether the service was down or its clock jumped, so that missing heartbeats prove nothing.

    The clocks of two servers may differ by twice the permitted skew.
    """
    if not last_alive:
        return False
    return now - last_alive > rules.outage or last_alive - now > 2 * rules.max_skew


def may_sweep(now: Micros, database_now: Micros, rules: Rules) -> bool:
    """Whether this server's clock is close enough to the database's clock to expire anything."""
    return abs(now - database_now) <= rules.max_skew
