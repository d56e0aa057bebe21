"""The invariants of the core, as one checker: run it after every story, simulation and crash.

    check(db)               everything, or an AssertionError that names every broken invariant with its ids
    check_tx(tx)            the same inside a transaction
    check_settled(db, now)  besides: nothing is overdue and no consequence is left to carry out
    Checker()               remembers what it has verified, so that ``check`` again costs only what has changed

The numbers in the messages are those of the design: 1 the right to run, 2 runs and results, 3 edges, 4 events,
5 request keys, 7 jobs and values, 9 discovery, 10 secrets; 0 is whatever points to nothing. Nobody may write
while the servers are checked: a reader there sees each statement's own moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import json

from myrmidon.model import dimensions
from myrmidon.model.ids import next_run_number
from myrmidon.model.states import FINAL, JOB_FINAL, JOB_MOVES, MOVES, JobState, RunState, TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.tables import job as jobs_store
from myrmidon.store.tables import task_request, task_result, task_run, task_to_run
from myrmidon.store.tables.job import Job
from myrmidon.store.tables.task_request import RequestRow

CHUNK = 2000
SHOWN = 50


def check(db: Db, *, nothing_removed: bool = False) -> None:
    """Raise AssertionError unless every invariant holds; ``nothing_removed``: event numbers have no gaps either."""
    db.read(lambda tx: check_tx(tx, nothing_removed=nothing_removed))


def check_tx(tx: Tx, *, nothing_removed: bool = False) -> None:
    Checker().check_tx(tx, nothing_removed=nothing_removed)


def check_settled(db: Db, now: int) -> None:
    """Everything holds, and nothing waits for a sweep or for another server to carry it on."""
    _complain(db.read(lambda tx: [*Checker().problems(tx), *overdue(tx, now)]))


def _complain(problems: Sequence[str]) -> None:
    if problems:
        more = [f"... and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise AssertionError("\n  ".join([f"{len(problems)} invariants are broken:", *problems[:SHOWN], *more]))


# ---------------------------------------------------------------- settled

OVERDUE = {
    "a task is not final past its deadline": """
        SELECT r.id, r.state FROM task_results r JOIN task_requests q ON q.id = r.id
         WHERE r.state IN ('WAITING', 'READY', 'RUNNING') AND q.deadline_at <= :now""",
    "the alarm of a task is overdue": "SELECT id, state FROM task_results WHERE due_at <= :now",
    "a run is lost and nobody noticed": "SELECT task_id, run, bot_id FROM task_runs WHERE due_at <= :now",
    "a right to run has expired": "SELECT task_id, instance FROM task_to_run WHERE expires_at <= :now",
    "a drain is left": "SELECT id, kind, subject FROM chunked_work WHERE id > 0 OR created_at > :now",
    "a job waits for a sweep": "SELECT id, state FROM jobs WHERE due_at <= :now",
    "a job is still staged": "SELECT id, creation_time FROM jobs WHERE staged = 1 AND creation_time <= :now",
    "a live run is past the deadline of its task": """
        SELECT u.task_id, u.run, u.bot_id FROM task_runs u JOIN task_requests q ON q.id = u.task_id
         WHERE u.due_at IS NOT NULL AND q.deadline_at <= :now""",
    "a job has ended, and a task of it has not": """
        SELECT r.id, r.state, j.state FROM task_results r JOIN jobs j ON j.id = r.job_id
         WHERE j.ended_at <= :now AND (
               r.state IN ('READY', 'RUNNING') OR (r.state = 'WAITING' AND j.state <> 'FAILED'))""",
    "an event has no number": "SELECT subject, seq FROM outbox WHERE position IS NULL AND at <= :now",
}


def overdue(tx: Tx, now: int) -> list[str]:
    """What a sweep at ``now`` should not have left behind."""
    return [f"8 {what}: {row}" for what, text in OVERDUE.items() for row in tx.all(text, now=now)]


# ---------------------------------------------------------------- the whole

TASKS = "SELECT id, seq, num_succeeded_parents, num_children, run_number FROM task_results"
JOBS = """
    SELECT id, seq, state, staged, num_tasks, num_succeeded, num_failed, num_active, num_chunked_work FROM jobs
