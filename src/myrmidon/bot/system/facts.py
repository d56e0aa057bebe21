"""Facts about the machine on each operating system: processor, graphics, disks, memory, temperatures.

Functions that read the system return an empty value if a fact is unknown. Parsing is in separate pure functions, so
that it is tested for all three operating systems on any of them. Nothing here changes the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from functools import lru_cache
from typing import Any

from myrmidon.bot.system import clock, filesystem, platforms

_RUN_TIMEOUT_S = 20
_METADATA_ATTEMPTS = 3
_CONTAINERS = ("docker", "kubepods", "containerd", "libpod", "lxc")
_WINDOWS_QUERY = (
    "$c = Get-CimInstance Win32_ComputerSystem; $v = Get-CimInstance Win32_VideoController;"
    "@{Model=$c.Model; Memory=$c.TotalPhysicalMemory; Video=@($v.PNPDeviceID)} | ConvertTo-Json"
)


def read(path: str) -> str:
    """The text of a file; empty when it cannot be read."""
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
        return file.read().strip()
    return ""


def _run(*command: str) -> str:
    """The output of a program; empty when it fails.

    Results must be cached, so that it runs at the start only: the worker kills and reaps all its children after a task.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(command, timeout=_RUN_TIMEOUT_S, stderr=subprocess.DEVNULL).decode(
            errors="replace"
        )
    return ""


@lru_cache(maxsize=None)
def _sysctl(name: str) -> str:
    return _run("/usr/sbin/sysctl", "-n", name).strip()


@lru_cache(maxsize=1)
def _windows() -> dict[str, Any]:
    return parse_windows(_run("powershell", "-NoProfile", "-Command", _WINDOWS_QUERY))


def parse_windows(text: str) -> dict[str, Any]:
    """The JSON answer of _WINDOWS_QUERY: model, memory and graphics cards."""
    with contextlib.suppress(ValueError):
        answer = json.loads(text)
        if isinstance(answer, dict):
            return answer
    return {}


# ---------------------------------------------------------------- constant facts


@lru_cache(maxsize=1)
def processor() -> str:
    """The vendor's name of the processor."""
    if platforms.NAME == "linux":
        return parse_cpuinfo(read("/proc/cpuinfo"))
    if platforms.NAME == "macos":
        return _sysctl("machdep.cpu.brand_string")
    return os.environ.get("PROCESSOR_IDENTIFIER", "")


def parse_cpuinfo(text: str) -> str:
    for key in ("model name", "Hardware", "cpu model"):
        found = re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE)
        if found:
            return found.group(1).strip()
    return ""


def short_processor(name: str) -> str:
    """Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz -> Intel_Xeon_E5-2690_v4"""
    name = re.sub(r"\((R|TM|C)\)|\bCPU\b|\bProcessor\b|@.*$|\d+-Core", " ", name, flags=re.IGNORECASE)
    return "_".join(re.sub(r"[^0-9A-Za-z._-]+", " ", name).split())[:100]


@lru_cache(maxsize=1)
def graphics() -> list[str]:
    """The graphics cards as PCI vendor ids and vendor:device ids: ["10de", "10de:1cb3"]; ["none"] without any."""
    found: list[tuple[str, str]] = []
    if platforms.NAME == "linux":
        found = _linux_graphics("/sys/bus/pci/devices")
    elif platforms.NAME == "macos":
        found = parse_mac_graphics(_run("/usr/sbin/system_profiler", "SPDisplaysDataType", "-xml").encode())
    elif platforms.NAME == "windows":
        found = parse_pnp(" ".join(map(str, _windows().get("Video") or [])))
    return sorted({text for vendor, device in found for text in (vendor, f"{vendor}:{device}")}) or ["none"]


def _linux_graphics(folder: str) -> list[tuple[str, str]]:
    cards = [f"{folder}/{name}" for name in _names(folder) if read(f"{folder}/{name}/class").startswith("0x03")]
    return [(read(f"{card}/vendor")[2:], read(f"{card}/device")[2:]) for card in cards]


