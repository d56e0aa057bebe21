"""The fleet: bots come, change, are put aside, and go.

Losing the last bot of a queue is told to the queue: tasks there that would not
wait for a bot move on to their next slice, or end.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from msgspec import Struct, json, structs

from myrmidon.model import dimensions
from myrmidon.model.bot import BOT_ID, BOT_ID_RULE, Bot, Handshake
from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.states import RunState
from myrmidon.model.task_result import Evidence, TaskRun
from myrmidon.model.validation import LARGEST, Checker
from myrmidon.scheduler.capacity import handle_lost_capacity
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules, judge_lost, judge_unstarted, may_have_started
from myrmidon.scheduler.propagate import settle
from myrmidon.scheduler.ready import make_ready
from myrmidon.scheduler.report import conclude
from myrmidon.scheduler.unit_of_work import Turn, live
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, pool_order, task_queues, task_result

MAX_UNCOUNTED_LOSSES = 2
"""So often a run of a task may be lost before anybody has seen it begin."""
_NOT_STARTED = "not_started"
_STATE_CHARS = 1 << 20
_NEWER_SESSION = "a newer process of this bot has shaken hands; this one must end"


class HandshakeResult(Struct, frozen=True):
    """The answer to a handshake: which of the runs that the bot holds are still its own."""

    bot_id: str
    session: int
    keep: list[tuple[int, int]]
    quarantined: str | None


def handshake(
    tx: Tx,
    hello: Handshake,
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
    limits: Limits = DEFAULT_LIMITS,
) -> HandshakeResult:
    """A bot has started, or says that it has changed.

    Runs that it does not hold any more end here, at once instead of a lease
    later. Dimensions that make no sense put it into quarantine: it must stay able
    to speak, or it could never be repaired.
    """
    _check_handshake(hello)
    turn = Turn(tx, now, ids, rules)
    known = bots.read(tx, hello.bot_id)
    if known is None:
        check_id(hello.bot_id)
    elif hello.session < known.session:
        raise WrongState(_NEWER_SESSION)
    keep = _end_runs_not_held(turn, hello, known.boot_id if known is not None else "")
    has, problem = _dimensions(hello.bot_id, hello.dimensions, limits)
    pools = has.get("pool", [])
    pool_order.lock_pools(tx, pools)
    bot = _upsert_bot(turn, hello, has, problem, busy=bool(keep))
    bots.set_dimensions(tx, bot.id, dimensions.flat(has))
    served = set(task_queues.queues_of_bot(tx, bot.id))
    if bot.quarantined is None:
        task_queues.match_bot(tx, bot.id, bot.dimensions, pools)
    else:
        task_queues.unmatch_bot(tx, bot.id)
    bot_event.insert(tx, bot, turn.new_id(), at=now, kind="bot_connected", message=bot.quarantined or "")
    serves = task_queues.queues_of_bot(tx, bot.id) if bot.serving else []
    handle_lost_capacity(turn, sorted(served.difference(serves)))
    return HandshakeResult(bot.id, bot.session, keep, bot.quarantined)


_MAX_CHARS = {"bot_id": 256, "address": 40, "boot_id": 64, "version": 64, "authenticated": 256}
_TEXTS = ("state", "quarantined", "maintenance")


def _check_handshake(hello: Handshake) -> None:
    """What cannot even be written down is refused: without a name there is no bot to put into quarantine."""
    given = structs.asdict(hello)
    check = Checker()
    for field, most in _MAX_CHARS.items():
        check.item(given[field], (field,), most, least=int(field == "bot_id"))
    for field in _TEXTS:
        if given[field] is not None:
            check.item(given[field], (field,), _STATE_CHARS)
    check.integer(given, "session", (), 0, LARGEST)
    check.finish()


def check_id(bot_id: str) -> None:
    """For new bots: one that is known by an id of before keeps it."""
    check = Checker()
    check.item(bot_id, ("bot_id",), _MAX_CHARS["bot_id"], least=1, pattern=BOT_ID, allowed=BOT_ID_RULE)
    check.finish()


def _dimensions(bot_id: str, said: object, limits: Limits) -> tuple[dict[str, list[str]], str | None]:
    check = Checker(limits)
    has = dimensions.bot_dimensions(check, said, ("dimensions",))
    if check.problems:
        return {}, "; ".join(f"{p.path}: {p.allowed}" for p in check.problems[:5])
    if has.get("id") != [bot_id]:
        return {}, f"the dimension id must be exactly the bot's id, {bot_id}"
    return has, None


def _upsert_bot(turn: Turn, hello: Handshake, has: dict[str, list[str]], problem: str | None, *, busy: bool) -> Bot:
    """Write down what the bot says of itself, behind every other lock."""
    bot = bots.lock(turn.tx, hello.bot_id)
    if bot is None:
        bots.insert(turn.tx, _new_bot(turn, hello, busy=busy))
        bot = bots.lock(turn.tx, hello.bot_id)  # ours, or that of a server that met it at the same time
    if bot is None or hello.session < bot.session:
        raise WrongState(_NEWER_SESSION)
    if hello.session > bot.session:
        bot.nonce = 0
        bot.idle_at = bot.idle_at if busy else turn.now
    bot.session = hello.session
    bot.address = hello.address
    bot.boot_id = hello.boot_id
    bot.version = hello.version
    bot.authenticated = hello.authenticated
    bot.dimensions = json.encode(has, order="sorted").decode()
    bot.state = hello.state
    bot.alive = 1
    bot.quarantined = problem or hello.quarantined or bots.quarantine_setting(turn.tx, hello.bot_id)
    bot.maintenance = hello.maintenance
    bot.heartbeat = max(bot.heartbeat, turn.now)
    bot.matched_at = turn.now
    bot.alarm_at = turn.now + turn.rules.dead_after
    bots.save(turn.tx, bot)
    return bot


def _new_bot(turn: Turn, hello: Handshake, *, busy: bool) -> Bot:
    return Bot(
        id=hello.bot_id,
        session=hello.session,
        nonce=0,
        address="",
        boot_id="",
        version="",
        authenticated="",
        dimensions="{}",
        state="{}",
        alive=1,
        serving=0,
        draining=0,
        quarantined=None,
        maintenance=None,
        first_seen_at=turn.now,
        heartbeat=turn.now,
        matched_at=turn.now,
        num_quick_failures=0,
        quick_failure_at=None,
        alarm_at=None,
        idle_at=None if busy else turn.now,
    )


def _end_runs_not_held(turn: Turn, hello: Handshake, boot_id: str) -> list[tuple[int, int]]:
    """End the runs that a restarted bot has lost; those that it holds go on.

    Only runs of earlier sessions can be lost by a restart. This handshake may be
    a straggler of the network that knows nothing of what the bot has claimed since.
    What a bot had begun it knows for certain unless its machine went down, or it has nothing to know it by.
    """
    mine = task_result.live_runs_of_bot(turn.tx, hello.bot_id)
    held = set(hello.holds)
    tasks = turn.lock(run.task_id for run in mine)
    runs = [r for r in task_result.runs_of(turn.tx, sorted(tasks)) if r.live] if tasks else []
    mine = [run for run in runs if run.bot_id == hello.bot_id]
    kept = [run for run in mine if (run.task_id, run.run) in held]
    lost = [run for run in mine if run not in kept and run.session < hello.session]
    evidence = Evidence(message="the bot shook hands without this run", boot_id=hello.boot_id)
    knows = bool(hello.begun and boot_id) and hello.boot_id == boot_id
    waited = {run.task_id for run in lost}.difference(hello.begun) if knows else ()
    end_lost_runs(turn, lost, runs, why="bot_restarted", evidence=evidence, begun=hello.begun, waited=waited)
    settle(turn)
    return [(run.task_id, run.run) for run in kept]


def end_lost_runs(
    turn: Turn,
    lost: Sequence[TaskRun],
    runs: Sequence[TaskRun],
    *,
    why: str,
    evidence: Evidence,
    begun: Collection[int] = (),
    waited: Collection[int] = (),
) -> None:
    """Give up live runs of locked tasks; a run that had not begun goes back free of charge.

    A bot tells of the start of a command only if that takes longer than a moment. What kills its bot at once would
    be tried for ever, so the bot's word counts, that these tasks had ``begun``, and after some losses none is needed.
    Others are known to have ``waited``.
    """
    if not lost:
        return
    begun = {*begun, *_lost_too_often(turn, lost)}
    tasks = task_result.read(turn.tx, sorted({run.task_id for run in lost}))
    turn.know(tasks)
    again, avoid = [], {}
    for run in lost:
        task = tasks[run.task_id]
        run.evidence = json.encode(evidence).decode()
        retries = turn.requests[task.id].retries
        counts = run.task_id in begun or may_have_started(run, retries=retries, waited=run.task_id in waited)
        verdict = judge_lost(task, why, retries=retries) if counts else judge_unstarted(task)
        turn.end_run(run, RunState.KILLED if task.killing else RunState.BOT_DIED, why if counts else _NOT_STARTED)
        others = [other for other in live(runs, task) if other is not run]
        if conclude(turn, task, run, verdict, others):
            again.append(task)
            if counts:
                avoid[task.id] = run.bot_id
    make_ready(turn, again, avoid=avoid)


def _lost_too_often(turn: Turn, lost: Sequence[TaskRun]) -> set[int]:
    """The tasks that were lost free of charge as often as they may be."""
    seen = sorted({run.task_id for run in lost if run.started_at is None and run.run > MAX_UNCOUNTED_LOSSES})
    earlier = task_result.runs_of(turn.tx, seen) if seen else []
    free = Counter(run.task_id for run in earlier if run.reason == _NOT_STARTED)
    return {task_id for task_id, count in free.items() if count >= MAX_UNCOUNTED_LOSSES}


class BotChange(Struct, frozen=True, kw_only=True):
    """What a bot says of itself by now. ``dimensions`` None: they are as they were."""

    bot_id: str
    session: int
    dimensions: dict[str, list[str]] | None = None
    state: str = "{}"
    quarantined: str | None = None
    maintenance: str | None = None


def change_bot(
    tx: Tx,
    change: BotChange,
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
    limits: Limits = DEFAULT_LIMITS,
) -> Bot:
    """A bot has changed while it lives: its queues are found anew, and an event tells of it if it may work or not.

    Why an administrator, or its own failures, keep it from working is not for the bot to lift.
    """
    turn = Turn(tx, now, ids, rules)
    known = bots.read(tx, change.bot_id)
    if known is None or known.session != change.session or not known.alive:
        raise WrongState("this bot's session has ended; it must shake hands again")
    has, problem = json.decode(known.dimensions, type=dict[str, list[str]]), None
    pools = has.get("pool", [])
    if change.dimensions is not None:
        has, problem = _dimensions(change.bot_id, change.dimensions, limits)
    pool_order.lock_pools(tx, {*pools, *has.get("pool", [])})
    bot = bots.lock(tx, change.bot_id)
    if bot is None or bot.session != change.session:
        raise WrongState("this bot's session has ended; it must shake hands again")
    before = (bot.dimensions, bot.quarantined, bot.maintenance)
    failed = bot.quarantined if bot.num_quick_failures >= rules.quick_failures else None
    bot.quarantined = problem or bots.quarantine_setting(tx, bot.id) or failed or change.quarantined
    bot.maintenance = change.maintenance
    bot.state = change.state
    bot.dimensions = json.encode(has, order="sorted").decode()
    bots.save(tx, bot)
    if (bot.dimensions, bot.quarantined, bot.maintenance) != before:
        _rematch(turn, bot, has, before)
    return bot


def _rematch(turn: Turn, bot: Bot, has: dict[str, list[str]], before: tuple[str, str | None, str | None]) -> None:
    served = set(task_queues.queues_of_bot(turn.tx, bot.id))
    if bot.dimensions != before[0]:
        bots.set_dimensions(turn.tx, bot.id, dimensions.flat(has))
    if bot.quarantined is None:
        task_queues.match_bot(turn.tx, bot.id, bot.dimensions, has.get("pool", []))
    else:
        task_queues.unmatch_bot(turn.tx, bot.id)
    why = bot.quarantined or bot.maintenance or ("other dimensions" if bot.dimensions != before[0] else "it may work")
    bot_event.insert(turn.tx, bot, turn.new_id(), at=turn.now, kind="request_sleep", message=why)
    serves = task_queues.queues_of_bot(turn.tx, bot.id) if bot.serving else []
    handle_lost_capacity(turn, sorted(served.difference(serves)))


# ---------------------------------------------------------------- putting aside


def quarantine(
    tx: Tx, bot_id: str, why: str | None, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> Bot:
    """Keep a bot from getting work, until it is called with None; what it runs goes on."""
    turn = Turn(tx, now, ids, rules)
    bot = _lock_bot(turn, bot_id)
    bots.set_quarantine(tx, bot_id, why)
    bot.quarantined = why
    if why is None:
        bot.num_quick_failures = 0
    kind = "bot_quarantined" if why is not None else "bot_released"
    return _save_change(turn, bot, kind, why or "")


def drain_bot(tx: Tx, bot_id: str, draining: bool, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> Bot:
    """Let a bot finish what it has and give it nothing more."""
    turn = Turn(tx, now, ids, rules)
    bot = _lock_bot(turn, bot_id)
    bot.draining = int(draining)
    return _save_change(turn, bot, "bot_draining" if draining else "bot_released", "")


BOT_EVENT_KINDS = frozenset({"bot_error", "bot_log", "bot_rebooting", "bot_shutdown"})
_REPEAT_WINDOW = 60_000_000


def record_event(tx: Tx, bot_id: str, kind: str, message: str, *, session: int, now: Micros, ids: IdSource) -> bool:
    """Write down what a bot says has happened to it; False when it said just that a moment ago.

    A bot repeats a call whose answer was lost, and one that is in trouble repeats itself.
    """
    bot = bots.read(tx, bot_id)
    if bot is None or bot.session != session:
        raise WrongState("this bot's session has ended; it must shake hands again")
    for _, at, last_kind, last_message in bot_event.read(tx, bot_id, before=LARGEST, n=1):
        if (last_kind, last_message) == (kind, message) and now - at < _REPEAT_WINDOW:
            return False
    bot_event.insert(tx, bot, ids.next(now), at=now, kind=kind, message=message)
    return True


def mark_bot_stopped(
    tx: Tx, bot_id: str, *, session: int, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> None:
    """A bot has ended and will not come back by itself: it counts as dead at once, and nothing waits for it."""
    turn = Turn(tx, now, ids, rules)
    bot = _lock_bot(turn, bot_id)
    if bot.alive and bot.session == session:
        _set_dead(turn, bot)


def _lock_bot(turn: Turn, bot_id: str) -> Bot:
    known = bots.read(turn.tx, bot_id)
    if known is None:
        raise NotFound("bot", bot_id)
    pool_order.lock_pools(turn.tx, json.decode(known.dimensions, type=dict[str, list[str]]).get("pool", []))
    bot = bots.lock(turn.tx, bot_id)
    if bot is None:
        raise NotFound("bot", bot_id)
    return bot


def _save_change(turn: Turn, bot: Bot, kind: str, message: str) -> Bot:
    bots.save(turn.tx, bot)
    pools = json.decode(bot.dimensions, type=dict[str, list[str]]).get("pool", [])
    if bot.alive and bot.quarantined is None:
        task_queues.match_bot(turn.tx, bot.id, bot.dimensions, pools)
    bot_event.insert(turn.tx, bot, turn.new_id(), at=turn.now, kind=kind, message=message)
    if not bot.serving:
        handle_lost_capacity(turn, task_queues.queues_of_bot(turn.tx, bot.id))
    return bot


def delete_bot(tx: Tx, bot_id: str, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> None:
    """Forget a bot; it may come back any time. Its runs are given up by their leases."""
    if tx.attempt > 1 and bots.read(tx, bot_id) is None:
        return
    turn = Turn(tx, now, ids, rules)
    bot = _lock_bot(turn, bot_id)
    queues = task_queues.unmatch_bot(tx, bot_id)
    bot_event.insert(tx, bot, turn.new_id(), at=now, kind="bot_deleted")
    bots.delete(tx, bot_id)
    handle_lost_capacity(turn, queues)


def mark_bot_dead(turn: Turn, bot_id: str) -> bool:
    """Declare a silent bot dead, if it really is; its queues hear of it."""
    bot = _lock_bot(turn, bot_id)
    silent_until = bot.heartbeat + turn.rules.dead_after
    if not bot.alive or silent_until > turn.now:
        bot.alarm_at = silent_until if bot.alive else None
        bots.save(turn.tx, bot)
        return False
    bot_event.insert(turn.tx, bot, turn.new_id(), at=turn.now, kind="bot_missing")
    _set_dead(turn, bot)
    return True


def _set_dead(turn: Turn, bot: Bot) -> None:
    bot.alive = 0
    bot.alarm_at = None
    bots.save(turn.tx, bot)
    handle_lost_capacity(turn, task_queues.unmatch_bot(turn.tx, bot.id))
