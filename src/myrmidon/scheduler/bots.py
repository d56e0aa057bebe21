"""Bots: handshake, changes, quarantine and draining. Their end is in bot_end.py.

When a bot stops serving queues, ``handle_lost_capacity`` takes care of tasks that no bot can run any more.
"""

from msgspec import Struct, json, structs

from myrmidon.model import dimensions
from myrmidon.model.bot import BOT_ID, BOT_ID_RULE, Bot, Handshake, Introduction
from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.task_result import Evidence
from myrmidon.model.validation import MAX_INT64, Checker
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.propagate import propagate
from myrmidon.scheduler.ready import handle_lost_capacity
from myrmidon.scheduler.run_end import end_lost_runs
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import bot_event, pool_order, task_queues, task_run

_STATE_CHARS = 1 << 20
NEWER_SESSION = "a newer process of this bot has connected; this one must exit"


class HandshakeResult(Struct, frozen=True):
    """The result of a handshake. ``keep`` are the held runs that the bot must go on with; it drops the others."""

    bot_id: str
    session: int
    epoch: int
    keep: list[tuple[int, int]]
    quarantined: str | None


def handshake(
    tx: Tx,
    request: Handshake,
    *,
    now: Micros,
    ids: IdSource,
    rules: Rules = DEFAULT_RULES,
    limits: Limits = DEFAULT_LIMITS,
) -> HandshakeResult:
    """Register a bot that has started or reconnected, and match it to queues.

    An introduction starts a new epoch of the bot's credentials, unless it repeats the one of this session. Runs of the
    bot that it no longer holds end at once instead of when their lease expires. Invalid dimensions put the
    bot into quarantine instead of failing the handshake: it must stay connected to be repaired.
    """
    _check_handshake(request)
    uow = UnitOfWork(tx, now, ids, rules)
    known = bots.read(tx, request.bot_id)
    if known is None:
        check_id(request.bot_id)
    elif request.session < known.session:
        raise WrongState(NEWER_SESSION)
    keep = _end_runs_not_held(uow, request, known.boot_id if known is not None else "")
    has, problem = _dimensions(request.bot_id, request.dimensions, limits)
    pools = has.get("pool", [])
    pool_order.lock_pools(tx, pools)
    bot = _upsert_bot(uow, request, has, problem, busy=bool(keep))
    bots.set_dimensions(tx, bot.id, dimensions.flat(has))
    served = set(task_queues.queues_of_bot(tx, bot.id))
    if bot.quarantined is None:
        task_queues.match_bot(tx, bot.id, bot.dimensions, pools)
    else:
        task_queues.unmatch_bot(tx, bot.id)
    bot_event.insert(tx, bot, uow.new_id(), at=now, kind="bot_connected", message=bot.quarantined or "")
    serves = task_queues.queues_of_bot(tx, bot.id) if bot.serving else []
    handle_lost_capacity(uow, sorted(served.difference(serves)))
    return HandshakeResult(bot.id, bot.session, bot.epoch, keep, bot.quarantined)


_MAX_CHARS = {"bot_id": 256, "address": 40, "boot_id": 64, "version": 64, "authenticated": 256}
_TEXTS = ("state", "quarantined", "maintenance")


def _check_handshake(request: Handshake) -> None:
    """Raise InvalidRequest for fields that cannot be stored; without a valid id there is no bot to quarantine."""
    given = structs.asdict(request)
    check = Checker()
    for field, limit in _MAX_CHARS.items():
        check.item(given[field], (field,), limit, minimum=int(field == "bot_id"))
    for field in _TEXTS:
        if given[field] is not None:
            check.item(given[field], (field,), _STATE_CHARS)
    check.integer(given, "session", (), 0, MAX_INT64)
    check.finish()


def check_id(bot_id: str) -> None:
    """Raise InvalidRequest for an id that a new bot must not have; existing bots keep theirs."""
    check = Checker()
    check.item(bot_id, ("bot_id",), _MAX_CHARS["bot_id"], minimum=1, pattern=BOT_ID, allowed=BOT_ID_RULE)
    check.finish()