def parse_pnp(text: str) -> list[tuple[str, str]]:
    """(vendor, device) pairs in PNP device ids of Windows: PCI\\VEN_10DE&DEV_1CB3&SUBSYS_..."""
    return [(vendor.lower(), device.lower()) for vendor, device in re.findall(r"VEN_(\w{4})&DEV_(\w{4})", text)]


def parse_mac_graphics(xml: bytes) -> list[tuple[str, str]]:
    """(vendor, device) pairs in `system_profiler SPDisplaysDataType -xml` of macOS.

    The vendor is a name with an id in parentheses, or only a name.
    """
    import plistlib

    found = []
    with contextlib.suppress(Exception):
        for card in plistlib.loads(xml)[0]["_items"]:
            vendor = str(card.get("spdisplays_vendor-id") or card.get("spdisplays_vendor") or "")
            match = re.search(r"(?:0x|\()(?:0x)?([0-9a-fA-F]{4})\b", vendor)
            device = str(card.get("spdisplays_device-id") or "").replace("0x", "").lower()
            word = vendor.rpartition("_")[2].split(" ")[0].lower()
            found.append((match.group(1).lower() if match else word or "unknown", device or "0000"))
    return found


@lru_cache(maxsize=1)
def machine_type() -> str:
    """The model of the machine."""
    if platforms.NAME == "linux":
        return read("/sys/class/dmi/id/product_name") or read("/proc/device-tree/model").strip("\0")
    return _sysctl("hw.model") if platforms.NAME == "macos" else str(_windows().get("Model") or "")


@lru_cache(maxsize=1)
def ram() -> int:
    """The physical memory in bytes; 0 when unknown."""
    with contextlib.suppress(ValueError, OSError, AttributeError, TypeError):
        if platforms.NAME == "windows":
            return int(_windows().get("Memory") or 0)
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


@lru_cache(maxsize=1)
def has_ssd() -> bool | None:
    """Whether no disk of the machine is rotational; None when unknown."""
    if platforms.NAME != "linux":
        return True if platforms.NAME == "macos" else None
    rotational = [read(f"/sys/block/{name}/queue/rotational") for name in _names("/sys/block") if is_disk(name)]
    return "1" not in rotational if rotational else None


def is_disk(name: str) -> bool:
    """Whether a name in /sys/block is a disk, and not a RAM disk, loop device, optical drive and so on."""
    return not re.match(r"(loop|ram|zram|sr|fd|nbd|dm-|md)", name)


def inside_container(root: str = "/") -> bool:
    if os.path.exists(f"{root}.dockerenv") or os.path.exists(f"{root}run/.containerenv"):
        return True
    return any(word in read(f"{root}proc/1/cgroup") for word in _CONTAINERS)


def has_kvm() -> bool:
    return os.access("/dev/kvm", os.R_OK | os.W_OK)


def has_display() -> bool:
    """Whether a screen is attached."""
    if platforms.NAME != "linux":
        return True
    return any(read(f"/sys/class/drm/{name}/status") == "connected" for name in _names("/sys/class/drm"))


@lru_cache(maxsize=1)
def packages() -> list[str]:
    """The packages of the bot's Python as name==version, from the names of their metadata folders."""
    return sorted({found for folder in sys.path for found in map(parse_package, _names(folder)) if found})


def parse_package(name: str) -> str:
    """pip-24.0.dist-info -> pip==24.0; empty for other names."""
    found = re.fullmatch(r"([A-Za-z0-9._]+)-([A-Za-z0-9.!+_]+?)(?:-py3[.\d]*)?\.(?:dist|egg)-info", name)
    return f"{found.group(1)}=={found.group(2)}" if found else ""


# ---------------------------------------------------------------- Google Compute Engine


def is_gce(product: str | None = None) -> bool:
    """Whether this machine is a Google Compute Engine instance."""
    name = read("/sys/class/dmi/id/product_name") if product is None else product
    return name in ("Google Compute Engine", "Google")


