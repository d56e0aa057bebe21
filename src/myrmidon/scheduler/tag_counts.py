"""Precompute the number of ended tasks by tag, group and state, so that counting millions of tasks is fast.

Part of the sweep. Counting is done in read transactions; a short write at the end verifies that nothing has changed
since. Two servers may do this at the same time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import Struct, json, structs

from myrmidon.model.ids import Micros, created_ms, first_id_at
from myrmidon.model.states import FINAL, SUCCEEDED
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules
from myrmidon.store.engine.db import Transactions, Tx
from myrmidon.store.tables import tag_counts
from myrmidon.store.tables.tag_counts import ALL_TASKS, Member, Span
from myrmidon.store.views.task_search import DEDUPED, SORTABLE

SPAN = 2048
"""Tasks in a span. A query counts up to that many tasks one by one at each end of its time range."""
SETTLED: Micros = 300 * SECOND
"""The minimum age of tasks in a span, so that no transaction is still storing tasks in its range of ids."""
MAX_UNFINISHED = 128
MIN_TAG_TASKS = 4
"""A tag with fewer tasks in a span gets no row; such tasks are counted by the query."""
SPANS_AT_ONCE = 16
MIN_RECHECK: Micros = 60 * SECOND
MAX_RECHECK: Micros = 3600 * SECOND


class SpanCounts(Struct, frozen=True):
    """The counts of a span as read, and the rows to be stored. ``staged``: some tasks are not visible yet."""

    span: Span
    rows: list[tuple[str, int, int, str, int]]
    staged: bool


def update_tag_counts(
    db: Transactions, *, now: Micros, rules: Rules = DEFAULT_RULES, limit: int = SPANS_AT_ONCE
) -> int:
    """Count new spans and check unfinished ones again; returns how many spans were counted."""
    done = 0
    while done < limit:
        due = db.read(partial(tag_counts.due, now=now, n=1))
        if not due:
            settled, staged_until = first_id_at(now - SETTLED), now + rules.staging_limit
            id_range = db.read(partial(tag_counts.next_span, until=settled, n=SPAN, staged_until=staged_until))
            if id_range is None:
                break
            db.write(partial(tag_counts.add_span, first_id=id_range[0], until_id=id_range[1], now=now))
            continue
        _count_span(db, due[0], now)
        done += 1
    return done


def _count_span(db: Transactions, span: Span, now: Micros) -> None:
    """Count a span, or postpone it while many of its tasks have not ended, without reading their tags."""
    if not span.sealed and db.read(partial(tag_counts.num_unfinished, span=span)) > MAX_UNFINISHED:
        db.write(partial(tag_counts.postpone, first_id=span.first_id, check_at=_next_check(span, now)))
        return
    counts = db.read(partial(_read_span, span=span))
    db.write(partial(_seal, counts=counts, now=now))


def _read_span(tx: Tx, span: Span) -> SpanCounts:
    members = tag_counts.members(tx, span)
    ended = [task for task in members if task.state in FINAL]
    unfinished = sorted(task.id for task in members if task.state not in FINAL)
    counted = structs.replace(
        span,
        num_tasks=len(members),
        seq_sum=sum(task.seq for task in ended),
        unfinished=json.encode(unfinished).decode(),
        times=json.encode(
            {name: time_range for name in sorted(SORTABLE) if (time_range := _time_range(ended, name))}
        ).decode(),
    )
    return SpanCounts(counted, _count_rows(span.first_id, ended), staged=any(task.seq == 0 for task in members))


def _time_range(ended: Iterable[Member], name: str) -> tuple[Micros, Micros] | None:
    times = [at for task in ended if (at := getattr(task, name)) is not None]
    return (min(times), max(times)) if times else None


def _count_rows(first_id: int, ended: Sequence[Member]) -> list[tuple[str, int, int, str, int]]:
    """The number of ended tasks by tag, group and state; tags with fewer than MIN_TAG_TASKS are left out."""
    numbers: Counter[tuple[str, int, str]] = Counter()
    totals: Counter[str] = Counter()
    for task in ended:
        state = DEDUPED if task.state == SUCCEEDED and task.deduped_from is not None else task.state
        for tag in (ALL_TASKS, *json.decode(task.tags, type=list[str])):
            numbers[tag, task.resource_group_id, state] += 1
            totals[tag] += 1
    return [
        (tag, first_id, group_id, str(state), num)
        for (tag, group_id, state), num in sorted(numbers.items())
        if totals[tag] >= MIN_TAG_TASKS or tag == ALL_TASKS
    ]


def _seal(tx: Tx, counts: SpanCounts, now: Micros) -> None:
    """Store the counts of a span, unless a task has changed since they were read."""
    locked = tag_counts.lock(tx)
    known = tag_counts.read(tx, counts.span.first_id)
    if known is None or known.until_id != counts.span.until_id:
        return
    unfinished = counts.span.unfinished_ids
    ended = counts.span.num_tasks - len(unfinished)
    if tag_counts.ended(tx, known) != (ended, counts.span.seq_sum) or counts.staged or len(unfinished) > MAX_UNFINISHED:
        blank = structs.replace(known, sealed=0, unfinished="[]", check_at=_next_check(known, now))
        tag_counts.save(tx, blank, [], locked)
    elif not counts.span.num_tasks:
        tag_counts.delete(tx, known, locked)
    else:
        check_at = _next_check(known, now) if unfinished else None
        tag_counts.save(tx, structs.replace(counts.span, sealed=1, check_at=check_at), counts.rows, locked)


def _next_check(span: Span, now: Micros) -> Micros:
    """When to check an unfinished span again: the older it is, the later."""
    age = now - created_ms(span.until_id) * 1000
    return now + min(max(age // 8, MIN_RECHECK), MAX_RECHECK)


def check_tag_counts(db: Transactions, *, now: Micros) -> int:
    """Verify every sealed span against its tasks and reopen those that differ; returns how many.

    A server of an older version changes tasks without reopening spans. A server calls this when it starts, and while
    such a server is running, so that wrong counts are corrected.
    """
    opened, after = 0, -1
    while page := db.read(partial(tag_counts.sealed_after, first_id=after, n=SPANS_AT_ONCE)):
        wrong = [span.first_id for span in page if not db.read(partial(_is_consistent, span=span))]
        if wrong:
            opened += db.write(partial(tag_counts.open_spans, task_ids=wrong, check_at=now))
        after = page[-1].first_id
    return opened


def _is_consistent(tx: Tx, span: Span) -> bool:
    """Whether the counted tasks of a span are unchanged; unfinished ones may have ended since."""
    unfinished = span.unfinished_ids
    members, seqs = tag_counts.ended(tx, span)
    since_ended, since_ended_seqs = tag_counts.ended_of(tx, unfinished) if unfinished else (0, 0)
    return (members - since_ended, seqs - since_ended_seqs) == (span.num_tasks - len(unfinished), span.seq_sum)
