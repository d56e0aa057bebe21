"""What a bot was told when it was started: read from the command line once, kept in its folder, read from there.

    bot.json    server, bot id, pool, dimensions; also the mark that this folder is a bot's
    token       with which the bot shakes hands for the first time; private
    credential  the bot's own, given by the server; private
    session     the number of the last session

The token is never part of a command line that the bot writes itself, and never reaches a task.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from typing import Any

from myrmidon.bot.install import updater
from myrmidon.bot.system import dimensions, host

CONFIG_FILE = "bot.json"
_FLAGS = ("--dir", "--server", "--token", "--token-file", "--bot-id", "--suffix", "--pool", "--dimension")
_DIRECTORIES = ("work", "spool", "c", "caches")
_FILES = (
    CONFIG_FILE, "token", "credential", "session", "journal", "lock", "bot.pid", "bot.log", "context.json",
    "stacks.log", updater.NEXT_FILE, updater.FAILED_FILE, updater.BAD_FILE, *updater.NEW_ZIPS,
)  # fmt: skip


class StartupError(Exception):
    """The bot cannot start with these orders; the message says what to change."""


def parse(argv: list[str]) -> dict[str, Any]:
    """Flags, then the environment, then what the zip brings along."""
    given: dict[str, list[str]] = {flag: [] for flag in _FLAGS}
    rest = list(argv)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag not in given or (not equals and not rest):
            raise StartupError(f"{flag} is not understood; try help")
        given[flag].append(value if equals else rest.pop(0))
    return {
        "dir": _first_set(given["--dir"], os.environ.get("MYRMIDON_BOT_DIR"), os.path.join("~", "myrmidon-bot")),
        "server": _first_set(given["--server"], os.environ.get("MYRMIDON_SERVER"), zip_config().get("server")),
        "token": _token(given["--token"], given["--token-file"]),
        "bot_id": _bot_id(given["--bot-id"], given["--suffix"]),
        "pool": _first_set(given["--pool"]),
        "extra": _pairs(given["--dimension"]),
    }


def prepare(argv: list[str]) -> str:
    """Make or check the bot's folder and write the orders down; the folder."""
    given = parse(argv)
    folder = _real_path(given["dir"])
    _prepare_folder(folder)
    stored = _load(folder)
    if given["bot_id"] not in (None, stored.get("bot_id")) and not dimensions.is_id(given["bot_id"]):
        raise StartupError(f"{given['bot_id']!r} is no id of a bot: {dimensions.ID_RULE}")
    config = {
        "server": given["server"] or stored.get("server"),
        "bot_id": given["bot_id"] or stored.get("bot_id") or dimensions.default_id(),
        "pool": given["pool"] or stored.get("pool") or "default",
        "extra": given["extra"] or stored.get("extra") or {},
    }
    if not config["server"]:
        raise StartupError("no server is known: say --server URL or start the zip that the server gives out")
    try:
        if config != stored:  # a full disk must not keep a bot from starting again
            host.write_private(os.path.join(folder, CONFIG_FILE), json.dumps(config, indent=2).encode())
        if given["token"] and given["token"] != _text(folder, "token"):
            host.write_private(os.path.join(folder, "token"), given["token"].encode())
    except OSError as error:
        raise StartupError(f"the folder cannot be used: {error}") from error
    os.environ.pop("MYRMIDON_BOT_TOKEN", None)  # what a process inherits, its children can read
    if not (_text(folder, "token") or _text(folder, "credential")):
        raise StartupError("no token is known: say --token-file FILE or set MYRMIDON_BOT_TOKEN")
    return folder


def folder_of(argv: list[str]) -> str:
    """The folder that these flags mean."""
    return _real_path(parse(argv)["dir"])


def _real_path(path: str) -> str:
    return str(os.path.realpath(os.path.expanduser(path)))


def _bot_id(given: list[str], suffix: list[str]) -> str | None:
    """The id that was asked for; with a suffix, that of one of several bots of this machine."""
    asked = _first_set(given, os.environ.get("MYRMIDON_BOT_ID"), os.environ.get("SWARMING_BOT_ID"))
    if not suffix:
        return str(asked) if asked else None
    return f"{asked or dimensions.default_id()}--{suffix[-1]}"


