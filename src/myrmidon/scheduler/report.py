"""Process the reports and heartbeats of bots about their runs.

Every report has the id of a run and its token. Reports are idempotent: a repeated one changes nothing. One
that differs from what was accepted is refused. For a run that no longer belongs to the bot the reply says stop.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from hmac import compare_digest

from msgspec import Struct, json

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.keyed_hash import token_hash
from myrmidon.model.states import FINAL, SUCCEEDED, RunState, TaskState
from myrmidon.model.task_result import (
    CLIENT_FAULTS,
    FAULTS,
    START_FAILED,
    Evidence,
    Fault,
    Finish,
    GiveBack,
    PerformanceStats,
    Report,
    Start,
    TaskResult,
    TaskRun,
)
from myrmidon.scheduler.outputs import ReportedOutputs
from myrmidon.scheduler.policy import (
    DEFAULT_RULES,
    Rules,
    Verdict,
    judge_finish,
    judge_lost,
    judge_outdated,
    judge_unstarted,
)
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import handle_lost_capacity, make_ready
from myrmidon.scheduler.run_end import SUPERSEDED, apply_verdict
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, log_times, task_queues, task_run
from myrmidon.store.tables import log as logs
from myrmidon.store.tables.log_times import Mark
from myrmidon.store.tables.task_request import RunPolicy


class Outcome(StrEnum):
    """How a report was handled."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    STALE = "stale"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


class Reply(Struct, frozen=True, gc=False):
    """The reply to one report; ``stop`` tells the bot to stop the run.

    If the report was accepted or repeated, the bot reports when it has stopped; otherwise the run is no longer its own,
    and the bot drops it.
    """

    outcome: Outcome
    stop: bool = False


_ACCEPTED = Reply(Outcome.ACCEPTED)
_STALE = Reply(Outcome.STALE, stop=True)
_UNKNOWN = Reply(Outcome.UNKNOWN, stop=True)
_CONFLICT = Reply(Outcome.CONFLICT, stop=True)
_REPEATED = Reply(Outcome.REPEATED)


def report(
    tx: Tx,
    bot_id: str,
    reports: Sequence[Report],
    *,
    session: int,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
) -> list[Reply]:
    """Apply a bot's reports in order; one reply each."""
    uow = UnitOfWork(tx, now, ids, rules)
    tasks = uow.lock([item.task_id for item in reports])
    handler = _ReportHandler(uow, bot_id, tasks, task_run.read_for_report(tx, sorted(tasks)) if tasks else [], reports)
    replies = [handler.take(item) for item in reports]
    if handler.requeued:
        make_ready(uow, handler.requeued, avoid=handler.avoid)
    propagate(uow)
    if handler.stats:
        task_run.insert_stats(tx, handler.stats)
    if handler.quick_faults:
        _quarantine_failing_bot(uow, bot_id, handler.quick_faults)
    if handler.ended and tx.effects.claim_follows:
        bots.end_runs(tx, bot_id, session, now)
    else:
        bots.heartbeat(tx, bot_id, session, now, idle=handler.ended)
    return replies


