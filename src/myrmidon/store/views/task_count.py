"""Exact numbers of the tasks that a search finds.

The stored counts (tables/tag_counts.py) are used where these are sealed, and the rows elsewhere.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import tag_counts
from myrmidon.store.tables.tag_counts import ALL_TASKS, Span
from myrmidon.store.views.task_search import TaskSearch, conditions_of, count_tagged, driver_of, gaps_between, source_of

RARE_TAG_ROWS = 2_000
"""A tag with fewer tasks than this is counted row by row: the stored counts would not be faster."""
IDS_PER_STATEMENT = 1000
_MAX_COUNT_TRIES = 5


def count(tx: Tx, search: TaskSearch) -> int:
    """The exact number of tasks that a search finds."""
    return count_by_state(tx, search).total()


def count_by_state(tx: Tx, search: TaskSearch) -> Counter[str]:
    """The exact numbers of the tasks that a search finds, by state; DEDUPED is a state of its own.

    On databases with many writers each statement sees a later state: when the stored counts have changed meanwhile, the
    count is repeated, and at last made without them.
    """
    for _ in range(_MAX_COUNT_TRIES):
        version = tag_counts.version(tx)
        counts = _count(tx, search)
        if tag_counts.version(tx) == version:
            return counts
    return _count_rows(tx, search, search.low, search.high)


def _count(tx: Tx, search: TaskSearch) -> Counter[str]:
    """By the rows of a rare tag; else by the sums over all spans, if these are sufficient; else span by span."""
    search = structs.replace(search, terms=[_without_unused_tags(tx, term, search) for term in search.terms])
    for term in search.terms:
        if not term:
            return Counter()
        if len(term) == 1 and count_tagged(tx, term[0], search.low, search.high, RARE_TAG_ROWS) < RARE_TAG_ROWS:
            return _count_rows(tx, search, search.low, search.high)
    span_range = tag_counts.whole_spans(tx, search.low, search.high)
    if span_range is None:
        return _count_rows(tx, search, search.low, search.high)
    counts = _from_sums(tx, search, span_range)
    if counts is None:
        return _count_spans(tx, search)
    uncounted = _merge_ranges([(search.low, span_range.low), *span_range.open, (span_range.high, search.high)])
    for low, high in uncounted:
        counts += _count_rows(tx, search, low, high)
    return counts + _count_ids(tx, search, span_range.unfinished_ids)


def _merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of ids in order, without empty ones; adjacent ones are merged."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pair for pair in ranges if pair[0] < pair[1]):
        if merged and merged[-1][1] >= low:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _without_unused_tags(tx: Tx, term: Sequence[str], search: TaskSearch) -> Sequence[str]:
    """A term without the alternatives that no task has, which is common."""
    if len(term) == 1:
        return term
    return [tag for tag in term if count_tagged(tx, tag, search.low, search.high, 1)]


def _from_sums(tx: Tx, search: TaskSearch, span_range: tag_counts.SpanRange) -> Counter[str] | None:
    """The sum over all sealed spans; None when the stored counts cannot answer the search.

    They can when at most one term restricts the result: a tag that every task has restricts nothing.
    """
    everything = tag_counts.sums(tx, ALL_TASKS, span_range, search.group_id)
    total = sum(everything.values())
    partial: list[tuple[Sequence[str], dict[str, int]]] = []
    for term in search.terms:
        sums = [tag_counts.sums(tx, tag, span_range, search.group_id) for tag in term]
        if all(sum(states.values()) != total for states in sums):
            partial.append((term, sums[0]))
    if not partial:
        return _of_states(everything, search.states)
    term, states = partial[0]
    if len(partial) > 1 or len(term) > 1 or not tag_counts.is_counted(tx, term[0], span_range):
        return None
    return _of_states(states, search.states)


def _count_spans(tx: Tx, search: TaskSearch) -> Counter[str]:
    found = tag_counts.spans(tx, search.low, search.high)
    whole = [span for span in found if span.sealed and search.low <= span.first_id and span.until_id <= search.high]
    if not whole:
        return _count_rows(tx, search, search.low, search.high)
    counted, counts = _from_span_counts(tx, search, whole)
    counts += _count_ids(tx, search, [task_id for span in counted for task_id in span.unfinished_ids])
    for low, high in gaps_between(counted, search.low, search.high):
        counts += _count_rows(tx, search, low, high)
    return counts


def _from_span_counts(tx: Tx, search: TaskSearch, spans: Sequence[Span]) -> tuple[list[Span], Counter[str]]:
    """The spans whose stored counts answer the search, and their sum.

    They do when at most one term restricts the result: a tag that every task of a span has restricts nothing.
    """
    low, high = spans[0].first_id, spans[-1].until_id
    everything = tag_counts.of_tag(tx, ALL_TASKS, low, high, search.group_id)
    by_term = [tag_counts.of_tag(tx, t[0], low, high, search.group_id) if len(t) == 1 else {} for t in search.terms]
    answered: list[Span] = []
    counts = Counter[str]()
    for span in spans:
        whole = everything.get(span.first_id, {})
        found = [states.get(span.first_id) for states in by_term]
        partial = [states for states in found if states is None or sum(states.values()) != sum(whole.values())]
        if len(partial) > 1 or None in partial:
            continue
        answered.append(span)
        counts += _of_states(partial[0] or {} if partial else whole, search.states)
    return answered, counts


def _of_states(numbers: dict[str, int], states: Sequence[str]) -> Counter[str]:
    return Counter({state: num for state, num in numbers.items() if not states or state in states})


_STATE = "CASE WHEN t.state = 'SUCCEEDED' AND t.deduped_from IS NOT NULL THEN 'DEDUPED' ELSE t.state END"


def _count_rows(tx: Tx, search: TaskSearch, low: int, high: int) -> Counter[str]:
    driver = driver_of(tx, search, low, high)
    where, given = conditions_of(search, driver)
    source, key = source_of(driver)
    conditions = " AND ".join([f"{key} >= :low", f"{key} < :high", *where])
    sql = f"SELECT {_STATE}, COUNT(*) FROM {source} WHERE {conditions} GROUP BY {_STATE}"
    return Counter({state: int(num) for state, num in tx.all(sql, low=low, high=high, **given)})


def _count_ids(tx: Tx, search: TaskSearch, ids: Sequence[int]) -> Counter[str]:
    where, given = conditions_of(search, None)
    conditions = " AND ".join(["t.id {in:ids}", *where])
    sql = f"SELECT {_STATE}, COUNT(*) FROM task_results t WHERE {conditions} GROUP BY {_STATE}"
    counts = Counter[str]()
    for at in range(0, len(ids), IDS_PER_STATEMENT):
        part = list(ids[at : at + IDS_PER_STATEMENT])
        counts += Counter({state: int(num) for state, num in tx.all(sql, ids=part, **given)})
    return counts
