"""The startup configuration: read from the command line by `start`, stored in the bot's folder, loaded by the worker.

    bot.json    server, bot id, pool, dimensions; its presence identifies the folder of a bot
    token       bootstrap token for the first handshake, which deletes it; private
    credential  the bot's credential, issued by the server; private
    session     number of the last session

The token comes in a file only: tasks and other users can read command lines, and tasks the bot's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from typing import Any

from myrmidon.bot.install import updater
from myrmidon.bot.system import dimensions, filesystem, users
from myrmidon.bot.system.filesystem import is_own_folder

CONFIG_FILE = "bot.json"
_FLAGS = (
    "--dir", "--server", "--token-file", "--bot-id", "--suffix", "--pool", "--dimension", "--isolation",
    "--task-user", "--hide", "--pass-env", "--slots", "--library-dir", "--environments",
)  # fmt: skip
AUTO, OFF = "auto", "off"
_DIRECTORIES = ("work", "spool", "c", "context", "functions", "environments")
_OPEN_TO_TASKS = ("work", "context", "functions", "environments")
SHARED_ENVIRONMENTS = "myrmidon-environments"
"""The folder beside those of the bots of one user in which they share environments of functions."""
MAX_SLOTS = 1024
_FILES = (
    CONFIG_FILE, "token", "credential", "session", "journal", "lock", "bot.pid", "bot.log", "stacks.log",
    updater.NEXT_FILE, updater.FAILED_FILE, updater.BAD_FILE, *updater.NEW_ZIPS,
)  # fmt: skip


class StartupError(Exception):
    """The bot cannot start; the message says what to change."""


def parse(argv: list[str]) -> dict[str, Any]:
    """The options: flags first, then environment variables, then the configuration in the zip."""
    given: dict[str, list[str]] = {flag: [] for flag in _FLAGS}
    rest = list(argv)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag not in given or (not equals and not rest):
            raise StartupError(f"{flag} is unknown or lacks a value; see `help`")
        given[flag].append(value if equals else rest.pop(0))
    return {
        "dir": _first_set(given["--dir"], os.environ.get("MYRMIDON_BOT_DIR"), os.path.join("~", "myrmidon-bot")),
        "server": ",".join(given["--server"]) or os.environ.get("MYRMIDON_SERVER") or zip_config().get("server"),
        "token_file": _first_set(given["--token-file"]),
        "bot_id": _bot_id(given["--bot-id"], given["--suffix"]),
        "pool": _first_set(given["--pool"]),
        "extra": _pairs(given["--dimension"]),
        "isolation": _first_set(given["--isolation"], os.environ.get("MYRMIDON_BOT_ISOLATION")),
        "task_user": _first_set(given["--task-user"]),
        "hidden": [_real_path(path) for path in given["--hide"]],
        "pass_env": given["--pass-env"],
        "slots": _slots(_first_set(given["--slots"])),
        "library_dirs": [_real_path(path) for path in given["--library-dir"]],
        "environments": _first_set(given["--environments"], os.environ.get("MYRMIDON_BOT_ENVIRONMENTS")),
    }


def prepare(argv: list[str]) -> str:
    """Create or check the bot's folder and store the configuration in it; the path of the folder.

    Options that are not given keep their stored values. Raises StartupError.
    """
    if os.environ.get("MYRMIDON_BOT_TOKEN"):
        raise StartupError("unset MYRMIDON_BOT_TOKEN: tasks could read it. Use --token-file FILE for a new bot")
    given = parse(argv)
    folder = _real_path(given["dir"])
    _prepare_folder(folder)
    stored = _load(folder)
    if given["bot_id"] not in (None, stored.get("bot_id")) and not dimensions.is_id(given["bot_id"]):
        raise StartupError(f"{given['bot_id']!r} is not a valid bot id: {dimensions.ID_RULE}")
    config = {
        "server": given["server"] or stored.get("server"),
        "bot_id": given["bot_id"] or stored.get("bot_id") or dimensions.default_id(),
        "pool": given["pool"] or stored.get("pool") or "default",
        "extra": given["extra"] or stored.get("extra") or {},
        "isolation": given["isolation"] or stored.get("isolation") or AUTO,
        "task_user": given["task_user"] if given["task_user"] is not None else stored.get("task_user") or "",
        "hidden": given["hidden"] or stored.get("hidden") or [],
        "pass_env": given["pass_env"] or stored.get("pass_env") or [],
        "slots": given["slots"] if given["slots"] is not None else stored.get("slots") or 0,
        "library_dirs": given["library_dirs"] or stored.get("library_dirs") or [],
        "environments": _environments(folder, given["environments"] or stored.get("environments")),
    }
    _check_isolation(config, folder)
    if not config["server"]:
        raise StartupError("no server is configured: use --server URL or a zip downloaded from the server")
    for url in str(config["server"]).split(","):
        if not url.strip().startswith(("http://", "https://")):
            raise StartupError(f"--server {url.strip()}: use an http or https URL, or several, separated by commas")
    try:
        if config != stored:  # a bot must be able to restart while the disk is full
            filesystem.write_private(os.path.join(folder, CONFIG_FILE), json.dumps(config, indent=2).encode())
    except OSError as error:
        raise StartupError(f"the folder cannot be used: {error}") from error
    if given["token_file"]:
        _take_token(given["token_file"], folder)
    return folder


def has_access(folder: str) -> bool:
    """Whether the bot of this folder has a token or a credential."""
    return bool(_text(folder, "token") or _text(folder, "credential"))


def folder_of(argv: list[str]) -> str:
    """The folder selected by these options."""
    return _real_path(parse(argv)["dir"])


def _real_path(path: str) -> str:
    return str(os.path.realpath(os.path.expanduser(path)))


def _bot_id(given: list[str], suffix: list[str]) -> str | None:
    """The requested bot id, with the suffix if one is given; None to use the stored or default id."""
    asked = _first_set(given, os.environ.get("MYRMIDON_BOT_ID"), os.environ.get("SWARMING_BOT_ID"))
    if not suffix:
        return str(asked) if asked else None
    return f"{asked or dimensions.default_id()}--{suffix[-1]}"


def _prepare_folder(folder: str) -> None:
    """Create the folder, or check that it is empty or belongs to a bot: a bot removes files from its folder."""
    if folder in ("/", os.path.realpath(os.path.expanduser("~"))):
        raise StartupError(f"{folder} cannot be the folder of a bot: choose an empty folder with --dir")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = set(os.listdir(folder))
    except OSError as error:
        raise StartupError(f"the folder cannot be used: {error}") from error
    if CONFIG_FILE not in found and found - {"bot.zip", "token", "bot.log"}:
        raise StartupError(f"{folder} contains files that do not belong to a bot: choose an empty folder with --dir")
    try:
        _check_entries(folder)
    except OSError as error:
        raise StartupError(f"the folder cannot be used: {error}") from error


def _check_entries(folder: str) -> None:
    """Check that every file and folder that the bot uses is missing, or has the right type and belongs to this user.

    Anything else was put there by a person; the bot neither removes it nor follows links. Only bot.zip may be a link or
    belong to another user, because a person starts it.
    """
    if os.path.isdir(os.path.join(folder, updater.GOOD_ZIP)):
        raise StartupError(f"{os.path.join(folder, updater.GOOD_ZIP)} is a folder, not a zip; move it away")
    for names, right, kind in ((_DIRECTORIES, stat.S_ISDIR, "folder"), (_FILES, stat.S_ISREG, "file")):
        for name in names:
            path = os.path.join(folder, name)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue
            if not right(found.st_mode):
                raise StartupError(f"{path} is not a {kind}, as the bot needs; move it away")
            if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
                raise StartupError(f"{path} belongs to another user; start the bot as that user, or move it away")


def _check_isolation(config: dict[str, Any], folder: str) -> None:
    """Check how commands are to be isolated, and let their user pass through the bot's folder."""
    if config["isolation"] not in (AUTO, OFF):
        raise StartupError(f"--isolation {config['isolation']}: use {AUTO} or {OFF}")
    try:
        if config["task_user"]:
            users.find(config["task_user"], folder)
            _close_entries(folder)
        os.chmod(folder, 0o711 if config["task_user"] else 0o700)
    except users.UnusableUser as error:
        raise StartupError(f"--task-user {config['task_user']}: {error}") from error
    except OSError as error:
        raise StartupError(f"the folder cannot be used: {error}") from error


