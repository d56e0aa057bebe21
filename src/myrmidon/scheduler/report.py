"""Reporting: what bots say of their runs, and what that means.

Every report names a run and carries its token. One that was accepted before is
accepted again and changes nothing; one that contradicts what was accepted is
refused; one about a run that is no longer the bot's is answered with "stop".
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from hmac import compare_digest

from msgspec import Struct, json

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.states import SUCCEEDED, RunState, TaskState
from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import (
    FAULTS,
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
from myrmidon.model.value import OutputValue
from myrmidon.scheduler.capacity import handle_lost_capacity
from myrmidon.scheduler.claim import token_hash
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules, Verdict, judge_finish, judge_lost, judge_unstarted
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import make_ready, share_output
from myrmidon.scheduler.run_end import apply_verdict
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, shared_value, task_queues, task_run
from myrmidon.store.tables import log as logs
from myrmidon.store.tables import value as values
from myrmidon.store.tables.task_request import RunPolicy


class Outcome(StrEnum):
    """How a report was taken."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    STALE = "stale"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


class Reply(Struct, frozen=True, gc=False):
    """The answer to one report; ``stop`` tells the bot to stop the run.

    If the report was taken all the same, the bot says when it has stopped;
    otherwise it forgets the run, which is no longer its own.
    """

    outcome: Outcome
    stop: bool = False


_ACCEPTED = Reply(Outcome.ACCEPTED)
_STALE = Reply(Outcome.STALE, stop=True)
_UNKNOWN = Reply(Outcome.UNKNOWN, stop=True)
_CONFLICT = Reply(Outcome.CONFLICT, stop=True)
_REPEATED = Reply(Outcome.REPEATED)
_WELL = RunState.SUCCEEDED


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
    """Take a bot's reports, in order; one reply each."""
    uow = UnitOfWork(tx, now, ids, rules)
    tasks = uow.lock(item.task_id for item in reports)
    runs = {(run.task_id, run.run): run for run in task_run.read_for_report(tx, sorted(tasks))} if tasks else {}
    desk = _Desk(uow, bot_id, tasks, runs)
    replies = [desk.take(item) for item in reports]
    make_ready(uow, desk.again, avoid=desk.avoid)
    propagate(uow)
    if desk.stats:
        task_run.insert_stats(tx, desk.stats)
    if desk.quick_faults:
        _watch_bot(uow, bot_id, desk.quick_faults)
    bots.heartbeat(tx, bot_id, session, now, idle=desk.ended)
    return replies