class _ReportHandler:
    """Applies the reports of one call to the locked tasks and runs."""

    def __init__(
        self,
        uow: UnitOfWork,
        bot_id: str,
        tasks: Mapping[int, TaskResult],
        runs: Sequence[TaskRun],
        reports: Sequence[Report],
    ) -> None:
        self.uow = uow
        self.bot_id = bot_id
        self.tasks = tasks
        self.runs: dict[tuple[int, int], TaskRun] = {}
        self.reports = reports
        self.by_task: dict[int, list[TaskRun]] = {}
        for run in runs:
            self.runs[run.task_id, run.run] = run
            self.by_task.setdefault(run.task_id, []).append(run)
        self.requeued: list[TaskResult] = []
        self.avoid: dict[int, str] = {}
        self.stats: list[tuple[int, int, PerformanceStats]] = []
        self.quick_faults = 0
        self.ended = False
        self._hashes: dict[str, str] = {}
        self._policies_loaded = False
        self._outputs: ReportedOutputs | None = None

    def take(self, item: Report) -> Reply:
        run = self.runs.get((item.task_id, item.run))
        if run is None or run.bot_id != self.bot_id or not self._has_token(run, item):
            return _UNKNOWN
        task = self.tasks[item.task_id]
        if not run.live:
            return _reply_to_ended_run(run, item)
        match item:
            case Start():
                return self._start(task, run)
            case Finish():
                return self._finish(task, run, item)
            case Fault():
                return self._fault(task, run, item)
            case GiveBack():
                return self._give_back(task, run)

    def _has_token(self, run: TaskRun, item: Report) -> bool:
        """Whether the token is that of the run. Runs of a claim share their token, so each is hashed only once."""
        hashed = self._hashes.get(item.token)
        if hashed is None:
            hashed = self._hashes[item.token] = token_hash(item.token)
        return compare_digest(run.token_hash, hashed)

    def _run_policy(self, task: TaskResult) -> RunPolicy:
        """The run policy of a task; the first call loads those of all tasks of the reports."""
        if not self._policies_loaded:
            self.uow.load_run_policies(self.tasks)
            self._policies_loaded = True
        return self.uow.run_policy(task.id)

    def _start(self, task: TaskResult, run: TaskRun) -> Reply:
        if run.started_at is not None:
            return Reply(Outcome.REPEATED, stop=bool(task.killing))
        if task.killing:
            self.uow.end_run(run, RunState.CANCELLED, task.reason)
            self._end(task, run, Verdict(TaskState.CANCELLED, task.reason))
            return _STALE
        now = self.uow.now
        run.started_at = now
        run.soft_at = None if task.skips_request_lookup else _soft_timeout_at(self._run_policy(task), now)
        run.due_at = min(now + run.lease, run.soft_at) if run.soft_at is not None else now + run.lease
        self.uow.touch_run(run)
        return _ACCEPTED

    def _finish(self, task: TaskResult, run: TaskRun, item: Finish) -> Reply:
        if run.started_at is None:
            run.started_at = run.claimed_at
        run.exit_code = item.exit_code
        run.duration = item.duration
        if item.cost_usd > run.cost_usd:
            run.cost_usd = item.cost_usd
        run.stdout_size = item.stdout_size
        run.stderr_size = item.stderr_size
        run.outputs_ref = json.encode(item.outputs_ref).decode() if item.outputs_ref else None
        if item.message:
            run.evidence = json.encode(Evidence(message=item.message[:4096])).decode()
        run.error = item.error
        if item.stats is not None:
            self.stats.append((run.task_id, run.run, item.stats))
        if run.generation != task.generation:
            self.uow.end_run(run, RunState.CANCELLED, SUPERSEDED)
            self._end(task, run, judge_outdated(task))
            return _ACCEPTED
        verdict = judge_finish(task, item, reruns=0 if item.clean else self._run_policy(task).max_num_retries)
        if verdict.state == SUCCEEDED and (problem := self._write_outputs(task, item)):
            verdict = Verdict(TaskState.FAILED, "bad_outputs")
            run.evidence = json.encode(Evidence(message=problem)).decode()
        elif verdict.state in FINAL and verdict.state != SUCCEEDED and item.outputs and not self._others(task, run):
            self._reported_outputs(task).write_some(task, item)
        self.uow.end_run(run, _run_state(item, verdict), verdict.reason if not verdict.rerun else _cause(item))
        self._end(task, run, verdict)
        return _ACCEPTED

    def _fault(self, task: TaskResult, run: TaskRun, item: Fault) -> Reply:
        """Handle a failure of the infrastructure. Inputs and environments that no bot can have are not retried."""
        evidence = Evidence(message=item.message[:4096], signal=item.signal, oom=item.oom)
        run.evidence = json.encode(evidence).decode()
        run.cost_usd = max(run.cost_usd, item.cost_usd)
        kind = _kind(item)
        if kind in CLIENT_FAULTS:
            self.uow.end_run(run, RunState.CLIENT_ERROR, kind)
            self._end(task, run, Verdict(TaskState.KILLED if task.killing else TaskState.CLIENT_ERROR, kind))
            return _ACCEPTED
        if kind == "bot_error" and self.uow.now - run.claimed_at < self.uow.rules.quick_failure_window:
            self.quick_faults += 1
        self.uow.end_run(run, RunState.KILLED if task.killing else RunState.BOT_DIED, kind)
        verdict = judge_lost(task, kind, retries=self._run_policy(task).retries)
        self._end(task, run, verdict)
        return _ACCEPTED

    def _give_back(self, task: TaskResult, run: TaskRun) -> Reply:
        if run.started_at is not None:
            return _CONFLICT
        self.uow.end_run(run, RunState.CANCELLED, "given_back")
        self._end(task, run, judge_unstarted(task))
        return _ACCEPTED

    def _write_outputs(self, task: TaskResult, item: Finish) -> str:
        """Store the outputs of a run; what is wrong with them, or an empty text."""
        if task.skips_request_lookup:
            return "the run returned outputs that were not requested" if item.outputs else ""
        return self._reported_outputs(task).write(task, item)

    def _reported_outputs(self, task: TaskResult) -> ReportedOutputs:
        if self._outputs is None:
            self._run_policy(task)  # loads those of all tasks
            some = [item for item in self.reports if isinstance(item, Finish) and (item.clean or item.outputs)]
            known = [(self.tasks[item.task_id], item) for item in some if item.task_id in self.tasks]
            self._outputs = ReportedOutputs(self.uow, known)
        return self._outputs

    def _end(self, task: TaskResult, run: TaskRun, verdict: Verdict) -> None:
        self.ended = True
        others = self._others(task, run) if len(self.by_task[task.id]) > 1 else []
        if apply_verdict(self.uow, task, run, verdict, others):
            self.requeued.append(task)
            if verdict.retried:
                self.avoid[task.id] = run.bot_id

    def _others(self, task: TaskResult, run: TaskRun) -> list[TaskRun]:
        """The other live instances of the task."""
        return [other for other in self.by_task[task.id] if other.live and other is not run]


