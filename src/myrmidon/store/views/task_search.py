"""Search for tasks by tags, states and creation time, sorted by creation time or another time.

As in listings.py, statements are built from a closed set of conditions, and everything variable is a parameter. Lists
scan a bounded number of tasks per page. Sorts use the stored counts (tables/tag_counts.py) where these are sealed, and
the rows elsewhere: the results are exact in both cases. task_count.py counts the tasks of a search.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.model.states import FINAL
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import tag_counts
from myrmidon.store.tables.tag_counts import Span

MAX_ID = (1 << 63) - 1
DEDUPED = "DEDUPED"
"""In a list of states: succeeded with the result of another task. SUCCEEDED then means: by a run of its own."""
SCAN_LIMIT = 20_000
"""Tasks that one scan reads, at most."""
SCANS_PER_PAGE = 8
"""Scans for one page, at most."""
FINAL_STATES = frozenset({*FINAL, DEDUPED})
SPANS_PER_PAGE = 24
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


def conditions_of(search: TaskSearch, driver: int | None) -> tuple[list[str], dict[str, object]]:
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


def count_tagged(tx: Tx, tag: str, low: int, high: int, limit: int) -> int:
    """The number of tasks with a tag, counted up to ``limit``."""
    row = tx.one(TAGGED_UP_TO, tag=tag, low=low, high=high, n=limit)
    return row[0] if row else 0


def driver_of(tx: Tx, search: TaskSearch, low: int, high: int) -> int | None:
    """The term with the fewest rows; None when a scan over all tasks is needed."""
    single = [number for number, term in enumerate(search.terms) if len(term) == 1]
    if len(single) < 2:
        return single[0] if single else None
    return min(single, key=lambda number: count_tagged(tx, search.terms[number][0], low, high, 1000))


def source_of(driver: int | None) -> tuple[str, str]:
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
    return list(gaps_between(empty, search.low, high))[::-1] if empty else everywhere


def gaps_between(spans: Sequence[Span], low: int, high: int) -> Iterator[tuple[int, int]]:
    """The ranges between the spans."""
    for span in spans:
        if low < span.first_id:
            yield low, span.first_id
        low = span.until_id
    if low < high:
        yield low, high


def _scan(tx: Tx, search: TaskSearch, *, n: int) -> tuple[list[int], int]:
    """As `page`, with one scan of a bounded number of tasks."""
    driver = driver_of(tx, search, search.low, search.high)
    if driver is None and search.terms:
        return _scan_alternatives(tx, search, n=n)
    floor = _floor(tx, search, driver, search.high)
    low = search.low if floor is None else max(search.low, floor)
    source, key = source_of(driver)
    where, given = conditions_of(search, driver)
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
    driver = driver_of(tx, search, search.low, search.high)
    if (
        driver is not None
        and count_tagged(tx, search.terms[driver][0], search.low, search.high, SCAN_LIMIT) < SCAN_LIMIT
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
        for low, high in gaps_between(sealed, search.low, search.high)
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
    where, given = conditions_of(search, driver)
    source, column = source_of(driver)
    where += [f"{column} >= :low", f"{column} < :high"]
    return _first_positions(tx, source, key, where, {**given, "low": low, "high": high}, n=n, after=after)


def _latest_of(
    tx: Tx, search: TaskSearch, key: str, ids: Sequence[int], *, n: int, after: SortPosition
) -> list[SortPosition]:
    where, given = conditions_of(search, None)
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
