"""What happened to a bot, newest first: its own events, and the beginnings and ends of what it ran.

That a bot was given a task, and how that ended, is known from its runs and is written down nowhere else: a second row
for each would slow every claim and every report.
"""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros, first_id_at
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot_event
from myrmidon.store.tables.bot_event import BotEventRow


class Told(Struct, frozen=True):
    """One thing that happened to a bot, and what the bot was like then. ``run`` 0: it was not about a run."""

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
# Two texts, because ended runs lie in the order of their tasks in the index of a bot's runs, and live ones do not.
ENDED = f"""
    SELECT {_RUN} FROM task_runs WHERE bot_id = :bot AND alarm_at IS NULL AND task_id < :before
     ORDER BY task_id DESC, run DESC LIMIT :n
"""
LIVE = f"""
    SELECT {_RUN} FROM task_runs WHERE bot_id = :bot AND alarm_at IS NOT NULL AND task_id < :before
     ORDER BY task_id DESC, run DESC LIMIT :n
"""
LOOKED_AT = 2_000
"""Runs that one page looks at; a task that waited while so many younger ones ran is missed."""
SAME_MOMENT = 32
"""Events of one bot in one millisecond: an id tells the time no better than that."""
_UNTOLD = frozenset({"given_back", "not_started"})
_ENDS = {"BOT_DIED": "task_error", "CLIENT_ERROR": "task_error", "KILLED": "task_killed", "CANCELED": "task_killed"}


def story(tx: Tx, bot_id: str, *, until: Micros, n: int, since: Micros = 0) -> list[Told]:
    """The last n things that happened to a bot from ``since`` until then, both included, newest first."""
    before = first_id_at(until + 1000)
    own = bot_event.read_full(tx, bot_id, low=first_id_at(since), high=before, n=n + SAME_MOMENT)
    found = [_of(event) for event in own if since <= event.at <= until]
    for text in (LIVE, ENDED):
        for row in tx.all(text, bot=bot_id, before=before, n=n + LOOKED_AT):
            found += [one for one in _told_by(row) if since <= one.at <= until]
    found.sort(key=lambda one: (one.at, one.task_id or 0, one.run), reverse=True)
    return found[:n]


class Place(Struct, frozen=True):
    """Where a story goes on: at this time, behind so many things of that very moment."""

    until: Micros
    seen: int = 0


def page(tx: Tx, bot_id: str, place: Place, *, n: int, since: Micros = 0) -> tuple[list[Told], Place | None]:
    """One page of a story, and where the next begins; None at the end."""
    found = story(tx, bot_id, until=place.until, n=n + place.seen, since=since)
    shown = found[place.seen :]
    if len(shown) < n:
        return shown, None
    last = shown[-1].at
    return shown, Place(last, sum(one.at == last for one in found))


def _of(event: BotEventRow) -> Told:
    return Told(
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


def _told_by(row: Sequence[object]) -> list[Told]:
    """That a run began, and how it ended; nothing of one that never began."""
    task_id, run, group, state, reason, claimed_at, ended_at, dimensions, version = row
    if reason in _UNTOLD:
        return []
    about = {"task_id": task_id, "run": run, "resource_group_id": group, "dimensions": dimensions, "version": version}
    told = [Told(claimed_at, "request_task", **about)]  # type: ignore[arg-type]
    if ended_at is not None:
        told.append(Told(ended_at, _ENDS.get(str(state), "task_completed"), str(reason), **about))  # type: ignore[arg-type]
    return told