def _soft_timeout_at(request: RunPolicy, now: Micros) -> Micros | None:
    """When a run is so slow that another instance may start; None if the task has only one."""
    return now + request.timeout if request.timeout is not None and request.max_num_instances > 1 else None


def _run_state(item: Finish, verdict: Verdict) -> RunState:
    """The final state of the run itself, also when the task is run again."""
    if verdict.state == SUCCEEDED:
        return RunState.SUCCEEDED
    if not verdict.rerun:
        return RunState(verdict.state)
    return RunState.TIMED_OUT if item.hard_timeout or item.io_timeout else RunState.FAILED


def _cause(item: Finish) -> str:
    if item.hard_timeout:
        return "hard_timeout"
    if item.io_timeout:
        return "io_timeout"
    return START_FAILED if item.start_failed else "exit_code"


def _kind(item: Fault) -> str:
    """The kind of a fault; an unknown one, from a newer bot, counts as bot_error."""
    return item.kind if item.kind in FAULTS else "bot_error"


def _reply_to_ended_run(run: TaskRun, item: Report) -> Reply:
    """The reply to a report on an ended run: repeated, conflicting or stale."""
    if isinstance(item, Start):
        return _STALE
    if isinstance(item, GiveBack):
        return _REPEATED if run.reason == "given_back" else _STALE
    if isinstance(item, Fault):
        return _REPEATED if run.reason == _kind(item) else _STALE
    if run.exit_code is None and run.duration is None:
        return _STALE
    same = run.exit_code == item.exit_code and run.duration == item.duration
    return _REPEATED if same else _CONFLICT