"""
DRAINS = "SELECT kind, subject, job_id FROM chunked_work"
DELETING_JOBS = "SELECT j.id FROM jobs j JOIN resource_groups g ON g.id = j.resource_group_id WHERE g.deleting = 1"
TOLD = "SELECT subject, seq, position, kind, state, body FROM outbox WHERE subject {in:ids} ORDER BY subject, seq"


class Checker:
    """Checks a database again and again, each time only what has changed since the last time."""

    def __init__(self) -> None:
        self._tasks: dict[int, tuple[Any, ...]] = {}
        self._jobs: dict[int, tuple[Any, ...]] = {}
        self._told: dict[int, tuple[int, str, Any]] = {}
        self._owed: set[int] = set()
        self.checked = 0
        """How many tasks the last check looked at."""

    def check(self, db: Db, *, nothing_removed: bool = False) -> None:
        db.read(lambda tx: self.check_tx(tx, nothing_removed=nothing_removed))

    def check_tx(self, tx: Tx, *, nothing_removed: bool = False) -> None:
        _complain(self.problems(tx, nothing_removed=nothing_removed))

    def problems(self, tx: Tx, *, nothing_removed: bool = False) -> list[str]:
        """Every broken invariant, in words."""
        tasks = {row[0]: row for row in tx.all(TASKS)}
        jobs = {row[0]: row for row in tx.all(JOBS)}
        world = _World(tx)
        thorough = not self._tasks or bool(self._tasks.keys() - tasks.keys()) or bool(self._jobs.keys() - jobs.keys())
        changed = sorted(i for i, row in tasks.items() if self._tasks.get(i) != row)
        new_jobs = {i for i, row in jobs.items() if self._jobs.get(i) != row}
        found: list[str] = []
        for start in range(0, len(changed), CHUNK):
            page = _Page(tx, changed[start : start + CHUNK], world)
            found += page.problems(self._told)
            new_jobs |= page.jobs.keys()
            self._owed |= {task.id for task in page.tasks.values() if task.final and task.job_id is not None}
        for chunk in _chunks(sorted(new_jobs & jobs.keys())):
            found += _job_problems(tx, chunk, world, self._told)
        found += self._unfed(tx, world)
        found += [f"{text}: {row}" for text, row in _rows(tx, world)]
        found += _positions(tx, nothing_removed=nothing_removed)
        found += _discovery(tx)
        if thorough or changed:
            found += _dangling(tx, world)
        self._forget(tasks, jobs)
        self.checked = len(changed)
        return found

    def _unfed(self, tx: Tx, world: _World) -> list[str]:
        """3 Ended parents whose children were not told, in jobs where nobody is still busy telling them."""
        found = []
        for chunk in _chunks(sorted(self._owed)):
            ended = {row[0] for row in tx.all(SETTLED_PARENTS, ids=chunk)}
            self._owed -= ended
            for parent, child in tx.all(UNFED, ids=sorted(ended)) if ended else []:
                found.append(f"3 task {child} does not know that its parent {parent} has ended")
        return found

    def _forget(self, tasks: dict[int, tuple[Any, ...]], jobs: dict[int, tuple[Any, ...]]) -> None:
        self._tasks = tasks
        self._jobs = jobs
        self._owed &= tasks.keys()
        if len(self._told) > len(tasks) + len(jobs):
            self._told = {i: told for i, told in self._told.items() if i in tasks or i in jobs}


class _World:
    """What every part of a check needs to know."""

    def __init__(self, tx: Tx) -> None:
        drains = tx.all(DRAINS)
        self.drains: dict[int, int] = {}
        for _, _, job in drains:
            if job is not None:
                self.drains[job] = self.drains.get(job, 0) + 1
        self.removing = {subject for kind, subject, _ in drains if kind == "delete_job"}
        self.removing |= {row[0] for row in tx.all(DELETING_JOBS)}


def _chunks(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))


# ---------------------------------------------------------------- tasks

EDGES = "SELECT child, COUNT(*) FROM task_edges WHERE child {in:ids} GROUP BY child"
COMPLETED = "SELECT child, COUNT(*) FROM completed_task_edges WHERE child {in:ids} GROUP BY child"
SLICES = """
    SELECT id, 0, queue, idempotent FROM task_requests WHERE id {in:ids}
     UNION ALL
    SELECT task_id, slice, queue, idempotent FROM further_slices WHERE task_id {in:ids}
"""
INPUTS = """
    SELECT i.task_id, i.position, i.type, v.size, s.id
      FROM task_inputs i LEFT JOIN "values" v ON v.id = i.value_id
      LEFT JOIN shared_values s ON s.id = i.shared_value_id
     WHERE i.task_id {in:ids}
"""
PARTS = INPUTS.replace("task_inputs", "task_input_parts").replace("i.type", "'PART'")
OUTPUTS = INPUTS.replace("task_inputs", "task_outputs")
NUM_PARTS = """
    SELECT i.task_id, i.position, i.num_parts,
           (SELECT COUNT(*) FROM task_input_parts p WHERE p.task_id = i.task_id AND p.position = i.position)
      FROM task_inputs i WHERE i.task_id {in:ids} AND i.num_parts IS NOT NULL
"""
DELEGATED = """
    SELECT d.task_id, r.state FROM task_delegates d JOIN task_results r ON r.id = d.delegate WHERE d.task_id {in:ids}
"""
SETTLED_PARENTS = """
    SELECT r.id FROM task_results r JOIN jobs j ON j.id = r.job_id
     WHERE r.id {in:ids} AND j.num_chunked_work = 0
