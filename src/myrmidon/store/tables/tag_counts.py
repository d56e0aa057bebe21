"""Tallies: how many tasks of each state carry a tag, span by span, so that nobody has to count a million.

A span is a stretch of ids that lies so far back that no task can be born in it any more. Once nearly all of its
tasks have ended it is sealed: the ended ones are tallied by tag, group and state, with the latest of each of
their times; the few others are listed as *loose* and looked at whenever somebody counts. Whoever changes or removes
an ended task, or brings in one with an old id, opens its span in the same transaction. An open span, and all that
is younger than the spans, is counted row by row. So a count is always true, and only its speed depends on this. Code
of before knows nothing of spans: beside it, and after it, they are checked (scheduler/tag_counts.py).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import shared_numbers

_VERSION = "tallies"
"""The mark that every change of tallies locks and raises."""
ALL_TASKS = ""
"""In place of a tag: what every task carries."""


class Span(Struct, frozen=True):
    """A stretch of ids. ``look_at`` says when it is worth another look.

    ``times`` are the earliest and the latest of each kind of time that its tallied tasks have.
    """

    first_id: int
    until_id: int
    sealed: int
    num_tasks: int
    seq_sum: int
    loose: str
    times: str
    look_at: Micros | None

    @property
    def unfinished_ids(self) -> list[int]:
        return json.decode(self.loose, type=list[int]) if self.loose != "[]" else []

    def time_range(self, key: str) -> tuple[Micros, Micros] | None:
        """From when to when its tasks have this time; None when none has."""
        return json.decode(self.times, type=dict[str, tuple[Micros, Micros]]).get(key)


_COLUMNS = ", ".join(Span.__struct_fields__)
_SPANS = Insert("task_spans", _COLUMNS)
_COUNTS = Insert("task_tallies", "tag, first_id, resource_group_id, state, num_tasks")

# Two steps: the span in which an id lies is found from above.
LAST_AT = "SELECT MAX(first_id) FROM task_spans WHERE first_id <= :id"
BETWEEN = f"SELECT {_COLUMNS} FROM task_spans WHERE first_id >= :low AND first_id < :high ORDER BY first_id"


def spans(tx: Tx, low: int, high: int) -> list[Span]:
    """The spans that reach into low <= id < high, by id."""
    row = tx.one(LAST_AT, id=low)
    start = row[0] if row and row[0] is not None else low
    return [span for span in (Span(*row) for row in tx.all(BETWEEN, low=start, high=high)) if span.until_id > low]


OF_TAG = """
    SELECT first_id, resource_group_id, state, num_tasks FROM task_tallies
     WHERE tag = :tag AND first_id >= :low AND first_id < :high
"""


def of_tag(tx: Tx, tag: str, low: int, high: int, group_id: int | None) -> dict[int, dict[str, int]]:
    """What was tallied of a tag, by span and state; of one resource group, or of all.

    A sealed span that is not in the answer has too few tasks with this tag for a tally: they are counted.
    """
    found: dict[int, dict[str, int]] = {}
    for first_id, group, state, num in tx.all(OF_TAG, tag=tag, low=low, high=high):
        states = found.setdefault(first_id, {})
        if group_id in (None, group):
            states[state] = states.get(state, 0) + num
    return found


class SpanRange(Struct, frozen=True):
    """The spans that lie as a whole in a range: from where to where, how many are sealed, what is not tallied."""

    low: int
    high: int
    sealed: int
    open: list[tuple[int, int]]
    loose: list[int]


FIRST_FROM = "SELECT MIN(first_id) FROM task_spans WHERE first_id >= :low"
LAST_BEFORE = "SELECT first_id, until_id FROM task_spans WHERE first_id < :high ORDER BY first_id DESC LIMIT 2"
TOTALS = """
    SELECT COUNT(*), SUM(sealed), SUM(until_id - first_id), SUM(CASE WHEN loose <> '[]' THEN 1 ELSE 0 END)
      FROM task_spans WHERE first_id >= :low AND first_id < :high
