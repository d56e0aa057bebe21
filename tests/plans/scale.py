"""A big database out of a small one: everything that is there is copied a thousand times, inside the database.

Ids move by a step per copy, times by a second; the tasks of all copies stand in the same few queues, so that
these are deep. Statistics are fresh afterwards.
"""

from __future__ import annotations

from typing import Any

from tests.snapshot import Snapshot
from tests.world import World

COPIES = 1000
FEWER = {"task_tags": 200, "outbox": 400}
"""Copies of what a task has several of: these are big enough."""
STEP = 1 << 24
SECOND = 1_000_000
ALONE = {
    "shared_numbers",
    "pools",
    "resource_groups",
    "schema_version",
    "schedulers",
    "sinks",
    "tokens",
    "chunked_work",
}
BOT = {("bots", "id"), ("bot_settings", "bot_id")}
NAMES = {"bot_id", "request_key"}
HASHES = {("task_dimensions", "hash"), ("dedupe_sources", "dedupe_key")}
FIXED = {("task_to_run", "queue"), ("task_requests", "queue"), ("task_to_run", "task_rank")}


def multiply(world: World, shot: Snapshot) -> dict[str, int]:
    """Fill the database; how many rows each table has now."""
    for table, columns in shot.tables.items():
        if table not in ALONE:
            world.db.write(lambda tx, t=table, c=columns: _copy(tx, t, [name for name, _ in c]))
    world.db.write(analyze)
    return {table: world.value(f'SELECT COUNT(*) FROM "{table}"') for table in shot.tables}


def _copy(tx: Any, table: str, columns: list[str]) -> None:
    sample = tx.all(f'SELECT {", ".join(_quoted(c) for c in columns)} FROM "{table}"')
    if not sample:
        return
    made = [_expression(table, name, [row[i] for row in sample]) for i, name in enumerate(columns)]
    listed = ", ".join(_quoted(c) for c in columns)
    source = f'(SELECT * FROM "{table}") s' if str(tx.dialect) == "mariadb" else f'"{table}" s'
    tx.run(
        f'INSERT INTO "{table}" ({listed}) SELECT {", ".join(made)} FROM {{each:copies}} n CROSS JOIN {source}',
        copies=list(range(1, FEWER.get(table, COPIES))),
    )


def _expression(table: str, column: str, values: list[Any]) -> str:
    known = [value for value in values if value is not None]
    name = f"s.{_quoted(column)}"
    if (table, column) in FIXED or column == "resource_group_id":
        return name
    if (table, column) in HASHES:
        return f"SUBSTR({name}, 1, 20) || '_' || n.value"
    if (table, column) in BOT or column in NAMES:
        return f"{name} || '_' || n.value"
    if known and all(isinstance(value, int) and value > 10**17 for value in known):
        return f"{name} + n.value * {STEP}"
    if known and all(isinstance(value, int) and 10**15 < value < 10**16 for value in known):
        return f"{name} + n.value * {SECOND}"
    if (table, column) == ("outbox", "position"):
        return f"{name} + n.value * {len(values)}"
    return name


def _quoted(name: str) -> str:
    return f'"{name}"'


def analyze(tx: Any) -> None:
    if str(tx.dialect) != "mariadb":
        tx.run("ANALYZE")
        return
    for (table,) in tx.all("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"):
        tx.all(f'ANALYZE TABLE "{table}"')
