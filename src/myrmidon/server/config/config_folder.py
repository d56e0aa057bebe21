"""The settings folder: bots.toml, pools.toml, bot_config.py, bootstrap.py and scripts/*.py, read and checked as one.

A folder counts as a whole or not at all: whatever is wrong with any file is told at once, and what was in force stays
so. Python files are compiled, never run: they are the bots' programs. Where there is no folder, nothing is decided:
one group for all bots that gives nothing, and no pool with rules.
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
from myrmidon.model.validation import Checker, is_clean, show_value
from myrmidon.server.config.bot_groups import EMPTY_GROUP_CONFIG, SCRIPT_NAME, BotGroups, BotGroupConfig, read_groups
from myrmidon.server.config.pools import NO_POOLS, Pools, read_pools

BOTS, POOLS, BOT_CONFIG, BOOTSTRAP = "bots.toml", "pools.toml", "bot_config.py", "bootstrap.py"
FILES = (BOTS, POOLS, BOT_CONFIG, BOOTSTRAP)
SCRIPTS = "scripts"
MAX_FILE_BYTES = 1 << 20
OLDEST_PYTHON = (3, 8)
"""The oldest Python that a bot may have, and so the one that its programs must be written for."""
_OPTIONAL = re.compile(r"\..*|.*~|README(\..*)?|__pycache__|.*\.(bak|orig|sw[op])")
"""What may lie in the folder besides: editors and people leave such things."""


NO_GROUP = "none"


class FleetConfig(Struct, frozen=True, kw_only=True):
    """A folder that was found good, ready to be asked."""

    position: int = 0
    version: str = ""
    created_at: Micros = 0
    who: str = ""
    files: dict[str, str] = {}
    groups: BotGroups | None = None
    pools: Pools = NO_POOLS
    cached: dict[str, BotGroupConfig | None] = {}

    def group_config(self, bot_id: str) -> BotGroupConfig | None:
        """What a bot is given; None when no group has it."""
        if self.groups is None:
            return EMPTY_GROUP_CONFIG
        if bot_id not in self.cached:
            self.cached[bot_id] = self.groups.config_for(bot_id)
        return self.cached[bot_id]

    @property
    def asleep(self) -> bool:
        return self.groups is not None and self.groups.asleep

    def may_work(self, bot_id: str) -> bool:
        """Whether a bot gets tasks: it is in a group, and the fleet is not asleep."""
        return self.group_config(bot_id) is not None and not self.asleep

    def config_version_of(self, bot_id: str) -> str:
        """The name of what a bot is given; one that is in no group must shake hands, and hear so."""
        given = self.group_config(bot_id)
        return given.version if given is not None else NO_GROUP


NO_CONFIG = FleetConfig()


def read_folder(folder: Path) -> dict[str, str]:
    """The texts of the files by name, ``scripts/x.py`` among them; InvalidRequest names those that cannot be read."""
    problems: list[Problem] = []
    files: dict[str, str] = {}
    if not folder.exists():
        return files
    for path in sorted(folder.iterdir()):
        name = path.name
        if name == SCRIPTS and path.is_dir():
            for script in sorted(path.iterdir()):
                _read_one(script, f"{SCRIPTS}/{script.name}", files, problems)
        elif name in FILES:
            _read_one(path, name, files, problems)
        elif not _OPTIONAL.fullmatch(name):
            problems.append(Problem(name, "a file", f"one of {', '.join(FILES)} and {SCRIPTS}/", "unknown"))
    if problems:
        raise InvalidRequest(problems)
    return files


def _read_one(path: Path, name: str, files: dict[str, str], problems: list[Problem]) -> None:
    if _OPTIONAL.fullmatch(path.name):
        return
    if name.startswith(SCRIPTS) and not SCRIPT_NAME.fullmatch(path.name):
        problems.append(Problem(name, show_value(path.name), "the plain name of a .py file", "unknown"))
        return
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            problems.append(Problem(name, f"{path.stat().st_size} bytes", f"at most {MAX_FILE_BYTES} bytes", "length"))
            return
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(name, type(error).__name__, f"a text file that can be read ({error})", "file"))
        return
    if not is_clean(text):
        problems.append(Problem(name, "text with NUL", "text without NUL", "characters"))
        return
    files[name] = text


Fingerprint = tuple[tuple[str, int, int], ...]


def newest_change(seen: Fingerprint) -> int:
    """When the last change was made to anything in the folder, in nanoseconds; 0 when there is no folder."""
    return max((changed for _, changed, _ in seen), default=0)


def fingerprint(folder: Path) -> Fingerprint:
    """Changes with every edit; cheap enough to be looked at every second or two."""
    places = [folder, folder / SCRIPTS]
    places += [entry for place in places if place.is_dir() for entry in place.iterdir()]
    found = []
    for place in sorted(places):
        try:
            told = place.stat()
        except OSError:
            continue
        found.append((str(place), told.st_mtime_ns, told.st_size))
    return tuple(found)


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def version_of(files: Mapping[str, str]) -> str:
    """The version of a whole folder: names and contents."""
    told = sha256()
    for name, text in sorted(files.items()):
        told.update(f"{name}\0{digest_of(text)}\n".encode())
    return told.hexdigest()


# ---------------------------------------------------------------- checking


def build_config(files: Mapping[str, str], **facts: Any) -> FleetConfig:
    """The folder ready for use; InvalidRequest lists everything that is wrong, by file and place in it."""
    problems: list[Problem] = []
    for name, text in sorted(files.items()):
        if name.endswith(".py"):
            problems += check_python(name, text)
    scripts = {name.removeprefix(f"{SCRIPTS}/"): text for name, text in files.items() if name.startswith(f"{SCRIPTS}/")}
    groups, pools = None, NO_POOLS
    if BOTS in files:
        check = Checker()
        groups = read_groups(check, _decoded(files[BOTS], BOTS, problems), scripts)
        problems += _placed(BOTS, check)
    if POOLS in files:
        check = Checker()
        pools = read_pools(check, _decoded(files[POOLS], POOLS, problems), digest_of(files[POOLS])[:16])
        problems += _placed(POOLS, check)
    if problems:
        raise InvalidRequest(problems)
    return FleetConfig(version=version_of(files), files=dict(files), groups=groups, pools=pools, cached={}, **facts)


def _decoded(text: str, name: str, problems: list[Problem]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(name, "text", f"TOML: {error}", "syntax"))
        return {}


def _placed(name: str, check: Checker) -> list[Problem]:
    return [structs.replace(one, path=f"{name}: {one.path}" if one.path else name) for one in check.problems]


def check_python(name: str, text: str) -> list[Problem]:
    """Whether a program can be compiled, also by the oldest Python that bots may have."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, name, "exec", dont_inherit=True)
            tree = ast.parse(text, name, feature_version=OLDEST_PYTHON)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"{name}: line {line}" if line else name
        version = ".".join(map(str, OLDEST_PYTHON))
        return [Problem(where, "text", f"Python {version} that compiles: {error}", "syntax")]
    for node in tree.body if name == BOOTSTRAP else ():
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            allowed = "nothing from __future__: the server's address and token are put in front of it"
            return [Problem(f"{name}: line {node.lineno}", "an import", allowed, "syntax")]
    return []


def check_folder(folder: Path) -> list[Problem]:
    """Everything that is wrong with a settings folder; what ``myrmidon config check`` shows."""
    try:
        build_config(read_folder(folder))
    except InvalidRequest as error:
        return error.problems
    return []
