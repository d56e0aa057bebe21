"""Versions of the configuration folder: the active one, and all earlier ones.

Versions are only added. Going back to an earlier content adds a version too, so the list is a complete history.
"""

from collections.abc import Mapping

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import shared_numbers

FOLDER = "folder"
_POSITION = "config_position"


class Version(Struct, frozen=True):
    """One version of a file or of the whole folder. ``version`` is the digest of the content."""

    kind: str
    position: int
    version: str
    created_at: Micros
    who: str
    content: str


class Folder(Struct, frozen=True):
    """The configuration folder with its files by name, each with its own version."""

    position: int
    version: str
    created_at: Micros
    who: str
    files: dict[str, Version]


_COLUMNS = "kind, position, version, created_at, who, content"
_VERSIONS = Insert("config_versions", _COLUMNS)
NEWEST = f"SELECT {_COLUMNS} FROM config_versions WHERE kind = :kind ORDER BY position DESC LIMIT 1"
ONE = f"SELECT {_COLUMNS} FROM config_versions WHERE kind = :kind AND position = :position"
EXISTS = "SELECT position FROM config_versions WHERE kind = :kind AND version = :version ORDER BY position DESC LIMIT 1"
HISTORY = f"""
    SELECT {_COLUMNS} FROM config_versions WHERE kind = :kind AND position < :before ORDER BY position DESC LIMIT :n
"""


def position(tx: Tx) -> int:
    """The position of the active version of the folder; 0 when there is none. Cheap: reads one number."""
    return shared_numbers.read(tx, _POSITION) or 0


def current(tx: Tx) -> Folder | None:
    """The active version of the folder."""
    row = tx.one(NEWEST, kind=FOLDER)
    if row is None:
        return None
    folder = Version(*row)
    positions = json.decode(folder.content, type=dict[str, int])
    found = {kind: tx.one(ONE, kind=kind, position=at) for kind, at in positions.items()}
    files = {kind: Version(*one) for kind, one in found.items() if one is not None}
    return Folder(folder.position, folder.version, folder.created_at, folder.who, files)


def exists(tx: Tx, version: str) -> bool:
    """Whether this version of the folder has ever been active."""
    return tx.one(EXISTS, kind=FOLDER, version=version) is not None


def put(
    tx: Tx, *, version: str, files: Mapping[str, tuple[str, str]], who: str, now: Micros, expected_position: int
) -> int | None:
    """Activate a checked folder; its position, or None when the active position is no longer ``expected_position``.

    ``files`` are digest and text by name. An unchanged file keeps its version. When the position differs but the
    content is active already, as after a commit with an unknown outcome, no version is added.
    """
    newest = shared_numbers.lock(tx, _POSITION)
    if newest != expected_position:
        return newest if (active := current(tx)) is not None and active.version == version else None
    before = current(tx)
    new_position = newest + 1
    old = before.files if before is not None else {}
    kept = {
        kind: old[kind].position for kind, (digest, _) in files.items() if kind in old and old[kind].version == digest
    }
    changed = [
        (kind, new_position, digest, now, who, text) for kind, (digest, text) in files.items() if kind not in kept
    ]
    positions = {kind: kept.get(kind, new_position) for kind in sorted(files)}
    folder = (FOLDER, new_position, version, now, who, json.encode(positions).decode())
    tx.insert(_VERSIONS, [*changed, folder])
    shared_numbers.put(tx, _POSITION, new_position)
    return new_position


def history(tx: Tx, kind: str, *, before: int, n: int) -> list[Version]:
    """The versions of a file, or of the folder, newest first."""
    return [Version(*row) for row in tx.all(HISTORY, kind=kind, before=before, n=n)]
