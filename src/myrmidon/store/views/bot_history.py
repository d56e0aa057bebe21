"""The history of a bot, newest first: its events, and the starts and ends of its runs.

Starts and ends of runs are read from the runs and are not stored as events: a second row for each would slow every
claim and every report.
"""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros, first_id_at
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot_event
from myrmidon.store.tables.bot_event import BotEventRow


class HistoryEntry(Struct, frozen=True):
    """One entry, with the bot as it was then. ``run`` is 0 when the entry is not about a run."""

    at: Micros
    kind: str
    message: str = ""
    task_id: int | None = None
    run: int = 0
    resource_group_id: int | None = None
    dimensions: str | None = None
    state: str | None = None
    version: str | None = None
    address: str | None = None
    authenticated: str | None = None
    quarantined: str | None = None
    maintenance: str | None = None


_RUN = "task_id, run, resource_group_id, state, reason, claimed_at, ended_at, bot_dimensions, bot_version"
# Two statements: the index of a bot's runs has ended runs in the order of their tasks; live runs are few.
ENDED = f"""
    SELECT {_RUN} FROM task_runs WHERE bot_id = :bot AND due_at IS NULL AND task_id < :before
     ORDER BY task_id DESC, run DESC LIMIT :n
"""
LIVE = f"""
    SELECT {_RUN} FROM task_runs WHERE bot_id = :bot AND due_at IS NOT NULL AND task_id < :before
     ORDER BY task_id DESC, run DESC LIMIT :n
"""
RUNS_PER_PAGE = 2_000
"""Runs that one page reads beyond n. A task that waited while so many younger ones ran is missed."""
EVENTS_PER_MILLISECOND = 32
"""Events of one bot in one millisecond, which is the precision of ids."""
_NEVER_STARTED = frozenset({"given_back", "not_started"})
_KIND_OF_END = {
    "BOT_DIED": "task_error",
    "CLIENT_ERROR": "task_error",
    "KILLED": "task_killed",
    "CANCELLED": "task_killed",
}


def history(tx: Tx, bot_id: str, *, until: Micros, n: int, since: Micros = 0) -> list[HistoryEntry]:
    """The last n entries from ``since`` to ``until``, both included, newest first."""
    before = first_id_at(until + 1000)
    own = bot_event.read_full(tx, bot_id, low=first_id_at(since), high=before, n=n + EVENTS_PER_MILLISECOND)
    found = [_from_event(event) for event in own if since <= event.at <= until]
    for text in (LIVE, ENDED):
        for row in tx.all(text, bot=bot_id, before=before, n=n + RUNS_PER_PAGE):
            found += [entry for entry in _from_run(row) if since <= entry.at <= until]
    found.sort(key=lambda entry: (entry.at, entry.task_id or 0, entry.run), reverse=True)
    return found[:n]


class HistoryPosition(Struct, frozen=True):
    """Where a page starts: at this time, after ``seen`` entries of that time."""

    until: Micros
    seen: int = 0


def page(
    tx: Tx, bot_id: str, start: HistoryPosition, *, n: int, since: Micros = 0
) -> tuple[list[HistoryEntry], HistoryPosition | None]:
    """Return one page of the history, and where the next one starts; None at the end."""
    found = history(tx, bot_id, until=start.until, n=n + start.seen, since=since)
    shown = found[start.seen :]
    if len(shown) < n:
        return shown, None
    last = shown[-1].at
    return shown, HistoryPosition(last, sum(entry.at == last for entry in found))


def _from_event(event: BotEventRow) -> HistoryEntry:
    return HistoryEntry(
        event.at,
        event.kind,
        event.message,
        dimensions=event.dimensions,
        state=event.state,
        version=event.version,
        address=event.address,
        authenticated=event.authenticated,
        quarantined=event.quarantined,
        maintenance=event.maintenance,
    )


def _from_run(row: Sequence[object]) -> list[HistoryEntry]:
    """The start and the end of a run; nothing for a run that was never started."""
    task_id, run, group, state, reason, claimed_at, ended_at, dimensions, version = row
    if reason in _NEVER_STARTED:
        return []
    fields = {"task_id": task_id, "run": run, "resource_group_id": group, "dimensions": dimensions, "version": version}
    entries = [HistoryEntry(claimed_at, "request_task", **fields)]  # type: ignore[arg-type]
    if ended_at is not None:
        entries.append(HistoryEntry(ended_at, _KIND_OF_END.get(str(state), "task_completed"), str(reason), **fields))  # type: ignore[arg-type]
    return entries
