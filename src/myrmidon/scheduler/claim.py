"""Claiming: a bot takes tasks from its queues, and a run of each begins.

The heads of the bot's queues are read without locks and the policy chooses among
them; then each chosen queue is taken from with rows that nobody else holds. A
claim waits for nobody: whatever another transaction is busy with, it leaves.

A claim carries a nonce that grows with each claim of a bot's session. The same
nonce again gets the same runs, so a lost reply costs nothing; an older one is a
straggler of the network and gets none.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2s
from hmac import digest as hmac_digest

from msgspec import Struct

from myrmidon.model import dimensions
from myrmidon.model.bot import Bot
from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import IdSource, Micros, next_run_number
from myrmidon.model.states import READY, RUNNING, RunState
from myrmidon.model.task_result import TaskResult, TaskRun
from myrmidon.model.task_to_run import Head, TaskToRun
from myrmidon.model.value import Value
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules, best_queues, local_first, pick_queues
from myrmidon.scheduler.unit_of_work import UnitOfWork
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import shared_value, task_queues, task_request, task_result, task_run, task_to_run
from myrmidon.store.tables import value as values
from myrmidon.store.tables.task_request import Work

_MOST_QUEUES = 32
_MOST_ROWS = 512


class Poll(Struct, frozen=True, kw_only=True):
    """A bot asks for up to n tasks. ``token_key`` is the servers' secret from which the tokens of runs are made."""

    bot_id: str
    session: int
    nonce: int
    n: int = 1
    token_key: bytes = b""


class Claimed(Struct, frozen=True, kw_only=True, gc=False):
    """All that a bot needs to run one task; the only place where a secret leaves the store."""

    task_id: int
    run: int
    token: str
    work: Work
    inputs: list[Value]
    secret_bytes: bytes | None
    resource_group_id: int = 0

    def __repr__(self) -> str:
        """Never shows the token or the secret."""
        return f"Claimed(task_id={self.task_id}, run={self.run})"


def claim(tx: Tx, poll: Poll, *, now: Micros, ids: IdSource, rules: Rules = DEFAULT_RULES) -> list[Claimed]:
    """Start up to n runs on a bot; fewer, or none, when there is nothing for it."""
    uow = UnitOfWork(tx, now, ids, rules)
    bot = bots.lock(tx, poll.bot_id)
    if bot is None:
        raise NotFound("bot", poll.bot_id)
    if bot.session != poll.session or not bot.alive:
        raise WrongState("this bot's session has ended; it must shake hands again before it gets work")
    if poll.nonce < bot.nonce:
        return []
    if poll.nonce == bot.nonce:
        return _again(uow, poll)
    bots.save_claim(tx, bot, poll.nonce, now)
    if poll.n < 1:
        return []
    taken = _take(uow, bot, min(poll.n, rules.claim_limit)) if bot.serving else _take_end(uow, bot)
    return _start(uow, bot, poll, taken) if taken else []


def _again(uow: UnitOfWork, poll: Poll) -> list[Claimed]:
    """The runs that this very claim started, as far as they are still the bot's."""
    live = task_run.live_of_bot(uow.tx, poll.bot_id)
    mine = [run for run in live if run.session == poll.session and run.nonce == poll.nonce]
    work = task_request.work(uow.tx, sorted({run.task_id for run in mine})) if mine else {}
    return _hand_out(uow, mine, claim_token(poll), work, special=sorted({run.task_id for run in mine}))


# ---------------------------------------------------------------- choosing


def _take(uow: UnitOfWork, bot: Bot, n: int) -> list[tuple[TaskToRun, TaskResult]]:
    """Lock rows of the hot table, best first, with their tasks.

    The full set of dimensions is compared once more: the match made earlier is only an index.
    """
    heads = [h for h in task_to_run.heads(uow.tx, bot.id) if dimensions.serves(h.dimensions, bot.dimensions)]
    if not heads:
        return []
    rows = _from_one(uow, bot, heads[0], n) if len(heads) == 1 else _from_several(uow, bot, heads, n)
    chosen = list({row.task_id: row for row in rows}.values())
    tasks = task_result.lock_unlocked(uow.tx, sorted(row.task_id for row in chosen)) if chosen else {}
    return [(row, tasks[row.task_id]) for row in chosen if _may_run(row, tasks.get(row.task_id))]


