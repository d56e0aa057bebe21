"""Request keys: which body was sent with a key, and which task, job or shared value answered it."""

from collections.abc import Sequence

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

NO_GROUP = 0
"""Stored as the resource group when a call has none."""
NO_SUBJECT = 0
"""Stored as the subject when a call creates no task, job or shared value, or when the shared value is deleted.

A negative subject is a number: see for_number."""

_ROWS = Insert("request_keys", "resource_group_id, request_key, body_hash, subject, created_at")
READ = """
    SELECT request_key, body_hash, subject FROM request_keys
     WHERE resource_group_id = :resource_group AND request_key {in_text:request_keys}
"""


def read(tx: Tx, resource_group_id: int, request_keys: Sequence[str]) -> dict[str, tuple[str, int]]:
    """For each key in use: the digest of the request body, and the task or job that it created."""
    found = tx.all(READ, resource_group=resource_group_id, request_keys=request_keys)
    return {row[0]: (row[1], row[2]) for row in found}


BODIES = "SELECT body_hash FROM request_keys WHERE subject = :subject"


def bodies(tx: Tx, subject: int) -> set[str]:
    """The digests of the bodies that were answered with this task or job."""
    return {row[0] for row in tx.all(BODIES, subject=subject)}


DELETE = "DELETE FROM request_keys WHERE resource_group_id = :resource_group AND request_key = :request_key"


def delete(tx: Tx, resource_group_id: int, request_key: str) -> None:
    """Free a key, because what it has created gives up its name."""
    tx.run(DELETE, resource_group=resource_group_id, request_key=request_key)


def insert(tx: Tx, rows: Sequence[tuple[int, str, str, int, Micros]]) -> int:
    """Store request keys; how many were stored: those that exist already are left as they are."""
    return tx.insert_new(_ROWS, rows)


def for_number(number: int) -> int:
    """The subject that stores a number of 0 or more as the answer of a call, for its repetitions."""
    return -1 - number


def number_of(subject: int) -> int:
    """The inverse of for_number; 0 for a subject that stores no number."""
    return max(0, -1 - subject)


SET_SUBJECT = """
    UPDATE request_keys SET subject = :subject WHERE resource_group_id = :resource_group AND request_key = :request_key
"""


def set_subject(tx: Tx, resource_group_id: int, request_key: str, subject: int) -> None:
    """Store the answer of a call whose key was stored before it was known."""
    tx.run(SET_SUBJECT, resource_group=resource_group_id, request_key=request_key, subject=subject)


DELETE_OLD = "DELETE FROM request_keys WHERE subject <= :none AND created_at < :before"


def delete_old(tx: Tx, *, before: Micros) -> int:
    """Delete old request keys that have no task or job; the others are deleted together with theirs."""
    return tx.run(DELETE_OLD, none=NO_SUBJECT, before=before)
