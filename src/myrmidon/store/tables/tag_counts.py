"""Stored counts of tasks by tag and state, so that counting a million tasks does not read a million rows.

A span is a range of ids that is so old that no new task can get an id in it. Once nearly all tasks of a span have
ended, it is sealed: its ended tasks are counted by tag, resource group and state, with the earliest and the latest of
each of their times. Its unfinished tasks are listed, and looked up for every count. A transaction that changes or
deletes an ended task, or adds one with an old id, opens the span again. Tasks of open spans, and tasks that are younger
than all spans, are counted row by row. So counts are always exact; only their speed depends on the stored counts. Older
code does not know spans: while it runs, and after it ran, they are verified (scheduler/tag_counts.py).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import shared_numbers

_VERSION = "tag_counts"
"""The shared number that every change of the stored counts locks and increments."""
ALL_TASKS = ""
"""Stored as the tag for the counts of all tasks."""


class Span(Struct, frozen=True):
    """A range of ids. ``check_at`` is when to check it next.

    ``times`` has the earliest and the latest of each kind of time of its counted tasks, as JSON.
    """

    first_id: int
    until_id: int
    sealed: int
    num_tasks: int
    seq_sum: int
    unfinished: str
    times: str
    check_at: Micros | None

    @property
    def unfinished_ids(self) -> list[int]:
        """Its tasks that are not counted, because they have not ended."""
        return json.decode(self.unfinished, type=list[int]) if self.unfinished != "[]" else []

    def time_range(self, key: str) -> tuple[Micros, Micros] | None:
        """The earliest and the latest time of this kind; None when no counted task has one."""
        return json.decode(self.times, type=dict[str, tuple[Micros, Micros]]).get(key)


_COLUMNS = ", ".join(Span.__struct_fields__)
_SPANS = Insert("task_spans", _COLUMNS)
_COUNTS = Insert("tag_counts", "tag, first_id, resource_group_id, state, num_tasks")

# Two statements: the first finds the span that contains an id.
LAST_AT = "SELECT MAX(first_id) FROM task_spans WHERE first_id <= :id"
BETWEEN = f"SELECT {_COLUMNS} FROM task_spans WHERE first_id >= :low AND first_id < :high ORDER BY first_id"


def spans(tx: Tx, low: int, high: int) -> list[Span]:
    """The spans that overlap low <= id < high, by id."""
    row = tx.one(LAST_AT, id=low)
    start = row[0] if row and row[0] is not None else low
    return [span for span in (Span(*row) for row in tx.all(BETWEEN, low=start, high=high)) if span.until_id > low]


OF_TAG = """
    SELECT first_id, resource_group_id, state, num_tasks FROM tag_counts
     WHERE tag = :tag AND first_id >= :low AND first_id < :high
"""


def of_tag(tx: Tx, tag: str, low: int, high: int, group_id: int | None) -> dict[int, dict[str, int]]:
    """The stored counts of a tag by span and state; of one resource group, or of all.

    A sealed span that is missing has too few tasks with this tag to store a count: they are counted row by row.
    """
    found: dict[int, dict[str, int]] = {}
    for first_id, group, state, num in tx.all(OF_TAG, tag=tag, low=low, high=high):
        states = found.setdefault(first_id, {})
        if group_id in (None, group):
            states[state] = states.get(state, 0) + num
    return found


class SpanRange(Struct, frozen=True):
    """The spans that lie completely in a range of ids, the number of sealed ones, and what is not counted in them."""

    low: int
    high: int
    sealed: int
    open: list[tuple[int, int]]
    unfinished_ids: list[int]


FIRST_FROM = "SELECT MIN(first_id) FROM task_spans WHERE first_id >= :low"
LAST_BEFORE = "SELECT first_id, until_id FROM task_spans WHERE first_id < :high ORDER BY first_id DESC LIMIT 2"
TOTALS = """
    SELECT COUNT(*), SUM(sealed), SUM(until_id - first_id), SUM(CASE WHEN unfinished <> '[]' THEN 1 ELSE 0 END)
      FROM task_spans WHERE first_id >= :low AND first_id < :high
"""
OPEN = "SELECT first_id, until_id FROM task_spans WHERE first_id >= :low AND first_id < :high AND sealed = 0"
UNFINISHED = """
    SELECT unfinished FROM task_spans
     WHERE first_id >= :low AND first_id < :high AND sealed = 1 AND unfinished <> '[]'
