"""Maintenance: everything that happens without a call, because its time has come or because a change has many rows.

A piece of maintenance is a *step*: one bounded transaction that is right by itself, with any pause before and after it.
Each step reads the time in its own transaction. Two tables say what there is: ``TIMED`` has the kinds that become due
by time, ``CHUNKED`` the kinds of chunked work, each with the states of a job in which it may run.

``Maintenance.steps`` is the only loop. Kinds and jobs take turns: one step of each kind that is due, one chunk of each
job that has work, and again until nothing is due. A step that meets a lock of another transaction is skipped, and the
others go on. Several servers may do this at once: a step checks under locks what it has read without them.

An outage of the service must not count against bots, and a wrong clock must not delete anything: see outages.py.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

from msgspec import Struct, field

from myrmidon.model.errors import StoreBusy, StoreError
from myrmidon.model.ids import IdSource, Micros, created_ms
from myrmidon.model.states import JOB_FINAL, JobState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.cancel import cancel_children_chunk, cancel_tagged_chunk
from myrmidon.scheduler.cascade import cascade_chunk, finish_cascade
from myrmidon.scheduler.due import (
    BATCH,
    Handled,
    handle_due_jobs,
    handle_due_runs,
    handle_due_tasks,
    handle_expired_slices,
    handle_silent_bots,
)
from myrmidon.scheduler.hold import hold_page, release_page
from myrmidon.scheduler.outages import keeps_old
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules, may_sweep
from myrmidon.scheduler.priority import rerank_chunk, set_priority_page
from myrmidon.scheduler.propagate import cancel_page, propagate, propagate_chunk
from myrmidon.scheduler.ready import lost_capacity_chunk
from myrmidon.scheduler.rerun import finish_reset, reset_page
from myrmidon.scheduler.resource_groups import delete_group_chunk
from myrmidon.scheduler.retention import delete_job_chunk
from myrmidon.scheduler.submit_job import start_page
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Transactions, Tx
from myrmidon.store.engine.effects import CommitEffects, collect_effects
from myrmidon.store.tables import bot_event, outbox, request_key, shared_numbers, task_queues, task_request, task_result
from myrmidon.store.tables import chunked_work as store
from myrmidon.store.tables import log as logs
from myrmidon.store.tables.chunked_work import CHUNK, WAITS, ChunkedWork
from myrmidon.store.views import next_due
from myrmidon.store.views.next_due import NextDue

CHUNKS: Final = "chunks"
LOGS: Final = "logs"
VITAL: Final = ("runs", "slices", "tasks")
"""The kinds without which tasks of a lost bot, or of no bot, wait for ever: leases, slices and deadlines."""
OTHER_KINDS: Final = ("bots", "jobs", "events", CHUNKS)
LATE: Final = 30 * SECOND
"""From this delay on a kind is behind; the shortest lease."""
_LOGS_SEEN: Final = "logs_seen"
_TURNS: Final = 16
"""Chunks between two turns of the other kinds."""
_EVENT_BATCH: Final = 250
"""Events numbered in one transaction; on SQLite other writers wait for it."""


# ---------------------------------------------------------------- what becomes due by time


def _number_events(uow: UnitOfWork) -> Handled:
    return Handled(outbox.assign_positions(uow.tx, _EVENT_BATCH))


def _delete_old(uow: UnitOfWork) -> Handled:
    """Delete old bot events, idle queues and old request keys, unless a long gap in time delays that."""
    if keeps_old(uow.tx, uow.now, uow.rules):
        return Handled()
    request_key.delete_old(uow.tx, before=uow.now - uow.rules.keep_keys)
    old = bot_event.delete_old(uow.tx, before=uow.now - uow.rules.retention, n=BATCH)
    return Handled(old + task_queues.delete_idle(uow.tx, before=uow.now - uow.rules.queue_idle, n=BATCH))


TIMED: dict[str, Callable[[UnitOfWork], Handled]] = {
    "runs": handle_due_runs,
    "bots": handle_silent_bots,
    "slices": handle_expired_slices,
    "tasks": handle_due_tasks,
    "jobs": handle_due_jobs,
    "events": _number_events,
    "old_rows": _delete_old,
}
"""The step of each kind: it handles up to a batch of due rows."""


# ---------------------------------------------------------------- chunked work


Chunk: TypeAlias = Callable[[UnitOfWork, ChunkedWork, int], int | None]
"""Changes the next n rows; returns the position after them, None at the end, or WAITS."""


class Chunked(Struct, frozen=True):
    """How one kind of chunked work is carried out.

    ``states``: the states of its job in which it may run; in any other it is dropped. None for work without a job.
    ``at_end`` runs in the transaction of the last chunk.
    """

    chunk: Chunk
    states: Collection[JobState] | None = None
    at_end: Callable[[UnitOfWork, ChunkedWork], None] | None = None


def _pages(change: Callable[[UnitOfWork, ChunkedWork, list[TaskResult]], None]) -> Chunk:
    """Work that changes all tasks of a job."""

    def chunk(uow: UnitOfWork, work: ChunkedWork, n: int) -> int | None:
        page = task_result.lock_of_job(uow.tx, work.subject, after=work.position, n=n)
        change(uow, work, page)
        return page[-1].id if len(page) == n else None

    return chunk


_RUNNING = {JobState.RUNNING}
CHUNKED: dict[str, Chunked] = {
    # In a job that has ended, edges are only counted: its waiting tasks start if it is reopened.
    store.FEED: Chunked(propagate_chunk, frozenset(JobState) - {JobState.CANCELLED}),
    # The end of a cascade starts all tasks of the job.
    store.START: Chunked(_pages(start_page), _RUNNING),
    store.RESET: Chunked(_pages(reset_page), _RUNNING, at_end=finish_reset),
    store.HOLD: Chunked(_pages(hold_page), _RUNNING),
    store.RELEASE: Chunked(_pages(release_page), _RUNNING),
    store.PRIORITY: Chunked(_pages(set_priority_page), _RUNNING),
    # A job of which fail-fast cancels the rest is running until the last task has ended.
    store.CANCEL: Chunked(_pages(cancel_page), {JobState.RUNNING, JobState.CANCELLED}),
    store.CASCADE: Chunked(cascade_chunk, {JobState.PENDING_RETRY}, at_end=finish_cascade),
    store.DELETE_JOB: Chunked(delete_job_chunk, JOB_FINAL),
    store.DELETE_GROUP: Chunked(delete_group_chunk),
    store.CHILDREN: Chunked(cancel_children_chunk),
    store.TAGGED: Chunked(cancel_tagged_chunk),
    store.CAPACITY: Chunked(lost_capacity_chunk),
    store.RERANK: Chunked(rerank_chunk),
}


def _run_chunk(uow: UnitOfWork, turn: int) -> Handled:
    """Carry out the next chunk of a job (``turn`` is its id), or of work without a job (``turn`` is minus its id).

    Within a job a cancellation comes first, then the oldest work. Nothing was done if the work waits for tasks to end.
    """
    uow.lock_jobs([turn])
    work = store.lock(uow.tx, -turn) if turn < 0 else store.lock_next_of_job(uow.tx, turn)
    if work is None:
        return Handled()
    kind, job = CHUNKED[work.kind], uow.jobs.get(turn)
    if kind.states is not None and (job is None or not (job.staged or job.state in kind.states)):
        uow.finish_chunked_work(work)
    else:
        position = kind.chunk(uow, work, CHUNK)
        if position == WAITS:
            return Handled()
        uow.advance_chunked_work(work, position)
        if position is None and kind.at_end is not None:
            kind.at_end(uow, work)
    propagate(uow)
    return Handled(1)


def run_step(
    tx: Tx, what: str | int, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, skip_locked: bool = False
) -> Handled:
    """Do one step: of a kind in TIMED, or of chunked work, named by its turn. Rows that are not due are left alone."""
    uow = UnitOfWork(tx, now, ids, rules)
    uow.skip_locked = skip_locked
    return _run_chunk(uow, what) if isinstance(what, int) else TIMED[what](uow)


# ---------------------------------------------------------------- the loop


def due_at(kind: str, due: NextDue, rules: Rules) -> Micros | None:
    """When the oldest row of a kind was or becomes due; None if there is none."""
    if kind == "old_rows":
        ends = [(due.oldest_bot_event, rules.retention), (due.oldest_queue, rules.queue_idle)]
        return min((at + kept for at, kept in ends if at is not None), default=None)
    if kind == CHUNKS:
        return created_ms(due.chunks) * 1000 if due.chunks is not None else None
    at: Micros | None = getattr(due, kind)
    return at


def overdue(tx: Tx, now: Micros, rules: Rules = DEFAULT_RULES) -> dict[str, Micros]:
    """Since when each kind is overdue, without kinds that are not. Rows that wait for their deletion do not count."""
    due = next_due.first(tx)
    oldest = {kind: due_at(kind, due, rules) for kind in VITAL + OTHER_KINDS}
    if due.tasks is not None and due.tasks <= now:
        oldest["tasks"] = next_due.oldest_deadline(tx, now)
    return {kind: at for kind, at in oldest.items() if at is not None and at <= now}


class Step(Struct):
    """One transaction of maintenance.

    ``n`` is how many rows or chunks it has handled, ``delays`` how late it has detected what, ``effects`` what others
    wait for. ``skipped``: another transaction held a lock that the step needs. ``error``: the step failed.
    """

    kind: str
    n: int = 0
    delays: list[tuple[str, Micros]] = []
    effects: CommitEffects = field(default_factory=CommitEffects)
    skipped: bool = False
    error: Exception | None = None


class Maintenance:
    """The maintenance of one database by one server. ``clock`` is read in each transaction."""

    def __init__(
        self,
        db: Transactions,
        clock: Callable[[], Micros],
        ids: IdSource,
        rules: Rules = DEFAULT_RULES,
        log_db: Transactions | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._ids = ids
        self._rules = rules
        self._log_db = log_db or db
        self._turns: deque[int] = deque()
        """Who gets the next chunks; kept between rounds, so that the last one in the row is not left out."""
        self.clocks_agree = True
        """False while this server's clock differs from the database's: then nothing becomes due."""

    def steps(self, *, timed: bool = True) -> Iterator[Step]:
        """Carry out what is due, one step at a time, until nothing is; without ``timed`` only chunked work.

        What is skipped, fails or waits is left for the next round. The caller may stop after any step.
        """
        left: set[str | int] = set()
        locked: set[str | int] = set()
        deleted: list[int] = []
        checks_logs = timed
        if timed:
            self._compare_clocks(self._clock())
        goes_on = True
        while goes_on:
            goes_on = False
            for what in self._due(left, timed=timed):
                step = self._step(what, skip_locked=what in locked)
                if step.skipped and what in TIMED and what not in locked:
                    locked.add(what)  # from now on without the rows that others have locked
                elif not step.n:
                    left.add(what)
                deleted += step.effects.deleted
                goes_on = True
                yield step
            if checks_logs or deleted:
                yield Step(LOGS, self._delete_logs(deleted))
                checks_logs, deleted = False, []

    def _due(self, left: Collection[str | int], *, timed: bool) -> Iterator[str | int]:
        """One turn of each kind that is due, then of some of those that have chunked work."""
        due = self._db.read(next_due.first)
        for kind in TIMED if timed else ():
            if kind not in left and self._is_due(kind, due):
                yield kind
        for _ in range(_TURNS if due.chunks is not None else 0):
            turn = self._next_turn(left)
            if turn is None:
                return
            yield turn

    def _next_turn(self, left: Collection[str | int]) -> int | None:
        """The next job, or piece of work without a job, that gets a chunk; None if all have been left."""
        if not any(turn not in left for turn in self._turns):
            self._turns = deque(self._db.read(store.turns))
        while self._turns:
            if (turn := self._turns.popleft()) not in left:
                return turn
        return None

    def _is_due(self, kind: str, due: NextDue) -> bool:
        now = self._clock()
        at = due_at(kind, due, self._rules)
        if at is None or (at > now and kind != "events"):  # those of a server whose clock is ahead count, too
            return False
        self._compare_clocks(now)
        return self.clocks_agree

    def _compare_clocks(self, now: Micros) -> None:
        self.clocks_agree = may_sweep(now, self._db.clock(), self._rules)

    def _step(self, what: str | int, *, skip_locked: bool = False) -> Step:
        def run(tx: Tx) -> Handled:
            return run_step(tx, what, now=self._clock(), ids=self._ids, rules=self._rules, skip_locked=skip_locked)

        kind = CHUNKS if isinstance(what, int) else what
        try:
            handled, effects = self._db.write(collect_effects(run), patient=False)
        except StoreBusy:
            return Step(kind, skipped=True)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one broken row must not stop the maintenance of all others
            return Step(kind, error=error)
        return Step(kind, handled.n, handled.delays, effects)

    def _delete_logs(self, task_ids: Iterable[int]) -> int:
        """Delete the logs of deleted tasks; returns for how many tasks.

        Logs are in their own database, so they cannot be deleted in the transaction that deletes their task. A server
        may crash in between, and output may arrive later, so each round also checks a page of all logs, round robin.
        """
        last = self._db.read(lambda tx: shared_numbers.read(tx, _LOGS_SEEN)) or 0
        page = self._log_db.read(lambda tx: logs.tasks_after(tx, last, BATCH))
        candidates = sorted({*task_ids, *page})
        existing = self._db.read(lambda tx: task_request.existing(tx, candidates)) if candidates else set()
        deleted = [task_id for task_id in candidates if task_id not in existing]
        if deleted:
            self._log_db.write(lambda tx: logs.delete(tx, deleted))
        seen = page[-1] if len(page) == BATCH else 0
        if seen != last:
            self._db.write(lambda tx: _save_logs_seen(tx, seen))
        return len(deleted)


def _save_logs_seen(tx: Tx, task_id: int) -> None:
    shared_numbers.lock(tx, _LOGS_SEEN)
    shared_numbers.put(tx, _LOGS_SEEN, task_id)


def run_due(
    db: Transactions, clock: Callable[[], Micros], ids: IdSource, rules: Rules = DEFAULT_RULES, *, timed: bool = True
) -> list[Step]:
    """Carry out all that is due; the steps that did something. Raises the first error of a step."""
    done = []
    for step in Maintenance(db, clock, ids, rules).steps(timed=timed):
        if step.error is not None:
            raise step.error
        if step.n or step.skipped:
            done.append(step)
    return done
