"""Explain why a task is not running: its parents, a hold, a dimension that no bot has, or its position in the queue.

Reads without locks and changes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from myrmidon.model import dimensions
from myrmidon.model.bot import Bot
from myrmidon.model.errors import NotFound
from myrmidon.model.ids import Micros, show_task
from myrmidon.model.shown_input import count
from myrmidon.model.states import TaskState
from myrmidon.model.task_result import TaskResult
from myrmidon.scheduler.outages import silent_runs
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import edge, task_queues, task_request, task_result, task_run, task_to_run
from myrmidon.store.tables.bot import BotWith
from myrmidon.store.views.job_details import labels_of

_SHOWN_PARENTS = 20
_SHOWN_BOTS = 20
_NAMED_BOTS = 3
_NAMED_VALUES = 8


class Removed(Struct, frozen=True):
    """A required dimension: how many bots it excludes (``removes``) and how many remain (``left``).

    ``offered``: if none remain, what the bots before have for its key; a typing error shows there.
    """

    dimension: str
    removes: int
    left: int
    offered: tuple[str, ...] = ()


class UnavailableBot(Struct, frozen=True):
    """A bot that has the required dimensions but gets no tasks; ``state`` is dead, quarantined, ..."""

    bot_id: str
    state: str
    reason: str | None
    last_seen_at: Micros

    def __str__(self) -> str:
        return f"{self.bot_id} ({self.state}: {self.reason})" if self.reason else f"{self.bot_id} ({self.state})"


class Capacity(Struct, frozen=True, kw_only=True):
    """What the fleet has for a task: how each dimension limits the bots, who could run it, and who is unavailable."""

    dimensions: list[Removed]
    num_bots: int
    num_serving: int
    num_unavailable: int
    unavailable: list[UnavailableBot]


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a task is not running. ``unreachable``: a parent has failed, so it will not run without a rerun.

    ``capacity``: for a task that waits for a bot, or found none, what the fleet has for it, in one sentence.
    """

    task_id: int
    state: TaskState
    summary: str
    waiting_on: list[int] = []
    unreachable: bool = False
    held: bool = False
    dimensions: list[Removed] = []
    num_bots: int = 0
    num_serving: int = 0
    unavailable: list[UnavailableBot] = []
    capacity: str | None = None
    position: int | None = None
    silent_since: Micros | None = None
    """The last heartbeat of the bot that runs the task, if the bot is silent."""
    given_up_at: Micros | None = None
    """When the run ends as lost if the bot stays silent."""


def explain(tx: Tx, task_id: int, *, now: Micros = 0, rules: Rules = DEFAULT_RULES) -> Explanation:
    """The reason why a task is not running, in one sentence, with the facts behind it."""
    task = task_result.read(tx, [task_id]).get(task_id)
    if task is None:
        raise NotFound("task", show_task(task_id))
    if task.state == TaskState.WAITING:
        return _explain_waiting(tx, task)
    if task.state == TaskState.READY:
        return _explain_ready(tx, task, now, rules)
    if task.state == TaskState.RUNNING:
        return _explain_running(tx, task, now, rules)
    return _explain_ended(tx, task, now, rules)


def _explain_running(tx: Tx, task: TaskResult, now: Micros, rules: Rules) -> Explanation:
    what = "is being stopped" if task.killing else "is running"
    summary = f"The task {what} on bot {task.bot_id}."
    silent = silent_runs(tx, task_run.read(tx, [task.id]), now=now, rules=rules)
    silence = silent.get((task.id, task.run_number))
    if silence is None:
        return Explanation(task_id=task.id, state=task.state, summary=summary)
    silent_s, wait_s = (now - silence.since) // SECOND, max(0, silence.given_up_at - now) // SECOND
    return Explanation(
        task_id=task.id,
        state=task.state,
        summary=f"{summary} The bot has been silent for {silent_s} s; the run is given up in {wait_s} s.",
        silent_since=silence.since,
        given_up_at=silence.given_up_at,
    )