"""


def whole_spans(tx: Tx, low: int, high: int) -> SpanRange | None:
    """The spans between two ids; None when there is none. A gap between two spans counts as open."""
    first = tx.one(FIRST_FROM, low=low)
    ends = [(start, end) for start, end in tx.all(LAST_BEFORE, high=high) if end <= high]
    if not first or first[0] is None or not ends or ends[0][0] < first[0]:
        return None
    start, end = first[0], ends[0][1]
    [[num_spans, sealed, covered, num_with_unfinished]] = tx.all(TOTALS, low=start, high=end)
    opened = [(row[0], row[1]) for row in tx.all(OPEN, low=start, high=end)] if sealed != num_spans else []
    if int(covered) != end - start:
        opened += _holes(spans(tx, start, end))
    lists = tx.all(UNFINISHED, low=start, high=end) if num_with_unfinished else ()
    unfinished_ids = [task_id for (text,) in lists for task_id in json.decode(text)]
    return SpanRange(start, end, int(sealed), opened, unfinished_ids)


def _holes(found: Sequence[Span]) -> list[tuple[int, int]]:
    """Ranges that no span covers: spans without tasks are deleted."""
    return [(span.until_id, after.first_id) for span, after in pairwise(found) if span.until_id < after.first_id]


SPANS_OF_TAG = (
    "SELECT COUNT(DISTINCT first_id) FROM tag_counts WHERE tag = :tag AND first_id >= :low AND first_id < :high"
)
SUMS = """
    SELECT state, SUM(num_tasks) FROM tag_counts
     WHERE tag = :tag AND first_id >= :low AND first_id < :high GROUP BY state
"""
SUMS_OF_GROUP = """
    SELECT state, SUM(num_tasks) FROM tag_counts
     WHERE tag = :tag AND first_id >= :low AND first_id < :high AND resource_group_id = :resource_group GROUP BY state
"""


def sums(tx: Tx, tag: str, span_range: SpanRange, group_id: int | None) -> dict[str, int]:
    """The sum of the stored counts of a tag by state; of one resource group, or of all."""
    given = {"tag": tag, "low": span_range.low, "high": span_range.high}
    rows = tx.all(SUMS, **given) if group_id is None else tx.all(SUMS_OF_GROUP, resource_group=group_id, **given)
    return {state: int(num) for state, num in rows}


SPANS_WITH_STATES = """
    SELECT DISTINCT first_id FROM tag_counts
     WHERE tag = '' AND first_id >= :low AND first_id < :high AND state {in_text:states}
"""


def spans_with_states(tx: Tx, states: Sequence[str], low: int, high: int) -> set[int]:
    """The first ids of the sealed spans in this range that have tasks in one of these states."""
    row = tx.one(LAST_AT, id=low)
    start = row[0] if row and row[0] is not None else low
    return {row[0] for row in tx.all(SPANS_WITH_STATES, low=start, high=high, states=list(states))}


def is_counted(tx: Tx, tag: str, span_range: SpanRange) -> bool:
    """Whether every sealed span has a stored count of this tag, so that the sums are complete."""
    row = tx.one(SPANS_OF_TAG, tag=tag, low=span_range.low, high=span_range.high)
    return row is not None and row[0] == span_range.sealed


def version(tx: Tx) -> int:
    """A number that every change of the stored counts increments."""
    return shared_numbers.read(tx, _VERSION) or 0


# ---------------------------------------------------------------- opening


_OPEN_SPANS = "UPDATE task_spans SET sealed = 0, check_at = :look WHERE first_id {in:spans}"
_DELETE_COUNTS = "DELETE FROM tag_counts WHERE first_id {in:spans}"


def open_spans(tx: Tx, task_ids: Iterable[int], check_at: Micros) -> int:
    """Invalidate the stored counts that cover these tasks; how many spans were opened.

    The version is locked even when no span is opened, so that a transaction that is sealing a span waits, and then sees
    the changed tasks.
    """
    ids = sorted(set(task_ids))
    if not ids:
        return 0
    last = shared_numbers.lock(tx, _VERSION)
    sealed = [span for span in spans(tx, ids[0], ids[-1] + 1) if span.sealed]
    first_ids = sorted({span.first_id for span in sealed if _contains_any(span, ids)})
    if first_ids:
        shared_numbers.put(tx, _VERSION, last + 1)
        tx.run(_OPEN_SPANS, spans=first_ids, look=check_at)
        tx.run(_DELETE_COUNTS, spans=first_ids)
    return len(first_ids)


def _contains_any(span: Span, ids: Sequence[int]) -> bool:
    return any(span.first_id <= task_id < span.until_id for task_id in ids)


# ---------------------------------------------------------------- sealing

BOUNDARY = "SELECT id FROM task_results WHERE id >= :low AND id < :high ORDER BY id LIMIT 1 OFFSET :n"
LAST_AND_STAGED = """
    SELECT (SELECT MAX(first_id) FROM task_spans),
           (SELECT MIN(id) FROM jobs WHERE due_at <= :until AND staged = 1)
