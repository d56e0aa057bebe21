"""Events: a transactional outbox of the state changes of tasks and jobs.

An event is written in the transaction of the change that it describes. On databases with many writers rows become
visible in no particular order, so one sequencer gives each committed event a position, and readers read by position.
The key is (subject, seq): event k of a subject is committed before its event k + 1, and so gets its position first.

SQLite has one writer, which commits in the order of writing: there an event gets its position when it is written. The
sequencer finds only rows that were copied from another database.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Dialect, Tx
from myrmidon.store.engine.sql import Insert, Row, RowUpdate
from myrmidon.store.tables import shared_numbers

TASK = "task"
JOB = "job"
_POSITION = "outbox_position"
_EVENTS = Insert("outbox", "subject, seq, at, kind, state, body")
_EVENTS_WITH_POSITION = Insert("outbox", "subject, seq, at, kind, state, body, position")
_encode = json.Encoder().encode


class Event(Struct, frozen=True):
    """One event as readers get it; ``position`` is 0 while it has none."""

    position: int
    subject: int
    seq: int
    at: Micros
    kind: str
    state: str
    body: str


class TaskBody(Struct, frozen=True, omit_defaults=True):
    """The body of a task's event."""

    generation: int
    reason: str = ""
    job: int | None = None
    run: int = 0
    bot: str | None = None
    slice: int = 0
    held: int = 0
    killing: int = 0


class JobBody(Struct, frozen=True, omit_defaults=True):
    """The body of a job's event: the state of its graph, and what blocks it."""

    view: str
    what: str
    blocked_by: int | None = None
    num_retries: int = 0


def body_of(body: TaskBody | JobBody) -> str:
    return _encode(body).decode()


def write(tx: Tx, rows: Sequence[tuple[int, int, Micros, str, str, str]]) -> None:
    """Write events (subject, seq, at, kind, state, body), and add them to ``tx.effects``.

    All events of a transaction are stored together at its end.
    """
    if rows:
        tx.defer(_store, rows)
        tx.effects.events.extend(rows)


def count(rows: Iterable[Row], state: str) -> int:
    """How many of some written rows say that a task has come to a state."""
    found = 0
    for _, _, _, kind, reached, _ in rows:
        found += reached == state and kind == TASK
    return found


def _store(tx: Tx, rows: list[Row]) -> None:
    if tx.dialect is not Dialect.SQLITE:
        tx.insert(_EVENTS, rows)
        return
    moved = tx.all(TAKE_POSITIONS, name=_POSITION, n=len(rows))
    if not moved:  # the first event of this database
        shared_numbers.lock(tx, _POSITION)
        moved = tx.all(TAKE_POSITIONS, name=_POSITION, n=len(rows))
    last = moved[0][0] - len(rows)
    positioned = []
    for row in rows:
        last += 1
        positioned.append((*row, last))
    tx.insert(_EVENTS_WITH_POSITION, positioned)


# Only for SQLite: MariaDB has no RETURNING here.
TAKE_POSITIONS = "UPDATE shared_numbers SET value = value + :n WHERE name = :name RETURNING value"
WITHOUT_POSITION = """
    SELECT subject, seq FROM outbox WHERE position IS NULL ORDER BY subject, seq LIMIT :n
"""
_SET_POSITION = RowUpdate(
    "outbox", key="subject, seq", sets="position", where="position IS NULL", types="bigint, int, bigint"
)


def assign_positions(tx: Tx, n: int) -> int:
    """Give positions to up to n committed events; how many got one.

    The lock of the shared number makes this the only sequencer; a second server waits, and continues after it.
    """
    last = shared_numbers.lock(tx, _POSITION)
    rows = tx.all(WITHOUT_POSITION, n=n)
    if not rows:
        return 0
    tx.update_rows(_SET_POSITION, [(subject, seq, last + i) for i, (subject, seq) in enumerate(rows, start=1)])
    shared_numbers.put(tx, _POSITION, last + len(rows))
    return len(rows)


ANY_WITHOUT_POSITION = "SELECT subject FROM outbox WHERE position IS NULL ORDER BY subject, seq LIMIT 1"


def all_have_positions(tx: Tx) -> bool:
    """Whether every event has its position. Reads without locks, so that an idle server writes nothing."""
    return tx.one(ANY_WITHOUT_POSITION) is None


def newest(tx: Tx) -> int:
    """The greatest position of an event."""
    return shared_numbers.read(tx, _POSITION) or 0


AFTER = """
    SELECT position, subject, seq, at, kind, state, body FROM outbox
     WHERE position > :position ORDER BY position LIMIT :n
"""


def after(tx: Tx, position: int, n: int) -> list[Event]:
    """The next n events after a position."""
    return [Event(*row) for row in tx.all(AFTER, position=position, n=n)]


OF_SUBJECT = """
    SELECT COALESCE(position, 0), subject, seq, at, kind, state, body FROM outbox
     WHERE subject = :subject ORDER BY seq
"""


def history(tx: Tx, subject: int) -> list[Event]:
    """All events of one task or job, with or without a position."""
    tx.write_deferred()
    return [Event(*row) for row in tx.all(OF_SUBJECT, subject=subject)]


DELETE = "DELETE FROM outbox WHERE subject {in:subjects}"


def delete(tx: Tx, subjects: Sequence[int]) -> None:
    tx.write_deferred()
    tx.run(DELETE, subjects=subjects)


OF_SUBJECTS = "SELECT subject, seq, state, body FROM outbox WHERE subject {in:subjects}"


def predecessors(tx: Tx, events: Sequence[Event]) -> dict[tuple[int, int], tuple[str, str]]:
    """State and body of the event before each of these, by the subject and seq of the later one."""
    given = {(event.subject, event.seq): (event.state, event.body) for event in events}
    missing = {event.subject for event in events if event.seq > 1 and (event.subject, event.seq - 1) not in given}
    stored = tx.all(OF_SUBJECTS, subjects=sorted(missing)) if missing else []
    known = given | {(subject, seq): (state, body) for subject, seq, state, body in stored}
    return {(subject, seq): known[subject, seq - 1] for subject, seq in given if (subject, seq - 1) in known}
