"""Reads and checks the configuration folder: bots.toml, pools.toml, bot_config.py, bootstrap.py and scripts/*.py.

A folder is accepted as a whole or rejected as a whole, with all its problems. Python files are compiled but never
run, because they are programs for the bots. Every file is optional: without ``bots.toml`` all bots are accepted and get
an empty configuration; without ``pools.toml`` no pool has a policy.
"""

from __future__ import annotations

import ast
import re
import tomllib
import warnings
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.ids import Micros
from myrmidon.model.shown_input import show_value
from myrmidon.model.validation import Checker, is_clean
from myrmidon.server.config.bot_groups import EMPTY_GROUP_CONFIG, SCRIPT_NAME, BotGroupConfig, BotGroups, read_groups
from myrmidon.server.config.pools import NO_POOLS, Pools, read_pools

BOTS, POOLS, BOT_CONFIG, BOOTSTRAP = "bots.toml", "pools.toml", "bot_config.py", "bootstrap.py"
FILES = (BOTS, POOLS, BOT_CONFIG, BOOTSTRAP)
SCRIPTS = "scripts"
MAX_FILE_BYTES = 1 << 20
OLDEST_PYTHON = (3, 8)
"""The oldest Python that a bot may run on: the Python files of the folder must compile for it."""
_IGNORED = re.compile(r"\..*|.*~|README(\..*)?|__pycache__|.*\.(bak|orig|sw[op])")
"""Other files that may be in the folder, such as backups of editors. Unknown names are errors: they may be typos."""

NO_GROUP = "none"
"""The configuration version of a bot that is in no group."""


class FleetConfig(Struct, frozen=True, kw_only=True):
    """A valid configuration folder, parsed."""

    position: int = 0
    """Its number among all versions that were ever active; 0 for none."""
    version: str = ""
    created_at: Micros = 0
    who: str = ""
    files: dict[str, str] = {}
    groups: BotGroups | None = None
    pools: Pools = NO_POOLS
    cached: dict[str, BotGroupConfig | None] = {}

    def group_config(self, bot_id: str) -> BotGroupConfig | None:
        """The configuration of the bot's group; None if the bot is in no group."""
        if self.groups is None:
            return EMPTY_GROUP_CONFIG
        if bot_id not in self.cached:
            self.cached[bot_id] = self.groups.config_for(bot_id)
        return self.cached[bot_id]

    def trusting_prefix(self, bot_id: str) -> str:
        """The beginning of the id by which a group has this bot; empty if its whole id is listed, or it is in none."""
        return self.groups.trusting_prefix(bot_id) if self.groups is not None else ""

    @property
    def asleep(self) -> bool:
        return self.groups is not None and self.groups.asleep

    def may_work(self, bot_id: str) -> bool:
        """Whether a bot gets tasks: it is in a group, and the fleet is not asleep."""
        return self.groups is None or (self.group_config(bot_id) is not None and not self.groups.asleep)

    def config_version_of(self, bot_id: str) -> str:
        """The version of the bot's configuration. A bot that reports another one is told to restart.

        For a bot in no group it is ``NO_GROUP``, which no bot reports: the bot restarts, and its handshake is rejected.
        """
        config = self.group_config(bot_id) if self.groups is not None else EMPTY_GROUP_CONFIG
        return config.version if config is not None else NO_GROUP


NO_CONFIG = FleetConfig()


def read_folder(folder: Path) -> dict[str, str]:
    """The contents of the files by name, such as ``scripts/x.py``. Raises InvalidRequest with all unreadable files."""
    problems: list[Problem] = []
    files: dict[str, str] = {}
    if not folder.exists():
        return files
    for path in sorted(folder.iterdir()):
        name = path.name
        if name == SCRIPTS and path.is_dir():
            for script in sorted(path.iterdir()):
                _read_file(script, f"{SCRIPTS}/{script.name}", files, problems)
        elif name in FILES:
            _read_file(path, name, files, problems)
        elif not _IGNORED.fullmatch(name):
            problems.append(Problem(name, "an unknown file", f"one of {', '.join(FILES)} and {SCRIPTS}/", "unknown"))
    if problems:
        raise InvalidRequest(problems)
    return files


def check_files(files: Mapping[str, str]) -> None:
    """Raise InvalidRequest for names and texts that a folder cannot have; what is in the files is not checked here."""
    problems: list[Problem] = []
    for name, text in sorted(files.items()):
        folder, _, script = name.rpartition("/")
        if name not in FILES and not (folder == SCRIPTS and SCRIPT_NAME.fullmatch(script)):
            problems.append(Problem(name, "an unknown file", f"one of {', '.join(FILES)} and {SCRIPTS}/", "unknown"))
        elif (size := len(text.encode())) > MAX_FILE_BYTES:
            problems.append(Problem(name, f"{size} bytes", f"at most {MAX_FILE_BYTES} bytes", "length"))
        elif not is_clean(text):
            problems.append(_not_clean(name))
    if problems:
        raise InvalidRequest(problems)


