"""Versions of the settings folder: what is in force for all servers, and everything that ever was.

A version is only ever added. Going back to what was in force before is a version again, so that the list of them
tells the whole story.
"""

from collections.abc import Mapping

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert
from myrmidon.store.tables import shared_numbers

FOLDER = "folder"
_MARK = "config_position"


class Version(Struct, frozen=True):
    """One file, or the whole folder, as it came into force. ``version`` is the digest of the content."""

    kind: str
    position: int
    version: str
    created_at: Micros
    who: str
    content: str


class Folder(Struct, frozen=True):
    """The settings folder as a whole: its files by name, and since when each is as it is."""

    position: int
    version: str
    created_at: Micros
    who: str
    files: dict[str, Version]


_COLUMNS = "kind, position, version, created_at, who, content"
_VERSIONS = Insert("config_versions", _COLUMNS)
NEWEST = f"SELECT {_COLUMNS} FROM config_versions WHERE kind = :kind ORDER BY position DESC LIMIT 1"
ONE = f"SELECT {_COLUMNS} FROM config_versions WHERE kind = :kind AND position = :position"
KNOWN = "SELECT position FROM config_versions WHERE kind = :kind AND version = :version ORDER BY position DESC LIMIT 1"
HISTORY = f"""
    SELECT {_COLUMNS} FROM config_versions WHERE kind = :kind AND position < :before ORDER BY position DESC LIMIT :n
"""


def position(tx: Tx) -> int:
    """Which version of the folder is in force; 0 when there never was one. Cheap enough to be asked all the time."""
    return shared_numbers.read(tx, _MARK) or 0


def current(tx: Tx) -> Folder | None:
    """The folder that is in force."""
    row = tx.one(NEWEST, kind=FOLDER)
    if row is None:
        return None
    whole = Version(*row)
    places = json.decode(whole.content, type=dict[str, int])
    found = {kind: tx.one(ONE, kind=kind, position=at) for kind, at in places.items()}
    files = {kind: Version(*one) for kind, one in found.items() if one is not None}
    return Folder(whole.position, whole.version, whole.created_at, whole.who, files)


def is_known(tx: Tx, version: str) -> bool:
    """Whether the folder was ever like this."""
    return tx.one(KNOWN, kind=FOLDER, version=version) is not None


def put(
    tx: Tx, *, version: str, files: Mapping[str, tuple[str, str]], who: str, now: Micros, unless_newer: int
) -> int | None:
    """Bring a checked folder into force; None when it is no longer ``unless_newer`` that it would replace.

    ``files`` are digest and text by name. A file that is as it was keeps its version. The same folder again,
    for instance because nobody knows whether an earlier commit happened, is no new version.
    """
    newest = shared_numbers.lock(tx, _MARK)
    if newest != unless_newer:
        return newest if (now_there := current(tx)) is not None and now_there.version == version else None
    before = current(tx)
    place = newest + 1
    old = before.files if before is not None else {}
    kept = {
        kind: old[kind].position for kind, (digest, _) in files.items() if kind in old and old[kind].version == digest
    }
    fresh = [(kind, place, digest, now, who, text) for kind, (digest, text) in files.items() if kind not in kept]
    places = {kind: kept.get(kind, place) for kind in sorted(files)}
    whole = (FOLDER, place, version, now, who, json.encode(places).decode())
    tx.insert(_VERSIONS, [*fresh, whole])
    shared_numbers.put(tx, _MARK, place)
    return place


def history(tx: Tx, kind: str, *, before: int, n: int) -> list[Version]:
    """The versions of a file, or of the folder, newest first."""
    return [Version(*row) for row in tx.all(HISTORY, kind=kind, before=before, n=n)]