"""
UNFED = """
    SELECT e.parent, e.child FROM task_edges e
      JOIN task_results p ON p.id = e.parent JOIN task_results c ON c.id = e.child JOIN jobs j ON j.id = p.job_id
      LEFT JOIN completed_task_edges d ON d.parent = e.parent AND d.child = e.child
     WHERE e.parent {in:ids} AND d.parent IS NULL AND j.state = 'RUNNING' AND j.staged = 0
       AND (p.state = 'SUCCEEDED' OR (c.resolves_all = 1 AND p.state NOT IN ('WAITING', 'READY', 'RUNNING')))
"""


class _Page:
    """Some tasks with all that is known of them."""

    def __init__(self, tx: Tx, ids: Sequence[int], world: _World) -> None:
        self.world = world
        self.tasks = task_result.read(tx, ids)
        self.requests = task_request.read(tx, ids)
        self.jobs = jobs_store.read(tx, sorted({t.job_id for t in self.tasks.values() if t.job_id is not None}))
        self.edges: dict[int, int] = dict(tx.all(EDGES, ids=ids))
        self.completed: dict[int, int] = dict(tx.all(COMPLETED, ids=ids))
        slices = tx.all(SLICES, ids=ids)
        self.queues = {(task, piece): queue for task, piece, queue, _ in slices}
        self.idempotent = {(task, piece) for task, piece, _, idempotent in slices if idempotent}
        self.to_run = _by_task(task_to_run.of_tasks(tx, ids))
        self.runs = _by_task(task_run.read(tx, ids))
        self.told = _by_subject(tx.all(TOLD, ids=ids))
        readers = [i for i, request in self.requests.items() if request.num_inputs]
        writers = [i for i, request in self.requests.items() if request.num_outputs]
        read = tx.all(INPUTS, ids=readers) + tx.all(PARTS, ids=readers) if readers else []
        self.inputs = _by_subject(read)
        self.outputs = _by_subject(tx.all(OUTPUTS, ids=writers)) if writers else {}
        self.num_parts = _by_subject(tx.all(NUM_PARTS, ids=readers)) if readers else {}
        self.delegated = {task_id for task_id, state in tx.all(DELEGATED, ids=writers)} if writers else set()

    def problems(self, told: dict[int, tuple[int, str, Any]]) -> list[str]:
        found: list[str] = []
        for task in self.tasks.values():
            request = self.requests.get(task.id)
            if request is None:
                found.append(f"0 task {task.id} has no request")
                continue
            name = f"task {task.id} ({task.state}, seq {task.seq}, generation {task.generation})"
            found += [f"1 {name} {what}" for what in self._rights(task)]
            found += [f"2 {name} {what}" for what in self._results(task, request)]
            found += [f"2 {name} {what}" for what in self._instances(task, request)]
            found += [f"3 {name} {what}" for what in self._edges(task)]
            found += [f"4 {name} {what}" for what in self._events(task, told)]
            found += [f"7 {name} {what}" for what in self._values(task)]
            found += [f"8 {name} {what}" for what in self._alarms(task)]
        return found

    def _staged(self, task: TaskResult) -> bool:
        job = self.jobs.get(task.job_id or 0)
        return bool(job and job.staged)

    def _outdated(self, task: TaskResult) -> bool:
        """Whether a running task waits again when its runs have ended: they are all of earlier generations."""
        live = [run for run in self.runs.get(task.id, []) if run.live]
        return task.state == TaskState.RUNNING and all(run.generation < task.generation for run in live)

    def _rights(self, task: TaskResult) -> Iterable[str]:
        rows = self.to_run.get(task.id, [])
        runs = self.runs.get(task.id, [])
        if task.state == TaskState.READY:
            if [row.instance for row in rows] != [0]:
                yield f"has the rights to run {[row.instance for row in rows]}, not exactly that of instance 0"
            for row in rows:
                here = (row.slice, row.queue)
                if here != (task.current_task_slice, self.queues.get((task.id, task.current_task_slice))):
                    yield f"stands in (slice, queue) {here}, not in that of its slice {task.current_task_slice}"
        elif task.state == TaskState.RUNNING:
            if any(row.instance == 0 for row in rows):
                yield "still has the right of instance 0"
            if not any(run.live for run in runs):
                yield "has no live run"
        elif rows:
            yield f"has the rights to run {[row.instance for row in rows]}"
        if task.state != TaskState.RUNNING:
            yield from (f"has the live run {run.run}" for run in runs if run.live)
        for run in runs:
            facts = (run.ended_at is None, run.due_at is not None, run.state == RunState.RUNNING)
            if len(set(facts)) != 1:
                when = f"{run.state}, ended {run.ended_at}, alarm {run.due_at}"
                yield f"has a run {run.run} that is neither live nor ended: {when}"
            if run.live and run.generation != task.generation and not self._outdated(task):
                yield f"has a live run {run.run} of generation {run.generation}"
        if self._outdated(task) and rows:
            yield "may start a further instance although it is to wait again"

    def _results(self, task: TaskResult, request: RequestRow) -> Iterable[str]:
        runs = self.runs.get(task.id, [])
        numbers = [run.run for run in runs]
        if numbers != _run_numbers(task.run_number):
            yield f"has the runs {numbers}, but its run number is {task.run_number}"
        wins: dict[int, list[int]] = {}
        for run in runs:
            if run.state == RunState.SUCCEEDED:
                wins.setdefault(run.generation, []).append(run.run)
        yield from (f"has the winners {w} in generation {g}" for g, w in wins.items() if len(w) > 1)
        mine = wins.get(task.generation, [])
        if task.state != TaskState.SUCCEEDED:
            if task.instance_id is not None:
                yield f"names the winner {task.instance_id}"
            if mine:
                yield f"has the winner {mine} in its generation"
        elif task.instance_id is None:
            if task.deduped_from is None or any(run.generation == task.generation for run in runs):
                yield "names neither a winning run nor, without any run, the task that answered it"
        elif mine != [task.instance_id]:
            yield f"names the winner {task.instance_id}, but its generation was won by {mine}"
        else:
            yield from _shows(task, [run for run in runs if run.run == task.instance_id], "winner")
        if task.state == TaskState.RUNNING:
            yield from _shows(task, [run for run in runs if run.live], "live run")
        if task.deduped_from is not None and task.state != TaskState.SUCCEEDED:
            yield f"is answered by {task.deduped_from}"
        may_be_answered = (task.id, task.current_task_slice) in self.idempotent or request.resume_scope is not None
        if task.deduped_from is not None and not may_be_answered:
            yield f"is answered in its slice {task.current_task_slice}, which must run"
        if task.num_retries > request.retries or task.num_reruns > request.max_num_retries:
            used = f"{task.num_retries} of {request.retries} retries, {task.num_reruns} of {request.max_num_retries}"
            yield f"has used {used} reruns"
        if task.killing and task.state != TaskState.RUNNING:
            yield "is being killed"
        if task.held and task.state != TaskState.WAITING:
            yield "is held"

    def _instances(self, task: TaskResult, request: RequestRow) -> Iterable[str]:
        """A task that outlasted its soft timeout gets a further instance, as long as none has failed by itself."""
        if task.state != TaskState.RUNNING or task.killing or request.timeout is None:
            return
        runs = [run for run in self.runs.get(task.id, []) if run.generation == task.generation]
        live = [run for run in runs if run.live]
        if not live or len(live) >= request.max_num_instances or self.to_run.get(task.id):
            return
        if any(not run.live and run.state not in (RunState.BOT_DIED, RunState.CANCELLED) for run in runs):
            return
        if all(run.started_at is not None and run.soft_at is None for run in live):
            yield f"runs {len(live)} of {request.max_num_instances} instances and will be granted no further one"

    def _edges(self, task: TaskResult) -> Iterable[str]:
        if task.job_id in self.world.removing:
            return
        edges, completed = self.edges.get(task.id, 0), self.completed.get(task.id, 0)
        if task.num_parents != edges:
            yield f"counts {task.num_parents} parents and has {edges} edges"
        if task.num_succeeded_parents != completed:
            yield f"counts {task.num_succeeded_parents} satisfied parents and has {completed} satisfied edges"
        starts = task.state in (TaskState.READY, TaskState.RUNNING) and not self._outdated(task)
        if starts and not task.satisfied:
            yield f"does not wait for its parents ({task.num_succeeded_parents} of {task.num_parents})"
        if task.job_id is None and task.state == TaskState.WAITING and task.satisfied and not task.held:
            yield "waits for nothing"

    def _events(self, task: TaskResult, told: dict[int, tuple[int, str, Any]]) -> Iterable[str]:
        events = self.told.get(task.id, [])
        if self._staged(task):
            if task.seq or events:
                yield f"is staged, but has {len(events)} events"
            return
        last, state, generation = told.get(task.id, (0, "", 1))
        for _, seq, _, kind, next_state, body in events:
            if seq <= last:
                continue
            told_body = json.decode(body)
            next_generation, reason = told_body["generation"], told_body.get("reason", "")
            if kind != "task" or seq != last + 1:
                yield f"tells its event {seq} ({kind}) after {last}"
            if not _legal(state, next_state, generation, next_generation, reason):
                yield f"went from {state or 'nothing'}/{generation} to {next_state}/{next_generation} at {seq}"
            last, state, generation = seq, next_state, next_generation
        if task.seq == 0 and not events and task.state == TaskState.WAITING and self.world.drains.get(task.job_id or 0):
            return
        if (last, state, generation) != (task.seq, task.state, task.generation):
            yield f"is told to be {state}/{generation} at {last}"
        yield from _positions_of(events)
        told[task.id] = (last, state, generation)

    def _values(self, task: TaskResult) -> Iterable[str]:
        """One that succeeded may outlive what it read: a parent runs again, and it is past its deadline."""
        done = task.state == TaskState.SUCCEEDED and task.satisfied
        starts = task.state in (TaskState.READY, TaskState.RUNNING) and not self._outdated(task)
        if (done or starts) and not task.forced and not task.resolves_all:
            yield from (f"has no input {row[1]}" for row in self.inputs.get(task.id, []) if not _written(row))
        if task.state == TaskState.SUCCEEDED and task.id not in self.delegated:
            yield from (f"has no output {row[1]}" for row in self.outputs.get(task.id, []) if not _written(row))
        for _, position, num_parts, stored in self.num_parts.get(task.id, []):
            if num_parts != stored:
                yield f"counts {num_parts} parts of its input {position} and has {stored}"
        request = self.requests[task.id]
        counts = (
            len([row for row in self.inputs.get(task.id, []) if row[2] != "PART"]),
            len(self.outputs.get(task.id, [])),
        )
        if task.job_id not in self.world.removing and counts != (request.num_inputs, request.num_outputs):
            yield f"has {counts} inputs and outputs, not {(request.num_inputs, request.num_outputs)}"

    def _alarms(self, task: TaskResult) -> Iterable[str]:
        if not task.final and task.due_at is None and task.seq:
            yield "has no alarm for its deadline"
        if task.final and task.job_id is not None and task.due_at is not None:
            yield "has an alarm of its own although its job's retention is its own"
        if task.final and task.job_id is None and task.due_at is None:
            yield "has no alarm for its retention"
        if task.final and task.completed_at is None:
            yield "has ended at no time"


def _shows(task: TaskResult, runs: Sequence[Any], what: str) -> Iterable[str]:
    """The bot and the start that a task shows are those of one of these runs."""
    if runs and (task.bot_id, task.started_at) not in [(run.bot_id, run.claimed_at) for run in runs]:
        at = [(run.run, run.bot_id, run.claimed_at) for run in runs]
        yield f"shows bot {task.bot_id} and start {task.started_at}, not those of its {what}: {at}"


def _by_task(rows: Iterable[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row.task_id, []).append(row)
    return found


def _by_subject(rows: Iterable[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


def _run_numbers(last: int) -> list[int]:
    numbers: list[int] = []
    at: int | None = 0
    while at is not None and at < last:
        at = next_run_number(at)
        if at is not None:
            numbers.append(at)
    return numbers


def _legal(old: str, new: str, generation: int, new_generation: int, reason: str) -> bool:
    """A new generation leaves a final state, or lets a running task wait again for a parent."""
    if (old, new) == (TaskState.RUNNING, TaskState.RUNNING):
        return new_generation in (generation, generation + 1)
    if (old, new) == (TaskState.RUNNING, TaskState.WAITING):
        return new_generation == generation and generation > 1 and reason == "parent_rerun"
    if not old:
        return new_generation == 1 and (new == TaskState.WAITING or new in MOVES[TaskState.WAITING])
    if TaskState(old) in FINAL:
        return new_generation == generation + 1 and new in MOVES[TaskState(old)]
    return new_generation == generation and (new == old or new in MOVES[TaskState(old)])


def _written(row: tuple[Any, ...]) -> bool:
    _, _, kind, size, shared = row
    if kind == "PART":
        return size is not None or shared is not None
    return size is not None if kind == "VALUE" else shared is not None


def _positions_of(events: Sequence[tuple[Any, ...]]) -> Iterable[str]:
    last = 0
    for _, seq, position, _, _, _ in events:
        if position is None:
            last = 1 << 62
        elif position <= last:
            yield f"has its event {seq} numbered {position}, not behind the earlier one"
        else:
            last = position


# ---------------------------------------------------------------- jobs

COUNTS = """
    SELECT job_id, state, held, COUNT(*), MAX(seq) FROM task_results
     WHERE job_id {in:ids} GROUP BY job_id, state, held
