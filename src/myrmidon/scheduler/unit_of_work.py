"""Unit of work: collects the changes of one transaction and writes them together.

It locks jobs before tasks, updates the counters of a job with every state change of its tasks, and writes what has
changed with one statement per table. The state of a task changes only in ``move`` and ``start_run``; counters of
parents and children, and the due time of staged tasks, are also changed by single statements in store/.
"""

from collections.abc import Collection, Iterable, Sequence

from msgspec import structs

from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.states import (
    FINAL,
    MOVES,
    READY,
    RUNNING,
    SUCCEEDED,
    WAITING,
    JobState,
    RunState,
    TaskState,
    check_job_move,
    check_move,
)
from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import TaskResult, TaskRun
from myrmidon.model.task_to_run import Order, TaskToRun
from myrmidon.scheduler import kept_task
from myrmidon.scheduler.new_task import NewTask
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import (
    chunked_work,
    outbox,
    task_queues,
    task_request,
    task_result,
    task_run,
    task_to_run,
)
from myrmidon.store.tables import job as jobs_store
from myrmidon.store.tables import value as values_store
from myrmidon.store.tables.chunked_work import ChunkedWork
from myrmidon.store.tables.job import Job
from myrmidon.store.tables.task_queues import Queue
from myrmidon.store.tables.task_request import RequestRow, RunPolicy, SliceRow

_RAN_TO_END = frozenset({SUCCEEDED, TaskState.FAILED, TaskState.TIMED_OUT})


