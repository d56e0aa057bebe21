"""The requirements of a function: checked lines, and the document that names an environment by its digest.

A line is a requirement as in ``requirements.txt``. Lines come from users and are read by installers on bots, so only
what is known to be harmless there is allowed: no file or folder of the bot, no variable of its environment, and
packages from other indexes only over https. Credentials are refused because requirements are stored and shown.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Iterable, Tuple

MAX_LINES = 5_000
MAX_BYTES = 1 << 20
BUILT = "requirements"
"""The value of the dimension ``environment`` of bots that can build environments; no environment has this name."""
NAMED = "name:"
"""The beginning of the environment of a function that names one of the bot's settings."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

_COMMENT = re.compile(r"(^|\s+)#.*$")
_PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[A-Za-z0-9._,\s-]*\])?\s*")
_CLAUSE = r"(?:===\s*[^\s,;)]+|[=!]=\s*v?\d[\w.!+-]*\*?|(?:~=|[<>]=?)\s*v?\d[\w.!+-]*)"
_CLAUSES = rf"{_CLAUSE}(?:\s*,\s*{_CLAUSE})*\s*,?\s*"
_VERSIONS = re.compile(rf"(?:{_CLAUSES}|\(\s*{_CLAUSES}\)\s*)?")
_SIDE = (
    r"(?:'[^']*'|\"[^\"]*\"|python_(?:full_)?version|os[._]name|sys[._]platform|extras?|dependency_groups"
    r"|platform_(?:release|system|version|machine|python_implementation)|implementation_(?:name|version))"
)
_TEST = rf"[\s(]*{_SIDE}\s*(?:[<>~=!]=|===|[<>]|not\s+in\b|in\b)\s*{_SIDE}[\s)]*"
_MARKER = re.compile(rf"{_TEST}(?:(?:and|or)\b{_TEST})*")
_OPTION = re.compile(r"\s+(?=-)")
_HASH = re.compile(r"--hash[= ](sha256|sha384|sha512):[0-9a-fA-F]{64,128}")
_URL_OPTIONS = ("--index-url", "-i", "--extra-index-url", "--find-links", "-f")
_NAME_OPTIONS = ("--only-binary", "--no-binary")
_ALLOWED = "--hash, --index-url, --extra-index-url, --find-links, --only-binary, --no-binary"

Lines = Tuple[str, ...]


class BadRequirements(ValueError):
    """Requirements that no bot would install; the message has the line and the reason."""


def read_lines(text: str) -> Lines:
    """The lines of a lock file: continued lines are joined, comments and empty lines are left out."""
    joined = re.sub(r"\\\r?\n", " ", text)
    return check_lines(_COMMENT.sub("", line) for line in joined.splitlines())


def check_lines(given: Iterable[str]) -> Lines:
    """Checked lines in a canonical order: options as they were given, then requirements. Raises BadRequirements."""
    options: list[str] = []
    found: set[str] = set()
    for line in given:
        if not isinstance(line, str):
            raise BadRequirements(f"a requirement is a text, not {line!r}")
        words = " ".join(line.split())
        if not words:
            continue
        _check_line(words)
        if words.startswith("-"):
            options.append(words)
        else:
            found.add(words)
    lines = (*dict.fromkeys(options), *sorted(found))
    if len(lines) > MAX_LINES or sum(map(len, lines)) > MAX_BYTES:
        raise BadRequirements(f"there are more than {MAX_LINES} requirements, or they have more than 1 MiB")
    return lines


def _check_line(line: str) -> None:
    shown = f"requirement {_without_secrets(line)[:200]!r}: "
    if not line.isprintable():
        raise BadRequirements(f"{shown}it has characters that cannot be printed")
    if "${" in line:
        raise BadRequirements(f"{shown}variables are not replaced; write what is meant")
    if line.startswith("-"):
        _check_option(line, shown)
        return
    requirement, *options = _OPTION.split(line)
    for option in options:
        if not _HASH.fullmatch(option):
            raise BadRequirements(f"{shown}the option {option.split('=')[0]} is not allowed after a requirement")
    project = _PROJECT.match(requirement)
    if project is None:
        raise BadRequirements(f"{shown}it does not begin with the name of a package; write NAME @ https://...")
    rest, semicolon, marker = requirement[project.end() :].partition(";")
    if rest.startswith("@"):
        _check_url(rest[1:].strip(), shown, ("https://", "git+https://"))
    elif rest and rest[0] not in "<>=!~;(":
        raise BadRequirements(f"{shown}it is not a package with versions; files and folders of a bot cannot be named")
    elif not _VERSIONS.fullmatch(rest):
        name, version = project.group().strip(), rest.strip("<>=!~() ") or "2.1"
        raise BadRequirements(
            f"{shown}{rest[:100]!r} says no versions; write {name}=={version}, {name}>={version} or {name}>=1,<2"
        )
    if semicolon and not _MARKER.fullmatch(marker):
        raise BadRequirements(f"{shown}what follows ; is no condition such as python_version < '3.12'")


def _check_option(line: str, shown: str) -> None:
    name, _, value = line.replace("=", " ", 1).partition(" ")
    if name in _URL_OPTIONS:
        _check_url(value.strip(), shown, ("https://",))
    elif name not in _NAME_OPTIONS:
        raise BadRequirements(f"{shown}the option {name} is not allowed; those that are: {_ALLOWED}")


def _check_url(url: str, shown: str, schemes: tuple[str, ...]) -> None:
    if not url.startswith(schemes) or " " in url:
        raise BadRequirements(f"{shown}an address must begin with {' or '.join(schemes)}")
    if "@" in url.partition("://")[2].split("/")[0]:
        raise BadRequirements(
            f"{shown}an address must not have credentials; they belong into the settings of the bots (PIP_INDEX_URL)"
        )


def _without_secrets(line: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://****@", line)


# ---------------------------------------------------------------- the document


def has_hashes(lines: Lines) -> bool:
    """Whether requirements are pinned by hashes: then each must be."""
    return any("--hash" in line for line in lines)


def document(lines: Lines) -> tuple[str, bytes]:
    """(digest, canonical JSON) of checked lines."""
    data = json.dumps({"requirements": list(lines)}, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(data).hexdigest(), data


def parse_document(data: bytes) -> Lines:
    """The lines of a document, which comes from a user and is checked again. Raises BadRequirements."""
    try:
        content = json.loads(data)
        lines = content["requirements"]
    except (ValueError, TypeError, KeyError):
        raise BadRequirements("the document of the environment is not JSON with a list `requirements`") from None
    if content.keys() != {"requirements"} or not isinstance(lines, list):
        raise BadRequirements("the document of the environment has something else than a list `requirements`")
    return check_lines(lines)