"""
OPEN = "SELECT first_id, until_id FROM task_spans WHERE first_id >= :low AND first_id < :high AND sealed = 0"
UNFINISHED = "SELECT loose FROM task_spans WHERE first_id >= :low AND first_id < :high AND sealed = 1 AND loose <> '[]'"


def whole_spans(tx: Tx, low: int, high: int) -> SpanRange | None:
    """The spans between two ids; None when there is none. What lies between two of them counts as open."""
    first = tx.one(FIRST_FROM, low=low)
    ends = [(start, end) for start, end in tx.all(LAST_BEFORE, high=high) if end <= high]
    if not first or first[0] is None or not ends or ends[0][0] < first[0]:
        return None
    start, end = first[0], ends[0][1]
    [[there, sealed, covered, with_loose]] = tx.all(TOTALS, low=start, high=end)
    opened = [(row[0], row[1]) for row in tx.all(OPEN, low=start, high=end)] if sealed != there else []
    if int(covered) != end - start:
        opened += _holes(spans(tx, start, end))
    found = tx.all(UNFINISHED, low=start, high=end) if with_loose else ()
    loose = [task_id for (text,) in found for task_id in json.decode(text)]
    return SpanRange(start, end, int(sealed), opened, loose)


def _holes(found: Sequence[Span]) -> list[tuple[int, int]]:
    """Stretches that no span covers: those of spans whose tasks are all gone."""
    return [(one.until_id, other.first_id) for one, other in pairwise(found) if one.until_id < other.first_id]


SPANS_OF_TAG = (
    "SELECT COUNT(DISTINCT first_id) FROM task_tallies WHERE tag = :tag AND first_id >= :low AND first_id < :high"
)
SUMS = """
    SELECT state, SUM(num_tasks) FROM task_tallies
     WHERE tag = :tag AND first_id >= :low AND first_id < :high GROUP BY state
"""
SUMS_OF_GROUP = """
    SELECT state, SUM(num_tasks) FROM task_tallies
     WHERE tag = :tag AND first_id >= :low AND first_id < :high AND resource_group_id = :resource_group GROUP BY state
"""


def sums(tx: Tx, tag: str, edges: SpanRange, group_id: int | None) -> dict[str, int]:
    """How many tasks of each state were tallied for a tag; of one resource group, or of all."""
    given = {"tag": tag, "low": edges.low, "high": edges.high}
    rows = tx.all(SUMS, **given) if group_id is None else tx.all(SUMS_OF_GROUP, resource_group=group_id, **given)
    return {state: int(num) for state, num in rows}


SPANS_WITH_STATES = """
    SELECT DISTINCT first_id FROM task_tallies
     WHERE tag = '' AND first_id >= :low AND first_id < :high AND state {in_text:states}