class _Desk:
    """The reports of one call, with the locked tasks and runs they speak of."""

    def __init__(
        self,
        uow: UnitOfWork,
        bot_id: str,
        tasks: Mapping[int, TaskResult],
        runs: Mapping[tuple[int, int], TaskRun],
    ) -> None:
        self.uow = uow
        self.bot_id = bot_id
        self.tasks = tasks
        self.runs = runs
        self.by_task: dict[int, list[TaskRun]] = {}
        for run in runs.values():
            self.by_task.setdefault(run.task_id, []).append(run)
        self.again: list[TaskResult] = []
        self.avoid: dict[int, str] = {}
        self.stats: list[tuple[int, int, PerformanceStats]] = []
        self.quick_faults = 0
        self.ended = False
        self._hashes: dict[str, str] = {}
        self._briefed = False

    def take(self, item: Report) -> Reply:
        run = self.runs.get((item.task_id, item.run))
        if run is None or run.bot_id != self.bot_id or not self._may_speak(run, item):
            return _UNKNOWN
        task = self.tasks[item.task_id]
        if not run.live:
            return _late(run, item)
        match item:
            case Start():
                return self._start(task, run)
            case Finish():
                return self._finish(task, run, item)
            case Fault():
                return self._fault(task, run, item)
            case GiveBack():
                return self._give_back(task, run)

    def _may_speak(self, run: TaskRun, item: Report) -> bool:
        """The token is the one that was handed out with the run. Runs of one claim share it, so it is hashed once."""
        hashed = self._hashes.get(item.token)
        if hashed is None:
            hashed = self._hashes[item.token] = token_hash(item.token)
        return compare_digest(run.token_hash, hashed)

    def _brief(self, task: TaskResult) -> RunPolicy:
        """What the request says of a task; that of all tasks of the call is read when the first is asked for."""
        if not self._briefed:
            self.uow.load_run_policies(self.tasks)
            self._briefed = True
        return self.uow.run_policy(task.id)

    def _start(self, task: TaskResult, run: TaskRun) -> Reply:
        if run.started_at is not None:
            return Reply(Outcome.REPEATED, stop=bool(task.killing))
        if task.killing:
            self.uow.end_run(run, RunState.CANCELED, task.reason)
            self._conclude(task, run, Verdict(TaskState.CANCELED, task.reason))
            return _STALE
        now = self.uow.now
        run.started_at = now
        run.soft_at = None if task.plain else _soft_end(self._brief(task), now)
        run.alarm_at = min(now + run.lease, run.soft_at) if run.soft_at is not None else now + run.lease
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
        verdict = judge_finish(task, item, reruns=0 if item.clean else self._brief(task).max_num_retries)
        if verdict.state == SUCCEEDED and not self._write_outputs(task, item.outputs):
            verdict = Verdict(TaskState.FAILED, "bad_outputs")
        self.uow.end_run(run, _run_state(item, verdict), verdict.reason if not verdict.rerun else _cause(item))
        if item.message:
            run.evidence = json.encode(Evidence(message=item.message[:4096])).decode()
        if item.stats is not None:
            self.stats.append((run.task_id, run.run, item.stats))
        self._conclude(task, run, verdict)
        return _ACCEPTED

    def _fault(self, task: TaskResult, run: TaskRun, item: Fault) -> Reply:
        """The infrastructure failed. Inputs that are missing are the client's fault and are not tried again."""
        proof = Evidence(message=item.message[:4096], signal=item.signal, oom=item.oom)
        run.evidence = json.encode(proof).decode()
        run.cost_usd = max(run.cost_usd, item.cost_usd)
        kind = _kind(item)
        if kind == "client_error":
            self.uow.end_run(run, RunState.CLIENT_ERROR, kind)
            self._conclude(task, run, Verdict(TaskState.KILLED if task.killing else TaskState.CLIENT_ERROR, kind))
            return _ACCEPTED
        if kind == "bot_error" and self.uow.now - run.claimed_at < self.uow.rules.quick_failure_window:
            self.quick_faults += 1
        self.uow.end_run(run, RunState.KILLED if task.killing else RunState.BOT_DIED, kind)
        verdict = judge_lost(task, kind, retries=self._brief(task).retries)
        self._conclude(task, run, verdict)
        return _ACCEPTED

    def _give_back(self, task: TaskResult, run: TaskRun) -> Reply:
        if run.started_at is not None:
            return _CONFLICT
        self.uow.end_run(run, RunState.CANCELED, "given_back")
        self._conclude(task, run, judge_unstarted(task))
        return _ACCEPTED

    def _write_outputs(self, task: TaskResult, given: Sequence[OutputValue]) -> bool:
        """Store what a function returned, once; False when it is not what the function promised."""
        if task.plain or self._brief(task).func_name is None:
            return not given
        uow = self.uow
        wanted = values.outputs(uow.tx, [task.id]).get(task.id, [])
        if [kind for _, _, _, kind in wanted] != [output.type for output in given]:
            return False
        if any(not _sound(output.payload) for output in given):
            return False
        for position, (kind, value_id, shared_id, type_string) in enumerate(wanted):
            payload = given[position].payload
            if kind == values.SHARED:
                if shared_id is None:
                    made = uow.new_id()
                    shared_value.insert(uow.tx, [(made, position, type_string, payload, uow.now)])
                    share_output(uow, task, position, value_id=value_id, shared_value_id=made)
            else:
                values.write(uow.tx, value_id, payload)
        return True

    def _conclude(self, task: TaskResult, run: TaskRun, verdict: Verdict) -> None:
        self.ended = True
        runs = self.by_task[task.id]
        others = [other for other in runs if other.live and other is not run] if len(runs) > 1 else []
        if apply_verdict(self.uow, task, run, verdict, others):
            self.again.append(task)
            if verdict.retried:
                self.avoid[task.id] = run.bot_id


