"""The fleet: bots come, change, are put aside, and go.

Losing the last bot of a queue is told to the queue: tasks there that would not
wait for a bot move on to their next slice, or end.
"""

from msgspec import Struct, json, structs

from myrmidon.model import dimensions
from myrmidon.model.bot import BOT_ID, BOT_ID_RULE, Bot, Handshake
from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.task_result import Evidence
from myrmidon.model.validation import LARGEST, Checker
from myrmidon.scheduler.capacity import handle_lost_capacity
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.run_end import end_lost_runs
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, pool_order, task_queues, task_run

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
    uow = UnitOfWork(tx, now, ids, rules)
    known = bots.read(tx, hello.bot_id)
    if known is None:
        check_id(hello.bot_id)
    elif hello.session < known.session:
        raise WrongState(_NEWER_SESSION)
    keep = _end_runs_not_held(uow, hello, known.boot_id if known is not None else "")
    has, problem = _dimensions(hello.bot_id, hello.dimensions, limits)
    pools = has.get("pool", [])
    pool_order.lock_pools(tx, pools)
    bot = _upsert_bot(uow, hello, has, problem, busy=bool(keep))
    bots.set_dimensions(tx, bot.id, dimensions.flat(has))
    served = set(task_queues.queues_of_bot(tx, bot.id))
    if bot.quarantined is None:
        task_queues.match_bot(tx, bot.id, bot.dimensions, pools)
    else:
        task_queues.unmatch_bot(tx, bot.id)
    bot_event.insert(tx, bot, uow.new_id(), at=now, kind="bot_connected", message=bot.quarantined or "")
    serves = task_queues.queues_of_bot(tx, bot.id) if bot.serving else []
    handle_lost_capacity(uow, sorted(served.difference(serves)))
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


def _upsert_bot(
    uow: UnitOfWork, hello: Handshake, has: dict[str, list[str]], problem: str | None, *, busy: bool
) -> Bot:
    """Write down what the bot says of itself, behind every other lock."""
    bot = bots.lock(uow.tx, hello.bot_id)
    if bot is None:
        bots.insert(uow.tx, _new_bot(uow, hello, busy=busy))
        bot = bots.lock(uow.tx, hello.bot_id)  # ours, or that of a server that met it at the same time
    if bot is None or hello.session < bot.session:
        raise WrongState(_NEWER_SESSION)
    if hello.session > bot.session:
        bot.nonce = 0
        bot.idle_at = bot.idle_at if busy else uow.now
    bot.session = hello.session
    bot.address = hello.address
    bot.boot_id = hello.boot_id
    bot.version = hello.version
    bot.authenticated = hello.authenticated
    bot.dimensions = json.encode(has, order="sorted").decode()
    bot.state = hello.state
    bot.alive = 1
    bot.quarantined = problem or hello.quarantined or bots.quarantine_setting(uow.tx, hello.bot_id)
    bot.maintenance = hello.maintenance
    bot.heartbeat = max(bot.heartbeat, uow.now)
    bot.matched_at = uow.now
    bot.alarm_at = uow.now + uow.rules.dead_after
    bots.save(uow.tx, bot)
    return bot


def _new_bot(uow: UnitOfWork, hello: Handshake, *, busy: bool) -> Bot:
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
        first_seen_at=uow.now,
        heartbeat=uow.now,
        matched_at=uow.now,
        num_quick_failures=0,
        quick_failure_at=None,
        alarm_at=None,
        idle_at=None if busy else uow.now,
    )


def _end_runs_not_held(uow: UnitOfWork, hello: Handshake, boot_id: str) -> list[tuple[int, int]]:
    """End the runs that a restarted bot has lost; those that it holds go on.

    Only runs of earlier sessions can be lost by a restart. This handshake may be
    a straggler of the network that knows nothing of what the bot has claimed since.
    What a bot had begun it knows for certain unless its machine went down, or it has nothing to know it by.
    """
    mine = task_run.live_of_bot(uow.tx, hello.bot_id)
    held = set(hello.holds)
    tasks = uow.lock(run.task_id for run in mine)
    runs = [r for r in task_run.read(uow.tx, sorted(tasks)) if r.live] if tasks else []
    mine = [run for run in runs if run.bot_id == hello.bot_id]
    kept = [run for run in mine if (run.task_id, run.run) in held]
    lost = [run for run in mine if run not in kept and run.session < hello.session]
    evidence = Evidence(message="the bot shook hands without this run", boot_id=hello.boot_id)
    knows = bool(hello.begun and boot_id) and hello.boot_id == boot_id
    waited = {run.task_id for run in lost}.difference(hello.begun) if knows else ()
    end_lost_runs(uow, lost, runs, why="bot_restarted", evidence=evidence, begun=hello.begun, waited=waited)
    propagate(uow)
    return [(run.task_id, run.run) for run in kept]


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
    uow = UnitOfWork(tx, now, ids, rules)
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
        _rematch(uow, bot, has, before)
    return bot


