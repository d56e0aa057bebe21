"""Which server to talk to, and with which token.

    server   --server, MYRMIDON_SERVER, a `myrmidon up` of this user, config.toml, http://127.0.0.1:8910
    token    --token, MYRMIDON_TOKEN, config.toml if it is for that server, the data folder of that local server

Each of these may name several addresses of one server with commas between: its processes, or its hosts.

A token from a file is sent only to the server it belongs to: otherwise `--server OTHER` would disclose this machine's
administrator token to OTHER. The names of this machine's loopback interface are one server.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

DEFAULT_SERVER: Final = "http://127.0.0.1:8910"
DEFAULT_SOURCE: Final = "the default"
TOKEN_FILE: Final = "admin.token"
GIVEN: Final = ("--token", "MYRMIDON_TOKEN")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


class InvalidAddress(ValueError):
    """What was given as the address of a server is none."""


@dataclass(frozen=True)
class Endpoint:
    """A server's addresses and token, and where each came from. ``server`` is the first of the addresses."""

    addresses: str
    server_source: str
    token: str | None
    token_source: str

    @property
    def server(self) -> str:
        return self.addresses.partition(",")[0]

    @property
    def how_to_log_in(self) -> str:
        """What to do when the server does not accept the token, or when there is none."""
        if self.token is None:
            first = "The first token of a server is in its data folder, in admin.token."
            return f"`myrmidon login {self.server}` saves one. {first}"
        if self.token_source in GIVEN:
            return f"The token is from {self.token_source}, which takes precedence over `myrmidon login`."
        return f"The token is from {self.token_source}; `myrmidon login {self.server}` saves another one."


def find_endpoint(server: str | None, token: str | None) -> Endpoint:
    """Select the server and the token. Raises for an invalid address; a missing token is left to the server."""
    config = read_config()
    url, url_source = _server(server, newest_local_server(), config)
    selected_token, token_source = _token(token, url, local_server(url), config)
    return Endpoint(url, url_source, selected_token, token_source)


def _server(option: str | None, local: dict[str, Any], config: dict[str, Any]) -> tuple[str, str]:
    choices = (
        (option, "--server"),
        (os.environ.get("MYRMIDON_SERVER"), "MYRMIDON_SERVER"),
        (local.get("server"), "the running `myrmidon up`"),
        (config.get("server"), str(config_file())),
    )
    for url, source in choices:
        if url and str(url).strip():
            return _checked_address(str(url), source), source
    return DEFAULT_SERVER, DEFAULT_SOURCE


def _checked_address(url: str, source: str) -> str:
    address = _normalize(url)
    for one in address.split(","):
        try:
            parts = urlsplit(one)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise InvalidAddress(
                f"{one.removeprefix('http://')!r} from {source} is not a server address; write http://HOST:PORT."
            )
    return address


def _token(option: str | None, server: str, local: dict[str, Any], config: dict[str, Any]) -> tuple[str | None, str]:
    if option and option.strip():
        return option.strip(), GIVEN[0]
    if variable := os.environ.get(GIVEN[1], "").strip():
        return variable, GIVEN[1]
    if config.get("server") and config.get("token") and is_same_server(config["server"], server):
        return str(config["token"]).strip(), str(config_file())
    if local:
        return _from_file(Path(local["data_dir"]) / TOKEN_FILE)
    if all(urlsplit(one).hostname in _LOOPBACK for one in server.split(",")):
        return _from_file(default_data_dir() / TOKEN_FILE)
    return None, "nowhere"


def is_same_server(one: object, other: str) -> bool:
    """Whether two addresses name the same server."""
    try:
        first, second = (_normalize(str(given)).split(",") for given in (one, other))
        return list(map(_without_alias, first)) == list(map(_without_alias, second))
    except ValueError:
        return False


def _without_alias(url: str) -> tuple[str, str | None, int | None, str]:
    parts = urlsplit(url)
    host = _LOOPBACK[0] if parts.hostname in _LOOPBACK else parts.hostname
    return parts.scheme, host, parts.port or {"http": 80, "https": 443}.get(parts.scheme), parts.path


