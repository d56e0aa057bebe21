"""What this machine is: the dimensions a bot offers, and the state it shows. Facts only; matching is the server's."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
import sys
import time
from typing import Any

from myrmidon.bot import system


def default_id() -> str:
    """The short name of the machine."""
    return socket.gethostname().split(".")[0] or "bot"


def dimensions(bot_id: str, pool: str, extra: dict[str, list[str]]) -> dict[str, list[str]]:
    """All dimensions of this bot; given ones win over found ones, but for the id."""
    found = {
        "os": operating_system(system.NAME, _release(), platform.release()),
        "cpu": cpu(platform.machine(), sys.maxsize > 2**32),
        "cores": [str(os.cpu_count() or 1)],
        "python": versions(platform.python_version()),
        "pool": [pool],
    }
    found.update(extra)
    found["id"] = [bot_id]
    return {key: sorted(set(values)) for key, values in found.items()}


def operating_system(name: str, release: dict[str, str], version: str) -> list[str]:
    """From the general to the special: Linux, Debian, Debian-12; Mac, Mac-14, Mac-14.5; Windows, Windows-10."""
    if name == "linux":
        known = release.get("ID", "").capitalize()
        if not known:
            return ["Linux"]
        return ["Linux", known, *[f"{known}-{part}" for part in versions(release.get("VERSION_ID", ""))]]
    word = "Mac" if name == "macos" else "Windows"
    return [word, *[f"{word}-{part}" for part in versions(release.get("VERSION_ID", version))]]


def cpu(machine: str, wide: bool) -> list[str]:
    """The family and the family with its width."""
    machine = machine.lower()
    family = "x86" if machine in ("amd64", "x86_64", "i386", "i686") else re.sub(r"^(arm|aarch).*", "arm", machine)
    return [family, f"{family}-{64 if wide else 32}"]


def versions(text: str) -> list[str]:
    """12.04.1 -> 12, 12.04, 12.04.1"""
    parts = [part for part in text.split(".") if part]
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def parse_release(text: str) -> dict[str, str]:
    """/etc/os-release, a shell's assignments."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, value in pairs}


def _release() -> dict[str, str]:
    if system.NAME == "macos":
        return {"VERSION_ID": platform.mac_ver()[0]}
    with contextlib.suppress(OSError), open("/etc/os-release") as file:
        return parse_release(file.read())
    return {}


def state(folder: str, started: float, caches: list[str]) -> dict[str, Any]:
    """What changes: shown to people, matched by nobody."""
    free, total = system.free_disk(folder)
    found: dict[str, Any] = {
        "running_time": round(time.time() - started, 1),
        "started_at": int(started * 1e6),
        "disk_free": free,
        "disk_total": total,
        "hostname": socket.gethostname(),
        "folder": folder,
        "pid": os.getpid(),
        "caches": caches,
    }
    with contextlib.suppress(Exception):
        found["user"] = getpass.getuser()
    with contextlib.suppress(OSError, AttributeError):
        found["load"] = round(os.getloadavg()[0], 2)
    return found