def _dimensions(bot_id: str, reported: object, limits: Limits) -> tuple[dict[str, list[str]], str | None]:
    """The checked dimensions; if they are invalid, empty ones and why."""
    check = Checker(limits)
    has = dimensions.bot_dimensions(check, reported, ("dimensions",))
    if check.problems:
        return {}, "; ".join(f"{p.path}: {p.allowed}" for p in check.problems[:5])
    if has.get("id") != [bot_id]:
        return {}, f"the dimension id must be exactly the bot's id, {bot_id}"
    return has, None


def _upsert_bot(
    uow: UnitOfWork, request: Handshake, has: dict[str, list[str]], problem: str | None, *, busy: bool
) -> Bot:
    """Insert or update the bot. It is locked last, after runs, tasks and pools."""
    bot = bots.lock(uow.tx, request.bot_id)
    if bot is None:
        bots.insert(uow.tx, _new_bot(uow, request, busy=busy))
        bot = bots.lock(uow.tx, request.bot_id)  # inserted here, or by another server at the same time
    if bot is None or request.session < bot.session:
        raise WrongState(NEWER_SESSION)
    if request.introduction is not None and not repeats_introduction(bot, request.session, request.introduction):
        bot.epoch = uow.new_id()
        bot.introducer, bot.bound_pool = request.introduction.introducer, request.introduction.pool
    if request.session > bot.session:
        bot.nonce = 0
        bot.idle_at = bot.idle_at if busy else uow.now
    bot.session = request.session
    bot.address = request.address
    bot.boot_id = request.boot_id
    bot.version = request.version
    bot.authenticated = request.authenticated
    bot.dimensions = json.encode(has, order="sorted").decode()
    bot.state = request.state
    bot.alive = 1
    bot.quarantined = problem or request.quarantined or bots.quarantine_setting(uow.tx, request.bot_id)
    bot.maintenance = request.maintenance
    bot.heartbeat = max(bot.heartbeat, uow.now)
    bot.matched_at = uow.now
    bot.due_at = uow.now + uow.rules.dead_after
    bots.save(uow.tx, bot)
    return bot


def repeats_introduction(bot: Bot, session: int, introduction: Introduction) -> bool:
    """Whether a bot that got no response to its introduction sends it again. Later it has a credential."""
    return (bot.session, bot.introducer) == (session, introduction.introducer) and not bot.nonce


def _new_bot(uow: UnitOfWork, request: Handshake, *, busy: bool) -> Bot:
    introduction = request.introduction or Introduction()
    return Bot(
        id=request.bot_id,
        session=request.session,
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
        due_at=None,
        idle_at=None if busy else uow.now,
        epoch=uow.new_id() if request.introduction is not None else 0,
        introducer=introduction.introducer,
        bound_pool=introduction.pool,
    )


def _end_runs_not_held(uow: UnitOfWork, request: Handshake, boot_id: str) -> list[tuple[int, int]]:
    """End the runs that a restarted bot has lost; returns the runs that it holds.

    Only runs of earlier sessions count as lost: a delayed handshake does not have the runs that the bot claimed after
    sending it. The bot's record of started tasks is relied on only if it has one and its machine did not reboot.
    """
    mine = task_run.live_of_bot(uow.tx, request.bot_id)
    held = set(request.holds)
    tasks = uow.lock(run.task_id for run in mine)
    runs = [r for r in task_run.read(uow.tx, sorted(tasks)) if r.live] if tasks else []
    mine = [run for run in runs if run.bot_id == request.bot_id]
    kept = [run for run in mine if (run.task_id, run.run) in held]
    lost = [run for run in mine if run not in kept and run.session < request.session]
    evidence = Evidence(message="the bot reconnected without this run", boot_id=request.boot_id)
    reliable = bool(request.begun and boot_id) and request.boot_id == boot_id
    not_started = {run.task_id for run in lost}.difference(request.begun) if reliable else ()
    end_lost_runs(uow, lost, runs, why="bot_restarted", evidence=evidence, begun=request.begun, not_started=not_started)
    propagate(uow)
    return [(run.task_id, run.run) for run in kept]


