"""Bot zips for those who may have them, the script that brings one to a new machine, and the list of releases."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import Micros
from myrmidon.scheduler import bots
from myrmidon.server.auth.authenticator import bearer_of
from myrmidon.server.calls import (
    ADMINS,
    BOTS,
    INTRODUCERS,
    READERS,
    Answer,
    Call,
    Route,
)
from myrmidon.server.config.config_folder import BOOTSTRAP
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import rollout
from myrmidon.server.fleet.bot_zip import bootstrap_script, public_url
from myrmidon.server.settings import seconds
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import release
from myrmidon.store.tables.release import ReleaseInfo, ReleaseState


async def current_zip(context: ServerContext, call: Call) -> Answer:
    """The zip that every bot shall run."""
    return await _zip(context, await rollout.wanted_zip(context), call.headers.get("if-none-match", ""))


async def one_zip(context: ServerContext, call: Call) -> Answer:
    """A zip by its digest."""
    return await _zip(context, call.params["digest"], call.headers.get("if-none-match", ""))


async def _zip(context: ServerContext, digest: str, known: str) -> Answer:
    tag = f'"{digest}"'
    if digest and known == tag:
        return Answer(status=304, headers={"etag": tag}, body=b"")
    found = await context.db.read(lambda tx: _read(tx, digest))
    if found is None:
        raise NotFound("bot zip", digest[: rollout.DIGEST_CHARS])
    return Answer(headers={"etag": f'"{found.digest}"', "content-type": "application/zip"}, body=found.content)


def _read(tx: Tx, digest: str) -> release.Release | None:
    return release.read(tx, digest) if len(digest) == rollout.DIGEST_CHARS else None


class BootstrapQuery(Struct, frozen=True, kw_only=True):
    """Settings of the new bot, kept in its folder; ``tok`` is the token that it introduces itself with."""

    tok: str = ""
    pool: str = ""
    bot_id: str = ""


async def bootstrap(context: ServerContext, call: Call) -> Answer:
    """A script that turns a machine with Python into a bot: ``curl -s SERVER/bootstrap?tok=... | python3 -``."""
    query: BootstrapQuery = call.query
    if query.bot_id:
        bots.check_id(query.bot_id)
    text = bootstrap_script(
        server=public_url(context),
        token=bearer_of(call.headers) or query.tok,
        digest=await rollout.wanted_zip(context),
        pool=query.pool,
        bot_id=query.bot_id,
        now=context.now(),
        text=context.state.config.files.get(BOOTSTRAP),
    )
    return Answer(headers={"content-type": "text/x-python; charset=utf-8"}, body=text.encode())


# ---------------------------------------------------------------- releases


class ReleaseInfo(Struct, frozen=True, kw_only=True):
    """``state``: active, canary, new, old, or bad, which no bot is ever told to run again."""

    digest: str
    state: str
    created_at: Micros
    changed_at: Micros
    who: str
    why: str
    num_servers: int
    num_failures: int
    canary_share: int | None


class ReleaseList(Struct, frozen=True):
    releases: list[ReleaseInfo]


class RevertBody(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1024)] = ""


async def list_releases(context: ServerContext, call: Call) -> ReleaseList:
    """Every zip that bots were ever told to run and that is still kept, newest first."""
    since = context.now() - seconds(context.settings.release_grace_s)
    found = await context.db.read(lambda tx: release.read_all(tx, since=since))
    return ReleaseList([_shown(context, one) for one in found])


def _shown(context: ServerContext, one: ReleaseInfo) -> ReleaseInfo:
    return ReleaseInfo(
        digest=one.digest,
        state=_word_for(context, one),
        created_at=one.created_at,
        changed_at=one.changed_at,
        who=one.who,
        why=one.why,
        num_servers=one.num_servers,
        num_failures=one.num_failures,
        canary_share=context.hub.canary_share if one.digest == context.hub.canary else None,
    )


def _word_for(context: ServerContext, one: ReleaseInfo) -> str:
    if one.state in (ReleaseState.BAD, ReleaseState.NEW) or one.digest == context.hub.canary:
        return one.state
    return "active" if one.active else "old"  # a trial that the next release has cut short is over, too


async def revert_release(context: ServerContext, call: Call) -> ReleaseInfo:
    """Take a release back: bots go to the one before it. Saying it again is the same as saying it once."""
    body: RevertBody = call.body
    return _shown(context, await rollout.revert(context, call.params["digest"], who=call.who.name, why=body.reason))


ROUTES = (
    Route(
        method="GET",
        path="/bootstrap",
        call=bootstrap,
        who=INTRODUCERS,
        summary="A script that turns a machine into a bot",
        query=BootstrapQuery,
        media="text/x-python",
        query_token=True,
    ),
    Route(
        method="GET",
        path="/bot/v1/zip",
        call=current_zip,
        who=INTRODUCERS | BOTS,
        summary="The zip that every bot shall run",
        media="application/zip",
        query_token=True,
    ),
    Route(
        method="GET",
        path="/bot/v1/zip/{digest}",
        call=one_zip,
        who=INTRODUCERS | BOTS,
        summary="A bot zip by its digest",
        media="application/zip",
        query_token=True,
    ),
    Route(
        method="GET",
        path="/api/v1/releases",
        call=list_releases,
        who=READERS,
        out=ReleaseList,
        summary="Releases of the bot, newest first",
    ),
    Route(
        method="POST",
        path="/api/v1/releases/{digest}/revert",
        call=revert_release,
        who=ADMINS,
        body=RevertBody,
        out=ReleaseInfo,
        mutates=True,
        summary="Take a release of the bot back",
    ),
)
