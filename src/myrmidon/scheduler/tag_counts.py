"""Tallying: ended tasks are counted once, in passing, so that counts of millions cost nothing later.

Part of the sweep, outside everything that is quick: the counting is done on a reader, and the short write at its
end sees whether anything has changed meanwhile. Two servers that tally at once are harmless.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import Struct, json, structs

from myrmidon.model.ids import Micros, created_ms, first_id_at
from myrmidon.model.states import FINAL, SUCCEEDED
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.tables import tag_counts
from myrmidon.store.tables.tag_counts import ALL_TASKS, Member, Span
from myrmidon.store.views.task_search import DEDUPED, SORTABLE

SPAN = 2048
"""Tasks in a span: as many as are counted one by one at each end of a time range."""
SETTLED: Micros = 300 * SECOND
"""How old a span is: by then every submit that was under way is long stored."""
MAX_UNFINISHED = 128
MIN_TAG_TASKS = 4
"""A tag with fewer tasks than this in a span is not worth a row: they are counted when asked for."""
SPANS_AT_ONCE = 16
MIN_RECHECK: Micros = 60 * SECOND
MAX_RECHECK: Micros = 3600 * SECOND


class SpanCounts(Struct, frozen=True):
    """What was found in a span, and what it would be written down as."""

    span: Span
    rows: list[tuple[str, int, int, str, int]]
    staged: bool


def update_tag_counts(db: Db, *, now: Micros, rules: Rules = DEFAULT_RULES, most: int = SPANS_AT_ONCE) -> int:
    """Seal spans that have settled, look again at those that are not quite done; how many were looked at."""
    done = 0
    while done < most:
        waiting = db.read(partial(tag_counts.due, now=now, n=1))
        if not waiting:
            settled, staged_until = first_id_at(now - SETTLED), now + rules.staging_limit
            stretch = db.read(partial(tag_counts.next_span, until=settled, n=SPAN, staged_until=staged_until))
            if stretch is None:
                break
            db.write(partial(tag_counts.add_span, first_id=stretch[0], until_id=stretch[1], now=now))
            continue
        _count_span(db, waiting[0], now)
        done += 1
    return done


def _count_span(db: Db, span: Span, now: Micros) -> None:
    """Seal a span, or put it off: while many of its tasks wait, nobody reads their tags."""
    if not span.sealed and db.read(partial(tag_counts.num_unfinished, span=span)) > MAX_UNFINISHED:
        db.write(partial(tag_counts.postpone, first_id=span.first_id, look_at=_next_check(span, now)))
        return
    found = db.read(partial(_read_span, span=span))
    db.write(partial(_seal, found=found, now=now))


def _read_span(tx: Tx, span: Span) -> SpanCounts:
    there = tag_counts.members(tx, span)
    ended = [task for task in there if task.state in FINAL]
    loose = sorted(task.id for task in there if task.state not in FINAL)
    seen = structs.replace(
        span,
        num_tasks=len(there),
        seq_sum=sum(task.seq for task in ended),
        loose=json.encode(loose).decode(),
        times=json.encode({name: reach for name in sorted(SORTABLE) if (reach := _time_range(ended, name))}).decode(),
    )
    return SpanCounts(seen, _count_rows(span.first_id, ended), staged=any(task.seq == 0 for task in there))


def _time_range(ended: Iterable[Member], name: str) -> tuple[Micros, Micros] | None:
    times = [at for task in ended if (at := getattr(task, name)) is not None]
    return (min(times), max(times)) if times else None


def _count_rows(first_id: int, ended: Sequence[Member]) -> list[tuple[str, int, int, str, int]]:
    """How many ended tasks of each group and state carry each tag; tags that hardly any carries are left out."""
    numbers: Counter[tuple[str, int, str]] = Counter()
    carried: Counter[str] = Counter()
    for task in ended:
        state = DEDUPED if task.state == SUCCEEDED and task.deduped_from is not None else task.state
        for tag in (ALL_TASKS, *json.decode(task.tags, type=list[str])):
            numbers[tag, task.resource_group_id, state] += 1
            carried[tag] += 1
    return [
        (tag, first_id, group_id, str(state), num)
        for (tag, group_id, state), num in sorted(numbers.items())
        if carried[tag] >= MIN_TAG_TASKS or tag == ALL_TASKS
    ]


def _seal(tx: Tx, found: SpanCounts, now: Micros) -> None:
    """Write down what was counted, unless a task has changed since."""
    locked = tag_counts.lock(tx)
    known = tag_counts.read(tx, found.span.first_id)
    if known is None or known.until_id != found.span.until_id:
        return
    loose = found.span.unfinished_ids
    ended = found.span.num_tasks - len(loose)
    if tag_counts.ended(tx, known) != (ended, found.span.seq_sum) or found.staged or len(loose) > MAX_UNFINISHED:
        blank = structs.replace(known, sealed=0, loose="[]", look_at=_next_check(known, now))
        tag_counts.save(tx, blank, [], locked)
    elif not found.span.num_tasks:
        tag_counts.delete(tx, known, locked)
    else:
        look_at = _next_check(known, now) if loose else None
        tag_counts.save(tx, structs.replace(found.span, sealed=1, look_at=look_at), found.rows, locked)


def _next_check(span: Span, now: Micros) -> Micros:
    """When an unfinished span is worth another look: what has run for hours will not end this minute."""
    age = now - created_ms(span.until_id) * 1000
    return now + min(max(age // 8, MIN_RECHECK), MAX_RECHECK)


def check_tag_counts(db: Db, *, now: Micros) -> int:
    """Hold every sealed span against its tasks, and open those that do not agree; how many that were.

    A server of before changes tasks and opens nothing. Whoever starts, and whoever works beside such a server, calls
    this: a count is wrong no longer than that takes.
    """
    opened, after = 0, -1
    while page := db.read(partial(tag_counts.sealed_after, first_id=after, n=SPANS_AT_ONCE)):
        wrong = [span.first_id for span in page if not db.read(partial(_is_consistent, span=span))]
        if wrong:
            opened += db.write(partial(tag_counts.open_spans, task_ids=wrong, look_at=now))
        after = page[-1].first_id
    return opened


def _is_consistent(tx: Tx, span: Span) -> bool:
    """Whether the tasks that were tallied are all there, as they were; loose ones may end as they like."""
    loose = span.unfinished_ids
    there, seqs = tag_counts.ended(tx, span)
    not_meant, not_meant_seqs = tag_counts.ended_of(tx, loose) if loose else (0, 0)
    return (there - not_meant, seqs - not_meant_seqs) == (span.num_tasks - len(loose), span.seq_sum)
