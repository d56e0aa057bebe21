"""Search for tasks by tags, states and creation time, sorted by creation time or another time.

As in listings.py, statements are built from a closed set of conditions, and everything variable is a parameter. Pages,
sorts and counts each read a bounded number of tasks, however many are stored, and say so when there may be more.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables.task_request import has_rows, text_of_tag

MAX_ID = (1 << 63) - 1
DEDUPED = "DEDUPED"
"""In a list of states: succeeded with the result of another task. SUCCEEDED then means: by a run of its own."""
SCAN_LIMIT = 20_000
"""Tasks that one page reads, and that can be sorted by another time, at most."""
COUNT_LIMIT = 100_000
"""Tasks that one count reads, at most: the newest ones."""
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
    """The conditions on a task besides its id; ``driver`` is the term whose tag rows the statement starts from.

    The tags of a task are read from its request, which has all of them.
    """
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
            names = [f"tag{number}_{alternative}" for alternative in range(len(term))]
            contained = " OR ".join([f"{{instr}}(r.tags, :{name}) > 0" for name in names])
            where.append(f"EXISTS (SELECT 1 FROM task_requests r WHERE r.id = t.id AND ({contained}))")
            given |= zip(names, map(text_of_tag, term), strict=True)
    return where, given


TAGGED_UP_TO = "SELECT COUNT(*) FROM (SELECT task_id FROM task_tags WHERE tag = :tag AND task_id >= :low AND task_id < :high LIMIT :n) AS tagged"  # noqa: E501


def count_tagged(tx: Tx, tag: str, low: int, high: int, limit: int) -> int:
    """The number of tasks with a tag, counted up to ``limit``."""
    row = tx.one(TAGGED_UP_TO, tag=tag, low=low, high=high, n=limit)
    return row[0] if row else 0


def driver_of(tx: Tx, search: TaskSearch, low: int, high: int) -> int | None:
    """The term with the fewest rows; None when a scan over all tasks is needed."""
    single = [number for number, term in enumerate(search.terms) if len(term) == 1 and has_rows(term[0])]
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
    if before is not None:
        search = structs.replace(search, high=min(search.high, before))
    driver = driver_of(tx, search, search.low, search.high)
    if driver is None and any(all(map(has_rows, term)) for term in search.terms):
        return _page_of_alternatives(tx, search, n=n)
    low = _floor(tx, search, driver, SCAN_LIMIT)
    source, key = source_of(driver)
    where, given = conditions_of(search, driver)
    conditions = " AND ".join([f"{key} >= :low", f"{key} < :high", *where])
    sql = f"SELECT {key} FROM {source} WHERE {conditions} ORDER BY {key} DESC LIMIT :n"
    found = [row[0] for row in tx.all(sql, low=low, high=search.high, n=n, **given)]
    if len(found) == n:
        return found, found[-1]
    return found, low if low > search.low else 0


def _page_of_alternatives(tx: Tx, search: TaskSearch, *, n: int) -> tuple[list[int], int]:
    """Search by a term with alternatives that have rows: read a page for each tag of it, and merge them.

    Each of these is complete down to the id where it would continue; results below the greatest of these ids are left
    for the next page.
    """
    first = next(term for term in search.terms if all(map(has_rows, term)))
    others = [term for term in search.terms if term is not first]
    each = [page(tx, structs.replace(search, terms=[[tag], *others]), n=n) for tag in first]
    floor = max(more for _, more in each)
    found = sorted({task_id for ids, _ in each for task_id in ids if task_id >= floor}, reverse=True)
    return (found[:n], found[n - 1]) if len(found) >= n else (found, floor)


def _floor(tx: Tx, search: TaskSearch, driver: int | None, limit: int) -> int:
    """The lowest id that may be read, so that at most ``limit`` tasks are: that of the search if it has no more."""
    if driver is None:
        row = tx.one(FLOOR_OF_TASKS, before=search.high, limit=limit)
    else:
        row = tx.one(FLOOR_OF_TAG, tag=search.terms[driver][0], before=search.high, limit=limit)
    return max(search.low, row[0]) if row else search.low


# ---------------------------------------------------------------- pages by another time


class SortPosition(Struct, frozen=True, order=True):
    """Where a sorted list continues: after this time and, for equal times, after this id."""

    at: Micros
    id: int


START = SortPosition(MAX_ID, MAX_ID)


def can_sort(tx: Tx, search: TaskSearch) -> bool:
    """Whether the range of a search has so few tasks that they can be sorted by another time than their creation."""
    return _floor(tx, search, driver_of(tx, search, search.low, search.high), SCAN_LIMIT) == search.low


def sorted_page(tx: Tx, search: TaskSearch, key: str, *, n: int, after: SortPosition = START) -> list[SortPosition]:
    """The next n tasks of a search sorted by one of their times, latest first.

    Tasks without this time are not listed. All tasks of the search are read and sorted: there is no index for these
    times, because submits and reports would pay for it. So the caller asks ``can_sort`` first.
    """
    if key not in SORTABLE:
        raise ValueError(f"tasks cannot be sorted by {key}")
    driver = driver_of(tx, search, search.low, search.high)
    where, given = conditions_of(search, driver)
    source, column = source_of(driver)
    behind = f"(t.{key} < :after_at OR (t.{key} = :after_at AND t.id < :after_id))"
    conditions = " AND ".join([f"t.{key} IS NOT NULL", behind, *where, f"{column} >= :low", f"{column} < :high"])
    sql = f"SELECT t.{key}, t.id FROM {source} WHERE {conditions} ORDER BY t.{key} DESC, t.id DESC LIMIT :n"
    rows = tx.all(sql, n=n, low=search.low, high=search.high, after_at=after.at, after_id=after.id, **given)
    return [SortPosition(*row) for row in rows]


# ---------------------------------------------------------------- counts


_STATE = "CASE WHEN t.state = 'SUCCEEDED' AND t.deduped_from IS NOT NULL THEN 'DEDUPED' ELSE t.state END"


def count_by_state(tx: Tx, search: TaskSearch, limit: int = COUNT_LIMIT) -> tuple[Counter[str], bool]:
    """The numbers of the tasks that a search finds, by state, DEDUPED too; and whether these are all.

    They are not if more than ``limit`` tasks would have to be read: then the newest ones are counted.
    """
    driver = driver_of(tx, search, search.low, search.high)
    low = _floor(tx, search, driver, limit)
    where, given = conditions_of(search, driver)
    source, key = source_of(driver)
    conditions = " AND ".join([f"{key} >= :low", f"{key} < :high", *where])
    sql = f"SELECT {_STATE}, COUNT(*) FROM {source} WHERE {conditions} GROUP BY {_STATE}"
    rows = tx.all(sql, low=low, high=search.high, **given)
    return Counter({state: int(num) for state, num in rows}), low == search.low