def _explain_waiting(tx: Tx, task: TaskResult) -> Explanation:
    waiting_on = edge.waiting_on(tx, task.id, _SHOWN_PARENTS)
    if task.held and not waiting_on:
        return Explanation(
            task_id=task.id,
            state=task.state,
            held=True,
            summary="The task is held; release it to let it run.",
        )
    unreachable = _unreachable(tx, task)
    if unreachable is not None:
        [failed] = _named(tx, [unreachable.id])
        ended = f"{failed} ended {unreachable.state}"
        summary = f"The task cannot run: {ended}. Rerun that one, or rerun this with force."
    else:
        summary = f"The task waits for {', '.join(_named(tx, waiting_on[:5]))}."
    return Explanation(
        task_id=task.id,
        state=task.state,
        held=bool(task.held),
        waiting_on=waiting_on,
        unreachable=unreachable is not None,
        summary=summary,
    )


def _named(tx: Tx, task_ids: Sequence[int]) -> list[str]:
    """Tasks of a job with their labels, as ``build (7c07a39dc80000100)``."""
    labels = labels_of(tx, task_ids)
    return [f"{labels[one]} ({show_task(one)})" if one in labels else show_task(one) for one in task_ids]


def _unreachable(tx: Tx, task: TaskResult) -> TaskResult | None:
    """An ancestor that ended without success, so that this task cannot become ready; None if there is none."""
    seen: set[int] = set()
    pending = [(task.id, bool(task.resolves_all))]
    while pending:
        child, resolves_all = pending.pop()
        for parent in task_result.read(tx, edge.waiting_on(tx, child, _SHOWN_PARENTS)).values():
            if parent.final and not resolves_all:
                return parent
            if parent.state == TaskState.WAITING and parent.id not in seen and not resolves_all:
                seen.add(parent.id)
                pending.append((parent.id, bool(parent.resolves_all)))
    return None


def _explain_ready(tx: Tx, task: TaskResult, now: Micros, rules: Rules) -> Explanation:
    rows = task_to_run.of_tasks(tx, [task.id])
    position = task_to_run.position(tx, rows[0]) if rows else 0
    capacity = _capacity(tx, task, now, rules)
    if capacity is None:
        return Explanation(task_id=task.id, state=task.state, summary="The task waits for a bot.")
    sentence = _describe(capacity)
    place = "It is the next one in its queue." if not position else f"{_tasks_are(position)} before it in its queue."
    return Explanation(
        task_id=task.id,
        state=task.state,
        summary=f"{sentence} {place}" if capacity.num_serving else sentence,
        dimensions=capacity.dimensions,
        num_bots=capacity.num_bots,
        num_serving=capacity.num_serving,
        unavailable=capacity.unavailable,
        capacity=sentence,
        position=position if rows else None,
    )


def _tasks_are(number: int) -> str:
    return "1 task is" if number == 1 else f"{number} tasks are"


def _explain_ended(tx: Tx, task: TaskResult, now: Micros, rules: Rules) -> Explanation:
    why = f" ({task.reason})" if task.reason not in ("", "exit_code") else ""
    ended = f"The task has ended: {task.state}{why}."
    # A task that has expired before it was ready has waited for its parents, and not for a bot.
    found_no_bot = task.state == TaskState.NO_RESOURCE or (
        task.state == TaskState.EXPIRED and task.ready_at is not None
    )
    capacity = _capacity(tx, task, now, rules) if found_no_bot else None
    if capacity is None:
        return Explanation(task_id=task.id, state=task.state, summary=ended)
    sentence = _describe(capacity)
    return Explanation(
        task_id=task.id,
        state=task.state,
        summary=f"{ended} Now: {sentence}",
        dimensions=capacity.dimensions,
        num_bots=capacity.num_bots,
        num_serving=capacity.num_serving,
        unavailable=capacity.unavailable,
        capacity=sentence,
    )