"""


def _job_problems(tx: Tx, ids: Sequence[int], world: _World, told: dict[int, tuple[int, str, Any]]) -> list[str]:
    counts = _by_subject(tx.all(COUNTS, ids=ids))
    events = _by_subject(tx.all(TOLD, ids=ids))
    found: list[str] = []
    for job in jobs_store.read(tx, ids).values():
        name = f"job {job.id} ({job.state}, seq {job.seq}, {job.num_succeeded} of {job.num_tasks} tasks)"
        found += [f"4 {name} {what}" for what in _job_events(job, events.get(job.id, []), told)]
        if job.num_chunked_work != world.drains.get(job.id, 0):
            found.append(f"7 {name} counts {job.num_chunked_work} drains and has {world.drains.get(job.id, 0)}")
        if job.id not in world.removing:
            found += [f"7 {name} {what}" for what in _job_counts(job, counts.get(job.id, []))]
    return found


def _job_counts(job: Job, counts: Sequence[tuple[Any, ...]]) -> Iterable[str]:
    tasks = sum(n for _, _, _, n, _ in counts)
    succeeded = sum(n for _, state, _, n, _ in counts if state == TaskState.SUCCEEDED)
    failed = sum(n for _, state, _, n, _ in counts if TaskState(state) in FINAL) - succeeded
    active = sum(n for _, state, held, n, _ in counts if state in ("READY", "RUNNING") or (state == "WAITING" and held))
    kept = (job.num_tasks, job.num_succeeded, job.num_failed, job.num_active)
    if job.staged:
        if kept != (0, 0, 0, 0) or any(seq for _, _, _, _, seq in counts):
            yield f"is staged, but counts {kept}, or its tasks have events"
        return
    if kept != (tasks, succeeded, failed, active):
        yield f"counts (tasks, succeeded, failed, active) {kept}; there are {(tasks, succeeded, failed, active)}"
    if job.state in (JobState.SUCCEEDED, JobState.FAILED) and active:
        yield f"has ended with {active} tasks that are ready, run or are held"
    if job.state == JobState.SUCCEEDED and succeeded != tasks:
        yield f"has succeeded with {succeeded} of {tasks} tasks"
    if succeeded == tasks and not job.num_chunked_work and job.state not in (JobState.SUCCEEDED, JobState.CANCELLED):
        yield "has not succeeded although all its tasks have"
    if job.state == JobState.RUNNING and not active and not job.num_chunked_work:
        yield "has nothing that could still move it"
    if (job.state in JOB_FINAL) != (job.ended_at is not None):
        yield f"has ended at {job.ended_at}"
    if job.state == JobState.PENDING_RETRY and job.due_at is None and not job.num_chunked_work:
        yield "waits for a retry that nobody will make"


def _job_events(job: Job, events: Sequence[tuple[Any, ...]], told: dict[int, tuple[int, str, Any]]) -> Iterable[str]:
    """Replay the events of a job: their states, and at the end the state of its graph and what blocks it."""
    if job.staged:
        if job.seq or events:
            yield f"is staged, but has {len(events)} events"
        return
    last, state, shown = told.get(job.id, (0, "", None))
    for _, seq, _, kind, next_state, body in events:
        if seq <= last:
            continue
        if kind != "job" or seq != last + 1:
            yield f"tells its event {seq} ({kind}) after {last}"
        first = JobState.RUNNING if not state else None
        if next_state not in ([first] if first else [state, *JOB_MOVES[JobState(state)]]):
            yield f"went from {state or 'nothing'} to {next_state} at {seq}"
        said = json.decode(body)
        last, state, shown = seq, next_state, (said["view"], said.get("blocked_by"))
    if (last, state) != (job.seq, job.state):
        yield f"is told to be {state} at {last}"
    if shown != (job.view, job.blocked_by):
        yield f"is told to be {shown} at {last}, and is {(job.view, job.blocked_by)}"
    yield from _positions_of(events)
    told[job.id] = (last, state, shown)


# ---------------------------------------------------------------- rows that must not be there

BROKEN = {
    "3 a task waits for nothing, and nobody will start it": """
        SELECT r.id, r.job_id FROM task_results r JOIN jobs j ON j.id = r.job_id
         WHERE r.state = 'WAITING' AND r.held = 0 AND (r.forced = 1 OR r.num_succeeded_parents >= r.num_parents)
           AND j.state = 'RUNNING' AND j.staged = 0 AND j.num_chunked_work = 0""",
    "7 a job is cancelled, and a task of it may still start": """
        SELECT r.id, r.state, j.id FROM task_results r JOIN jobs j ON j.id = r.job_id
         WHERE j.state = 'CANCELLED' AND j.num_chunked_work = 0
           AND (r.state IN ('WAITING', 'READY') OR (r.state = 'RUNNING' AND r.killing = 0))""",
    "1 a run is live, but its task is not running": """
        SELECT u.task_id, u.run, r.state FROM task_runs u LEFT JOIN task_results r ON r.id = u.task_id
         WHERE u.due_at IS NOT NULL AND (r.state IS NULL OR r.state <> 'RUNNING')""",
    "1 a run has ended and still has an alarm": """
        SELECT task_id, run, state FROM task_runs
         WHERE due_at IS NOT NULL AND (ended_at IS NOT NULL OR state <> 'RUNNING')""",
    "2 a run began before its bot was idle": "SELECT task_id, run, bot_id FROM task_runs WHERE idle_since > claimed_at",
    "7 nothing references a shared value": """
        SELECT v.id, v.type FROM shared_values v
         WHERE NOT EXISTS (SELECT 1 FROM resource_group_to_shared_value_ref g WHERE g.id = v.id)
           AND NOT EXISTS (SELECT 1 FROM job_to_shared_value_ref j WHERE j.id = v.id)""",
    "7 a task reads or wrote a shared value that its job does not reference": """
        SELECT i.task_id, i.shared_value_id FROM
               (SELECT task_id, shared_value_id FROM task_inputs WHERE shared_value_id IS NOT NULL
                UNION ALL SELECT task_id, shared_value_id FROM task_input_parts WHERE shared_value_id IS NOT NULL
                UNION ALL SELECT task_id, shared_value_id FROM task_outputs WHERE shared_value_id IS NOT NULL) i
          JOIN task_results r ON r.id = i.task_id
          LEFT JOIN job_to_shared_value_ref f ON f.id = i.shared_value_id AND f.job_id = r.job_id
         WHERE f.id IS NULL""",
    "7 a job names a task that has not failed, or none of those that have": """
        SELECT j.id, j.state, j.blocked_by FROM jobs j
         WHERE j.state IN ('RUNNING', 'FAILED', 'SUCCEEDED') AND j.staged = 0 AND j.num_chunked_work = 0
           AND (j.blocked_by IS NULL) <> (j.num_failed = 0)
        UNION ALL
        SELECT id, state, blocked_by FROM jobs WHERE (blocked_by IS NULL) <> (error IS NULL)
        UNION ALL
        SELECT j.id, j.state, j.blocked_by FROM jobs j JOIN task_results r ON r.id = j.blocked_by
         WHERE j.state IN ('RUNNING', 'FAILED', 'SUCCEEDED') AND j.num_chunked_work = 0
           AND r.state IN ('WAITING', 'READY', 'RUNNING', 'SUCCEEDED')""",
    "4 a webhook counts its waiting messages wrongly, or nobody will send them": """
        SELECT w.id, w.num_pending, w.next_at FROM webhooks w
         WHERE w.num_pending <> (
                   SELECT COUNT(*) FROM webhook_deliveries d WHERE d.webhook_id = w.id AND d.state = 'pending')
            OR (w.num_pending > 0 AND w.next_at IS NULL)""",
    "4 a sink is ahead of the events": """
        SELECT s.name, s.position FROM sinks s
         WHERE s.position > (
             SELECT COALESCE(MAX(m.value), 0) FROM shared_numbers m WHERE m.name = 'outbox_position')""",
    "0 a right to run is in a queue that does not exist": """
        SELECT t.task_id, t.queue FROM task_to_run t LEFT JOIN task_dimensions d ON d.id = t.queue
         WHERE d.id IS NULL""",
}


def _rows(tx: Tx, world: _World) -> list[tuple[str, tuple[Any, ...]]]:
    return [(what, row) for what, text in BROKEN.items() for row in tx.all(text)]


POSITIONS = "SELECT COUNT(position), COUNT(DISTINCT position), COALESCE(MAX(position), 0) FROM outbox"
LAST_POSITION = "SELECT COALESCE(MAX(value), 0) FROM shared_numbers WHERE name = 'outbox_position'"


def _positions(tx: Tx, *, nothing_removed: bool) -> Iterable[str]:
    numbered, distinct, last = tx.all(POSITIONS)[0]
    given = tx.all(LAST_POSITION)[0][0]
    if numbered != distinct:
        yield f"4 {numbered} events share {distinct} numbers"
    if last > given:
        yield f"4 an event is numbered {last}, but only {given} numbers were given"
    if nothing_removed and numbered != given:
        yield f"4 {given} numbers were given and {numbered} events have one"


# ---------------------------------------------------------------- discovery

ALIVE = "SELECT id, dimensions FROM bots WHERE alive = 1 AND quarantined IS NULL"
QUEUES = "SELECT id, pool, dimensions FROM task_dimensions"
MATCHES = "SELECT bot_id, queue FROM bot_task_dimensions"


def _discovery(tx: Tx) -> Iterable[str]:
    """9 A healthy bot is matched with exactly the queues of its pools that it can serve."""
    bots = tx.all(ALIVE)
    if not bots:
        return
    by_pool: dict[str, list[tuple[int, str]]] = {}
    for queue, pool, wanted in tx.all(QUEUES):
        by_pool.setdefault(pool, []).append((queue, wanted))
    matched: dict[str, set[int]] = {}
    for bot, queue in tx.all(MATCHES):
        matched.setdefault(bot, set()).add(queue)
    for bot, text in bots:
        has = dimensions.bot_sets(text)
        mine = [one for pool in ("", *has.get("pool", ())) for one in by_pool.get(pool, [])]
        serves = {queue for queue, wanted in mine if dimensions.matches(wanted, has)}
        for queue in serves ^ matched.get(bot, set()):
            yield f"9 bot {bot} {'is not matched with' if queue in serves else 'is wrongly matched with'} queue {queue}"


# ---------------------------------------------------------------- rows that point to nothing

_OF_TASKS = (
    ("task_requests", "id"),
    ("further_slices", "task_id"),
    ("secret_bytes", "task_id"),
    ("task_stdin", "task_id"),
    ("task_tags", "task_id"),
    ("task_to_run", "task_id"),
    ("task_runs", "task_id"),
    ("performance_stats", "task_id"),
    ("dedupe_sources", "task_id"),
    ("task_edges", "parent"),
    ("task_edges", "child"),
    ("completed_task_edges", "parent"),
    ("completed_task_edges", "child"),
    ("task_inputs", "task_id"),
    ("task_input_parts", "task_id"),
    ("task_outputs", "task_id"),
    ("task_delegates", "task_id"),
    ("task_delegates", "delegate"),
    ("task_annotations", "task_id"),
)
_OF_JOBS = (
    ("task_results", "job_id"),
    ("task_requests", "job_id"),
    ('"values"', "owner_job_id"),
    ("job_to_shared_value_ref", "job_id"),
    ("job_meta", "job_id"),
    ("job_codes", "job_id"),
    ("chunked_work", "job_id"),
)
_OTHERS = (
    ("task_results", "id", "task_requests", "id"),
    ("jobs", "resource_group_id", "resource_groups", "id"),
    ("resource_group_to_shared_value_ref", "resource_group_id", "resource_groups", "id"),
    ("resource_group_to_shared_value_ref", "id", "shared_values", "id"),
    ("job_to_shared_value_ref", "id", "shared_values", "id"),
    ("shared_value_localities", "id", "shared_values", "id"),
    ("task_inputs", "value_id", '"values"', "id"),
    ("task_outputs", "value_id", '"values"', "id"),
    ("task_inputs", "shared_value_id", "shared_values", "id"),
    ("task_outputs", "shared_value_id", "shared_values", "id"),
    ("task_input_parts", "value_id", '"values"', "id"),
    ("task_input_parts", "shared_value_id", "shared_values", "id"),
    ("bot_task_dimensions", "queue", "task_dimensions", "id"),
)


def _lost(table: str, column: str, other: str, key: str) -> str:
    name = f"{table}.{column} -> {other}".replace('"', "")
    return f"""
        SELECT '{name}', x.{column}, 0 FROM {table} x LEFT JOIN {other} y ON y.{key} = x.{column}
         WHERE y.{key} IS NULL AND x.{column} IS NOT NULL"""


DANGLING = "\nUNION ALL".join(
    [
        *(_lost(table, column, "task_results", "id") for table, column in _OF_TASKS),
        *(_lost(table, column, "jobs", "id") for table, column in _OF_JOBS),
        *(_lost(*names) for names in _OTHERS),
    ]
)
DANGLING_TEXT = """
    SELECT 'bot_task_dimensions.bot_id', m.bot_id FROM bot_task_dimensions m LEFT JOIN bots b ON b.id = m.bot_id
     WHERE b.id IS NULL
    UNION ALL
    SELECT 'bot_dimensions.bot_id', m.bot_id FROM bot_dimensions m LEFT JOIN bots b ON b.id = m.bot_id
     WHERE b.id IS NULL
