"""Claim: a bot takes tasks from its queues, and a run of each is created.

The heads of the bot's queues are read without locks, and the policy chooses among them; then rows of the chosen queues
are locked. A claim never waits for a lock: it skips rows that another transaction has locked.

A claim has a nonce that increases with each claim of a bot's session. The same nonce again returns the same runs, so a
lost response does no harm; a smaller one than that of the last runs is a delayed duplicate and returns none. A claim
that finds nothing writes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from myrmidon.model import dimensions
from myrmidon.model.bot import Bot
from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros, next_run_number
from myrmidon.model.keyed_hash import claim_token, token_hash
from myrmidon.model.states import READY, RUNNING, RunState
from myrmidon.model.task_request import cache_names
from myrmidon.model.task_result import TaskResult, TaskRun
from myrmidon.model.task_to_run import MAY_BE_NEAR, READS_SHARED, USES_CACHES, Accepts, Head, TaskToRun
from myrmidon.model.value import Value
from myrmidon.scheduler import kept_task
from myrmidon.scheduler.kept_task import Contents, KeptTask
from myrmidon.scheduler.policy import DEFAULT_RULES, GroupShares, Rules, best_queues, local_first, pick_queues
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import (
    group_turn,
    shared_value,
    task_queues,
    task_request,
    task_result,
    task_run,
    task_to_run,
)
from myrmidon.store.tables import value as values
from myrmidon.store.tables.task_request import Extras, Work

_CACHES = '"caches":['
_MAX_QUEUES = 32
_MAX_ROWS = 512
MAX_BYTES = 4 << 20
"""How much stdin and how many bytes of inputs the runs of one claim may have together: all is in one response."""
_VALUE_BYTES = 1024
"""The size of an inline value at most."""


class Poll(Struct, frozen=True, kw_only=True):
    """A bot's claim of up to n tasks. ``token_key`` is the servers' secret from which run tokens are derived.

    ``accepts``: which kinds of tasks the bot can take now.
    """

    bot_id: str
    session: int
    nonce: int
    n: int = 1
    token_key: bytes = b""
    accepts: Accepts = Accepts.ANY
    leave: frozenset[int] = frozenset()
    """Tasks that another bot is to take, because it has their data."""

    def token(self) -> str:
        """The token of its runs."""
        return claim_token(self.token_key, bot_id=self.bot_id, session=self.session, nonce=self.nonce)


class _Taker(Struct, frozen=True):
    """The bot that claims, and the tasks that it must leave."""

    bot: Bot
    leave: frozenset[int]

    def may_take(self, rows: Iterable[TaskToRun]) -> list[TaskToRun]:
        return [row for row in rows if row.task_id not in self.leave] if self.leave else list(rows)


class Claimed(Struct, frozen=True, kw_only=True, gc=False):
    """What a bot needs to run one task. Secrets leave the store only here."""

    task_id: int
    run: int
    token: str
    work: Work
    inputs: list[Value]
    secret_bytes: bytes | None
    output_types: list[str] = []
    label: str = ""
    code: str = ""
    """The code of a function: that of its request, or what has replaced it since."""
    environment: str = ""
    """The environment of a function, in the same way."""
    stdin: bytes | None = None
    resource_group_id: int = 0
    nonce: int = 0

    def __repr__(self) -> str:
        """Omits the token, the secret and the stdin."""
        return f"Claimed(task_id={self.task_id}, run={self.run})"


def claim(
    tx: Tx, poll: Poll, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES, bot: Bot | None = None
) -> list[Claimed]:
    """Start up to n runs on a bot; fewer if its queues have fewer tasks. ``bot``: its row, if it is locked already."""
    uow = UnitOfWork(tx, now, ids, rules)
    bot = bot or bots.lock(tx, poll.bot_id)
    if bot is None:
        raise NotFound("bot", poll.bot_id)
    if bot.session != poll.session or not bot.alive:
        raise WrongState("the session of this bot has ended; a new handshake is required")
    if poll.nonce < bot.nonce:
        return []
    if poll.nonce == bot.nonce:
        return _repeat(uow, poll)
    if poll.n < 1:
        return []
    if bot.serving:
        heads = _heads(uow, bot, poll.accepts)
        if not heads:
            kept = kept_task.take(tx, bot, now, accepts=poll.accepts, leave=poll.leave)
            return _start_kept(uow, bot, poll, kept) if kept is not None else []
        taken = _take(uow, bot, heads, min(poll.n, rules.claim_limit), leave=poll.leave)
    else:
        kept_task.write(tx)
        taken = _take_terminate_task(uow, bot) if poll.accepts.includes(functions=False) else []
    if not taken:
        return []
    task_ids = sorted([row.task_id for row, _ in taken])
    work = task_request.work(tx, task_ids)
    if len(taken) > 1:
        taken = _limit_bytes(uow, taken, work)
    return _start(uow, bot, poll, taken, work)


def _limit_bytes(
    uow: UnitOfWork, taken: list[tuple[TaskToRun, TaskResult]], work: Mapping[tuple[int, int], Work]
) -> list[tuple[TaskToRun, TaskResult]]:
    """The first of these tasks, at least one, whose stdin and inputs fit into one response; the others stay queued.

    The inputs of a function are in the response if they are small; those of a command are put into it.
    """
    special = sorted(task.id for _, task in taken if not task.skips_request_lookup)
    if not special:
        return taken
    stdin, inputs, total = task_request.stdin_sizes(uow.tx, special), values.sizes_of_inputs(uow.tx, special), 0
    for number, (row, task) in enumerate(taken):
        num_values, num_bytes = inputs.get(task.id, (0, 0))
        of_function = work[task.id, row.slice].func_name is not None
        total += stdin.get(task.id, 0) + (num_values * _VALUE_BYTES if of_function else num_bytes)
        if number and total > MAX_BYTES:
            return taken[:number]
    return taken


def _repeat(uow: UnitOfWork, poll: Poll) -> list[Claimed]:
    """The runs that this claim started before, as far as they have not ended."""
    live = task_run.live_of_bot(uow.tx, poll.bot_id)
    mine = [run for run in live if run.session == poll.session and run.nonce == poll.nonce]
    work = task_request.work(uow.tx, sorted({run.task_id for run in mine})) if mine else {}
    return _claimed(uow, mine, poll.token(), work, special=sorted({run.task_id for run in mine}))


# ---------------------------------------------------------------- choosing


def _heads(uow: UnitOfWork, bot: Bot, accepts: Accepts) -> list[Head]:
    """The heads of the queues from which the bot can take tasks now.

    The dimensions are compared again: the stored matches of bots to queues are only an index.
    """
    heads: list[Head] = []
    for head in task_to_run.heads(uow.tx, bot.id):
        if accepts is not Accepts.ANY and not accepts.includes(functions=head.of_functions):
            continue
        if dimensions.serves(head.dimensions, bot.dimensions):
            heads.append(head)
    if heads and uow.tx.effects.claim_follows and kept_task.write(uow.tx):
        return _heads(uow, bot, accepts)
    return heads


def _take(
    uow: UnitOfWork, bot: Bot, heads: Sequence[Head], n: int, *, leave: frozenset[int]
) -> list[tuple[TaskToRun, TaskResult]]:
    """Lock rows of task_to_run in order of preference, with their tasks."""
    chosen = _choose(uow, _Taker(bot, leave), heads, n)
    further = [row.task_id for row in chosen if row.instance]
    if further and not (running := _running_on(uow, bot)).isdisjoint(further):
        chosen = _choose(uow, _Taker(bot, leave | running), heads, n)
    return _lock_tasks(uow, chosen)


def _lock_tasks(uow: UnitOfWork, rows: Sequence[TaskToRun]) -> list[tuple[TaskToRun, TaskResult]]:
    """The rows with their tasks, one of each task, as far as they may run."""
    by_task: dict[int, TaskToRun] = {}
    for row in rows:
        by_task[row.task_id] = row
    tasks = task_result.lock_unlocked(uow.tx, sorted(by_task)) if by_task else {}
    taken: list[tuple[TaskToRun, TaskResult]] = []
    for task_id, row in by_task.items():
        task = tasks.get(task_id)  # None if another transaction has locked it
        if task is not None and _may_run(row, task):
            taken.append((row, task))
    return taken


def _choose(uow: UnitOfWork, taker: _Taker, heads: Sequence[Head], n: int) -> list[TaskToRun]:
    return _from_one(uow, taker, heads[0], n) if len(heads) == 1 else _from_several(uow, taker, heads, n)


def _running_on(uow: UnitOfWork, bot: Bot) -> frozenset[int]:
    """The tasks that the bot runs. It leaves further instances of them: ``avoid_bot`` names only one of their bots."""
    return frozenset(run.task_id for run in task_run.live_of_bot(uow.tx, bot.id))


def _take_terminate_task(uow: UnitOfWork, bot: Bot) -> list[tuple[TaskToRun, TaskResult]]:
    """Lock a terminate task of the bot: a bot that gets no other work may still be terminated."""
    rows: list[TaskToRun] = []
    for queue in task_queues.own_queues(uow.tx, bot.id):
        rows = rows or task_to_run.take(uow.tx, queue, 1, bot_id=bot.id, now=uow.now)
    return _lock_tasks(uow, rows)


def _from_one(uow: UnitOfWork, taker: _Taker, head: Head, n: int) -> list[TaskToRun]:
    """Take n rows of the only queue that is not empty: one statement less than for several (docs/decisions/0024)."""
    rows: list[TaskToRun] = []
    if head.shared & MAY_BE_NEAR and _may_be_near(taker.bot):
        best = _first_rows(uow, taker, head, n)
        rows = task_to_run.take_these(uow.tx, [row.task_id for row in best[:n]], bot_id=taker.bot.id, now=uow.now)
    elif not taker.leave:
        return task_to_run.take(uow.tx, head.queue, n, bot_id=taker.bot.id, now=uow.now)
    return _fill_up(uow, taker, head.queue, rows, n)


def _from_several(uow: UnitOfWork, taker: _Taker, heads: Sequence[Head], n: int) -> list[TaskToRun]:
    """Take n rows of several queues in the order of the policy; of other queues if other claims have locked those."""
    groups = sorted({head.resource_group_id for head in heads})
    several_groups = len(groups) > 1
    turns = group_turn.read(uow.tx, groups) if several_groups else {}
    shares = GroupShares(task_run.count_by_group(uow.tx) if several_groups else {}, turns)
    by_queue = {head.queue: head for head in best_queues(heads, shares, uow.now)}
    taken: list[TaskToRun] = []
    while by_queue and not taken:
        candidates = _candidates(uow, taker, by_queue, shares, n)
        picks = pick_queues(candidates, by_queue, shares, n, uow.now)
        if not picks:
            return []
        taken = _take_picked(uow, taker, candidates, picks)
        by_queue = {queue: head for queue, head in by_queue.items() if queue not in picks}
    if taken and several_groups:
        owners = {head.queue: head.resource_group_id for head in heads}
        group_turn.save(uow.tx, {owners[row.queue]: shares.take(owners[row.queue]) for row in taken}, turns)
    return taken


def _take_picked(
    uow: UnitOfWork, taker: _Taker, candidates: Mapping[int, Sequence[TaskToRun]], picks: Sequence[int]
) -> list[TaskToRun]:
    """Lock the first candidates of the picked queues, and the next free rows instead of those that others locked."""
    remaining = {queue: iter(rows) for queue, rows in candidates.items()}
    chosen = [next(remaining[queue]).task_id for queue in picks]
    taken = task_to_run.take_these(uow.tx, chosen, bot_id=taker.bot.id, now=uow.now) if chosen else []
    for queue, count in Counter(picks).items():
        mine = [row for row in taken if row.queue == queue]
        if len(mine) < count:
            taken += _fill_up(uow, taker, queue, mine, count)[len(mine) :]
    return taken


def _candidates(
    uow: UnitOfWork, taker: _Taker, heads: Mapping[int, Head], shares: GroupShares, n: int
) -> dict[int, list[TaskToRun]]:
    """The first rows that this bot may take of the queues from which the policy picks; ``heads`` are in its order.

    A head is the first row of a queue, which this bot may not be allowed to take. So the policy chooses among the rows
    of the queues that were read and the heads of the others, until it picks only rows that were read.
    """
    step = min(max(n, 4), _MAX_QUEUES, len(heads))
    limit = min(max(n, uow.rules.look_ahead), max(uow.rules.look_ahead, _MAX_ROWS // step)) + len(taker.leave)
    unread = dict(heads)
    candidates: dict[int, list[TaskToRun]] = {}
    while True:
        counts = Counter(pick_queues({**_first_only(unread), **candidates}, heads, shares, n, uow.now))
        if not unread.keys().isdisjoint(counts):
            page = list(unread)[:step]
            rows = task_to_run.first_of_several(uow.tx, page, limit, bot_id=taker.bot.id, now=uow.now)
            for queue in page:
                candidates[queue] = _local_first(uow, taker, unread.pop(queue), taker.may_take(rows[queue]))
            step = min(2 * step, _MAX_QUEUES)
            continue
        used_up = [queue for queue, count in counts.items() if count == len(candidates[queue]) == limit < n]
        if not used_up:
            return candidates
        for queue in used_up:
            candidates[queue] = _first_rows(uow, taker, heads[queue], n)


def _first_only(heads: Mapping[int, Head]) -> dict[int, Sequence[TaskToRun | Head]]:
    return {queue: [head] for queue, head in heads.items()}


def _first_rows(uow: UnitOfWork, taker: _Taker, head: Head, n: int) -> list[TaskToRun]:
    """The first rows of one queue, in the order in which this bot should take them."""
    limit = max(n, uow.rules.look_ahead) + len(taker.leave)
    rows = task_to_run.first(uow.tx, head.queue, limit, bot_id=taker.bot.id, now=uow.now)
    return _local_first(uow, taker, head, taker.may_take(rows))


def _local_first(uow: UnitOfWork, taker: _Taker, head: Head, rows: list[TaskToRun]) -> list[TaskToRun]:
    """Move tasks whose shared values or named caches the bot has before others of the same priority."""
    near = rows[: uow.rules.look_ahead] if head.shared & MAY_BE_NEAR else []
    readers = [row.task_id for row in near if row.shared & READS_SHARED] if taker.bot.address else []
    local = shared_value.local_tasks(uow.tx, readers, taker.bot.address) if readers else set()
    local |= _with_cache_of(uow, taker.bot, [row for row in near if row.shared & USES_CACHES])
    return local_first(rows, local, uow.rules.look_ahead, ageing=head.ageing, now=uow.now)


def _may_be_near(bot: Bot) -> bool:
    """Whether the bot may have data that some tasks need: it has an address or a named cache."""
    return bool(bot.address) or _CACHES in bot.dimensions


def _with_cache_of(uow: UnitOfWork, bot: Bot, rows: Sequence[TaskToRun]) -> set[int]:
    """Those of the tasks that use a named cache which the bot has, by its dimension ``caches``."""
    if not rows or _CACHES not in bot.dimensions:
        return set()
    has = dimensions.bot_sets(bot.dimensions).get("caches", ())
    slices = task_request.slices(uow.tx, [row.task_id for row in rows])
    uses = {
        row.task_id: cache_names(slices[row.task_id][row.slice].properties) for row in rows if row.task_id in slices
    }
    return {task_id for task_id, names in uses.items() if not names.isdisjoint(has)}


def _fill_up(uow: UnitOfWork, taker: _Taker, queue: int, rows: list[TaskToRun], n: int) -> list[TaskToRun]:
    """Add the next free rows of the queue for chosen ones that other claims have taken."""
    if len(rows) >= n:
        return rows
    known = {row.task_id for row in rows}
    rest = task_to_run.take(uow.tx, queue, n + len(taker.leave), bot_id=taker.bot.id, now=uow.now)
    return rows + [row for row in taker.may_take(rest) if row.task_id not in known][: n - len(rows)]


def _may_run(row: TaskToRun, task: TaskResult) -> bool:
    """Whether the state of a task allows this run to start."""
    if task.killing or next_run_number(task.run_number) is None:
        return False
    return task.state == READY or (task.state == RUNNING and row.instance > 0)


# ---------------------------------------------------------------- starting


def _start(
    uow: UnitOfWork,
    bot: Bot,
    poll: Poll,
    taken: Sequence[tuple[TaskToRun, TaskResult]],
    work: Mapping[tuple[int, int], Work],
) -> list[Claimed]:
    bots.save_claim(uow.tx, bot, poll.nonce, uow.now)
    token = poll.token()
    hashed = token_hash(token)
    rows: list[TaskToRun] = []
    runs: list[TaskRun] = []
    special: list[int] = []
    for row, task in taken:
        task.run_number = next_run_number(task.run_number) or 0
        task.bot_id = bot.id
        task.started_at = uow.now
        uow.start_run(task)
        rows.append(row)
        runs.append(_new_run(uow, bot, poll, row, task, token_hash=hashed, lease=work[task.id, row.slice].lease))
        if not task.skips_request_lookup:
            special.append(task.id)
    task_to_run.remove_taken(uow.tx, rows)
    _insert_runs(uow, bot, runs)
    uow.flush()
    return _claimed(uow, runs, token, work, special=sorted(special))


def _start_kept(uow: UnitOfWork, bot: Bot, poll: Poll, kept: KeptTask) -> list[Claimed]:
    """Start a task that this transaction has made ready, and whose row is not written yet."""
    bots.save_claim(uow.tx, bot, poll.nonce, uow.now)
    token, task, work = poll.token(), kept.task, kept.work
    task.run_number = next_run_number(task.run_number) or 0
    task.bot_id = bot.id
    task.started_at = uow.now
    kept.start(uow.tx, uow.now)
    run = _new_run(uow, bot, poll, kept.to_run, task, token_hash=token_hash(token), lease=work.lease)
    _insert_runs(uow, bot, [run])
    special = [] if task.skips_request_lookup else [task.id]
    return _claimed(uow, [run], token, {(task.id, run.slice): work}, special=special, known=kept.contents)


def _insert_runs(uow: UnitOfWork, bot: Bot, runs: Sequence[TaskRun]) -> None:
    # The bot may be idle since later than now: that time may come from another server's clock.
    since = min(bot.idle_at, uow.now) if bot.idle_at is not None else None
    task_run.insert(uow.tx, runs, bot_version=bot.version, bot_dimensions=bot.dimensions, idle_since=since)


def _new_run(
    uow: UnitOfWork, bot: Bot, poll: Poll, row: TaskToRun, task: TaskResult, *, token_hash: str, lease: Micros
) -> TaskRun:
    return TaskRun(
        task_id=task.id,
        run=task.run_number,
        bot_id=bot.id,
        session=bot.session,
        token_hash=token_hash,
        state=RunState.RUNNING,
        reason="",
        claimed_at=uow.now,
        started_at=None,
        ended_at=None,
        lease=lease,
        soft_at=None,
        due_at=uow.now + uow.rules.start_within,
        exit_code=None,
        duration=None,
        instance=row.instance,
        generation=task.generation,
        slice=row.slice,
        nonce=poll.nonce,
        resource_group_id=task.resource_group_id,
        modified_at=uow.now,
    )


def _claimed(
    uow: UnitOfWork,
    runs: Sequence[TaskRun],
    token: str,
    work: Mapping[tuple[int, int], Work],
    *,
    special: Sequence[int],
    known: Contents | None = None,
) -> list[Claimed]:
    """The runs with everything that the bot needs; only ``special`` tasks may have inputs, outputs and extras.

    ``known``: those of the only run.
    """
    if not runs:
        return []
    inputs: Mapping[int, list[Value]] = {}
    extras: Mapping[int, Extras] = {}
    types: dict[int, list[str]] = {}
    if known is not None:
        task_id = runs[0].task_id
        inputs, types, extras = {task_id: known.inputs}, {task_id: known.output_types}, {task_id: known.extras}
    elif special:
        todo = {run.task_id: work[run.task_id, run.slice] for run in runs}
        readers = [task_id for task_id in special if todo[task_id].num_inputs]
        inputs = values.inputs(uow.tx, readers) if readers else {}
        writers = [task_id for task_id in special if todo[task_id].num_outputs]
        outputs = values.outputs(uow.tx, writers) if writers else {}
        types = {task_id: [kind for _, _, _, kind in rows] for task_id, rows in outputs.items()}
        extras = task_request.extras(uow.tx, special)
    claimed: list[Claimed] = []
    for run in runs:
        to_do = work[run.task_id, run.slice]
        of_function = to_do.func_name is not None
        extra = extras.get(run.task_id) or _NO_EXTRAS
        claimed.append(
            Claimed(
                task_id=run.task_id,
                run=run.run,
                token=token,
                work=to_do,
                inputs=inputs.get(run.task_id) or [],
                output_types=types.get(run.task_id) or [],
                label=extra.label or "" if of_function else "",
                code=extra.code or to_do.code or "",
                environment=extra.environment or to_do.environment or "",
                secret_bytes=extra.secret_bytes,
                stdin=extra.stdin,
                resource_group_id=run.resource_group_id,
                nonce=run.nonce,
            )
        )
    return claimed


_NO_EXTRAS = Extras(0)