def _read_file(path: Path, name: str, files: dict[str, str], problems: list[Problem]) -> None:
    if _IGNORED.fullmatch(path.name):
        return
    if name.startswith(SCRIPTS) and not SCRIPT_NAME.fullmatch(path.name):
        allowed = "a .py file whose name consists of letters, digits, '_', '-' and '.'"
        problems.append(Problem(name, show_value(path.name), allowed, "unknown"))
        return
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            problems.append(Problem(name, f"{path.stat().st_size} bytes", f"at most {MAX_FILE_BYTES} bytes", "length"))
            return
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(name, type(error).__name__, f"a readable text file ({error})", "file"))
        return
    if not is_clean(text):
        problems.append(_not_clean(name))
        return
    files[name] = text


def _not_clean(name: str) -> Problem:
    return Problem(name, "text with a NUL character", "text without NUL characters", "characters")


Fingerprint = tuple[tuple[str, int, int], ...]
"""Path, modification time in nanoseconds and size of every entry."""


def newest_change(entries: Fingerprint) -> int:
    """The time of the latest change in the folder, in nanoseconds; 0 if there is no folder."""
    return max((changed_at for _, changed_at, _ in entries), default=0)


def fingerprint(folder: Path) -> Fingerprint:
    """Changes with every edit, and is cheap enough to be taken every second or two."""
    paths = [folder, folder / SCRIPTS]
    paths += [entry for path in paths if path.is_dir() for entry in path.iterdir()]
    entries = []
    for path in sorted(paths):
        try:
            stat = path.stat()
        except OSError:
            continue
        entries.append((str(path), stat.st_mtime_ns, stat.st_size))
    return tuple(entries)


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def version_of(files: Mapping[str, str]) -> str:
    """The version of a folder: a digest of the names and contents of its files."""
    digest = sha256()
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{digest_of(text)}\n".encode())
    return digest.hexdigest()


# ---------------------------------------------------------------- checking


def build_config(files: Mapping[str, str], **facts: Any) -> FleetConfig:
    """Parse and check the files of a folder. Raises InvalidRequest with all problems, by file and path in the file."""
    problems: list[Problem] = []
    for name, text in sorted(files.items()):
        if name.endswith(".py"):
            problems += check_python(name, text)
    scripts = {name.removeprefix(f"{SCRIPTS}/"): text for name, text in files.items() if name.startswith(f"{SCRIPTS}/")}
    groups, pools = None, NO_POOLS
    if BOTS in files:
        check = Checker()
        groups = read_groups(check, _parse_toml(files[BOTS], BOTS, problems), scripts)
        problems += _with_file_name(BOTS, check)
    if POOLS in files:
        check = Checker()
        pools = read_pools(check, _parse_toml(files[POOLS], POOLS, problems), digest_of(files[POOLS])[:16])
        problems += _with_file_name(POOLS, check)
    if problems:
        raise InvalidRequest(problems)
    return FleetConfig(version=version_of(files), files=dict(files), groups=groups, pools=pools, cached={}, **facts)


def _parse_toml(text: str, name: str, problems: list[Problem]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(name, "a syntax error", f"TOML ({error})", "syntax"))
        return {}


def _with_file_name(name: str, check: Checker) -> list[Problem]:
    return [
        structs.replace(problem, path=f"{name}: {problem.path}" if problem.path else name) for problem in check.problems
    ]


def check_python(name: str, text: str) -> list[Problem]:
    """The reason why a file does not compile, here or for the oldest Python of the bots; an empty list if it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, name, "exec", dont_inherit=True)
            tree = ast.parse(text, name, feature_version=OLDEST_PYTHON)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"{name}: line {line}" if line else name
        version = ".".join(map(str, OLDEST_PYTHON))
        return [Problem(where, "a syntax error", f"code that compiles for Python {version} ({error})", "syntax")]
    for node in tree.body if name == BOOTSTRAP else ():
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            allowed = "no import from __future__: the server inserts lines before the text of this file"
            return [Problem(f"{name}: line {node.lineno}", "an import from __future__", allowed, "syntax")]
    return []


def check_folder(folder: Path) -> list[Problem]:
    """All problems of a configuration folder; ``myrmidon config check`` prints them."""
    try:
        build_config(read_folder(folder))
    except InvalidRequest as error:
        return error.problems
    return []
