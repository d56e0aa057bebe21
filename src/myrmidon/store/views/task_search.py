"""Search for tasks by tags, states and creation time, sorted by creation time or another time; exact counts.

As in listings.py, statements are built from a closed set of conditions, and everything variable is a parameter. Lists
scan a bounded number of tasks per page. Counts and sorts use the stored counts (tables/tag_counts.py) where these are
sealed, and the rows elsewhere: the results are exact in both cases.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.model.states import FINAL
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import tag_counts
from myrmidon.store.tables.tag_counts import ALL_TASKS, Span

MAX_ID = (1 << 63) - 1
DEDUPED = "DEDUPED"
"""In a list of states: succeeded with the result of another task. SUCCEEDED then means: by a run of its own."""
SCAN_LIMIT = 20_000
"""Tasks that one scan reads, at most."""
SCANS_PER_PAGE = 8
"""Scans for one page, at most."""
FINAL_STATES = frozenset({*FINAL, DEDUPED})
RARE_TAG_ROWS = 2_000
"""A tag with fewer tasks than this is counted row by row: the stored counts would not be faster."""
IDS_PER_STATEMENT = 1000
SPANS_PER_PAGE = 24
_MAX_COUNT_TRIES = 5
SORTABLE = frozenset({"started_at", "completed_at", "abandoned_at", "modified_at"})


class TaskSearch(Struct, frozen=True, kw_only=True):
    """Which tasks: of a group, in one of these states, with at least one tag of every term, with low <= id < high."""

    group_id: int | None = None
    states: Sequence[str] = ()
    terms: Sequence[Sequence[str]] = ()
    low: int = 0
    high: int = MAX_ID


# ---------------------------------------------------------------- conditions


def _state_condition(states: Sequence[str]) -> tuple[str, dict[str, object]]:
    names = [state for state in states if state != DEDUPED]
    if DEDUPED not in states:
        alone = "SUCCEEDED" in names
        return "t.state {in_text:states}" + (" AND t.deduped_from IS NULL" if alone else ""), {"states": names}
    if "SUCCEEDED" in names:
        return "t.state {in_text:states}", {"states": names}
    deduped = "(t.state = 'SUCCEEDED' AND t.deduped_from IS NOT NULL)"
    return (f"(t.state {{in_text:states}} OR {deduped})", {"states": names}) if names else (deduped, {})


def _conditions(search: TaskSearch, driver: int | None) -> tuple[list[str], dict[str, object]]:
    """The conditions on a task besides its id; ``driver`` is the term whose tag rows the statement starts from."""
    where, given = ["t.seq > 0"], dict[str, object]()
    if search.group_id is not None:
        where.append("t.resource_group_id = :group_id")
        given["group_id"] = search.group_id
    if search.states:
        text, values = _state_condition(search.states)
        where.append(text)
        given |= values
    if driver is not None:
        where += [f"t.id = g{driver}.task_id", f"g{driver}.tag = :tag"]
        given["tag"] = search.terms[driver][0]
    for number, term in enumerate(search.terms):
        if number != driver:
            where.append(
                f"EXISTS (SELECT 1 FROM task_tags g{number} WHERE g{number}.task_id = t.id"
                f" AND g{number}.tag {{in_text:term{number}}})"
            )
            given[f"term{number}"] = list(term)
    return where, given


TAGGED_UP_TO = "SELECT COUNT(*) FROM (SELECT task_id FROM task_tags WHERE tag = :tag AND task_id >= :low AND task_id < :high LIMIT :n) AS tagged"  # noqa: E501


def _count_tagged(tx: Tx, tag: str, low: int, high: int, limit: int) -> int:
    """The number of tasks with a tag, counted up to ``limit``."""
    row = tx.one(TAGGED_UP_TO, tag=tag, low=low, high=high, n=limit)
    return row[0] if row else 0


def _driver(tx: Tx, search: TaskSearch, low: int, high: int) -> int | None:
    """The term with the fewest rows; None when a scan over all tasks is needed."""
    single = [number for number, term in enumerate(search.terms) if len(term) == 1]
    if len(single) < 2:
        return single[0] if single else None
    return min(single, key=lambda number: _count_tagged(tx, search.terms[number][0], low, high, 1000))


def _source(driver: int | None) -> tuple[str, str]:
    """The tables, and the column to sort by. CROSS JOIN makes SQLite start from the rows of the tag."""
    if driver is None:
        return "task_results t", "t.id"
    return f"task_tags g{driver} CROSS JOIN task_results t", f"g{driver}.task_id"


# ---------------------------------------------------------------- pages by time of creation


FLOOR_OF_TASKS = "SELECT id FROM task_results WHERE id < :before ORDER BY id DESC LIMIT 1 OFFSET :limit"
FLOOR_OF_TAG = """
    SELECT task_id FROM task_tags WHERE tag = :tag AND task_id < :before ORDER BY task_id DESC LIMIT 1 OFFSET :limit
