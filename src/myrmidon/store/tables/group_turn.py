"""Turns of resource groups: a larger number means that the group got a task later.

Written by claims that choose between several groups, and never waited for: a claim that finds the row of a group locked
leaves it to the claim that holds it, whose number is nearly the same.
"""

from collections.abc import Mapping, Sequence

from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, RowUpdate

_ROWS = Insert("group_turns", "resource_group_id, turn")
READ = "SELECT resource_group_id, turn FROM group_turns WHERE resource_group_id {in:ids}"
LOCK = "SELECT resource_group_id FROM group_turns WHERE resource_group_id {in:ids} {skip_locked}"
_SAVE = RowUpdate("group_turns", key="resource_group_id", sets="turn", types="bigint, bigint")
DELETE = "DELETE FROM group_turns WHERE resource_group_id = :id"


def read(tx: Tx, group_ids: Sequence[int]) -> dict[int, int]:
    """The last turn of each group that has had one."""
    return dict(tx.all(READ, ids=group_ids))


def save(tx: Tx, turns: Mapping[int, int], known: Mapping[int, int]) -> None:
    """Store turns of groups; ``known`` are those that have a row."""
    tx.insert_new(_ROWS, [(group, turn) for group, turn in sorted(turns.items()) if group not in known])
    ids = sorted(turns.keys() & known.keys())
    free = {row[0] for row in tx.all(LOCK, ids=ids)} if ids else set()
    tx.update_rows(_SAVE, [(group, turns[group]) for group in ids if group in free])


def delete(tx: Tx, group_id: int) -> None:
    tx.run(DELETE, id=group_id)