def _take_end(uow: UnitOfWork, bot: Bot) -> list[tuple[TaskToRun, TaskResult]]:
    """A bot that gets no work may still be told to end, which is a task of a queue that is its own."""
    rows: list[TaskToRun] = []
    for queue in task_queues.own_queues(uow.tx, bot.id):
        rows = rows or task_to_run.take(uow.tx, queue, 1, bot_id=bot.id, now=uow.now)
    tasks = task_result.lock_unlocked(uow.tx, [row.task_id for row in rows]) if rows else {}
    return [(row, tasks[row.task_id]) for row in rows if _may_run(row, tasks.get(row.task_id))]


def _from_one(uow: UnitOfWork, bot: Bot, head: Head, n: int) -> list[TaskToRun]:
    """Take n of the only queue that has anything: one statement less than for several (docs/decisions/0024)."""
    rows: list[TaskToRun] = []
    if head.shared and bot.address:
        seen = _look_into(uow, bot, head, n)
        rows = task_to_run.take_these(uow.tx, [row.task_id for row in seen[:n]], bot_id=bot.id, now=uow.now)
    return _fill_up(uow, bot, head.queue, rows, n)


def _from_several(uow: UnitOfWork, bot: Bot, heads: Sequence[Head], n: int) -> list[TaskToRun]:
    """Take n of several queues in the order of the policy.

    Only the best queues are looked into, and the next ones only when those have nothing that this bot may take.
    """
    groups = {head.queue: head.resource_group_id for head in heads}
    running = task_run.count_by_group(uow.tx) if len(set(groups.values())) > 1 else {}
    ordered = best_queues(heads, running)
    step = min(max(n, 4), _MOST_QUEUES)
    for start in range(0, len(ordered), step):
        taken = _from_best(uow, bot, ordered[start : start + step], running, n)
        if taken:
            return taken
    return []


def _from_best(
    uow: UnitOfWork, bot: Bot, looked: Sequence[Head], running: Mapping[int, int], n: int
) -> list[TaskToRun]:
    groups = {head.queue: head.resource_group_id for head in looked}
    candidates = _candidates(uow, bot, looked, groups, running, n)
    picks = pick_queues(candidates, groups, running, n)
    lines = {queue: iter(rows) for queue, rows in candidates.items()}
    wanted = [next(lines[queue]).task_id for queue in picks]
    taken = task_to_run.take_these(uow.tx, wanted, bot_id=bot.id, now=uow.now) if wanted else []
    for queue, count in Counter(picks).items():
        mine = [row for row in taken if row.queue == queue]
        if len(mine) < count:
            taken += _fill_up(uow, bot, queue, mine, count)[len(mine) :]
    return taken


