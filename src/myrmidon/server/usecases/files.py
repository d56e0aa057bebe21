"""Files that clients and bots store and read: content by digest, recorded for the resource group that has sent it."""

from __future__ import annotations

from functools import partial

from myrmidon.files.folder import check_digest
from myrmidon.server.calls import Answer, StreamedBody
from myrmidon.server.context import ServerContext
from myrmidon.store.tables import stored_file
from myrmidon.wire.files import StoredFile


async def store_file(context: ServerContext, digest: str, body: StreamedBody, group_id: int) -> StoredFile:
    """Store a file and record that the group has it; idempotent.

    The content is received and compared even if the file is stored already: another group may have sent it, and knowing
    a digest must not be enough to read its file.
    """
    check_digest(digest)
    size = await context.files.store(digest, aiter(body))
    record = partial(stored_file.insert, digest=digest, group_id=group_id, size=size, now=context.now())
    await context.db.write(record)
    return StoredFile(digest, size)


async def send_file(context: ServerContext, digest: str, headers: dict[str, str] | None = None) -> Answer:
    """The content of a file as a response. A large one is sent in pieces."""
    headers = headers or {}
    size, content = await context.files.read(digest)
    if not isinstance(content, bytes):
        headers = {**headers, "content-length": str(size)}
    return Answer(headers=headers, body=content)
