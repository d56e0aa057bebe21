"""Sweep: everything that becomes due by time, such as expiry, lost runs, dead bots, retries and retention.

Each pass reads only the rows that an index says are due, and checks them again under locks: two servers may sweep at
the same time, and a heartbeat that was stored first wins.

An outage of the service must not count against bots, and a wrong clock must not delete anything: see outages.py.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from msgspec import Struct

from myrmidon.model.ids import IdSource, Micros
from myrmidon.scheduler import chunked_work
from myrmidon.scheduler.outages import record_alive, retention_waits_until
from myrmidon.scheduler.policy import (
    DEFAULT_RULES,
    Rules,
    may_sweep,
)
from myrmidon.scheduler.sweep_effects import BATCH, PassEffects, count_no_resource
from myrmidon.scheduler.sweep_runs import sweep_bots, sweep_runs
from myrmidon.scheduler.sweep_tasks import sweep_jobs, sweep_slices, sweep_tasks
from myrmidon.store.engine.db import Transactions, Tx
from myrmidon.store.engine.effects import CommitEffects, collect_effects
from myrmidon.store.tables import (
    bot_event,
    outbox,
    request_key,
    shared_numbers,
    task_queues,
    task_request,
)
from myrmidon.store.tables import log as logs
from myrmidon.store.tables.chunked_work import FEED, ChunkedWork
from myrmidon.store.views import next_due
from myrmidon.store.views.next_due import NextDue

T = TypeVar("T")
_LOGS_SEEN = "logs_seen"
EVENT_BATCH = 250
"""Events numbered in one transaction; on SQLite other writers wait for it."""


class SweepResult(Struct):
    """What a sweep did: counts by pass, the queues that got tasks (``queues_to_wake``), and delays for metrics."""

    slices: int = 0
    runs: int = 0
    bots: int = 0
    tasks: int = 0
    jobs: int = 0
    chunks: int = 0
    events: int = 0
    old_rows: int = 0
    queues_to_wake: set[int] = set()
    late: list[tuple[str, Micros]] = []
    """Tasks whose waiting ended (expired, next_slice, deadline), with the detection lag."""
    lost: list[tuple[str, Micros]] = []
    """Runs that were declared lost (bot_lost, not_started), with the time since the last sign of them."""
    no_resource: int = 0
    """Tasks that ended because no bot could run them."""
    retention_waits_until: Micros | None = None
    """When old rows may be deleted again; None if they may be deleted now."""

    @property
    def changed_something(self) -> bool:
        """Whether tasks, jobs or bots have changed, so that waiting bots must check again."""
        return bool(self.slices or self.runs or self.bots or self.tasks or self.jobs or self.chunks)


def sweep(
    db: Transactions, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, log_db: Transactions | None = None
) -> SweepResult | None:
    """Run all passes, each in its own transactions; None if this server's clock differs from the database's."""
    if not may_sweep(now, db.clock(), rules):
        return None
    db.write(lambda tx: record_alive(tx, now, rules))
    done = SweepResult(retention_waits_until=db.read(lambda tx: retention_waits_until(tx, now, rules)))
    keep_old = done.retention_waits_until is not None
    deleted: list[int] = []
    passes: dict[str, Callable[..., int]] = {
        "runs": partial(sweep_runs, now=now, ids=ids, rules=rules),
        "bots": partial(sweep_bots, now=now, ids=ids, rules=rules),
        "slices": partial(sweep_slices, now=now, ids=ids, rules=rules),
        "tasks": partial(sweep_tasks, now=now, ids=ids, rules=rules, deleted=deleted, keep_old=keep_old),
        "jobs": partial(sweep_jobs, now=now, ids=ids, rules=rules, keep_old=keep_old),
    }
    read_due = next_due.first_without_old if keep_old else next_due.first
    due = db.read(read_due)
    for name, step in passes.items():
        due = _pass(db, step, due, done, name, now, read_due=read_due)
    if _is_due(due.drains, now):
        effects = PassEffects()
        done.chunks = run_chunked_work(
            db, now=now, ids=ids, rules=rules, deleted=deleted, queues_to_wake=done.queues_to_wake, effects=effects
        )
        done.no_resource += effects.no_resource
    done.events = _repeat(db, lambda tx: outbox.assign_positions(tx, EVENT_BATCH), EVENT_BATCH)
    if not keep_old and (
        _is_due(due.oldest_bot_event, now - rules.retention) or _is_due(due.oldest_queue, now - rules.queue_idle)
    ):
        done.old_rows = _repeat(db, lambda tx: delete_old(tx, now=now, rules=rules), BATCH)
    drop_logs(db, log_db or db, deleted)
    return done


def _pass(
    db: Transactions,
    step: Callable[..., int],
    due: NextDue,
    done: SweepResult,
    name: str,
    now: Micros,
    *,
    read_due: Callable[[Tx], NextDue],
) -> NextDue:
    """Repeat a pass while rows are due; returns what is due afterwards, since a pass may create work for the next."""
    while _is_due(getattr(due, name), now):
        n, effects = db.write(partial(_run_step, step=step, watched=name in _WATCHED))
        if not n:
            break
        setattr(done, name, getattr(done, name) + n)
        done.queues_to_wake |= effects.queues
        done.late += effects.late
        done.lost += effects.lost
        done.no_resource += effects.no_resource
        due = db.read(read_due)
    return due


_WATCHED = ("runs", "slices", "tasks")
"""The passes that record delays."""


def _run_step(tx: Tx, step: Callable[..., int], *, watched: bool) -> tuple[int, PassEffects]:
    effects = PassEffects()
    n = step(tx, effects=effects) if watched else step(tx)
    effects.queues = set(tx.effects.enqueued)
    effects.no_resource = count_no_resource(tx.effects.events)
    return n, effects


def _is_due(alarm: Micros | None, now: Micros) -> bool:
    return alarm is not None and alarm <= now


def _repeat(db: Transactions, step: Callable[[Tx], int], limit: int) -> int:
    """Repeat a step until it processes fewer rows than its limit."""
    total = n = db.write(step)
    while n >= limit:
        n = db.write(step)
        total += n
    return total


def run_chunked_work(
    db: Transactions,
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
    deleted: list[int],
    queues_to_wake: set[int],
    effects: PassEffects | None = None,
    on_commit: Callable[[CommitEffects], None] | None = None,
) -> int:
    """Run all chunked work to completion, except work that waits for tasks to end; returns the number of chunks.

    ``on_commit`` gets the effects of each.
    """
    steps = 0
    effects = effects or PassEffects()
    idle: set[int] = set()
    while works := _next_works(db, idle):
        fed: set[int | None] = set()
        for work in works:
            if work.kind == FEED and work.job_id in fed:
                continue  # the first one of the job has taken it along
            fed.update([work.job_id] if work.kind == FEED else [])
            step = partial(chunked_work.run_chunk, work=work, now=now, ids=ids, rules=rules)
            result, committed = db.write(collect_effects(step))
            queues_to_wake |= result.queues
            deleted += result.deleted
            effects.no_resource += count_no_resource(committed.events)
            idle |= {work.id} if result.waits else set()
            if on_commit is not None:
                on_commit(committed)
            steps += 1
    return steps


def _next_works(db: Transactions, idle: set[int]) -> list[ChunkedWork]:
    """The next pieces of work that do not wait."""
    pending = db.read(partial(chunked_work.pending, n=BATCH + len(idle)))
    return [work for work in pending if work.id not in idle]


def drop_logs(db: Transactions, log_db: Transactions, task_ids: Iterable[int]) -> int:
    """Delete the logs of deleted tasks; returns for how many tasks.

    Logs are in their own database, so they cannot be deleted in the transaction that deletes their task. A server may
    crash in between, and output may arrive later, so each sweep also checks a page of all logs, round robin.
    """
    last = db.read(lambda tx: shared_numbers.read(tx, _LOGS_SEEN)) or 0
    page = log_db.read(lambda tx: logs.tasks_after(tx, last, BATCH))
    candidates = {*task_ids, *page}
    deleted = (
        sorted(candidates - db.read(lambda tx: task_request.existing(tx, sorted(candidates)))) if candidates else []
    )
    if deleted:
        log_db.write(lambda tx: logs.delete(tx, deleted))
    seen = page[-1] if len(page) == BATCH else 0
    if seen != last:
        db.write(lambda tx: _save_logs_seen(tx, seen))
    return len(deleted)


def _save_logs_seen(tx: Tx, task_id: int) -> None:
    shared_numbers.lock(tx, _LOGS_SEEN)
    shared_numbers.put(tx, _LOGS_SEEN, task_id)


def delete_old(tx: Tx, *, now: Micros, rules: Rules = DEFAULT_RULES) -> int:
    """Delete old bot events, idle queues and old request keys."""
    request_key.delete_old(tx, before=now - rules.keep_keys)
    old = bot_event.delete_old(tx, before=now - rules.retention, n=BATCH)
    return old + task_queues.delete_idle(tx, before=now - rules.queue_idle, n=BATCH)
