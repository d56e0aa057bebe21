"""Files that clients upload: large constants, and the code of functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from myrmidon.files.folder import FileFolder
from myrmidon.model.errors import NotFound
from myrmidon.server.calls import JOB_WRITERS, READERS, Answer, Call, Routes, StreamedBody
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.files import send_file, store_file
from myrmidon.store.tables import stored_file
from myrmidon.wire.files import MAX_FILE_BYTES, FileQuery, FileRef, FindMissing, MissingFiles, StoredFile

ROUTES = Routes()


@ROUTES.add(
    "POST",
    "/api/v1/files/missing",
    JOB_WRITERS,
    "Find out which files must be uploaded",
    body=FindMissing,
    mutates=True,
    quiet=True,
)
async def find_missing(context: ServerContext, call: Call) -> MissingFiles:
    """Which files the resource group has to upload. Those that it has are kept for another day at least."""
    body: FindMissing = call.body
    group_id = await context.groups.id_for(call, body.group)
    digests = sorted({file.digest for file in body.files})
    renew = partial(stored_file.renew, digests=digests, group_id=group_id, now=context.now())
    sizes = await context.db.write(renew)
    return MissingFiles(await context.files.run(lambda: _missing(context.files.folder, body.files, sizes)))


def _missing(folder: FileFolder, files: Sequence[FileRef], sizes: Mapping[str, int]) -> list[str]:
    """The files that are not recorded, or not in the folder: an administrator may have lost some of them."""
    missing = {
        file.digest for file in files if sizes.get(file.digest) != file.size or not folder.has(file.digest, file.size)
    }
    return sorted(missing)


@ROUTES.add(
    "PUT",
    "/api/v1/files/{digest}",
    JOB_WRITERS,
    "Upload a file",
    body=StreamedBody,
    query=FileQuery,
    mutates=True,
    quiet=True,
    body_limit=MAX_FILE_BYTES,
)
async def upload_file(context: ServerContext, call: Call) -> StoredFile:
    """Store a file of at most 64 MiB under the SHA-256 digest of its content. Storing it again changes nothing."""
    query: FileQuery = call.query
    group_id = await context.groups.id_for(call, query.group)
    return await store_file(context, call, group_id)


@ROUTES.add(
    "GET", "/api/v1/files/{digest}", READERS, "Download a file", query=FileQuery, media="application/octet-stream"
)
async def download_file(context: ServerContext, call: Call) -> Answer:
    """The content of a file that the resource group has, such as the code of a function."""
    query: FileQuery = call.query
    digest = call.params["digest"]
    group_id = await context.groups.id_for(call, query.group)
    sizes = await context.db.read(partial(stored_file.sizes, digests=[digest], group_id=group_id))
    if digest not in sizes:
        raise NotFound("file", digest[:64])
    return await send_file(context, digest)
