"""Which server to talk to, and with which token.

    server   --server, MYRMIDON_SERVER, a `myrmidon up` of this user, config.toml, http://127.0.0.1:8910
    token    --token, MYRMIDON_TOKEN, the data folder of that local server, config.toml

A token that was found in a file goes only to the server it belongs to: naming another server must not hand it the
administrator's token of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

DEFAULT_SERVER: Final = "http://127.0.0.1:8910"
TOKEN_FILE: Final = "admin.token"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Place:
    """A server, and how it and the token were found."""

    server: str
    server_from: str
    token: str | None
    token_from: str


def find_place(server: str | None, token: str | None) -> Place:
    """Fails only on what is no address: a missing token is something for the server to refuse."""
    config = read_config()
    running = read_locals()
    url, url_from = _server(server, next(iter(running), {}), config)
    local = next((one for one in running if _whole(one["server"]) == url), {})
    found, found_from = _token(token, url, local, config)
    return Place(url, url_from, found, found_from)


def _server(given: str | None, local: dict[str, Any], config: dict[str, Any]) -> tuple[str, str]:
    choices = (
        (given, "--server"),
        (os.environ.get("MYRMIDON_SERVER"), "MYRMIDON_SERVER"),
        (local.get("server"), "the running `myrmidon up`"),
        (config.get("server"), str(config_file())),
    )
    for url, place in choices:
        if url and str(url).strip():
            return _address(str(url), place), place
    return DEFAULT_SERVER, "the default"


def _address(url: str, place: str) -> str:
    whole = _whole(url)
    try:
        parts = urlsplit(whole)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise click.UsageError(f"{url!r} from {place} is no address of a server; write http://HOST:PORT.")
    return whole


def _token(given: str | None, server: str, local: dict[str, Any], config: dict[str, Any]) -> tuple[str | None, str]:
    if given and given.strip():
        return given.strip(), "--token"
    if named := os.environ.get("MYRMIDON_TOKEN", "").strip():
        return named, "MYRMIDON_TOKEN"
    if local:
        return _from_file(Path(local["data_dir"]) / TOKEN_FILE)
    if config.get("server") and _whole(config["server"]) == server and config.get("token"):
        return str(config["token"]).strip(), str(config_file())
    if urlsplit(server).hostname in _LOOPBACK:
        return _from_file(default_data_dir() / TOKEN_FILE)
    return None, "nowhere"


def _from_file(file: Path) -> tuple[str | None, str]:
    with contextlib.suppress(OSError):
        return file.read_text().strip() or None, str(file)
    return None, "nowhere"


def _whole(server: str) -> str:
    """``build:8910`` is as good as ``http://build:8910``."""
    server = server.strip()
    return (server if "://" in server else f"http://{server}").rstrip("/")


# -- the files of the command line ---------------------------------------------------------------------------


def config_dir() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "myrmidon"


def config_file() -> Path:
    return config_dir() / "config.toml"


def default_data_dir() -> Path:
    """Where a server of this user keeps its data unless it is told otherwise; the server decides the same."""
    if named := os.environ.get("MYRMIDON_DATA_DIR"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "myrmidon"


def read_config() -> dict[str, Any]:
    """What `myrmidon login` wrote; nothing when there is none or it cannot be read."""
    if not config_file().is_file():
        return {}
    import tomllib  # late: most calls have no such file

    try:
        return tomllib.loads(config_file().read_text())
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def write_config(server: str, token: str) -> Path:
    """Remember a server and its token, for this user only."""
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (("server", _whole(server)), ("token", token)))
    write_private(config_file(), text)
    return config_file()


def read_local() -> dict[str, Any]:
    """The `myrmidon up` that runs now, if one does: {server, data_dir, pid}. Of several, the one that came last."""
    return next(iter(read_locals()), {})


def read_locals() -> list[dict[str, Any]]:
    """All that run now, the newest first. Each has a file of its own, so that none is lost when another ends."""
    files = sorted(config_dir().glob("local-*.json"), key=_written_at, reverse=True)
    return [found for file in files if (found := _live(file))]


def _written_at(file: Path) -> int:
    with contextlib.suppress(OSError):  # it has just ended
        return file.stat().st_mtime_ns
    return 0


def _live(file: Path) -> dict[str, Any]:
    """What a file says of its `up`, if that still runs."""
    try:
        said = json.loads(file.read_text())
        found: dict[str, Any] = {
            "server": str(said["server"]),
            "data_dir": str(said["data_dir"]),
            "pid": int(said["pid"]),
        }
        os.kill(found["pid"], 0)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if _is_ours(found["pid"]) else {}


def _is_ours(pid: int) -> bool:
    """After a crash another program may have got the number; where the system can tell, it is asked."""
    command = Path(f"/proc/{pid}/cmdline")
    try:
        return b"myrmidon" in command.read_bytes() if command.exists() else True
    except OSError:
        return False


def write_local(server: str, data_dir: Path) -> None:
    """This process is an `up`; what those left behind that were killed is swept away."""
    for file in config_dir().glob("local-*.json"):
        if not _live(file):
            file.unlink(missing_ok=True)
    write_private(_local_file(), json.dumps({"server": server, "data_dir": str(data_dir), "pid": os.getpid()}))


def forget_local() -> None:
    _local_file().unlink(missing_ok=True)


def write_private(file: Path, text: str) -> None:
    """Whole or not at all, and readable by its owner only from the first byte on."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)
    fresh.replace(file)


def _local_file() -> Path:
    return config_dir() / f"local-{os.getpid()}.json"