def _candidates(
    uow: UnitOfWork, bot: Bot, looked: Sequence[Head], groups: Mapping[int, int], running: Mapping[int, int], n: int
) -> dict[int, list[TaskToRun]]:
    """What each queue has to give: a few rows of each, and more of those that would give them all."""
    few = min(max(n, uow.rules.look_ahead), max(uow.rules.look_ahead, _MOST_ROWS // len(looked)))
    queues = [head.queue for head in looked]
    read = task_to_run.first_of_several(uow.tx, queues, few, bot_id=bot.id, now=uow.now)
    known = {head.queue: _local_first(uow, bot, head, read[head.queue]) for head in looked}
    by_queue = {head.queue: head for head in looked}
    while True:
        counts = Counter(pick_queues(known, groups, running, n))
        used_up = [queue for queue, count in counts.items() if count == len(known[queue]) == few < n]
        if not used_up:
            return known
        for queue in used_up:
            known[queue] = _look_into(uow, bot, by_queue[queue], n)


def _look_into(uow: UnitOfWork, bot: Bot, head: Head, n: int) -> list[TaskToRun]:
    """The best rows of one queue, in the order in which this bot should take them."""
    most = max(n, uow.rules.look_ahead)
    rows = task_to_run.first(uow.tx, head.queue, most, bot_id=bot.id, now=uow.now)
    return _local_first(uow, bot, head, rows)


def _local_first(uow: UnitOfWork, bot: Bot, head: Head, rows: list[TaskToRun]) -> list[TaskToRun]:
    """Those whose shared values lie at the bot before their equals."""
    near = [row.task_id for row in rows[: uow.rules.look_ahead] if row.shared]
    if not (near and head.shared and bot.address):
        return rows
    return local_first(rows, shared_value.local_tasks(uow.tx, near, bot.address), uow.rules.look_ahead)


def _fill_up(uow: UnitOfWork, bot: Bot, queue: int, rows: list[TaskToRun], n: int) -> list[TaskToRun]:
    """Where others were faster with the chosen rows, the next free ones of the queue do."""
    if len(rows) >= n:
        return rows
    known = {row.task_id for row in rows}
    rest = task_to_run.take(uow.tx, queue, n, bot_id=bot.id, now=uow.now)
    return rows + [row for row in rest if row.task_id not in known][: n - len(rows)]


def _may_run(row: TaskToRun, task: TaskResult | None) -> bool:
    """The task is ours to start: nobody is changing it, and it still wants this run."""
    if task is None or task.killing:
        return False
    if next_run_number(task.run_number) is None:
        return False
    return task.state == READY or (task.state == RUNNING and row.instance > 0)


# ---------------------------------------------------------------- starting


def _start(uow: UnitOfWork, bot: Bot, poll: Poll, taken: Sequence[tuple[TaskToRun, TaskResult]]) -> list[Claimed]:
    work = task_request.work(uow.tx, sorted(task.id for _, task in taken))
    task_to_run.remove_taken(uow.tx, [row for row, _ in taken])
    token = claim_token(poll)
    hashed = token_hash(token)
    runs = []
    for row, task in taken:
        task.run_number = next_run_number(task.run_number) or 0
        task.bot_id = bot.id
        task.started_at = uow.now
        uow.start_run(task)
        runs.append(_new_run(uow, bot, poll, row, task, token_hash=hashed, lease=work[task.id, row.slice].lease))
    since = _idle_since(uow, bot)
    task_run.insert(uow.tx, runs, bot_version=bot.version, bot_dimensions=bot.dimensions, idle_since=since)
    uow.flush()
    return _hand_out(uow, runs, token, work, special=sorted(task.id for _, task in taken if not task.plain))


def _idle_since(uow: UnitOfWork, bot: Bot) -> Micros | None:
    """Never later than the claim, though the server that heard of the end of the run before has a faster clock."""
    return min(bot.idle_at, uow.now) if bot.idle_at is not None else None


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
        alarm_at=uow.now + uow.rules.start_within,
        exit_code=None,
        duration=None,
        instance=row.instance,
        generation=task.generation,
        slice=row.slice,
        nonce=poll.nonce,
        resource_group_id=task.resource_group_id,
        modified_at=uow.now,
    )


def claim_token(poll: Poll) -> str:
    """The secret of a claim, which its runs share: nobody speaks of them who was not handed them.

    The same claim makes the same one, so that its reply can be repeated.
    """
    return hmac_digest(poll.token_key, f"{poll.bot_id}\n{poll.session}\n{poll.nonce}".encode(), "sha256").hex()


def token_hash(token: str) -> str:
    """What is stored of a token: enough to check it, useless to act with it."""
    return blake2s(token.encode()).hexdigest()


def _hand_out(
    uow: UnitOfWork,
    runs: Sequence[TaskRun],
    token: str,
    work: Mapping[tuple[int, int], Work],
    *,
    special: Sequence[int],
) -> list[Claimed]:
    """The runs with all that their bot needs; ``special`` tasks may have inputs and secrets."""
    if not runs:
        return []
    todo = {run.task_id: work[run.task_id, run.slice] for run in runs}
    functions = [task_id for task_id in special if todo[task_id].func_name is not None]
    inputs = values.inputs(uow.tx, functions) if functions else {}
    hidden = task_request.secrets(uow.tx, special) if special else {}
    return [
        Claimed(
            task_id=run.task_id,
            run=run.run,
            token=token,
            work=todo[run.task_id],
            inputs=inputs.get(run.task_id, []),
            secret_bytes=hidden.get(run.task_id),
            resource_group_id=run.resource_group_id,
        )
        for run in runs
    ]
