"""Finds tasks, jobs, bots and tags by the beginning or a part of their names; every search reads few rows."""

from myrmidon.store.engine.db import Tx
from myrmidon.store.tables.task_request import has_rows, text_of_tag
from myrmidon.store.views.pool_filter import PoolFilter, pool_condition
from myrmidon.store.views.selection import Selection, in_group
from myrmidon.wire.search import FoundItem

SCAN_LIMIT = 20_000
"""Tasks whose names are compared: the newest ones."""
JOB_SCAN_LIMIT = 5_000
TAG_PROBES = 50
"""Different tags that are looked at."""
TAGGED_LIMIT = 200
"""Tasks of a tag that are looked at for one of the caller's group: the newest ones."""
LAST_CHARACTER = "\U0010ffff"


TASK = Selection(FoundItem, "t", name="r.name")
JOB = Selection(FoundItem, "jobs")


def pattern(text: str) -> str:
    """The pattern of LIKE for names that contain a text, with ``!`` as the escape character."""
    escaped = text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{escaped}%"


FLOOR = "SELECT id FROM task_results ORDER BY id DESC LIMIT 1 OFFSET :limit"
_TASKS = f"SELECT {TASK.columns} FROM task_results t JOIN task_requests r ON r.id = t.id"
_SCOPE = "t.seq > 0 AND (:any_group = 1 OR t.resource_group_id = :resource_group)"
# Both ids are bounded: PostgreSQL does not infer one bound from the other.
TASKS_BY_NAME = f"""
    {_TASKS} WHERE t.id >= :floor AND r.id >= :floor AND {_SCOPE} AND LOWER(r.name) LIKE :pattern ESCAPE '!'
     ORDER BY t.id DESC LIMIT :n
"""
TASKS_BY_ID = f"{_TASKS} WHERE t.id >= :low AND t.id < :high AND {_SCOPE} ORDER BY t.id DESC LIMIT :n"
_JOBS = f"SELECT {JOB.columns} FROM jobs"
_JOB_SCOPE = "staged = 0 AND (:any_group = 1 OR resource_group_id = :resource_group)"
JOB_FLOOR = "SELECT id FROM jobs ORDER BY id DESC LIMIT 1 OFFSET :limit"
JOBS_BY_NAME = f"""
    {_JOBS} WHERE id >= :floor AND {_JOB_SCOPE} AND LOWER(name) LIKE :pattern ESCAPE '!' ORDER BY id DESC LIMIT :n
"""
JOBS_BY_ID = f"{_JOBS} WHERE id >= :low AND id < :high AND {_JOB_SCOPE} ORDER BY id DESC LIMIT :n"


def _floor(tx: Tx, sql: str, limit: int) -> int:
    row = tx.one(sql, limit=limit)
    return row[0] if row else 0


def tasks_by_name(tx: Tx, text: str, *, group_id: int | None, n: int) -> list[FoundItem]:
    """Search the newest tasks for names that contain the text, newest first."""
    given = {"floor": _floor(tx, FLOOR, SCAN_LIMIT), "pattern": pattern(text), "n": n}
    return TASK.read(tx, TASKS_BY_NAME, **given, **in_group(group_id))


def tasks_by_id(tx: Tx, low: int, high: int, *, group_id: int | None, n: int) -> list[FoundItem]:
    """Tasks with low <= id < high, newest first."""
    return TASK.read(tx, TASKS_BY_ID, low=low, high=high, n=n, **in_group(group_id))


def jobs_by_name(tx: Tx, text: str, *, group_id: int | None, n: int) -> list[FoundItem]:
    """Search the newest jobs for names that contain the text, newest first."""
    given = {"floor": _floor(tx, JOB_FLOOR, JOB_SCAN_LIMIT), "pattern": pattern(text), "n": n}
    return JOB.read(tx, JOBS_BY_NAME, **given, **in_group(group_id))


def jobs_by_id(tx: Tx, low: int, high: int, *, group_id: int | None, n: int) -> list[FoundItem]:
    """Jobs with low <= id < high, newest first."""
    return JOB.read(tx, JOBS_BY_ID, low=low, high=high, n=n, **in_group(group_id))


def bots(tx: Tx, text: str, pools: PoolFilter | None, *, n: int) -> list[str]:
    """Bots in these pools whose id contains the text, sorted."""
    where, given = pool_condition(pools)
    condition = " AND ".join([*where, "LOWER(b.id) LIKE :pattern ESCAPE '!'"])
    sql = f"SELECT b.id FROM bots b WHERE {condition} ORDER BY b.id LIMIT :n"
    return [row[0] for row in tx.all(sql, pattern=pattern(text), n=n, **given)]


NEXT_TAG = "SELECT MIN(tag) FROM task_tags WHERE tag > :after AND tag < :until"
TAGGED_OF_GROUP = """
    SELECT COUNT(*) FROM (SELECT task_id FROM task_tags WHERE tag = :tag ORDER BY task_id DESC LIMIT :limit) g
      JOIN task_results t ON t.id = g.task_id
     WHERE t.seq > 0 AND (:any_group = 1 OR t.resource_group_id = :resource_group)
"""


NEWEST_WITH_TAG = """
    SELECT COUNT(*) FROM (SELECT t.id FROM task_results t JOIN task_requests r ON r.id = t.id
                           WHERE t.id >= :floor AND r.id >= :floor AND t.seq > 0 AND {instr}(r.tags, :tag) > 0
                             AND (:any_group = 1 OR t.resource_group_id = :resource_group) LIMIT 1) g
"""


def tags(tx: Tx, text: str, *, group_id: int | None, n: int) -> list[str]:
    """Tags that begin with the text and that a task of the group has, sorted.

    Goes from tag to tag through the index: one tag can have a million tasks. A tag without rows is found only if the
    text is all of it.
    """
    found: list[str] = []
    after, until = text, text + LAST_CHARACTER
    if has_tasks(tx, text, group_id):
        found.append(text)
    for _ in range(TAG_PROBES):
        row = tx.one(NEXT_TAG, after=after, until=until)
        if len(found) >= n or row is None or row[0] is None:
            break
        after = row[0]
        if has_tasks(tx, after, group_id):
            found.append(after)
    return found


def has_tasks(tx: Tx, tag: str, group_id: int | None) -> bool:
    """Whether one of the newest tasks with a tag is in the group."""
    if has_rows(tag):
        row = tx.one(TAGGED_OF_GROUP, tag=tag, limit=TAGGED_LIMIT, **in_group(group_id))
    else:
        floor = _floor(tx, FLOOR, SCAN_LIMIT)
        row = tx.one(NEWEST_WITH_TAG, tag=text_of_tag(tag), floor=floor, **in_group(group_id))
    return bool(row and row[0])