def _rematch(uow: UnitOfWork, bot: Bot, has: dict[str, list[str]], before: tuple[str, str | None, str | None]) -> None:
    served = set(task_queues.queues_of_bot(uow.tx, bot.id))
    if bot.dimensions != before[0]:
        bots.set_dimensions(uow.tx, bot.id, dimensions.flat(has))
    if bot.quarantined is None:
        task_queues.match_bot(uow.tx, bot.id, bot.dimensions, has.get("pool", []))
    else:
        task_queues.unmatch_bot(uow.tx, bot.id)
    why = bot.quarantined or bot.maintenance or ("other dimensions" if bot.dimensions != before[0] else "it may work")
    bot_event.insert(uow.tx, bot, uow.new_id(), at=uow.now, kind="request_sleep", message=why)
    serves = task_queues.queues_of_bot(uow.tx, bot.id) if bot.serving else []
    handle_lost_capacity(uow, sorted(served.difference(serves)))


# ---------------------------------------------------------------- putting aside


def quarantine(
    tx: Tx, bot_id: str, why: str | None, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> Bot:
    """Keep a bot from getting work, until it is called with None; what it runs goes on."""
    uow = UnitOfWork(tx, now, ids, rules)
    bot = _lock_bot(uow, bot_id)
    bots.set_quarantine(tx, bot_id, why)
    bot.quarantined = why
    if why is None:
        bot.num_quick_failures = 0
    kind = "bot_quarantined" if why is not None else "bot_released"
    return _save_change(uow, bot, kind, why or "")


def drain_bot(tx: Tx, bot_id: str, draining: bool, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> Bot:
    """Let a bot finish what it has and give it nothing more."""
    uow = UnitOfWork(tx, now, ids, rules)
    bot = _lock_bot(uow, bot_id)
    bot.draining = int(draining)
    return _save_change(uow, bot, "bot_draining" if draining else "bot_released", "")


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
    uow = UnitOfWork(tx, now, ids, rules)
    bot = _lock_bot(uow, bot_id)
    if bot.alive and bot.session == session:
        _set_dead(uow, bot)


def _lock_bot(uow: UnitOfWork, bot_id: str) -> Bot:
    known = bots.read(uow.tx, bot_id)
    if known is None:
        raise NotFound("bot", bot_id)
    pool_order.lock_pools(uow.tx, json.decode(known.dimensions, type=dict[str, list[str]]).get("pool", []))
    bot = bots.lock(uow.tx, bot_id)
    if bot is None:
        raise NotFound("bot", bot_id)
    return bot


def _save_change(uow: UnitOfWork, bot: Bot, kind: str, message: str) -> Bot:
    bots.save(uow.tx, bot)
    pools = json.decode(bot.dimensions, type=dict[str, list[str]]).get("pool", [])
    if bot.alive and bot.quarantined is None:
        task_queues.match_bot(uow.tx, bot.id, bot.dimensions, pools)
    bot_event.insert(uow.tx, bot, uow.new_id(), at=uow.now, kind=kind, message=message)
    if not bot.serving:
        handle_lost_capacity(uow, task_queues.queues_of_bot(uow.tx, bot.id))
    return bot


def delete_bot(tx: Tx, bot_id: str, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> None:
    """Forget a bot; it may come back any time. Its runs are given up by their leases."""
    if tx.attempt > 1 and bots.read(tx, bot_id) is None:
        return
    uow = UnitOfWork(tx, now, ids, rules)
    bot = _lock_bot(uow, bot_id)
    queues = task_queues.unmatch_bot(tx, bot_id)
    bot_event.insert(tx, bot, uow.new_id(), at=now, kind="bot_deleted")
    bots.delete(tx, bot_id)
    handle_lost_capacity(uow, queues)


def mark_bot_dead(uow: UnitOfWork, bot_id: str) -> bool:
    """Declare a silent bot dead, if it really is; its queues hear of it."""
    bot = _lock_bot(uow, bot_id)
    silent_until = bot.heartbeat + uow.rules.dead_after
    if not bot.alive or silent_until > uow.now:
        bot.alarm_at = silent_until if bot.alive else None
        bots.save(uow.tx, bot)
        return False
    bot_event.insert(uow.tx, bot, uow.new_id(), at=uow.now, kind="bot_missing")
    _set_dead(uow, bot)
    return True


def _set_dead(uow: UnitOfWork, bot: Bot) -> None:
    bot.alive = 0
    bot.alarm_at = None
    bots.save(uow.tx, bot)
    handle_lost_capacity(uow, task_queues.unmatch_bot(uow.tx, bot.id))