"""


def next_span(tx: Tx, until: int, n: int, *, staged_until: Micros) -> tuple[int, int] | None:
    """The next range of n tasks, ending before ``until``; None while there are fewer.

    It ends before the tasks of staged jobs, which are started or given up by ``staged_until`` at the latest.
    """
    [[last_id, staged]] = tx.all(LAST_AND_STAGED, until=staged_until)
    last = read(tx, last_id) if last_id is not None else None
    low = last.until_id if last else 0
    if staged is not None:
        until = min(until, staged - _JOB_MARGIN)
    found = tx.one(BOUNDARY, low=low, high=until, n=n)
    return (low, found[0]) if found else None


_JOB_MARGIN = 60_000 << 20
"""One minute of ids: the ids of a job's tasks are generated close to that of the job."""


def add_span(tx: Tx, first_id: int, until_id: int, now: Micros) -> bool:
    """Add an open span; False when another server has just added it."""
    return tx.insert_new(_SPANS, [(first_id, until_id, 0, 0, 0, "[]", "{}", now)]) == 1


DUE = f"SELECT {_COLUMNS} FROM task_spans WHERE check_at <= :now ORDER BY check_at LIMIT :n"
READ = f"SELECT {_COLUMNS} FROM task_spans WHERE first_id = :id"
SEALED = f"SELECT {_COLUMNS} FROM task_spans WHERE first_id > :after AND sealed = 1 ORDER BY first_id LIMIT :n"
FIRST_DUE = "SELECT MIN(check_at) FROM task_spans"


def due(tx: Tx, now: Micros, n: int) -> list[Span]:
    """Spans that are due for a check."""
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
    """The columns of a task that are counted."""

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
    """The number of ended tasks of a span, and the sum of their seqs, which every change of one of them changes."""
    row = tx.one(ENDED, low=span.first_id, high=span.until_id)
    return (row[0], int(row[1] or 0)) if row else (0, 0)


def ended_of(tx: Tx, task_ids: Sequence[int]) -> tuple[int, int]:
    """As `ended`, for these tasks."""
    row = tx.one(ENDED_OF, ids=list(task_ids))
    return (row[0], int(row[1] or 0)) if row else (0, 0)


UNFINISHED_IN_SPAN = """
    SELECT COUNT(*) FROM task_results
     WHERE id >= :low AND id < :high AND state IN ('WAITING', 'READY', 'RUNNING')
"""
POSTPONE = "UPDATE task_spans SET check_at = :check_at WHERE first_id = :id AND sealed = 0"


def num_unfinished(tx: Tx, span: Span) -> int:
    """The number of tasks of a span that have not ended."""
    row = tx.one(UNFINISHED_IN_SPAN, low=span.first_id, high=span.until_id)
    return row[0] if row else 0


def postpone(tx: Tx, first_id: int, check_at: Micros) -> None:
    """Check an open span later; counts do not depend on when."""
    tx.run(POSTPONE, id=first_id, check_at=check_at)


SAVE = """
    UPDATE task_spans
       SET sealed = :sealed, num_tasks = :num_tasks, seq_sum = :seq_sum, unfinished = :unfinished, times = :times,
           check_at = :check_at
     WHERE first_id = :first_id
"""
DELETE = "DELETE FROM task_spans WHERE first_id = :id"
DELETE_COUNTS = "DELETE FROM tag_counts WHERE first_id = :id"


def lock(tx: Tx) -> int:
    """Lock the stored counts against other writers; their version."""
    return shared_numbers.lock(tx, _VERSION)


def save(tx: Tx, span: Span, rows: Sequence[tuple[str, int, int, str, int]], locked: int) -> None:
    """Replace a span and its counts (tag, span, group, state, number); ``locked`` is what `lock` returned."""
    shared_numbers.put(tx, _VERSION, locked + 1)
    tx.run(DELETE_COUNTS, id=span.first_id)
    tx.insert(_COUNTS, rows)
    tx.run(
        SAVE,
        first_id=span.first_id,
        sealed=span.sealed,
        num_tasks=span.num_tasks,
        seq_sum=span.seq_sum,
        unfinished=span.unfinished,
        times=span.times,
        check_at=span.check_at,
    )


def delete(tx: Tx, span: Span, locked: int) -> None:
    """Delete a span that has no tasks left."""
    shared_numbers.put(tx, _VERSION, locked + 1)
    tx.run(DELETE_COUNTS, id=span.first_id)
    tx.run(DELETE, id=span.first_id)
