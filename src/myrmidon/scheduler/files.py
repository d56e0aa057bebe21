"""References to stored files: which of them a resource group may use, and which runs may store some."""

from collections.abc import Iterable
from hmac import compare_digest

from myrmidon.model.ids import Micros
from myrmidon.scheduler.claim import token_hash
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import stored_file, task_run


def check_files(tx: Tx, group_id: int, digests: Iterable[str], *, now: Micros) -> list[str]:
    """Those of the digests that the group has not stored, sorted. The others are renewed.

    To be called in the transaction that stores the references: otherwise the files may be deleted before it commits.
    """
    wanted = sorted(set(digests))
    found = stored_file.renew(tx, wanted, group_id, now=now)
    return [digest for digest in wanted if digest not in found]


def group_of_live_run(tx: Tx, bot_id: str, task_id: int, run: int, *, token: str) -> int | None:
    """The resource group of a run that has not ended; None if it has, or is not this bot's, or has another token."""
    for found in task_run.read(tx, [task_id]):
        if found.run == run and found.bot_id == bot_id and found.ended_at is None:
            return found.resource_group_id if compare_digest(found.token_hash, token_hash(token)) else None
    return None
