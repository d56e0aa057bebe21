"""Events: what the rest of the world learns of a state change.

A row is written in the transaction of the change it tells. Rows become visible
in no particular order on databases with many writers, so one sequencer numbers
the committed ones, and sinks read by that number. (subject, seq) is the key: a
subject's event k is committed before its event k + 1, hence also numbered first.

SQLite has one writer. What is written there first is committed first, and an event
gets its number with its row; the sequencer finds only what came from elsewhere.
"""

from collections.abc import Sequence

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Dialect, Tx
from myrmidon.store.engine.sql import Insert, RowUpdate
from myrmidon.store.tables import shared_numbers

TASK = "task"
JOB = "job"
_POSITION = "outbox_position"
_EVENTS = Insert("outbox", "subject, seq, at, kind, state, body")
_NUMBERED_EVENTS = Insert("outbox", "subject, seq, at, kind, state, body, position")
_encode = json.Encoder().encode


class Event(Struct, frozen=True):
    """One numbered event, as a sink sees it."""

    position: int
    subject: int
    seq: int
    at: Micros
    kind: str
    state: str
    body: str


class TaskBody(Struct, frozen=True, omit_defaults=True):
    """What a task's event says besides its state."""

    generation: int
    reason: str = ""
    job: int | None = None
    run: int = 0
    bot: str | None = None
    slice: int = 0
    held: int = 0
    killing: int = 0


class JobBody(Struct, frozen=True, omit_defaults=True):
    """What a job's event says besides its state: the view of its graph and what blocks it."""

    view: str
    what: str
    blocked_by: int | None = None
    num_retries: int = 0


def body_of(body: TaskBody | JobBody) -> str:
    return _encode(body).decode()


def write(tx: Tx, rows: Sequence[tuple[int, int, Micros, str, str, str]]) -> None:
    """Add events (subject, seq, at, kind, state, body) to the transaction of their change."""
    if tx.dialect is Dialect.SQLITE and rows:
        last = shared_numbers.lock(tx, _POSITION)
        tx.insert(_NUMBERED_EVENTS, [(*row, last + i) for i, row in enumerate(rows, start=1)])
        shared_numbers.put(tx, _POSITION, last + len(rows))
    else:
        tx.insert(_EVENTS, rows)
    tx.effects.events.extend(rows)


UNNUMBERED = """
    SELECT subject, seq FROM outbox WHERE position IS NULL ORDER BY subject, seq LIMIT :n
"""
_NUMBER = RowUpdate(
    "outbox", key="subject, seq", sets="position", where="position IS NULL", types="bigint, int, bigint"
)


def number(tx: Tx, n: int) -> int:
    """Give the next numbers to committed events; how many got one.

    The mark's row lock makes this the only sequencer; a second server waits its
    turn and goes on behind it.
    """
    last = shared_numbers.lock(tx, _POSITION)
    found = tx.all(UNNUMBERED, n=n)
    if not found:
        return 0
    tx.update_rows(_NUMBER, [(subject, seq, last + i) for i, (subject, seq) in enumerate(found, start=1)])
    shared_numbers.put(tx, _POSITION, last + len(found))
    return len(found)


ANY_UNNUMBERED = "SELECT subject FROM outbox WHERE position IS NULL ORDER BY subject, seq LIMIT 1"


def is_numbered(tx: Tx) -> bool:
    """Whether every event has its number; read without locks, so that a quiet server writes nothing."""
    return tx.one(ANY_UNNUMBERED) is None


def newest(tx: Tx) -> int:
    """The number of the last event that has one."""
    return shared_numbers.read(tx, _POSITION) or 0


AFTER = """
    SELECT position, subject, seq, at, kind, state, body FROM outbox
     WHERE position > :position ORDER BY position LIMIT :n
"""


def after(tx: Tx, position: int, n: int) -> list[Event]:
    """The next numbered events of the stream."""
    return [Event(*row) for row in tx.all(AFTER, position=position, n=n)]


OF_SUBJECT = """
    SELECT COALESCE(position, 0), subject, seq, at, kind, state, body FROM outbox
     WHERE subject = :subject ORDER BY seq
"""


def story(tx: Tx, subject: int) -> list[Event]:
    """All that ever happened to one task or job; numbered or not."""
    return [Event(*row) for row in tx.all(OF_SUBJECT, subject=subject)]


DELETE = "DELETE FROM outbox WHERE subject {in:subjects}"


def delete(tx: Tx, subjects: Sequence[int]) -> None:
    tx.run(DELETE, subjects=subjects)


_SINKS = Insert("sinks", "name, position, holder, held_until")
LEASE = """
    UPDATE sinks SET holder = :holder, held_until = :until
     WHERE name = :name AND (holder IS NULL OR holder = :holder OR held_until < :now)
"""
CURSOR = "SELECT position FROM sinks WHERE name = :name"
ADVANCE = """
    UPDATE sinks SET position = :position
     WHERE name = :name AND holder = :holder AND position <= :position
"""


def hold_sink(tx: Tx, name: str, holder: int, *, now: Micros, until: Micros) -> int | None:
    """Become, or stay, the one server that feeds a sink; its cursor, or None while another holds it."""
    tx.insert_new(_SINKS, [(name, 0, None, None)])
    if not tx.run(LEASE, name=name, holder=holder, now=now, until=until):
        return None
    row = tx.one(CURSOR, name=name)
    return row[0] if row else None


def advance_sink(tx: Tx, name: str, holder: int, position: int) -> bool:
    """Move the cursor past delivered events; False when the lease went to another server."""
    return tx.run(ADVANCE, name=name, holder=holder, position=position) == 1
