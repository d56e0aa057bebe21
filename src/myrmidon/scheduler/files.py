"""References to stored files: which of them a resource group may use, and which runs may store some."""

from collections.abc import Iterable, Mapping
from hmac import compare_digest

from myrmidon.model.ids import Micros
from myrmidon.scheduler.claim_tokens import token_hash
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import stored_file, task_run
from myrmidon.store.tables.chunked_work import WHOLE


def check_files(
    tx: Tx, group_id: int, digests: Iterable[str], *, now: Micros, sizes: Mapping[str, int] | None = None
) -> list[str]:
    """Those of the digests that the group has not stored, sorted. The others are renewed.

    ``sizes`` are what a request says of some of them: a file of another size counts as not stored. To be called in the
    transaction that stores the references: otherwise the files may be deleted before it commits.
    """
    wanted = sorted(set(digests))
    found: dict[str, int] = {}
    for start in range(0, len(wanted), WHOLE):
        found.update(stored_file.renew(tx, wanted[start : start + WHOLE], group_id, now=now))
    said = sizes or {}
    return [digest for digest in wanted if digest not in found or said.get(digest, found[digest]) != found[digest]]


def group_of_live_run(tx: Tx, bot_id: str, task_id: int, run: int, *, token: str) -> int | None:
    """The resource group of a run that has not ended; None if it has, or is not this bot's, or has another token."""
    for found in task_run.read(tx, [task_id]):
        if found.run == run and found.bot_id == bot_id and found.ended_at is None:
            return found.resource_group_id if compare_digest(found.token_hash, token_hash(token)) else None
    return None