def _describe(capacity: Capacity) -> str:
    if not capacity.num_bots:
        last = next((step for step in capacity.dimensions if step.left == 0), None)
        missing = f": {_missing(last)}" if last else ""
        return f"No bot matches{missing}. Start such a bot, or change the dimensions."
    if capacity.num_serving:
        return f"{count(capacity.num_serving, 'bot')} can run it."
    named = ", ".join(str(bot) for bot in capacity.unavailable[:_NAMED_BOTS])
    more = capacity.num_unavailable - _NAMED_BOTS
    others = f" and {more} more" if more > 0 else ""
    match = "1 bot matches, but it" if capacity.num_bots == 1 else f"{capacity.num_bots} bots match, but none of them"
    return f"{match} is {'not ' if capacity.num_bots == 1 else ''}available: {named}{others}."


def _missing(step: Removed) -> str:
    key, _, value = step.dimension.partition(":")
    if not step.removes:
        return f"there is no bot in the pool {value}" if key == "pool" else f"no bot has {step.dimension}"
    shown = ", ".join(step.offered[:_NAMED_VALUES])
    more = len(step.offered) - _NAMED_VALUES
    others = f" and {more} more" if more > 0 else ""
    offered = f"their {key} is {shown}{others}" if shown else f"they have no dimension {key}"
    return f"none of the remaining bots has {step.dimension}; {offered}"


def _capacity(tx: Tx, task: TaskResult, now: Micros, rules: Rules) -> Capacity | None:
    """What the fleet has now for the task's current slice; None if its queue was deleted after weeks without use."""
    task_slice = task_request.slices(tx, [task.id])[task.id][task.current_task_slice]
    queue = task_queues.read(tx, [task_slice.queue]).get(task_slice.queue)
    if queue is None:
        return None
    steps, matching = _filter_bots(tx, queue.dimensions, queue.pool)
    silent = {bot.id for bot in matching if bot.serving and now - bot.heartbeat > rules.silent_after}
    unavailable = [bot.id for bot in matching if not bot.serving or bot.id in silent]
    return Capacity(
        dimensions=steps,
        num_bots=len(matching),
        num_serving=len(set(task_queues.serving_bots(tx, queue.id, 1000)) - silent),
        num_unavailable=len(unavailable),
        unavailable=[
            _unavailable_bot(bot, now - bot.heartbeat if bot.id in silent else None)
            for bot in bots.read_many(tx, unavailable[:_SHOWN_BOTS])
        ],
    )


def _unavailable_bot(bot: Bot, silent_for: Micros | None) -> UnavailableBot:
    """A silent bot is not marked as unavailable: it counts as dead only after a longer time."""
    if silent_for is not None:
        return UnavailableBot(bot.id, "silent", f"no heartbeat for {silent_for // SECOND} s", bot.heartbeat)
    state = bot.unavailable or "alive"
    reason = {"quarantined": bot.quarantined, "maintenance": bot.maintenance}.get(state)
    return UnavailableBot(bot.id, state, reason, bot.heartbeat)


def _filter_bots(tx: Tx, required: str, pool: str) -> tuple[list[Removed], list[BotWith]]:
    """Apply the required dimensions one by one to the bots of the pool.

    Returns the steps, and the bots that match. A terminate task has no pool: there it starts with the bots that have
    its id.
    """
    values = [f"pool:{pool}"] if pool else dimensions.narrowest_values(required)
    found = {bot.id: bot for value in values for bot in bots.bots_with(tx, value)}
    left = [(bot, dimensions.bot_sets(bot.dimensions)) for bot in found.values()]
    steps = []
    for single in dimensions.split_values(required):
        before, shown = left, dimensions.show_single(single)
        left = [(bot, sets) for bot, sets in before if dimensions.matches(single, sets)]
        offered = _offered(shown.partition(":")[0], [sets for _, sets in before]) if not left else ()
        steps.append(Removed(shown, len(before) - len(left), len(left), offered))
    return steps, [bot for bot, _ in left]


def _offered(key: str, several: Iterable[Mapping[str, frozenset[str]]]) -> tuple[str, ...]:
    return tuple(sorted({value for sets in several for value in sets.get(key, ())}))