def _from_file(file: Path) -> tuple[str | None, str]:
    with contextlib.suppress(OSError):
        return file.read_text().strip() or None, str(file)
    return None, "nowhere"


def _normalize(server: str) -> str:
    """Add a missing ``http://`` to each address, remove trailing slashes and empty ones."""
    given = [one.strip() for one in server.split(",")]
    return ",".join((one if "://" in one else f"http://{one}").rstrip("/") for one in given if one)


# -- files ---------------------------------------------------------------------------------------------------


def config_dir() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "myrmidon"


def config_file() -> Path:
    return config_dir() / "config.toml"


def default_data_dir() -> Path:
    """The default data folder of this user's server; must agree with server/settings.py."""
    if variable := os.environ.get("MYRMIDON_DATA_DIR"):
        return Path(variable).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "myrmidon"


def private_folders() -> list[Path]:
    """Folders with this user's tokens, and with the data of the servers that run here: closed to tasks of bots."""
    return [config_dir(), default_data_dir(), *(Path(entry["data_dir"]) for entry in local_servers())]


def read_config() -> dict[str, Any]:
    """The file that `myrmidon login` wrote; empty when it is missing or unreadable."""
    if not config_file().is_file():
        return {}
    import tomllib  # late, for startup time: most users have no such file

    try:
        return tomllib.loads(config_file().read_text())
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def write_config(server: str, token: str) -> Path:
    """Save a server and its token in a file that only this user can read."""
    text = "".join(
        f"{name} = {json.dumps(value)}\n" for name, value in (("server", _normalize(server)), ("token", token))
    )
    write_private(config_file(), text)
    return config_file()


def newest_local_server() -> dict[str, Any]:
    """The most recently started `myrmidon up` that is running, or {}: a `myrmidon server` is not used unasked."""
    return next((entry for entry in local_servers() if entry["up"]), {})


def local_server(url: str) -> dict[str, Any]:
    """The running server at this address, or {}. Of a `myrmidon up` it is that entry, not the one of its server."""
    found = [entry for entry in local_servers() if is_same_server(entry["server"], url)]
    return next((entry for entry in found if entry["up"]), found[0] if found else {})


def local_servers() -> list[dict[str, Any]]:
    """Every running `myrmidon up` and `myrmidon server` of this user, newest first: {server, data_dir, pid, up}.

    Each has its own file, removed when it stops.
    """
    files = sorted(config_dir().glob("local-*.json"), key=_written_at, reverse=True)
    return [entry for file in files if (entry := _read_if_running(file))]


def _written_at(file: Path) -> int:
    with contextlib.suppress(OSError):  # it has just stopped
        return file.stat().st_mtime_ns
    return 0


def _read_if_running(file: Path) -> dict[str, Any]:
    """The entry of a server, or {} when its process has ended."""
    try:
        content = json.loads(file.read_text())
        entry: dict[str, Any] = {
            "server": str(content["server"]),
            "data_dir": str(content["data_dir"]),
            "pid": int(content["pid"]),
            "up": bool(content["up"]),
        }
        os.kill(entry["pid"], 0)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return entry if _is_myrmidon(entry["pid"]) else {}


def _is_myrmidon(pid: int) -> bool:
    """False when the pid now belongs to another program, as after a crash. Without /proc it is assumed to be ours."""
    command = Path(f"/proc/{pid}/cmdline")
    try:
        return b"myrmidon" in command.read_bytes() if command.exists() else True
    except OSError:
        return False


def register_local_server(server: str, data_dir: Path, *, up: bool) -> None:
    """Record this process as a running server, and delete the files of processes that were killed."""
    for file in config_dir().glob("local-*.json"):
        if not _read_if_running(file):
            file.unlink(missing_ok=True)
    entry = {"server": server, "data_dir": str(data_dir), "pid": os.getpid(), "up": up}
    write_private(_local_file(), json.dumps(entry))


def unregister_local_server() -> None:
    _local_file().unlink(missing_ok=True)


def write_private(file: Path, text: str) -> None:
    """Write a file atomically, with mode 0600 from its creation."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)
    temporary.replace(file)


def _local_file() -> Path:
    return config_dir() / f"local-{os.getpid()}.json"
