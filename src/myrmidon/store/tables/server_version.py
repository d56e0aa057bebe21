"""The history of server versions: each row is a version and when it first ran after another one."""

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert

_ROWS = Insert("server_versions", "at, version")
READ = "SELECT at, version FROM server_versions ORDER BY at"
LAST = "SELECT version FROM server_versions ORDER BY at DESC LIMIT 1"


def record(tx: Tx, version: str, now: Micros) -> None:
    """Record that a server of this version has started; does nothing if the last recorded version is the same."""
    last = tx.one(LAST)
    if last is None or last[0] != version:
        tx.insert_new(_ROWS, [(now, version)])


def read(tx: Tx) -> list[tuple[Micros, str]]:
    """All versions by time of their first start; a handful of rows."""
    return [(row[0], row[1]) for row in tx.all(READ)]