class UnitOfWork:
    """The locked rows, loaded facts and pending changes of one transaction.

    ``ended`` and ``ready`` are tasks that ``propagate`` has yet to process; ``queues_to_wake`` got a
    task to run.
    """

    def __init__(self, tx: Tx, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> None:
        self.tx = tx
        self.now = now
        self.ids = ids
        self.rules = rules
        self.jobs: dict[int, Job] = {}
        self.ended: list[TaskResult] = []
        self.ready: list[TaskResult] = []
        self.queues_to_wake: set[int] = set()
        self.requests: dict[int, RequestRow] = {}
        self.slices: dict[int, list[SliceRow]] = {}
        self._run_policies: dict[int, RunPolicy] = {}
        self._reads_shared: dict[int, bool] = {}
        self.queues: dict[int, Queue] = {}
        """Those that were read; see ``queue``."""
        self._dirty: dict[int, TaskResult] = {}
        self._new: dict[int, TaskResult] = {}
        self._started: list[TaskResult] = []
        self._new_jobs: set[int] = set()
        self._runs: dict[tuple[int, int], TaskRun] = {}
        self._values: dict[int, Payload] = {}
        self._to_run: list[TaskToRun] = []
        self._unqueued: set[int] = set()
        self.new_task: NewTask | None = None
        """The task that was stored, if it was only one."""
        self.started_work: list[ChunkedWork] = []
        self.skip_locked = False
        """Whether ``lock`` leaves out what another transaction has locked."""

    def new_id(self) -> int:
        return self.ids.next(self.now)

    # -- locking

    def lock(self, task_ids: Iterable[int]) -> dict[int, TaskResult]:
        """Lock tasks and their jobs. Call it once, before other locks: a fixed order prevents deadlocks."""
        ordered = sorted(set(task_ids))
        if not ordered:
            return {}
        job_of = task_result.jobs_of(self.tx, ordered)
        if job_of:
            self.lock_jobs(job_of.values())
        if not self.skip_locked:
            return task_result.lock(self.tx, ordered)
        free = [i for i in ordered if i not in job_of or job_of[i] in self.jobs]
        return task_result.lock_unlocked(self.tx, free) if free else {}

    def lock_jobs(self, job_ids: Iterable[int | None]) -> None:
        missing = sorted({i for i in job_ids if i is not None and i not in self.jobs})
        if missing:
            self.jobs.update(jobs_store.lock(self.tx, missing, skip_locked=self.skip_locked))

    def job_of(self, task: TaskResult) -> Job | None:
        return self.jobs[task.job_id] if task.job_id is not None else None

    def is_staged(self, task: TaskResult) -> bool:
        """Whether the task belongs to a job that is not yet completely stored: users cannot see it."""
        job = self.job_of(task)
        return job is not None and bool(job.staged)

    # -- facts, each loaded once

    def load_run_policies(self, task_ids: Iterable[int]) -> None:
        """Load the parts of requests that decide what the end of a run means."""
        missing = sorted(set(task_ids).difference(self._run_policies))
        if missing:
            self._run_policies.update(task_request.run_policies(self.tx, missing))

    def run_policy(self, task_id: int) -> RunPolicy:
        if task_id not in self._run_policies:
            self.load_run_policies([task_id])
        return self._run_policies[task_id]

    def load_requests(self, task_ids: Iterable[int]) -> None:
        """Load the requests and slices of tasks into ``requests`` and ``slices``."""
        missing = sorted(set(task_ids).difference(self.requests))
        if missing:
            found = task_request.read(self.tx, missing)
            self.requests.update(found)
            self.slices.update(task_request.slices_of(self.tx, found.values()))

    def shared_readers(self, task_ids: Sequence[int]) -> set[int]:
        """Those of the tasks that read a shared value; for them it may matter on which bot they run."""
        missing = [task_id for task_id in task_ids if task_id not in self._reads_shared]
        self.keep_shared_readers(missing, values_store.reads_shared(self.tx, missing))
        return {task_id for task_id in task_ids if self._reads_shared[task_id]}

    def keep_shared_readers(self, task_ids: Iterable[int], readers: Collection[int]) -> None:
        """Record which of some tasks read a shared value: ``readers``, and the others do not."""
        self._reads_shared.update(dict.fromkeys(task_ids, False))
        self._reads_shared.update(dict.fromkeys(readers, True))

    def queue(self, queue_id: int) -> Queue | None:
        """A queue; None if it was deleted."""
        if queue_id not in self.queues:
            self.queues.update(task_queues.read(self.tx, [queue_id]))
        return self.queues.get(queue_id)

    def order_in(self, queue_id: int) -> Order:
        """How the pool of a queue orders its tasks."""
        queue = self.queues.get(queue_id) or self.queue(queue_id)
        return queue.order if queue is not None else Order()

    # -- changes

    def add(self, tasks: Sequence[TaskResult]) -> None:
        """Add new tasks, to be inserted by ``flush``."""
        for task in tasks:
            self._new[task.id] = task
            if task.job_id is not None:
                job = self.jobs[task.job_id]
                job.num_tasks += 1
                self._count(job, task, 1)

    def add_job(self, job: Job) -> None:
        """Add a new job with its first event; ``save_jobs`` inserts it, with the counters that it has by then."""
        self.jobs[job.id] = job
        self._new_jobs.add(job.id)
        jobs_store.add_first_event(self.tx, job)

    def move(self, task: TaskResult, state: TaskState, reason: str, *, new_generation: bool = False) -> None:
        """Change the state of a locked task; raises IllegalMove if the table does not allow it."""
        if task.state in FINAL or state not in MOVES[task.state]:
            check_move(task.state, state, new_generation=new_generation, history=lambda: self._history(task))
        old = task.state
        job = self.jobs[task.job_id] if task.job_id is not None else None
        if job is not None:
            self._count(job, task, -1)
        if old == READY or (state in FINAL and self._may_be_queued(task)):
            self._unqueued.add(task.id)
        task.state = state
        task.reason = reason
        if new_generation:
            task.generation += 1
        if state in FINAL:
            self._finish(task)
        if job is not None:
            self._count(job, task, 1)
        self._dirty[task.id] = task

    def _may_be_queued(self, task: TaskResult) -> bool:
        """Whether the task may have a row in task_to_run while it runs, for a further instance."""
        policy = self._run_policies.get(task.id)
        return policy.max_num_instances > 1 if policy is not None else not task.skips_request_lookup

    def start_run(self, task: TaskResult) -> None:
        """Move a task to RUNNING; the caller has deleted its row of task_to_run.

        The counters of the job do not change with this, so a claim does not lock the job.
        """
        old = task.state
        if RUNNING not in MOVES[old]:
            check_move(old, RUNNING, new_generation=False, history=lambda: self._history(task))
        task.state = RUNNING
        task.reason = ""
        self._started.append(task)

    def outdate_runs(self, task: TaskResult) -> None:
        """Start a new generation of a running task: its live runs are of the last one and end without a verdict."""
        task.generation += 1
        task.num_retries = 0
        self._unqueued.add(task.id)
        self.touch(task)

    def _finish(self, task: TaskResult) -> None:
        task.completed_at = self.now
        if task.state not in _RAN_TO_END:
            task.abandoned_at = task.abandoned_at or self.now
        task.killing = 0
        task.held = 0
        task.due_at = None if task.job_id is not None else self.now + self.rules.retention
        self.ended.append(task)

    def hold(self, task: TaskResult, *, held: bool) -> None:
        """Set or clear the flag that keeps a task from becoming ready."""
        job = self.job_of(task)
        if job is not None:
            self._count(job, task, -1)
        task.held = int(held)
        if job is not None:
            self._count(job, task, 1)
        self._dirty[task.id] = task

    def unqueue(self, task: TaskResult) -> None:
        """Delete the rows of the task in task_to_run."""
        self._unqueued.add(task.id)

    def touch(self, task: TaskResult) -> None:
        """Write a locked task and an event, although its state does not change."""
        self._dirty[task.id] = task

    def end_run(self, run: TaskRun, state: RunState, reason: str) -> None:
        """End a live run; later reports on it are stale."""
        run.state = state
        run.reason = reason
        run.ended_at = self.now
        self._runs[(run.task_id, run.run)] = run

    def touch_run(self, run: TaskRun) -> None:
        self._runs[(run.task_id, run.run)] = run

    def write_value(self, value_id: int, payload: Payload) -> None:
        """Set the content of a value of a locked job."""
        self._values[value_id] = payload

    def enqueue(self, row: TaskToRun) -> None:
        """Add a row to task_to_run, so that bots can claim the task."""
        queue = self.queue(row.queue) if row.shared else None
        if queue is not None and row.shared & ~queue.shared:
            task_queues.mark_shared(self.tx, queue.id, row.shared)
            self.queues[queue.id] = structs.replace(queue, shared=queue.shared | row.shared)
        self._to_run.append(row)
        self.queues_to_wake.add(row.queue)

    def enqueues(self, task: TaskResult) -> bool:
        """Whether this unit of work has enqueued the task and not written that yet."""
        return any(row.task_id == task.id for row in self._to_run)

    def start_chunked_work(self, kind: str, subject: int, *, job: Job | None = None, args: str = "{}") -> ChunkedWork:
        """Start work that is done chunk by chunk in later transactions; its job cannot end before it is finished."""
        return self.start_several(kind, [subject], job=job, args=args)[0]

    def start_several(
        self, kind: str, subjects: Sequence[int], *, job: Job | None = None, args: str = "{}"
    ) -> list[ChunkedWork]:
        """As start_chunked_work, for many subjects of the same job."""
        job_id = job.id if job else None
        started = [ChunkedWork(self.new_id(), kind, one, job_id, 0, args, self.now) for one in subjects]
        chunked_work.insert(self.tx, started)
        self.started_work += started
        if job:
            job.num_chunked_work += len(started)
        return started

    def advance_chunked_work(self, work: ChunkedWork, position: int | None) -> None:
        """Record how far locked work has come; None if it is complete."""
        if position is None:
            self.finish_chunked_work(work)
        else:
            work.position = position
            chunked_work.advance(self.tx, work)

    def finish_chunked_work(self, *works: ChunkedWork) -> None:
        """Delete chunked work that is complete."""
        if works:
            chunked_work.finish(self.tx, works)
        for work in works:
            if work.job_id is not None and work.job_id in self.jobs:
                self.jobs[work.job_id].num_chunked_work -= 1

    def move_job(self, job: Job, state: JobState, what: str) -> None:
        """Change the state of a locked job and add an event."""
        check_job_move(job.state, state, history=lambda: f"job {job.id}: {job}")
        job.state = state
        if state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
            job.ended_at = self.now
            job.due_at = self.now + self.rules.retention
        else:
            job.ended_at = None
            job.due_at = self.now if state == JobState.PENDING_RETRY else None
        jobs_store.add_event(self.tx, job, what, self.now)

    # -- counters

    def _count(self, job: Job, task: TaskResult, n: int) -> None:
        if task.state == SUCCEEDED:
            job.num_succeeded += n
        elif task.state in FINAL:
            job.num_failed += n
        elif task.held or task.state != WAITING:
            job.num_active += n

    # -- writing

    def flush(self, *, may_keep: bool = False) -> None:
        """Write all pending changes; the statements that follow read them back.

        ``may_keep``: no statement reads the tasks any more, so a ready one may be kept for the claim that follows.
        """
        if may_keep and self.tx.effects.claim_follows and len(self._to_run) == 1:
            row = self._to_run[0]
            if row.queue in self.queues and kept_task.may_be_kept(self.tx, row):
                self._keep(self._to_run.pop())
        if self._runs:
            task_run.save(self.tx, list(self._runs.values()), self.now)
            self._runs = {}
        if self._values:
            values_store.write(self.tx, self._values)
            self._values = {}
        if self._unqueued:
            task_to_run.remove(self.tx, sorted(self._unqueued))
            self._unqueued = set()
        if self._new:  # with all their changes since `add`
            task_result.insert(self.tx, list(self._new.values()))
            for task_id in self._new:
                self._dirty.pop(task_id, None)
            self._new = {}
        if self._started:
            task_result.save(self.tx, self._started, self.now, task_result.STARTED)
            self._started = []
        if self._dirty:
            task_result.save(self.tx, list(self._dirty.values()), self.now)
            self._dirty = {}
        if self._to_run:
            task_to_run.insert(self.tx, self._to_run)
            self._to_run = []

    def _keep(self, row: TaskToRun) -> None:
        """Leave the row of a ready task, and the task, to the claim that follows."""
        added, changed = self._new.pop(row.task_id, None), self._dirty.pop(row.task_id)
        new = self.new_task if self.new_task is not None and self.new_task.task_id == row.task_id else None
        kept = kept_task.KeptTask(
            to_run=row,
            task=changed,
            request=self.requests[row.task_id],
            slice=self.slices[row.task_id][row.slice],
            queue=self.queues[row.queue],
            is_new=added is not None,
            contents=kept_task.contents_of(new) if new and new.job_id in {None, *self._new_jobs} else None,
        )
        kept.keep(self.tx, self.now)

    def save_jobs(self) -> None:
        """Insert the new jobs, and write the states and counters of the others."""
        changed: list[Job] = []
        new: list[Job] = []
        for job_id, job in sorted(self.jobs.items()):
            (new if job_id in self._new_jobs else changed).append(job)
        if changed:
            jobs_store.save(self.tx, changed)
        if new:
            jobs_store.insert(self.tx, new)
            self._new_jobs = set()

    def _history(self, task: TaskResult) -> str:
        events = [f"{e.seq} {e.state} {e.body}" for e in outbox.history(self.tx, task.id)]
        return f"task {task.id}: " + "; ".join(events)


def live(runs: Sequence[TaskRun], task: TaskResult) -> list[TaskRun]:
    """The runs of a task that have not ended."""
    return [run for run in runs if run.task_id == task.id and run.live]