class BotChange(Struct, frozen=True, kw_only=True):
    """The current facts of a bot. ``dimensions`` None: unchanged."""

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
    """Update a connected bot; if it changed, match it to queues again and add an event.

    The bot cannot lift a quarantine that an administrator or its quick failures caused.
    """
    uow = UnitOfWork(tx, now, ids, rules)
    known = bots.read(tx, change.bot_id)
    if known is None or known.session != change.session or not known.alive:
        raise WrongState("the session of this bot has ended; a new handshake is required")
    has, problem = json.decode(known.dimensions, type=dict[str, list[str]]), None
    pools = has.get("pool", [])
    if change.dimensions is not None:
        has, problem = _dimensions(change.bot_id, change.dimensions, limits)
    pool_order.lock_pools(tx, {*pools, *has.get("pool", [])})
    bot = bots.lock(tx, change.bot_id)
    if bot is None or bot.session != change.session:
        raise WrongState("the session of this bot has ended; a new handshake is required")
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
    why = (
        bot.quarantined
        or bot.maintenance
        or ("dimensions changed" if bot.dimensions != before[0] else "ready for work")
    )
    bot_event.insert(uow.tx, bot, uow.new_id(), at=uow.now, kind="request_sleep", message=why)
    serves = task_queues.queues_of_bot(uow.tx, bot.id) if bot.serving else []
    handle_lost_capacity(uow, sorted(served.difference(serves)))


# ---------------------------------------------------------------- quarantine and draining

BY_HAND = "by hand"


def quarantine(
    tx: Tx, bot_id: str, why: str | None, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES
) -> Bot:
    """Give a bot no work until this is called with None; its current runs continue. An empty reason keeps the last."""
    uow = UnitOfWork(tx, now, ids, rules)
    bot = lock_bot(uow, bot_id)
    if why == "":
        why = bot.quarantined or BY_HAND
    bots.set_quarantine(tx, bot_id, why)
    bot.quarantined = why
    if why is None:
        bot.num_quick_failures = 0
    kind = "bot_quarantined" if why is not None else "bot_released"
    return _save_change(uow, bot, kind, why or "")


def drain_bot(tx: Tx, bot_id: str, draining: bool, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> Bot:
    """Let a bot finish its current runs and give it no more; False lifts this."""
    uow = UnitOfWork(tx, now, ids, rules)
    bot = lock_bot(uow, bot_id)
    bot.draining = int(draining)
    return _save_change(uow, bot, "bot_draining" if draining else "bot_released", "")


BOT_EVENT_KINDS = frozenset({"bot_error", "bot_log", "bot_rebooting", "bot_shutdown"})
_REPEAT_WINDOW = 60_000_000


def record_event(tx: Tx, bot_id: str, kind: str, message: str, *, session: int, now: Micros, ids: IdSource) -> bool:
    """Store an event that a bot reports; False for a repetition of its last event within a minute.

    A bot repeats a call whose response was lost, and a failing bot reports the same error over and over.
    """
    bot = bots.read(tx, bot_id)
    if bot is None or bot.session != session:
        raise WrongState("the session of this bot has ended; a new handshake is required")
    for _, at, last_kind, last_message in bot_event.read(tx, bot_id, before=MAX_INT64, n=1):
        if (last_kind, last_message) == (kind, message) and now - at < _REPEAT_WINDOW:
            return False
    bot_event.insert(tx, bot, ids.next(now), at=now, kind=kind, message=message)
    return True


def lock_bot(uow: UnitOfWork, bot_id: str) -> Bot:
    """Lock a bot after the pools that it is in; NotFound when there is no such bot."""
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
