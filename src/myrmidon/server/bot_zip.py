"""The bot zip: one file that is a whole bot, made from this installation and named by its contents.

The same sources and the same public address make the same bytes on every server. The database keeps the zips
and says which one is for all bots, so that servers of different versions or addresses on one database never
make the fleet update back and forth. This file also hands out the script that brings a bot to a new machine.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from importlib.resources import files
from string import Template

from msgspec import Struct, json

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import Micros
from myrmidon.server.auth import bearer_of
from myrmidon.server.door import BOTS, INTRODUCERS, Answer, Call, Door, Route
from myrmidon.store import releases
from myrmidon.store.db import Tx

_LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""A zip wants a time for every file; one that never changes keeps equal contents equal."""


class BotZip(Struct, frozen=True):
    """A zip and the digest of what is in it."""

    digest: str
    content: bytes

    def __repr__(self) -> str:
        return f"BotZip({self.digest[:12]})"


def bot_files(server_url: str) -> dict[str, bytes]:
    """What a bot consists of: its package, the start of it, and where its server is."""
    package = files("myrmidon") / "bot"
    found = {
        f"myrmidon/bot/{item.name}": item.read_bytes()
        for item in package.iterdir()
        if item.is_file() and item.name.endswith(".py")
    }
    return {
        **found,
        "__main__.py": found["myrmidon/bot/__main__.py"],
        "myrmidon/__init__.py": (files("myrmidon") / "__init__.py").read_bytes(),
        "config.json": json.encode({"server": server_url}),
    }


def digest_of(contents: Mapping[str, bytes]) -> str:
    """The version of a bot: names and contents, whatever the zip around them looks like."""
    told = sha256()
    for name, content in sorted(contents.items()):
        encoded = name.encode()
        told.update(b"%d:%s%d:" % (len(encoded), encoded, len(content)) + content)
    return told.hexdigest()


def build_zip(contents: Mapping[str, bytes]) -> BotZip:
    """The same contents make the same bytes, whenever and wherever."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, content, zipfile.ZIP_STORED)
    return BotZip(digest_of(contents), buffer.getvalue())


def public_url(door: Door) -> str:
    """Where bots find this installation: the setting, or the address of this very server."""
    settings = door.settings
    if settings.public_url:
        return settings.public_url.rstrip("/")
    scheme = "https" if settings.tls_certificate else "http"
    host = "127.0.0.1" if door.server.address in ("0.0.0.0", "::") else door.server.address  # noqa: S104 - compared
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{door.server.port}"


async def offer_zip(door: Door) -> str:
    """Bring this installation's zip to the database; the digest that all bots shall have is wanted from now on."""
    zipped = await door.aside(lambda: build_zip(bot_files(public_url(door))))
    now = door.now()
    offer = partial(releases.offer, digest=zipped.digest, content=zipped.content, now=now)
    door.hub.wanted = await door.write(offer)
    return door.hub.wanted


async def wanted_zip(door: Door) -> str:
    """The digest that all bots shall have, also in the first moments of a server."""
    return door.hub.wanted or await offer_zip(door)


async def refresh_wanted(door: Door) -> bool:
    """Ask which zip all bots shall have; True when that has changed."""
    active = await door.read(releases.active)
    if active is None or active == door.hub.wanted:
        return False
    door.hub.wanted = active
    return True


# ---------------------------------------------------------------- routes


async def current_zip(door: Door, call: Call) -> Answer:
    """The zip that every bot shall run."""
    return await _zip(door, await wanted_zip(door), call.headers.get("if-none-match", ""))


async def one_zip(door: Door, call: Call) -> Answer:
    """A zip by its digest."""
    return await _zip(door, call.params["digest"], call.headers.get("if-none-match", ""))


async def _zip(door: Door, digest: str, known: str) -> Answer:
    tag = f'"{digest}"'
    if digest and known == tag:
        return Answer(status=304, headers={"etag": tag}, body=b"")
    found = await door.read(lambda tx: _read(tx, digest))
    if found is None:
        raise NotFound("bot zip", digest[:64])
    return Answer(headers={"etag": f'"{found.digest}"', "content-type": "application/zip"}, body=found.content)


def _read(tx: Tx, digest: str) -> releases.Release | None:
    return releases.read(tx, digest) if len(digest) == 64 else None


class BootstrapQuery(Struct, frozen=True, kw_only=True):
    """Settings of the new bot, kept in its folder; ``tok`` is the token that it introduces itself with."""

    tok: str = ""
    pool: str = ""
    bot_id: str = ""


async def bootstrap(door: Door, call: Call) -> Answer:
    """A script that turns a machine with Python into a bot: ``curl -s SERVER/bootstrap?tok=... | python3 -``."""
    query: BootstrapQuery = call.query
    text = bootstrap_script(
        server=public_url(door),
        token=bearer_of(call.headers) or query.tok,
        digest=await wanted_zip(door),
        pool=query.pool,
        bot_id=query.bot_id,
        now=door.now(),
    )
    return Answer(headers={"content-type": "text/x-python; charset=utf-8"}, body=text.encode())


def bootstrap_script(*, server: str, token: str, digest: str, pool: str, bot_id: str, now: Micros) -> str:
    """Python 3.8 text; every value in it is a literal, so that nothing a caller sends is ever code."""
    given = {"server": server, "token": token, "digest": digest, "pool": pool, "bot_id": bot_id}
    return _SCRIPT.substitute({name: repr(value) for name, value in given.items()}, made_at=now // 1_000_000)


_SCRIPT = Template("""\
# Turns this machine into a bot of a Myrmidon server. Made at $made_at (Unix time); works with Python 3.8 and later.
import hashlib
import io
import os
import sys
import urllib.request
import zipfile

SERVER = $server
TOKEN = $token
DIGEST = $digest
POOL = $pool
BOT_ID = $bot_id


def fail(text):
    sys.stderr.write("myrmidon bootstrap: %s\\n" % text)
    sys.exit(1)


def digest_of(content):
    told = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in sorted(archive.namelist()):
            encoded, data = name.encode(), archive.read(name)
            told.update(b"%d:%s%d:" % (len(encoded), encoded, len(data)) + data)
    return told.hexdigest()


def download():
    request = urllib.request.Request(SERVER + "/bot/v1/zip/" + DIGEST, headers={"Authorization": "Bearer " + TOKEN})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()
    except OSError as error:
        fail("cannot get the bot from %s: %s" % (SERVER, error))


def main():
    if sys.version_info < (3, 8):
        fail("this is Python %d.%d; a bot needs 3.8 or later" % sys.version_info[:2])
    folder = os.path.abspath(os.path.expanduser(os.environ.get("MYRMIDON_BOT_DIR") or "~/myrmidon-bot"))
    content = download()
    if digest_of(content) != DIGEST:
        fail("the download is damaged; try again")
    first = folder + ".first.zip"
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(os.open(first, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    arguments = [sys.executable, first, "start", "--dir", folder, "--server", SERVER]
    if POOL:
        arguments += ["--pool", POOL]
    if BOT_ID:
        arguments += ["--bot-id", BOT_ID]
    environment = dict(os.environ, MYRMIDON_BOT_TOKEN=TOKEN)
    if os.name == "posix":
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.execve(sys.executable, arguments, environment)
    import subprocess

    sys.exit(subprocess.call(arguments, env=environment))


main()
""")


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
)
