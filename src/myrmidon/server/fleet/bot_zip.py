"""The bot zip: one file that is a whole bot, made from this installation and named by its contents.

The same sources, the same settings folder and the same public address make the same bytes on every server. This file
also makes the script that brings a bot to a new machine. Which zip is for whom is decided elsewhere.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.server.config.config_folder import BOOTSTRAP, BOT_CONFIG
from myrmidon.server.context import ServerContext

_LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""A zip wants a time for every file; one that never changes keeps equal contents equal."""


class BotZip(Struct, frozen=True):
    """A zip and the digest of what is in it."""

    digest: str
    content: bytes

    def __repr__(self) -> str:
        return f"BotZip({self.digest[:12]})"


DEFAULT_BOT_CONFIG = "myrmidon/bot/hooks/default_bot_config.py"


def bot_files(server_url: str, config: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """What a bot consists of: its package, the start of it, where its server is, and its administrator's hooks.

    The script that brings a bot to a machine is in it for its digest's sake: an edit of it is a new release, too.
    """
    given = config or {}
    found = dict(_python_files(files("myrmidon") / "bot", "myrmidon/bot"))
    own = {f"config/{name}": given[name].encode() for name in (BOT_CONFIG, BOOTSTRAP) if name in given}
    return {
        **found,
        f"config/{BOT_CONFIG}": found[DEFAULT_BOT_CONFIG],
        **own,
        "__main__.py": found["myrmidon/bot/__main__.py"],
        "myrmidon/__init__.py": (files("myrmidon") / "__init__.py").read_bytes(),
        "config.json": json.encode({"server": server_url}),
    }


def _python_files(package: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """The Python files of a package and of its subpackages, by their path in the zip."""
    for item in package.iterdir():
        if item.is_dir():
            yield from _python_files(item, f"{name}/{item.name}")
        elif item.name.endswith(".py"):
            yield f"{name}/{item.name}", item.read_bytes()


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


def public_url(context: ServerContext) -> str:
    """Where bots find this installation: the setting, or the address of this very server."""
    settings = context.settings
    if settings.public_url:
        return settings.public_url.rstrip("/")
    scheme = "https" if settings.tls_certificate else "http"
    host = "127.0.0.1" if context.server.address in ("0.0.0.0", "::") else context.server.address  # noqa: S104 - compared
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{context.server.port}"


def bootstrap_script(
    *, server: str, token: str, digest: str, pool: str, bot_id: str, now: Micros, text: str | None = None
) -> str:
    """Python 3.8 text; every value in it is a literal, so that nothing a caller sends is ever code.

    ``text`` is the administrator's bootstrap.py: it finds the same five names as the usual one.
    """
    given = {"server": server, "token": token, "digest": digest, "pool": pool, "bot_id": bot_id}
    values = {name: repr(value) for name, value in given.items()}
    return _HEAD.substitute(values, made_at=now // 1_000_000) + (_USUAL if text is None else text)


_HEAD = Template("""\
# Turns this machine into a bot of a Myrmidon server. Made at $made_at (Unix time); works with Python 3.8 and later.
SERVER = $server
TOKEN = $token
DIGEST = $digest
POOL = $pool
BOT_ID = $bot_id
""")

_USUAL = """
import hashlib
import io
import os
import sys
import urllib.request
import zipfile


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
"""
