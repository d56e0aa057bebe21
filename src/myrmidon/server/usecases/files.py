"""Files that clients and bots store and read: content by digest, recorded for the resource group that has sent it."""

from __future__ import annotations

from functools import partial
from typing import cast

from myrmidon.files.folder import check_digest
from myrmidon.server.calls import Answer, Call, StreamedBody
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import stored_file
from myrmidon.wire.files import StoredFile

_MAX_DIGITS = 19


async def store_file(context: ServerContext, call: Call, group_id: int) -> StoredFile:
    """Store the body of a call under the digest in its path, and record that the group has the file; idempotent.

    The content is received and compared even if the file is stored already: another group may have sent it, and knowing
    a digest must not be enough to read its file.
    """
    digest, body = check_digest(call.params["digest"]), cast("StreamedBody", call.body)
    group = (await context.groups.names_of([group_id])).get(group_id, "")
    has_file = partial(_has_file, digest=digest, group_id=group_id)
    async with context.storage_quotas.reserve(
        group, group_id, announced=_announced_size(call), now=call.now, has_file=has_file
    ) as upload:
        upload.size, is_new = await context.files.store(digest, aiter(body))
        now = context.now()
        in_use = partial(stored_file.is_in_use, digest=digest, group_id=group_id, size=upload.size, now=now)
        if is_new or not await context.db.read(in_use):
            record = partial(stored_file.insert, digest=digest, group_id=group_id, size=upload.size, now=now)
            await context.db.write(record)
    return StoredFile(digest, upload.size)


def _announced_size(call: Call) -> int:
    """The size of the body as its header says; 0 if it is sent in chunks, without a size."""
    announced = call.headers.get("content-length", "")
    return int(announced) if announced.isdecimal() and len(announced) < _MAX_DIGITS else 0


def _has_file(tx: Tx, digest: str, group_id: int) -> bool:
    return digest in stored_file.sizes(tx, [digest], group_id)


async def send_file(context: ServerContext, digest: str, headers: dict[str, str] | None = None) -> Answer:
    """The content of a file as a response. A large one is sent in pieces."""
    headers = headers or {}
    size, content = await context.files.read(digest)
    if not isinstance(content, bytes):
        headers = {**headers, "content-length": str(size)}
    return Answer(headers=headers, body=content)