def _prepare_folder(folder: str) -> None:
    """Only a folder that is new, empty or a bot's already: a bot removes things, but only its own."""
    if folder in ("/", os.path.realpath(os.path.expanduser("~"))):
        raise StartupError(f"{folder} is not a bot's own folder: choose an empty one with --dir")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = set(os.listdir(folder))
    except OSError as error:
        raise StartupError(f"the folder cannot be used: {error}") from error
    if CONFIG_FILE not in found and found - {"bot.zip", "token", "bot.log"}:
        raise StartupError(f"{folder} holds files that are no bot's: choose an empty folder with --dir")
    try:
        _check_entries(folder)
        os.chmod(folder, 0o700)
    except OSError as error:
        raise StartupError(f"the folder cannot be used: {error}") from error


def _check_entries(folder: str) -> None:
    """Where the bot would make a folder or a file, there is none yet, or one of the right kind and of this user.

    Whatever else is there, a person has put it there: the bot neither removes it nor follows it elsewhere. Only the zip
    that a person starts may be anybody's, and a link.
    """
    if os.path.isdir(os.path.join(folder, updater.GOOD_ZIP)):
        raise StartupError(f"{os.path.join(folder, updater.GOOD_ZIP)} is in the way: it is a folder; move it away")
    for names, right, kind in ((_DIRECTORIES, stat.S_ISDIR, "folder"), (_FILES, stat.S_ISREG, "file")):
        for name in names:
            path = os.path.join(folder, name)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            if not right(found.st_mode):
                raise StartupError(f"{path} is in the way: it is no {kind} of the bot's; move it away")
            if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
                raise StartupError(f"{path} belongs to another user; start the bot as that user, or move it away")


class StartupConfig:
    """The orders as a running bot reads them."""

    def __init__(self, folder: str) -> None:
        config = _load(folder)
        self.folder = folder
        self.server: str = config["server"]
        self.bot_id: str = config["bot_id"]
        self.pool: str = config["pool"]
        self.extra: dict[str, list[str]] = config["extra"]
        self.token = _text(folder, "token")
        self.credential = _text(folder, "credential")

    def save_credential(self, credential: str) -> None:
        if credential != self.credential:
            self.credential = credential
            host.write_private(os.path.join(self.folder, "credential"), credential.encode())

    def next_session(self) -> int:
        """Greater than every session before, also when the clock was set back.

        A bot that was never let in has had none: its clock may have been the reason.
        """
        last = 0
        with contextlib.suppress(ValueError):
            last = int((self.credential and _text(self.folder, "session")) or 0)
        session = max(time.time_ns() // 1000, last + 1)
        try:
            host.write_private(os.path.join(self.folder, "session"), str(session).encode())
        except OSError as error:
            if not host.disk_is_full(error):  # the clock alone is right nearly always
                raise
        return session


def zip_config() -> dict[str, Any]:
    """config.json of the zip."""
    import zipfile

    path = updater.own_zip()
    with contextlib.suppress(OSError, KeyError, ValueError, zipfile.BadZipFile):
        if path:
            with zipfile.ZipFile(path) as archive:
                return dict(json.loads(archive.read("config.json")))
    return {}


def _load(folder: str) -> dict[str, Any]:
    text = _text(folder, CONFIG_FILE)
    try:
        return dict(json.loads(text)) if text else {}
    except (ValueError, TypeError) as error:
        raise StartupError(f"{folder}/{CONFIG_FILE} is damaged: remove it and start again") from error


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name)) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def _token(given: list[str], files: list[str]) -> str:
    if files:
        try:
            with open(files[-1]) as file:
                return file.read().strip()
        except OSError as error:
            raise StartupError(f"the token cannot be read: {error}") from error
    return _first_set(given, os.environ.get("MYRMIDON_BOT_TOKEN")) or ""


def _pairs(given: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise StartupError(f"--dimension {pair}: say KEY=VALUE")
        found.setdefault(key, []).append(value)
    return found


def _first_set(given: list[str], *others: str | None) -> Any:
    return given[-1] if given else next((other for other in others if other), None)
