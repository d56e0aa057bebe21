"""The transaction of an exchange: reports, heartbeat and claim, and what follows from its commit in memory."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.errors import BrokenPromise, NotFound, WrongState
from myrmidon.model.ids import Micros
from myrmidon.model.task_result import Finish, Report
from myrmidon.model.task_to_run import Accepts
from myrmidon.scheduler import kept_task
from myrmidon.scheduler import report as reporting
from myrmidon.scheduler.claim import Claimed
from myrmidon.scheduler.report import Outcome, Reply
from myrmidon.server.botapi.bot_snapshot import BotSnapshot, is_heartbeat_due, read_snapshot, register_bot
from myrmidon.server.botapi.conversion import held_runs, parse_run, progress_of, to_report
from myrmidon.server.botapi.directives import directive_for
from myrmidon.server.botapi.messages import BotReport, ExchangeRequest, FinishReport, encode
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import (
    MIN_RUN_S,
    begin_give_back_if_abandoned,
    begin_give_back_unreceived,
    claim_size,
    claim_with_nonce,
    fair_share,
    record_claim,
    record_reports,
    tasks_to_leave,
)
from myrmidon.server.fleet import rollout
from myrmidon.server.waiting.connected_bots import ConnectedBot, Wakeup
from myrmidon.server.waiting.wait_hub import MAX_FORWARDS
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_to_run

_MAX_QUEUES = 8
_NO_RUNS: frozenset[tuple[int, int]] = frozenset()
_REJECTED = frozenset({Outcome.STALE, Outcome.CONFLICT, Outcome.UNKNOWN})


class ExchangeResult(Struct):
    """What an exchange has to tell the bot so far."""

    bot: ConnectedBot
    directive: str | None = None
    replies: list[Reply] = []
    stop: list[tuple[int, int]] = []
    tasks: list[Claimed] = []
    more: bool = False
    stopping: frozenset[tuple[int, int]] = frozenset()
    """The runs that the bot is ending already."""

    @property
    def urgent(self) -> bool:
        """The response must be sent now; otherwise it may be held until there is work.

        A stop that the bot is carrying out is not urgent: else the bot would ask again at once until the run ends.
        """
        if self.directive or self.tasks or (self.stop and not self.stopping.issuperset(self.stop)):
            return True
        return bool([reply for reply in self.replies if reply.stop or reply.outcome in _REJECTED])


class TxResult(Struct):
    """What the transaction of an exchange returns."""

    snapshot: BotSnapshot | None
    n: int
    """The size of the claim."""
    replies: list[Reply] = []
    stop: list[tuple[int, int]] = []
    tasks: list[Claimed] = []
    more: bool = False
    beat: bool = False
    """The heartbeat of the bot was written."""
    left_for_others: bool = False
    """The queue that woke the bot has tasks, but none that this bot may take."""


async def write_exchange(
    context: ServerContext,
    bot_id: str,
    request: ExchangeRequest,
    n: int,
    bot: ConnectedBot | None,
    wakeup: Wakeup | None = None,
) -> ExchangeResult:
    """Write reports, heartbeat and a claim of n tasks in one transaction, which also reads the bot if it is None."""
    hub, now = context.hub, context.now()
    reports = list(map(to_report, request.reports))
    directive = directive_for(context, bot) if bot else None
    accepts, work_seq, queue_seq = request.accepts, hub.work_seq, hub.queue_seq
    waiting_peers = bot.peers.count_rivals(accepts) if bot else 0
    queues = _shared_queues(context, bot, accepts, waiting_peers) if bot else []
    if bot is not None and reports:
        _update_run_stats(bot, request.reports)
    no_claim = n == 0 or directive or context.state.stopping
    limit = 0 if no_claim else min(n, context.rules.claim_limit, claim_size(bot))
    woken_queue = wakeup.queue if wakeup is not None else 0
    heartbeat_due = bot is None or (not reports and is_heartbeat_due(context, bot, now))

    def write(tx: Tx) -> TxResult:
        snapshot = read_snapshot(tx, bot_id, request.session) if bot is None else None
        terminating = snapshot is not None and snapshot.terminating
        claimed = fair_share(tx, queues, limit, waiting_peers) if queues and not terminating else limit
        result = TxResult(snapshot, 0 if terminating else claimed)
        address = bot.address if bot is not None else snapshot.address if snapshot is not None else ""
        apply_reports_and_claim(
            tx, context, bot_id, request, reports, result, now, address=address, heartbeat_due=heartbeat_due
        )
        kept_task.write(tx)
        result.more = 0 < result.n <= len(result.tasks) and _has_more(tx, bot_id, accepts)
        result.left_for_others = bool(woken_queue and not result.tasks and task_to_run.not_empty(tx, [woken_queue]))
        return result

    def record(written: TxResult) -> None:
        """Record the commit, also if the connection was lost: the next request says whether its answer arrived."""
        nonlocal bot
        if written.snapshot is not None:
            bot = register_bot(context, bot_id, request.session, written.snapshot, queue_seq=queue_seq)
            bot.config = request.config
            begin_give_back_unreceived(context, bot, request.nonce, request.received, claimed=written.snapshot.nonce)
        if bot is not None:
            _record_commit(context, bot, request, reports, written, now)

    written = await context.db.write(write, record, size=len(reports))
    if bot is None:
        raise BrokenPromise("a bot was neither in memory nor read from the database")
    if written.snapshot is not None:
        directive = directive_for(context, bot) if not written.tasks else None
    if written.n and len(written.tasks) < written.n:
        hub.mark_empty(bot, work_seq, accepts)
    if wakeup is not None and written.left_for_others and wakeup.forward_count < MAX_FORWARDS:
        hub.wake(wakeup.queue, forward_count=wakeup.forward_count + 1)
    more = written.more or hub.num_partial_submits > 0
    stopping = frozenset(map(parse_run, request.stopping)) if request.stopping else _NO_RUNS
    return ExchangeResult(bot, directive, written.replies, written.stop, written.tasks, more, stopping)


def _update_run_stats(bot: ConnectedBot, reports: Sequence[BotReport]) -> None:
    """Update the mean run time and the cache sizes of a bot from the runs that it reports as finished."""
    total, count = 0.0, 0
    for report in reports:
        if isinstance(report, FinishReport):
            total, count = total + report.duration, count + 1
            if report.caches:
                bot.cache_sizes = {**(bot.cache_sizes or {}), **report.caches}
    if count:
        mean = total / count
        bot.mean_run_s = max(MIN_RUN_S, (bot.mean_run_s + mean) / 2 if bot.mean_run_s else mean)


def _has_more(tx: Tx, bot_id: str, accepts: Accepts) -> bool:
    return any(accepts.includes(functions=head.of_functions) for head in task_to_run.heads(tx, bot_id))


def _record_commit(
    context: ServerContext,
    bot: ConnectedBot,
    request: ExchangeRequest,
    reports: Sequence[Report],
    written: TxResult,
    now: Micros,
) -> None:
    """Record a committed exchange in the bot's in-memory state, the rollout of a canary and the metrics."""
    if written.beat:
        bot.flushed_at = now
    if context.hub.canary_release:
        finished = any(isinstance(report, Finish) for report in reports)
        rollout.check_canary_progress(context, bot, finished=finished)
    if reports:
        record_reports(context, reports, written.replies, now)
    if written.tasks:
        record_claim(context, bot, request.nonce, written.tasks)
        if begin_give_back_if_abandoned(context, bot, request.nonce):
            written.tasks = []
    if request.state is not None:
        bot.state_written_at = now