def _close_entries(folder: str) -> None:
    """Make everything private that a person or an earlier start has left in the bot's folder."""
    for entry in os.scandir(folder):
        if not entry.is_symlink() and entry.name not in _OPEN_TO_TASKS:
            os.chmod(entry.path, stat.S_IMODE(entry.stat().st_mode) & 0o700)


class StartupConfig:
    """The stored configuration of a folder, as the worker uses it."""

    def __init__(self, folder: str) -> None:
        config = _load(folder)
        self.folder = folder
        self.server: str = config["server"]
        self.first_server = self.server.partition(",")[0].strip()
        self.bot_id: str = config["bot_id"]
        self.pool: str = config["pool"]
        self.extra: dict[str, list[str]] = config["extra"]
        self.isolation: str = config.get("isolation", AUTO)
        self.task_user: str = config.get("task_user", "")
        self.hidden: list[str] = config.get("hidden", [])
        self.pass_env: list[str] = config.get("pass_env", [])
        self.slots: int = max(config.get("slots") or _processors(), 0)
        self.library_dirs: list[str] = config.get("library_dirs", [])
        self.environments: str = config.get("environments") or _environments(folder, None)
        self.token = _text(folder, "token")
        self.credential = _text(folder, "credential")

    def forget_token(self) -> None:
        """Delete the token once the bot has a credential: a task must not be able to introduce bots."""
        self.token = ""
        filesystem.remove_file(os.path.join(self.folder, "token"))

    def other_bearer(self, refused: str) -> str:
        """The bearer to try after the server has refused one: the token, which may be new, or the credential."""
        self.token = _text(self.folder, "token")
        known = (text for text in (self.token, self.credential) if text and text != refused)
        return next(known, refused)

    def find_task_user(self) -> users.TaskUser | None:
        """The user that commands run as; None for the bot's own. Raises UnusableUser."""
        return users.find(self.task_user, self.folder) if self.task_user else None

    def save_credential(self, credential: str) -> None:
        if credential != self.credential:
            self.credential = credential
            filesystem.write_private(os.path.join(self.folder, "credential"), credential.encode())

    def next_session(self) -> int:
        """The session that a new process proposes: greater than all earlier ones, even if the clock was set back.

        The server chooses another one if the clock is wrong. Without a credential no session was ever accepted, and the
        stored number is ignored.
        """
        last = 0
        with contextlib.suppress(ValueError):
            last = int((self.credential and _text(self.folder, "session")) or 0)
        session = max(time.time_ns() // 1000, last + 1)
        self.save_session(session)
        return session

    def save_session(self, session: int) -> None:
        """Store a session, so that the next process proposes a later one."""
        try:
            filesystem.write_private(os.path.join(self.folder, "session"), str(session).encode())
        except OSError as error:
            if not filesystem.disk_is_full(error):  # the clock alone is nearly always sufficient
                raise


def zip_config() -> dict[str, Any]:
    """config.json of the running zip; empty without a zip."""
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


def _take_token(path: str, folder: str) -> None:
    """Move a token from a file that only its owner can read into the bot's folder.

    At a later start with the same options the file is gone, and the bot has its credential.
    """
    stored = os.path.join(folder, "token")
    try:
        with open(path) as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                raise StartupError(f"other users may read {path}: change that with `chmod 600`")
            token = file.read().strip()
        if os.path.realpath(path) != os.path.realpath(stored):
            filesystem.write_private(stored, token.encode())
            with contextlib.suppress(OSError):  # its folder may be read-only
                os.unlink(path)
    except OSError as error:
        if not (isinstance(error, FileNotFoundError) and has_access(folder)):
            raise StartupError(f"the token file cannot be read: {error}") from error


def _slots(given: str | None) -> int | None:
    """How many functions run at a time: a number, 0 for one per processor, or -1 for none. None: the stored value."""
    if given is None:
        return None
    if given == AUTO:
        return 0
    if not given.isdecimal() or int(given) > MAX_SLOTS:
        raise StartupError(f"--slots {given}: use a number from 0 to {MAX_SLOTS}, or {AUTO} for one per processor")
    return int(given) or -1


def _environments(folder: str, chosen: str | None) -> str:
    """The folder for environments of functions: the chosen one, else beside the bot's if the bot may write there."""
    if chosen:
        return _real_path(chosen)
    shared = os.path.join(os.path.dirname(folder), SHARED_ENVIRONMENTS)
    if is_own_folder(shared) if os.path.lexists(shared) else os.access(os.path.dirname(folder), os.W_OK):
        return shared
    return os.path.join(folder, "environments")


def _processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _pairs(given: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise StartupError(f"--dimension {pair}: use KEY=VALUE")
        found.setdefault(key, []).append(value)
    return found


def _first_set(given: list[str], *others: str | None) -> Any:
    return given[-1] if given else next((other for other in others if other), None)