"""


def spans_with_states(tx: Tx, states: Sequence[str], low: int, high: int) -> set[int]:
    """The sealed spans with tasks in one of these states, by their first ids; those that begin in this range."""
    row = tx.one(LAST_AT, id=low)
    start = row[0] if row and row[0] is not None else low
    return {row[0] for row in tx.all(SPANS_WITH_STATES, low=start, high=high, states=list(states))}


def is_counted(tx: Tx, tag: str, edges: SpanRange) -> bool:
    """Whether a tag was tallied in every sealed span, so that its sums leave nobody out."""
    row = tx.one(SPANS_OF_TAG, tag=tag, low=edges.low, high=edges.high)
    return row is not None and row[0] == edges.sealed


def version(tx: Tx) -> int:
    """Raised by every change: two reads of it that differ have something new between them."""
    return shared_numbers.read(tx, _VERSION) or 0


# ---------------------------------------------------------------- opening


_OPEN_SPANS = "UPDATE task_spans SET sealed = 0, look_at = :look WHERE first_id {in:spans}"
_DELETE_COUNTS = "DELETE FROM task_tallies WHERE first_id {in:spans}"


def open_spans(tx: Tx, task_ids: Iterable[int], look_at: Micros) -> int:
    """Let no tally speak of these tasks any more; how many spans that opened.

    The mark is locked also where there is nothing to open: a span that is just being sealed waits, and then sees
    what has changed.
    """
    wanted = sorted(set(task_ids))
    if not wanted:
        return 0
    last = shared_numbers.lock(tx, _VERSION)
    sealed = [span for span in spans(tx, wanted[0], wanted[-1] + 1) if span.sealed]
    hit = sorted({span.first_id for span in sealed if _holds(span, wanted)})
    if hit:
        shared_numbers.put(tx, _VERSION, last + 1)
        tx.run(_OPEN_SPANS, spans=hit, look=look_at)
        tx.run(_DELETE_COUNTS, spans=hit)
    return len(hit)


def _holds(span: Span, ids: Sequence[int]) -> bool:
    return any(span.first_id <= task_id < span.until_id for task_id in ids)


# ---------------------------------------------------------------- sealing

BOUNDARY = "SELECT id FROM task_results WHERE id >= :low AND id < :high ORDER BY id LIMIT 1 OFFSET :n"
LAST_AND_STAGED = """
    SELECT (SELECT MAX(first_id) FROM task_spans),
           (SELECT MIN(id) FROM jobs WHERE alarm_at <= :until AND staged = 1)
"""


def next_span(tx: Tx, until: int, n: int, *, staged_until: Micros) -> tuple[int, int] | None:
    """The next stretch of n tasks that ends before an id; None while there are fewer.

    It ends before the tasks of jobs that are on their way in; those are given up at ``staged_until`` at the latest.
    """
    [[last_id, staged]] = tx.all(LAST_AND_STAGED, until=staged_until)
    last = read(tx, last_id) if last_id is not None else None
    low = last.until_id if last else 0
    if staged is not None:
        until = min(until, staged - _BEFORE_ITS_JOB)
    found = tx.one(BOUNDARY, low=low, high=until, n=n)
    return (low, found[0]) if found else None


_BEFORE_ITS_JOB = 60_000 << 20
"""A minute of ids: those of a job's tasks were made close to that of the job."""


def add_span(tx: Tx, first_id: int, until_id: int, now: Micros) -> bool:
    """A new span, still open; False when another server was faster."""
    return tx.insert_new(_SPANS, [(first_id, until_id, 0, 0, 0, "[]", "{}", now)]) == 1


DUE = f"SELECT {_COLUMNS} FROM task_spans WHERE look_at <= :now ORDER BY look_at LIMIT :n"
READ = f"SELECT {_COLUMNS} FROM task_spans WHERE first_id = :id"
SEALED = f"SELECT {_COLUMNS} FROM task_spans WHERE first_id > :after AND sealed = 1 ORDER BY first_id LIMIT :n"
FIRST_DUE = "SELECT MIN(look_at) FROM task_spans"


def due(tx: Tx, now: Micros, n: int) -> list[Span]:
    """Spans that are worth a look."""
    first = tx.one(FIRST_DUE)
    if not first or first[0] is None or first[0] > now:
        return []
    return [Span(*row) for row in tx.all(DUE, now=now, n=n)]


def read(tx: Tx, first_id: int) -> Span | None:
    row = tx.one(READ, id=first_id)
    return Span(*row) if row else None


def sealed_after(tx: Tx, first_id: int, n: int) -> list[Span]:
    """The next sealed spans, by id."""
    return [Span(*row) for row in tx.all(SEALED, after=first_id, n=n)]


