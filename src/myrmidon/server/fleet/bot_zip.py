"""Builds the bot zip, a complete bot in one file, and the script that installs it on a new machine.

The build is reproducible: the same sources, configuration folder and public URL give the same bytes on every server.
``rollout`` decides which zip each bot must run.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

from msgspec import Struct, json

from myrmidon.model.ids import Micros
from myrmidon.server.config.config_folder import BOOTSTRAP, BOT_CONFIG
from myrmidon.server.context import ServerContext

_FILE_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every file in a zip; fixed, so that builds are reproducible."""


class BotZip(Struct, frozen=True):
    """A zip and the digest of its contents."""

    digest: str
    content: bytes

    def __repr__(self) -> str:
        return f"BotZip({self.digest[:12]})"


DEFAULT_BOT_CONFIG = "myrmidon/bot/hooks/default_bot_config.py"


def bot_files(server_url: str, config_files: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """The contents of the zip: the bot's packages and entry point, the server's URL, and the hooks for all bots.

    bootstrap.py is included only because the digest must change with it: then a change of it is a new release.
    """
    config_files = config_files or {}
    package = {
        path: content
        for part in ("bot", "executor", "functions")
        for path, content in _python_files(files("myrmidon") / part, f"myrmidon/{part}")
    }
    included = {
        f"config/{name}": config_files[name].encode() for name in (BOT_CONFIG, BOOTSTRAP) if name in config_files
    }
    return {
        **package,
        f"config/{BOT_CONFIG}": package[DEFAULT_BOT_CONFIG],
        **included,
        "__main__.py": package["myrmidon/bot/__main__.py"],
        "myrmidon/__init__.py": (files("myrmidon") / "__init__.py").read_bytes(),
        "myrmidon/spider.py": (files("myrmidon") / "spider.py").read_bytes(),
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
    """The version of a bot: a digest of file names and contents, independent of how they are zipped."""
    digest = sha256()
    for name, content in sorted(contents.items()):
        encoded = name.encode()
        digest.update(b"%d:%s%d:" % (len(encoded), encoded, len(content)) + content)
    return digest.hexdigest()


def build_zip(contents: Mapping[str, bytes]) -> BotZip:
    """A zip of these files; the same contents always give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(name, _FILE_TIME)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, content, zipfile.ZIP_STORED)
    return BotZip(digest_of(contents), buffer.getvalue())


def public_url(context: ServerContext) -> str:
    """The URL under which bots reach the server: the setting, or else the address that this server listens on."""
    settings = context.settings
    if settings.public_url:
        return settings.public_url.rstrip("/")
    scheme = "https" if settings.tls_certificate else "http"
    host = "127.0.0.1" if context.server.address in ("0.0.0.0", "::") else context.server.address  # noqa: S104 - compared
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{context.server.port}"


def bootstrap_script(
    *,
    server: str,
    token: str,
    digest: str,
    pool: str,
    bot_id: str,
    now: Micros,
    dimensions: Sequence[str] = (),
    text: str | None = None,
) -> str:
    """A Python 3.8 script that downloads and starts a bot.

    Values are inserted as literals, so that nothing a caller sends can run as code. ``text`` is an administrator's
    bootstrap.py, used in place of the default script. Both can use the constants SERVER, TOKEN, DIGEST, POOL, BOT_ID
    and DIMENSIONS (``key:value``). TOKEN is empty for a caller that its network admits.
    """
    constants = {"server": server, "token": token, "digest": digest, "pool": pool, "bot_id": bot_id}
    values = {name: repr(value) for name, value in constants.items()}
    values["dimensions"] = repr(list(dimensions))
    return _HEADER.substitute(values, made_at=now // 1_000_000) + (_DEFAULT_SCRIPT if text is None else text)


_HEADER = Template("""\
# Installs and starts a bot of a Myrmidon server on this machine. Needs Python 3.8 or later. Created at $made_at.
SERVER = $server
TOKEN = $token
DIGEST = $digest
POOL = $pool
BOT_ID = $bot_id
DIMENSIONS = $dimensions
""")

_DEFAULT_SCRIPT = """
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
    digest = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in sorted(archive.namelist()):
            encoded, data = name.encode(), archive.read(name)
            digest.update(b"%d:%s%d:" % (len(encoded), encoded, len(data)) + data)
    return digest.hexdigest()


def download():
    headers = {"Authorization": "Bearer " + TOKEN} if TOKEN else {}
    request = urllib.request.Request(SERVER + "/bot/v1/zip/" + DIGEST, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read()
    except OSError as error:
        fail("cannot download the bot from %s: %s" % (SERVER, error))


def write_private(path, content):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


def main():
    if sys.version_info < (3, 8):
        fail("Python %d.%d is too old; a bot needs Python 3.8 or later" % sys.version_info[:2])
    folder = os.path.abspath(os.path.expanduser(os.environ.get("MYRMIDON_BOT_DIR") or "~/myrmidon-bot"))
    content = download()
    if digest_of(content) != DIGEST:
        fail("the downloaded bot is corrupt (wrong digest); try again")
    first = folder + ".first.zip"
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    write_private(first, content)
    arguments = [sys.executable, first, "start", "--dir", folder, "--server", SERVER]
    if POOL:
        arguments += ["--pool", POOL]
    if BOT_ID:
        arguments += ["--bot-id", BOT_ID]
    for dimension in DIMENSIONS:
        arguments += ["--dimension", dimension.replace(":", "=", 1)]
    if TOKEN:
        # A file that the bot moves into its folder and deletes after its introduction: tasks can read an environment.
        write_private(folder + ".token", TOKEN.encode())
        arguments += ["--token-file", folder + ".token"]
    if os.name == "posix":
        # Standard input may be the pipe that this script was read from.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.execv(sys.executable, arguments)
    import subprocess

    sys.exit(subprocess.call(arguments))


main()
"""