"""


def page(tx: Tx, search: TaskSearch, *, n: int, before: int | None = None) -> tuple[list[int], int]:
    """The newest n tasks of a search, and the id to continue before; 0 at the end. A page may be short."""
    high = search.high if before is None else min(search.high, before)
    found, more = _scan(tx, structs.replace(search, high=high), n=n)
    if len(found) == n or not more:
        return found, more
    scans = 1
    for low, end in _ranges_to_scan(tx, search, more):
        while end > low:
            ids, more = _scan(tx, structs.replace(search, low=low, high=end), n=n - len(found))
            found += ids
            scans += 1
            if len(found) == n:
                return found, found[-1]
            end = more or low
            if scans == SCANS_PER_PAGE and end > search.low:
                return found, end
    return found, 0


def _ranges_to_scan(tx: Tx, search: TaskSearch, high: int) -> list[tuple[int, int]]:
    """Ranges that can contain results, newest first: without sealed spans that have no task in these states."""
    everywhere = [(search.low, high)]
    ended = FINAL_STATES.intersection(search.states)
    if not search.states or len(ended) not in (0, len(set(search.states))):
        return everywhere
    sealed = [span for span in tag_counts.spans(tx, search.low, high) if span.sealed]
    there = tag_counts.spans_with_states(tx, search.states, search.low, high) if ended else set()
    empty = [span for span in sealed if span.first_id not in there and not span.unfinished_ids]
    return list(_gaps(empty, search.low, high))[::-1] if empty else everywhere


def _scan(tx: Tx, search: TaskSearch, *, n: int) -> tuple[list[int], int]:
    """As `page`, with one scan of a bounded number of tasks."""
    driver = _driver(tx, search, search.low, search.high)
    if driver is None and search.terms:
        return _scan_alternatives(tx, search, n=n)
    floor = _floor(tx, search, driver, search.high)
    low = search.low if floor is None else max(search.low, floor)
    source, key = _source(driver)
    where, given = _conditions(search, driver)
    conditions = " AND ".join([f"{key} >= :low", f"{key} < :high", *where])
    sql = f"SELECT {key} FROM {source} WHERE {conditions} ORDER BY {key} DESC LIMIT :n"
    found = [row[0] for row in tx.all(sql, low=low, high=search.high, n=n, **given)]
    if len(found) == n:
        return found, found[-1]
    return found, low if low > search.low else 0


def _scan_alternatives(tx: Tx, search: TaskSearch, *, n: int) -> tuple[list[int], int]:
    """For a search whose terms all have alternatives: scan for each tag of the first term, and merge the results.

    Each scan is complete down to the id where it would continue; results below the greatest of these are left for the
    next page.
    """
    first, *others = search.terms
    each = [_scan(tx, structs.replace(search, terms=[[tag], *others]), n=n) for tag in first]
    floor = max(more for _, more in each)
    found = sorted({task_id for ids, _ in each for task_id in ids if task_id >= floor}, reverse=True)
    return (found[:n], found[n - 1]) if len(found) >= n else (found, floor)


def _floor(tx: Tx, search: TaskSearch, driver: int | None, high: int) -> int | None:
    """The lowest id that this scan reads; None when it can read all."""
    if driver is None:
        row = tx.one(FLOOR_OF_TASKS, before=high, limit=SCAN_LIMIT)
    else:
        row = tx.one(FLOOR_OF_TAG, tag=search.terms[driver][0], before=high, limit=SCAN_LIMIT)
    return row[0] if row else None


# ---------------------------------------------------------------- counts


def count(tx: Tx, search: TaskSearch) -> int:
    """The exact number of tasks that a search finds.

    On databases with many writers each statement sees a later state: when the stored counts have changed meanwhile, the
    count is repeated, and at last made without them.
    """
    for _ in range(_MAX_COUNT_TRIES):
        version = tag_counts.version(tx)
        total = _count(tx, search)
        if tag_counts.version(tx) == version:
            return total
    return _count_rows(tx, search, search.low, search.high)


def _count(tx: Tx, search: TaskSearch) -> int:
    """By the rows of a rare tag; else by the sums over all spans, if these are sufficient; else span by span."""
    search = structs.replace(search, terms=[_without_unused_tags(tx, term, search) for term in search.terms])
    for term in search.terms:
        if not term:
            return 0
        if len(term) == 1 and _count_tagged(tx, term[0], search.low, search.high, RARE_TAG_ROWS) < RARE_TAG_ROWS:
            return _count_rows(tx, search, search.low, search.high)
    span_range = tag_counts.whole_spans(tx, search.low, search.high)
    if span_range is None:
        return _count_rows(tx, search, search.low, search.high)
    total = _from_sums(tx, search, span_range)
    if total is None:
        return _count_spans(tx, search)
    uncounted = _merge_ranges([(search.low, span_range.low), *span_range.open, (span_range.high, search.high)])
    total += sum(_count_rows(tx, search, low, high) for low, high in uncounted)
    return total + _count_ids(tx, search, span_range.unfinished_ids)


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
    return [tag for tag in term if _count_tagged(tx, tag, search.low, search.high, 1)]


def _from_sums(tx: Tx, search: TaskSearch, span_range: tag_counts.SpanRange) -> int | None:
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


def _count_spans(tx: Tx, search: TaskSearch) -> int:
    found = tag_counts.spans(tx, search.low, search.high)
    whole = [span for span in found if span.sealed and search.low <= span.first_id and span.until_id <= search.high]
    if not whole:
        return _count_rows(tx, search, search.low, search.high)
    counted, total = _from_span_counts(tx, search, whole)
    total += _count_ids(tx, search, [task_id for span in counted for task_id in span.unfinished_ids])
    return total + sum(_count_rows(tx, search, low, high) for low, high in _gaps(counted, search.low, search.high))


def _from_span_counts(tx: Tx, search: TaskSearch, spans: Sequence[Span]) -> tuple[list[Span], int]:
    """The spans whose stored counts answer the search, and their sum.

    They do when at most one term restricts the result: a tag that every task of a span has restricts nothing.
    """
    low, high = spans[0].first_id, spans[-1].until_id
    everything = tag_counts.of_tag(tx, ALL_TASKS, low, high, search.group_id)
    by_term = [tag_counts.of_tag(tx, t[0], low, high, search.group_id) if len(t) == 1 else {} for t in search.terms]
    answered: list[Span] = []
    total = 0
    for span in spans:
        whole = everything.get(span.first_id, {})
        counts = [states.get(span.first_id) for states in by_term]
        partial = [states for states in counts if states is None or sum(states.values()) != sum(whole.values())]
        if len(partial) > 1 or None in partial:
            continue
        answered.append(span)
        total += _of_states(partial[0] or {} if partial else whole, search.states)
    return answered, total


def _of_states(numbers: dict[str, int], states: Sequence[str]) -> int:
    return sum(num for state, num in numbers.items() if not states or state in states)


def _gaps(spans: Sequence[Span], low: int, high: int) -> Iterator[tuple[int, int]]:
    """The ranges between the spans."""
    for span in spans:
        if low < span.first_id:
            yield low, span.first_id
        low = span.until_id
    if low < high:
        yield low, high


def _count_rows(tx: Tx, search: TaskSearch, low: int, high: int) -> int:
    driver = _driver(tx, search, low, high)
    where, given = _conditions(search, driver)
    source, key = _source(driver)
    conditions = " AND ".join([f"{key} >= :low", f"{key} < :high", *where])
    row = tx.one(f"SELECT COUNT(*) FROM {source} WHERE {conditions}", low=low, high=high, **given)
    return row[0] if row else 0


def _count_ids(tx: Tx, search: TaskSearch, ids: Sequence[int]) -> int:
    where, given = _conditions(search, None)
    sql = f"SELECT COUNT(*) FROM task_results t WHERE {' AND '.join(['t.id {in:ids}', *where])}"
    parts = [list(ids[at : at + IDS_PER_STATEMENT]) for at in range(0, len(ids), IDS_PER_STATEMENT)]
    return sum(row[0] for part in parts if (row := tx.one(sql, ids=part, **given)))


# ---------------------------------------------------------------- pages by another time


class SortPosition(Struct, frozen=True, order=True):
    """Where a sorted list continues: after this time and, for equal times, after this id."""

    at: Micros
    id: int


START = SortPosition(MAX_ID, MAX_ID)


def sorted_page(
    tx: Tx, search: TaskSearch, key: str, *, n: int, after: SortPosition = START
) -> tuple[list[int], SortPosition | None]:
    """The tasks of a search sorted by one of their times, latest first, and where to continue; None at the end.

    Tasks without this time are not listed. There is no index for it, because submits and reports would pay for that.
    The tasks of a rare tag are all read and sorted; else spans are read in the order of their latest times, until no
    later time can follow. A page may be short.
    """
    if key not in SORTABLE:
        raise ValueError(f"tasks cannot be sorted by {key}")
    driver = _driver(tx, search, search.low, search.high)
    if (
        driver is not None
        and _count_tagged(tx, search.terms[driver][0], search.low, search.high, SCAN_LIMIT) < SCAN_LIMIT
    ):
        found = _latest(tx, search, key, driver, search.low, search.high, n=n, after=after)
        return [position.id for position in found], found[-1] if len(found) == n else None
    return _by_spans(tx, search, key, n=n, after=after)


def _by_spans(
    tx: Tx, search: TaskSearch, key: str, *, n: int, after: SortPosition
) -> tuple[list[int], SortPosition | None]:
    sealed = [s for s in tag_counts.spans(tx, search.low, search.high) if s.sealed]
    unfinished_ids = [task_id for span in sealed for task_id in span.unfinished_ids]
    found = [
        position
        for low, high in _gaps(sealed, search.low, search.high)
        for position in _latest(tx, search, key, None, low, high, n=n, after=after)
    ]
    found += _latest_of(tx, search, key, unfinished_ids, n=n, after=after) if unfinished_ids else []
    for num_read, (bound, span) in enumerate(_by_latest(sealed, key, after)):
        found = sorted(set(found), reverse=True)[:n]
        if len(found) == n and found[-1].at > bound:
            break
        if num_read >= SPANS_PER_PAGE and bound < after.at:
            final = [position for position in found if position.at > bound]
            return [position.id for position in final], SortPosition(bound + 1, 0)
        low, high = max(span.first_id, search.low), min(span.until_id, search.high)
        found += _latest(tx, search, key, None, low, high, n=n, after=after)
    found = sorted(set(found), reverse=True)[:n]
    return [position.id for position in found], found[-1] if len(found) == n else None


def _by_latest(spans: Sequence[Span], key: str, after: SortPosition) -> list[tuple[Micros, Span]]:
    """Spans that can have tasks after a position, with the latest time that these can have; latest first."""
    ranges = [(span.time_range(key), span) for span in spans]
    bounds = [(min(times[1], after.at), span) for times, span in ranges if times and times[0] <= after.at]
    return sorted(bounds, key=lambda pair: -pair[0])


def _latest(
    tx: Tx, search: TaskSearch, key: str, driver: int | None, low: int, high: int, *, n: int, after: SortPosition
) -> list[SortPosition]:
    where, given = _conditions(search, driver)
    source, column = _source(driver)
    where += [f"{column} >= :low", f"{column} < :high"]
    return _first_positions(tx, source, key, where, {**given, "low": low, "high": high}, n=n, after=after)


def _latest_of(
    tx: Tx, search: TaskSearch, key: str, ids: Sequence[int], *, n: int, after: SortPosition
) -> list[SortPosition]:
    where, given = _conditions(search, None)
    low_high = {"low": search.low, "high": search.high}
    where += ["t.id {in:ids}", "t.id >= :low", "t.id < :high"]
    return _first_positions(tx, "task_results t", key, where, {**given, **low_high, "ids": list(ids)}, n=n, after=after)


def _first_positions(
    tx: Tx, source: str, key: str, where: Sequence[str], given: dict[str, object], *, n: int, after: SortPosition
) -> list[SortPosition]:
    behind = f"(t.{key} < :after_at OR (t.{key} = :after_at AND t.id < :after_id))"
    conditions = " AND ".join([f"t.{key} IS NOT NULL", behind, *where])
    sql = f"SELECT t.{key}, t.id FROM {source} WHERE {conditions} ORDER BY t.{key} DESC, t.id DESC LIMIT :n"
    return [SortPosition(*row) for row in tx.all(sql, n=n, after_at=after.at, after_id=after.id, **given)]
