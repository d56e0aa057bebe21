"""References to stored files: which of them a resource group may use."""

from collections.abc import Iterable

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import stored_file


def check_files(tx: Tx, group_id: int, digests: Iterable[str], *, now: Micros) -> list[str]:
    """Those of the digests that the group has not stored, sorted. The others are renewed.

    To be called in the transaction that stores the references: otherwise the files may be deleted before it commits.
    """
    wanted = sorted(set(digests))
    found = stored_file.renew(tx, wanted, group_id, now=now)
    return [digest for digest in wanted if digest not in found]