"""
KEYS = """
    SELECT k.request_key, k.subject FROM request_keys k
      LEFT JOIN task_results r ON r.id = k.subject LEFT JOIN jobs j ON j.id = k.subject
      LEFT JOIN shared_values v ON v.id = k.subject
     WHERE r.id IS NULL AND j.id IS NULL AND v.id IS NULL AND k.subject > 0
"""
EVENTS = """
    SELECT o.subject, o.seq FROM outbox o
      LEFT JOIN task_results r ON r.id = o.subject LEFT JOIN jobs j ON j.id = o.subject
     WHERE r.id IS NULL AND j.id IS NULL
"""
STRAY_EDGES = """
    SELECT c.parent, c.child FROM completed_task_edges c
      LEFT JOIN task_edges e ON e.parent = c.parent AND e.child = c.child WHERE e.parent IS NULL
"""
FOREIGN_EDGES = """
    SELECT e.parent, e.child FROM task_edges e
      JOIN task_results p ON p.id = e.parent JOIN task_results c ON c.id = e.child
     WHERE p.job_id IS NULL OR c.job_id IS NULL OR p.job_id <> c.job_id
"""


def _dangling(tx: Tx, world: _World) -> list[str]:
    found = [f"0 {name} {which} does not exist" for name, which, job in tx.all(DANGLING) if job not in world.removing]
    found += [f"0 {name} {which} does not exist" for name, which in tx.all(DANGLING_TEXT)]
    found += [f"5 the request key {key} stands for {subject}, which does not exist" for key, subject in tx.all(KEYS)]
    found += [f"0 event {row} tells of nothing that exists" for row in tx.all(EVENTS)]
    found += [f"3 the edge {row} is satisfied, but there is no such edge" for row in tx.all(STRAY_EDGES)]
    found += [f"3 the edge {row} leaves its job" for row in tx.all(FOREIGN_EDGES)]
    return found


def story(tx: Tx, task_id: int) -> str:
    """All that happened to a task, for a failing test's message."""
    events = [f"  {seq} {state} {body}" for _, seq, _, _, state, body in tx.all(TOLD, ids=[task_id])]
    runs = [f"  run {run.run}: {run.state} {run.reason} on {run.bot_id}" for run in task_run.read(tx, [task_id])]
    return "\n".join([f"task {task_id}", *events, *runs])