def _shared_queues(context: ServerContext, bot: ConnectedBot, accepts: Accepts, waiting_peers: int) -> list[int]:
    """The queues whose depth limits a claim; none if no other bot serves them, or if there are too many."""
    peers = bot.peers
    if waiting_peers or (peers.num_connected > 1 and len(peers.queues) <= _MAX_QUEUES):
        return sorted(context.hub.queues.accepted(bot, accepts))[:_MAX_QUEUES]
    return []


def apply_reports_and_claim(
    tx: Tx,
    context: ServerContext,
    bot_id: str,
    request: ExchangeRequest,
    reports: Sequence[Report],
    result: TxResult,
    now: Micros,
    *,
    address: str = "",
    heartbeat_due: bool = True,
) -> None:
    """Apply the reports, renew the leases of held runs, claim ``result.n`` runs, and store the bot's state.

    A claim that finds nothing writes nothing, so it is no heartbeat.
    """
    try:
        if reports:
            tx.effects.claim_follows = bool(result.n)
            result.replies = reporting.report(
                tx, bot_id, reports, session=request.session, now=now, ids=context.ids, rules=context.rules
            )
        if request.holds or not (reports or (result.n and not heartbeat_due)):
            result.stop = reporting.heartbeat(
                tx,
                bot_id,
                held_runs(request.holds),
                session=request.session,
                now=now,
                progress=progress_of(request.progress),
            )
        if result.n:
            result.tasks = claim_with_nonce(
                tx,
                context,
                bot_id,
                request.session,
                request.nonce,
                result.n,
                now,
                accepts=request.accepts,
                leave=tasks_to_leave(tx, context, address) if tx.effects.localities else frozenset(),
            )
        result.beat = bool(reports or request.holds or not result.n or heartbeat_due or result.tasks)
    except NotFound:
        raise WrongState("This bot was deleted; a new handshake is required.") from None
    if request.state is not None:
        bots.set_state(tx, bot_id, request.session, encode(request.state).decode())