MEMBERS = """
    SELECT t.id, t.resource_group_id, t.state, t.seq, t.deduped_from, t.started_at, t.completed_at, t.abandoned_at,
           t.modified_at, r.tags
      FROM task_results t JOIN task_requests r ON r.id = t.id
     WHERE t.id >= :low AND t.id < :high
"""
ENDED = """
    SELECT COUNT(*), SUM(seq) FROM task_results
     WHERE id >= :low AND id < :high AND state NOT IN ('WAITING', 'READY', 'RUNNING')
"""


class Member(Struct, frozen=True, gc=False):
    """A task as far as tallies go."""

    id: int
    resource_group_id: int
    state: str
    seq: int
    deduped_from: int | None
    started_at: Micros | None
    completed_at: Micros | None
    abandoned_at: Micros | None
    modified_at: Micros
    tags: str


def members(tx: Tx, span: Span) -> list[Member]:
    """Every task of a span."""
    return [Member(*row) for row in tx.all(MEMBERS, low=span.first_id, high=span.until_id)]


ENDED_OF = """
    SELECT COUNT(*), SUM(seq) FROM task_results
     WHERE id {in:ids} AND state NOT IN ('WAITING', 'READY', 'RUNNING')
"""


def ended(tx: Tx, span: Span) -> tuple[int, int]:
    """How many tasks of a span have ended, and the sum of their seqs: any change of one of them changes it."""
    row = tx.one(ENDED, low=span.first_id, high=span.until_id)
    return (row[0], int(row[1] or 0)) if row else (0, 0)


def ended_of(tx: Tx, task_ids: Sequence[int]) -> tuple[int, int]:
    """The same of these tasks."""
    row = tx.one(ENDED_OF, ids=list(task_ids))
    return (row[0], int(row[1] or 0)) if row else (0, 0)


UNFINISHED_IN_SPAN = """
    SELECT COUNT(*) FROM task_results
     WHERE id >= :low AND id < :high AND state IN ('WAITING', 'READY', 'RUNNING')
"""
POSTPONE = "UPDATE task_spans SET look_at = :look_at WHERE first_id = :id AND sealed = 0"


def num_unfinished(tx: Tx, span: Span) -> int:
    """How many tasks of a span have not ended."""
    row = tx.one(UNFINISHED_IN_SPAN, low=span.first_id, high=span.until_id)
    return row[0] if row else 0


def postpone(tx: Tx, first_id: int, look_at: Micros) -> None:
    """Look at an open span later; nobody's count depends on when."""
    tx.run(POSTPONE, id=first_id, look_at=look_at)


SAVE = """
    UPDATE task_spans
       SET sealed = :sealed, num_tasks = :num_tasks, seq_sum = :seq_sum, loose = :loose, times = :times,
           look_at = :look_at
     WHERE first_id = :first_id
"""
DELETE = "DELETE FROM task_spans WHERE first_id = :id"
DELETE_COUNTS = "DELETE FROM task_tallies WHERE first_id = :id"


def lock(tx: Tx) -> int:
    """Be the only one that changes tallies."""
    return shared_numbers.lock(tx, _VERSION)


def save(tx: Tx, span: Span, rows: Sequence[tuple[str, int, int, str, int]], locked: int) -> None:
    """Write a span and its tallies (tag, span, group, state, how many) anew; ``locked`` is what the mark said."""
    shared_numbers.put(tx, _VERSION, locked + 1)
    tx.run(DELETE_COUNTS, id=span.first_id)
    tx.insert(_COUNTS, rows)
    tx.run(
        SAVE,
        first_id=span.first_id,
        sealed=span.sealed,
        num_tasks=span.num_tasks,
        seq_sum=span.seq_sum,
        loose=span.loose,
        times=span.times,
        look_at=span.look_at,
    )


def delete(tx: Tx, span: Span, locked: int) -> None:
    """Forget a span in which nothing is left."""
    shared_numbers.put(tx, _VERSION, locked + 1)
    tx.run(DELETE_COUNTS, id=span.first_id)
    tx.run(DELETE, id=span.first_id)
