"""The dimensions and the state of this machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

from myrmidon.bot.system import facts, filesystem, platforms

ID_RULE = "1 to 256 characters without /, control characters, invisible characters and outer spaces, and not . or .."
_NOT_IN_ID = re.compile(
    "[/\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"  # as in model/bot.py
)


_LIBRARY = re.compile(r"[A-Za-z0-9_+@-][A-Za-z0-9_+@.-]*\.(so|dylib)([.][0-9.]+)?")


def is_id(text: str) -> bool:
    """Whether the server accepts this bot id. Ids are part of URL paths, and people must be able to tell them apart."""
    return 0 < len(text) <= 256 and text not in (".", "..") and text == text.strip() and not _NOT_IN_ID.search(text)


def default_id() -> str:
    """The short host name, made a valid bot id."""
    return _NOT_IN_ID.sub("-", socket.gethostname().split(".")[0]).strip() or "bot"


def dimensions(bot_id: str, pool: str, extra: dict[str, list[str]], caches: Iterable[str] = ()) -> dict[str, list[str]]:
    """All dimensions of this bot. ``extra`` overrides what was found, except the id.

    A bot with a device_type represents a device: the dimensions of the host are not included, but part of its state.
    """
    found: dict[str, list[str]] = {} if is_device(extra) else host()
    found["pool"] = [pool]
    found["caches"] = list(caches)
    found.update(extra)
    found["id"] = [bot_id]
    return {key: sorted(set(values)) for key, values in found.items() if values}


def libraries(folders: Iterable[str], limit: int) -> dict[str, list[str]]:
    """The dimension `library`: the shared libraries in these folders, whose functions tasks may call."""
    names: set[str] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            names.update(name for name in os.listdir(folder) if _LIBRARY.fullmatch(name))
    return {"library": sorted(names)[:limit]} if names else {}


def is_device(extra: dict[str, list[str]]) -> bool:
    return "device_type" in extra


def host() -> dict[str, list[str]]:
    """The dimensions of the machine, without unknown ones."""
    ssd = facts.has_ssd()
    cores = os.cpu_count() or 1
    found = {
        "os": operating_system(platforms.NAME, _release(), platform.release()),
        "cpu": cpu(platform.machine(), sys.maxsize > 2**32, facts.short_processor(facts.processor())),
        "cores": [str(cores)],
        "gpu": facts.graphics(),
        "machine_type": [" ".join(facts.machine_type().replace("|", " ").split())[:256].strip()],
        "python": versions(platform.python_version()),
        "ssd": [] if ssd is None else [_flag(ssd)],
        "locale": [facts.locale_name()],
        "kvm": [_flag(facts.has_kvm())] if platforms.NAME == "linux" else [],
        "inside_docker": [_flag(facts.inside_container())],
        "kernel": [platform.release()] if platforms.NAME != "windows" else [],
        "display": [_flag(facts.has_display())],
        "gce": [_flag(facts.is_gce())],
        **facts.gce(),
    }
    return {key: [value for value in values if value] for key, values in found.items()}


def _flag(value: bool) -> str:
    return "1" if value else "0"


def operating_system(name: str, release: dict[str, str], version: str) -> list[str]:
    """From general to specific: Linux, Debian, Debian-12; Mac, Mac-14, Mac-14.5; Windows, Windows-10."""
    if name == "linux":
        distribution = release.get("ID", "").capitalize()
        if not distribution:
            return ["Linux"]
        return ["Linux", distribution, *[f"{distribution}-{part}" for part in versions(release.get("VERSION_ID", ""))]]
    family = "Mac" if name == "macos" else "Windows"
    return [family, *[f"{family}-{part}" for part in versions(release.get("VERSION_ID", version))]]


def cpu(machine: str, is_64_bit: bool, model: str = "") -> list[str]:
    """x86, x86-64, x86-64-Intel_Xeon_E5-2690_v4: family, with word size, with model."""
    machine = machine.lower()
    family = "x86" if machine in ("amd64", "x86_64", "i386", "i686") else re.sub(r"^(arm|aarch).*", "arm", machine)
    architecture = f"{family}-{64 if is_64_bit else 32}"
    return [family, architecture, *([f"{architecture}-{model}"] if model else [])]


def versions(text: str) -> list[str]:
    """12.04.1 -> 12, 12.04, 12.04.1"""
    parts = [part for part in text.split(".") if part]
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def parse_release(text: str) -> dict[str, str]:
    """The variables in /etc/os-release."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, value in pairs}


def _release() -> dict[str, str]:
    if platforms.NAME == "macos":
        return {"VERSION_ID": platform.mac_ver()[0]}
    with contextlib.suppress(OSError), open("/etc/os-release") as file:
        return parse_release(file.read())
    return {}


VOLATILE = ("running_time", "uptime", "disk_free", "disks", "ram_free", "temp", "load", "files_in_temp")
"""Values that change all the time. They are reported with other changes, but are not a reason to report."""
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "SHELL", "DISPLAY", "PYTHONPATH", "SWARMING_EXTERNAL_BOT_SETUP")


def state(folder: str, started: float, caches: dict[str, int], cost_usd_hour: float | None = None) -> dict[str, Any]:
    """The state: shown to people and not used to match tasks."""
    free, total = filesystem.free_disk(folder)
    cores = os.cpu_count() or 1
    found: dict[str, Any] = {
        "running_time": round(time.time() - started, 1),
        "started_ts": round(started, 3),
        "started_at": int(started * 1e6),
        "uptime": int(facts.uptime()),
        "disk_free": free,
        "disk_total": total,
        "disks": facts.disks(folder),
        "ram": facts.ram(),
        "ram_free": facts.free_ram(),
        "temp": facts.temperatures(),
        "ip": facts.ip_address(),
        "hostname": socket.gethostname(),
        "folder": folder,
        "pid": os.getpid(),
        "python": {
            "executable": sys.executable,
            "version": platform.python_version(),
            "packages": facts.packages(),
        },
        "named_caches": caches,
        "env": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        "reboot_required": facts.reboot_required(),
        "cost_usd_hour": estimated_cost(cores, facts.ram()) if cost_usd_hour is None else cost_usd_hour,
    }
    if os.environ.get("DOCKER_HOST_HOSTNAME"):
        found["docker_host_hostname"] = os.environ["DOCKER_HOST_HOSTNAME"]
    with contextlib.suppress(Exception):
        found["user"] = getpass.getuser()
    with contextlib.suppress(OSError, AttributeError):
        found["load"] = round(os.getloadavg()[0], 2)
    return found


def estimated_cost(cores: int, ram: int) -> float:
    """A rough price in dollars per hour of renting such a machine, for when cost_usd_hour is not set."""
    return round(0.02 * cores + 0.003 * ram / (1 << 30), 4)