@lru_cache(maxsize=1)
def gce() -> dict[str, list[str]]:
    """zone, image and machine_type from the metadata server of Google Compute Engine; empty elsewhere."""
    if not is_gce():
        return {}
    for _ in range(_METADATA_ATTEMPTS):
        metadata = _read_gce_metadata(os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal")
        if metadata:
            return parse_gce(metadata)
        time.sleep(1.0)
    return {}


def _read_gce_metadata(host: str) -> dict[str, Any]:
    import http.client

    connection = http.client.HTTPConnection(host, timeout=2)
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("GET", "/computeMetadata/v1/instance/?recursive=true", headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        metadata = json.loads(answer.read(1 << 20))
        if answer.status == 200 and isinstance(metadata, dict):
            return metadata
    return {}


def parse_gce(metadata: dict[str, Any]) -> dict[str, list[str]]:
    """The zone as us, us-central1, us-central1-a; of image and machine type the last part of the path."""
    zone, image, machine = (str(metadata.get(key) or "").rpartition("/")[2] for key in ("zone", "image", "machineType"))
    parts = re.fullmatch(r"(([a-z]+)-\w+)-\w+", zone)
    zones = [parts.group(2), parts.group(1), zone] if parts else [zone]
    found = {"zone": zones, "image": [image], "machine_type": [machine]}
    return {key: values for key, values in found.items() if values != [""]}


# ---------------------------------------------------------------- changing facts


def disks(folder: str) -> dict[str, dict[str, int]]:
    """Free and total bytes of every disk, by mount point."""
    mount_points = parse_mounts(read("/proc/mounts")) if platforms.NAME == "linux" else []
    found = {}
    for mount_point in sorted({"/" if platforms.NAME != "windows" else folder[:3], *mount_points}):
        with contextlib.suppress(OSError):
            free, total = filesystem.free_disk(mount_point)
            found[mount_point] = {"free": free, "size": total}
    return found


def parse_mounts(text: str) -> list[str]:
    """The first mount point of each disk in /proc/mounts, which escapes blanks as octal numbers."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) > 2 and fields[0].startswith("/dev/") and not fields[0].startswith("/dev/loop"):
            mount_point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[1])
            found.setdefault(fields[0], mount_point)
    return list(found.values())


def free_ram() -> int:
    """The available memory in bytes; 0 when unknown."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", read("/proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def uptime() -> float:
    """Seconds since the machine was booted."""
    if platforms.NAME == "macos":
        return parse_boottime(_sysctl("kern.boottime"), time.time())
    return clock.boottime()


def parse_boottime(text: str, now: float) -> float:
    """The uptime from `sysctl kern.boottime` of macOS: { sec = 1700000000, usec = 0 } Tue Nov 14 ..."""
    found = re.search(r"sec = (\d+)", text)
    return max(now - int(found.group(1)), 0.0) if found else 0.0


def temperatures() -> dict[str, float]:
    """The temperature of every thermal zone in degrees Celsius (Linux)."""
    found: dict[str, float] = {}
    for name in _names("/sys/class/thermal"):
        with contextlib.suppress(ValueError):
            if name.startswith("thermal_zone"):
                folder = f"/sys/class/thermal/{name}"
                found[read(f"{folder}/type") or name] = int(read(f"{folder}/temp")) / 1000
    return found


def ip_address() -> str:
    """The local address that this machine uses for outgoing connections. Sends no packet."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.connect(("192.0.2.1", 9))
        return str(connection.getsockname()[0])
    return ""


def reboot_required() -> bool:
    return os.path.exists("/var/run/reboot-required")


def entries(folder: str, limit: int) -> int:
    """The number of entries of a folder, counted up to ``limit`` + 1. Raises OSError."""
    count = 0
    with os.scandir(folder) as found:
        for _ in found:
            count += 1
            if count > limit:
                break
    return count


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def locale_name() -> str:
    """The locale of the bot's environment, which programs use by default."""
    given = [os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    return next((name for name in given if name), "C" if sys.platform != "win32" else "unknown")