def _soft_end(request: RunPolicy, now: Micros) -> Micros | None:
    """When a run is slow enough that another instance may try as well."""
    return now + request.timeout if request.timeout is not None and request.max_num_instances > 1 else None


def _run_state(item: Finish, verdict: Verdict) -> RunState:
    """How the run itself ended, also when the task goes on."""
    if verdict.state == SUCCEEDED:
        return _WELL
    if not verdict.rerun:
        return RunState(verdict.state)
    return RunState.TIMED_OUT if item.hard_timeout or item.io_timeout else RunState.FAILED


def _cause(item: Finish) -> str:
    if item.hard_timeout:
        return "hard_timeout"
    return "io_timeout" if item.io_timeout else "exit_code"


def _kind(item: Fault) -> str:
    """What failed, in the words that everybody knows: a bot may be newer than its server."""
    return item.kind if item.kind in FAULTS else "bot_error"


def _late(run: TaskRun, item: Report) -> Reply:
    """A report on an ended run: the same as before, the opposite, or too late."""
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


def _sound(payload: Payload) -> bool:
    """Small payloads come inline, larger ones by digest; never both, never neither."""
    if payload.inline is not None:
        return payload.digest is None and payload.size == len(payload.inline) and payload.size <= 1024
    return payload.digest is not None and 0 <= payload.size <= 64 << 20


def _watch_bot(uow: UnitOfWork, bot_id: str, faults: int) -> None:
    """A bot that fails everything at once would eat the queue: it is put aside."""
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


# ---------------------------------------------------------------- signs of life


def heartbeat(
    tx: Tx, bot_id: str, holds: Sequence[tuple[int, int, str]], *, session: int, now: Micros
) -> list[tuple[int, int]]:
    """Keep a bot and all its runs alive with one write; which of the held runs (task, run, token) must stop."""
    if not bots.heartbeat_if_alive(tx, bot_id, session, now):
        bot = bots.read(tx, bot_id)
        if bot is None:
            raise NotFound("bot", bot_id)
        if bot.session != session or not bot.alive:
            raise WrongState("this bot's session has ended; it must shake hands again")
    if not holds:
        return []
    mine = task_run.live_tokens(tx, sorted({task_id for task_id, _, _ in holds}), bot_id)
    hashed = {token: token_hash(token) for token in {token for _, _, token in holds}}
    return [
        (task_id, run)
        for task_id, run, token in holds
        if not compare_digest(mine.get((task_id, run), ""), hashed[token])
    ]


class LogBytes(Struct, frozen=True, kw_only=True):
    """A stretch of a run's output."""

    task_id: int
    run: int
    token: str
    stream: int
    offset: int
    content: bytes


def check_log(tx: Tx, bot_id: str, item: LogBytes) -> bool:
    """May this bot add to this log? Also after the run has ended: late bytes of an ended run are still its log."""
    for run in task_run.read(tx, [item.task_id]):
        if run.run == item.run:
            return run.bot_id == bot_id and compare_digest(run.token_hash, token_hash(item.token))
    return False


def append_log(tx: Tx, item: LogBytes, rules: Rules = DEFAULT_RULES) -> logs.LogInfo:
    """Store checked output, in the database of the logs; how long the log is now, and what was cut of it."""
    if item.offset < 0 or item.stream not in (logs.STDOUT, logs.STDERR):
        raise WrongState("a log has the streams 0 and 1 and begins at offset 0")
    return logs.append(
        tx,
        item.task_id,
        item.run,
        stream=item.stream,
        offset=item.offset,
        content=item.content,
        limits=(rules.log_head, rules.log_tail),
    )
