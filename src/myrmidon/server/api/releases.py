"""Bot releases: downloads of bot zips, the bootstrap script for new machines; list, revert and allow releases."""

from __future__ import annotations

from myrmidon.model.errors import NotFound
from myrmidon.scheduler import bots
from myrmidon.server.calls import (
    ADMINS,
    BOTS,
    INTRODUCERS,
    READERS,
    Answer,
    Call,
    Routes,
)
from myrmidon.server.config.config_folder import BOOTSTRAP
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import rollout
from myrmidon.server.fleet.bot_zip import bootstrap_script, public_url
from myrmidon.server.settings import seconds
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import release
from myrmidon.store.tables.release import ReleaseState
from myrmidon.wire.releases import AllowBody, BootstrapQuery, ReleaseInfo, ReleaseList, RevertBody

ROUTES = Routes()


@ROUTES.add(
    "GET", "/bot/v1/zip", INTRODUCERS | BOTS, "Download the current bot zip", media="application/zip", query_token=True
)
async def current_zip(context: ServerContext, call: Call) -> Answer:
    """The zip of the release that all bots should run."""
    return await _zip(context, await rollout.get_active_release(context), call.headers.get("if-none-match", ""))


@ROUTES.add(
    "GET",
    "/bot/v1/zip/{digest}",
    INTRODUCERS | BOTS,
    "Download a bot zip by its digest",
    media="application/zip",
    query_token=True,
)
async def one_zip(context: ServerContext, call: Call) -> Answer:
    """A bot zip by its digest."""
    return await _zip(context, call.params["digest"], call.headers.get("if-none-match", ""))


async def _zip(context: ServerContext, digest: str, if_none_match: str) -> Answer:
    etag = f'"{digest}"'
    if digest and if_none_match == etag:
        return Answer(status=304, headers={"etag": etag}, body=b"")
    stored = await context.db.read(lambda tx: _read(tx, digest))
    if stored is None:
        raise NotFound("bot zip", digest[: rollout.DIGEST_CHARS])
    return Answer(headers={"etag": f'"{stored.digest}"', "content-type": "application/zip"}, body=stored.content)


def _read(tx: Tx, digest: str) -> release.Release | None:
    return release.read(tx, digest) if len(digest) == rollout.DIGEST_CHARS else None


@ROUTES.add(
    "GET",
    "/bootstrap",
    INTRODUCERS,
    "Get the bootstrap script for a new bot",
    query=BootstrapQuery,
    media="text/x-python",
    query_token=True,
)
async def bootstrap(context: ServerContext, call: Call) -> Answer:
    """A Python script that installs and starts a bot: ``curl -s SERVER/bootstrap?tok=... | python3 -``."""
    query: BootstrapQuery = call.query
    if query.bot_id:
        bots.check_id(query.bot_id)
    script = bootstrap_script(
        server=public_url(context),
        token=call.bearer,
        digest=await rollout.get_active_release(context),
        pool=query.pool,
        bot_id=query.bot_id,
        dimensions=query.dimension,
        now=context.now(),
        text=context.state.config.files.get(BOOTSTRAP),
    )
    return Answer(headers={"content-type": "text/x-python; charset=utf-8"}, body=script.encode())


# ---------------------------------------------------------------- releases


@ROUTES.add("GET", "/api/v1/releases", READERS, "List bot releases")
async def list_releases(context: ServerContext, call: Call) -> ReleaseList:
    """Stored releases, newest first."""
    since = context.now() - seconds(context.settings.release_grace_s)
    rows = await context.db.read(lambda tx: release.read_all(tx, since=since))
    return ReleaseList([_info(context, row) for row in rows])


def _info(context: ServerContext, row: release.ReleaseInfo) -> ReleaseInfo:
    return ReleaseInfo(
        digest=row.digest,
        state=_state(context, row),
        created_at=row.created_at,
        changed_at=row.changed_at,
        who=row.who,
        why=row.why,
        num_servers=row.num_servers,
        num_failures=row.num_failures,
        canary_share=context.hub.canary_share if row.digest == context.hub.canary_release else None,
    )


def _state(context: ServerContext, row: release.ReleaseInfo) -> str:
    if row.state in (ReleaseState.BAD, ReleaseState.NEW) or row.digest == context.hub.canary_release:
        return row.state
    return "active" if row.active else "old"  # includes a former canary that a newer release has replaced


@ROUTES.add("POST", "/api/v1/releases/{digest}/revert", ADMINS, "Revert a bot release", body=RevertBody, mutates=True)
async def revert_release(context: ServerContext, call: Call) -> ReleaseInfo:
    """Mark a release as bad: bots return to the one before it. Idempotent."""
    body: RevertBody = call.body
    return _info(context, await rollout.revert(context, call.params["digest"], who=call.who.name, why=body.reason))


@ROUTES.add(
    "POST",
    "/api/v1/releases/{digest}/allow",
    ADMINS,
    "Allow a bot release that was reverted",
    body=AllowBody,
    mutates=True,
)
async def allow_release(context: ServerContext, call: Call) -> ReleaseInfo:
    """Lift the ban of a bad release: it is new again, and earlier failures do not count. Idempotent."""
    body: AllowBody = call.body
    return _info(context, await rollout.allow(context, call.params["digest"], who=call.who.name, why=body.reason))