def _quarantine_failing_bot(uow: UnitOfWork, bot_id: str, faults: int) -> None:
    """Quarantine a bot after ``quick_failures`` quick failures; it would fail every task of its queues."""
    uow.tx.write_deferred()
    bot = bots.lock(uow.tx, bot_id)
    if bot is None:
        return
    recent = bot.quick_failure_at is not None and uow.now - bot.quick_failure_at < uow.rules.quick_failure_window
    bot.num_quick_failures = (bot.num_quick_failures if recent else 0) + faults
    bot.quick_failure_at = uow.now
    if bot.num_quick_failures >= uow.rules.quick_failures and bot.quarantined is None:
        bot.quarantined = f"{bot.num_quick_failures} runs failed on this bot in a short time"
        bot_event.insert(uow.tx, bot, uow.new_id(), at=uow.now, kind="bot_quarantined", message=bot.quarantined)
    bots.save(uow.tx, bot)
    if not bot.serving:
        handle_lost_capacity(uow, task_queues.queues_of_bot(uow.tx, bot_id))


# ---------------------------------------------------------------- heartbeats and logs


def heartbeat(
    tx: Tx,
    bot_id: str,
    holds: Sequence[tuple[int, int, str]],
    *,
    session: int,
    now: Micros,
    progress: Mapping[tuple[int, int], float] | None = None,
) -> list[tuple[int, int]]:
    """Renew the leases of a bot and all its runs with one write; returns the held runs that the bot must stop.

    ``holds`` are (task id, run number, token). ``progress`` says how far some of them have come, from 0 to 1.
    """
    if not bots.heartbeat_if_alive(tx, bot_id, session, now):
        bot = bots.read(tx, bot_id)
        if bot is None:
            raise NotFound("bot", bot_id)
        if bot.session != session or not bot.alive:
            raise WrongState("the session of this bot has ended; a new handshake is required")
    if not holds:
        return []
    mine = task_run.live_tokens(tx, sorted({task_id for task_id, _, _ in holds}), bot_id)
    hashed = {token: token_hash(token) for token in {token for _, _, token in holds}}
    stop = [
        (task_id, run)
        for task_id, run, token in holds
        if not compare_digest(mine.get((task_id, run), ""), hashed[token])
    ]
    if progress:
        own = {(task_id, run) for task_id, run, _ in holds}.difference(stop)
        task_run.set_progress(tx, sorted((*held, share) for held, share in progress.items() if held in own), now=now)
    return stop


class LogBytes(Struct, frozen=True, kw_only=True):
    """A chunk of a run's output."""

    task_id: int
    run: int
    token: str
    stream: int
    offset: int
    content: bytes
    marks: Sequence[Mark] = ()
    """When the bytes were written."""


def check_log(tx: Tx, bot_id: str, item: LogBytes) -> bool:
    """Whether this bot may append to this log. It may also do so after the run has ended, for output sent late."""
    for run in task_run.read(tx, [item.task_id]):
        if run.run == item.run:
            return run.bot_id == bot_id and compare_digest(run.token_hash, token_hash(item.token))
    return False


def append_log(tx: Tx, item: LogBytes, rules: Rules = DEFAULT_RULES) -> logs.LogInfo:
    """Store output that check_log has permitted, in the log database; returns the length and truncation of the log."""
    if item.offset < 0 or item.stream not in (logs.STDOUT, logs.STDERR):
        raise WrongState("no log has this place; the stream must be 0 or 1, and the offset must not be negative")
    log_times.add(tx, item.task_id, item.run, stream=item.stream, marks=item.marks)
    return logs.append(
        tx,
        item.task_id,
        item.run,
        stream=item.stream,
        offset=item.offset,
        content=item.content,
        limits=(rules.log_head, rules.log_tail),
    )
