"""What can be read about a machine on each operating system: processor, graphics, disks, memory, warmth.

The readers are small and may find nothing, which is no error; how a text is understood is in pure functions beside
them, so that all three systems are tested on any of them. Nothing here changes anything.
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

from myrmidon.bot.system import host as system

_ASK_S = 20
_CLOUD_TIMES = 3
_CONTAINERS = ("docker", "kubepods", "containerd", "libpod", "lxc")
_WINDOWS_ASK = (
    "$c = Get-CimInstance Win32_ComputerSystem; $v = Get-CimInstance Win32_VideoController;"
    "@{Model=$c.Model; Memory=$c.TotalPhysicalMemory; Video=@($v.PNPDeviceID)} | ConvertTo-Json"
)


def read(path: str) -> str:
    """The text of a file; nothing when it cannot be read."""
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
        return file.read().strip()
    return ""


def _ask(*words: str) -> str:
    """What a program says. Called at the start only, before any command runs: the bot buries all of its children."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(words, timeout=_ASK_S, stderr=subprocess.DEVNULL).decode(errors="replace")
    return ""


@lru_cache(maxsize=None)
def _sysctl(name: str) -> str:
    return _ask("/usr/sbin/sysctl", "-n", name).strip()


@lru_cache(maxsize=1)
def _windows() -> dict[str, Any]:
    return parse_windows(_ask("powershell", "-NoProfile", "-Command", _WINDOWS_ASK))


def parse_windows(text: str) -> dict[str, Any]:
    """What PowerShell tells as JSON: the model, the memory and the graphics cards."""
    with contextlib.suppress(ValueError):
        told = json.loads(text)
        if isinstance(told, dict):
            return told
    return {}


# ---------------------------------------------------------------- what does not change


@lru_cache(maxsize=1)
def processor() -> str:
    """The name of the processor, as its maker gave it."""
    if system.NAME == "linux":
        return parse_cpuinfo(read("/proc/cpuinfo"))
    if system.NAME == "macos":
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
    """The graphics cards by the ids of maker and device: ["10de", "10de:1cb3"]; ["none"] without any."""
    found: list[tuple[str, str]] = []
    if system.NAME == "linux":
        found = _linux_graphics("/sys/bus/pci/devices")
    elif system.NAME == "macos":
        found = parse_mac_graphics(_ask("/usr/sbin/system_profiler", "SPDisplaysDataType", "-xml").encode())
    elif system.NAME == "windows":
        found = parse_pnp(" ".join(map(str, _windows().get("Video") or [])))
    return sorted({text for maker, device in found for text in (maker, f"{maker}:{device}")}) or ["none"]


def _linux_graphics(folder: str) -> list[tuple[str, str]]:
    cards = [f"{folder}/{name}" for name in _names(folder) if read(f"{folder}/{name}/class").startswith("0x03")]
    return [(read(f"{card}/vendor")[2:], read(f"{card}/device")[2:]) for card in cards]


def parse_pnp(text: str) -> list[tuple[str, str]]:
    """PCI\\VEN_10DE&DEV_1CB3&SUBSYS_... of Windows."""
    return [(maker.lower(), device.lower()) for maker, device in re.findall(r"VEN_(\w{4})&DEV_(\w{4})", text)]


def parse_mac_graphics(xml: bytes) -> list[tuple[str, str]]:
    """system_profiler SPDisplaysDataType -xml of macOS; its makers are names with an id in parentheses, or no id."""
    import plistlib

    found = []
    with contextlib.suppress(Exception):
        for card in plistlib.loads(xml)[0]["_items"]:
            maker = str(card.get("spdisplays_vendor-id") or card.get("spdisplays_vendor") or "")
            known = re.search(r"(?:0x|\()(?:0x)?([0-9a-fA-F]{4})\b", maker)
            device = str(card.get("spdisplays_device-id") or "").replace("0x", "").lower()
            word = maker.rpartition("_")[2].split(" ")[0].lower()
            found.append((known.group(1).lower() if known else word or "unknown", device or "0000"))
    return found


@lru_cache(maxsize=1)
def machine_type() -> str:
    """The model of the machine."""
    if system.NAME == "linux":
        return read("/sys/class/dmi/id/product_name") or read("/proc/device-tree/model").strip("\0")
    return _sysctl("hw.model") if system.NAME == "macos" else str(_windows().get("Model") or "")


@lru_cache(maxsize=1)
def ram() -> int:
    """Bytes of memory of the machine; 0 when unknown."""
    with contextlib.suppress(ValueError, OSError, AttributeError, TypeError):
        if system.NAME == "windows":
            return int(_windows().get("Memory") or 0)
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


@lru_cache(maxsize=1)
def has_ssd() -> bool | None:
    """Whether no disk of the machine turns; None when unknown."""
    if system.NAME != "linux":
        return True if system.NAME == "macos" else None
    turning = [read(f"/sys/block/{name}/queue/rotational") for name in _names("/sys/block") if is_disk(name)]
    return "1" not in turning if turning else None


def is_disk(name: str) -> bool:
    """Of /sys/block: no memory, loops or drives for discs."""
    return not re.match(r"(loop|ram|zram|sr|fd|nbd|dm-|md)", name)


def inside_container(root: str = "/") -> bool:
    if os.path.exists(f"{root}.dockerenv") or os.path.exists(f"{root}run/.containerenv"):
        return True
    return any(word in read(f"{root}proc/1/cgroup") for word in _CONTAINERS)


def has_kvm() -> bool:
    return os.access("/dev/kvm", os.R_OK | os.W_OK)


def has_display() -> bool:
    """Whether a screen is attached."""
    if system.NAME != "linux":
        return True
    return any(read(f"/sys/class/drm/{name}/status") == "connected" for name in _names("/sys/class/drm"))


@lru_cache(maxsize=1)
def packages() -> list[str]:
    """What is installed for the bot's Python, as name==version; read from the names of folders, nothing is imported."""
    return sorted({known for folder in sys.path for known in map(parse_package, _names(folder)) if known})


def parse_package(name: str) -> str:
    """pip-24.0.dist-info -> pip==24.0; nothing for whatever else lies there."""
    found = re.fullmatch(r"([A-Za-z0-9._]+)-([A-Za-z0-9.!+_]+?)(?:-py3[.\d]*)?\.(?:dist|egg)-info", name)
    return f"{found.group(1)}=={found.group(2)}" if found else ""


# ---------------------------------------------------------------- what a cloud tells


def is_gce(product: str | None = None) -> bool:
    """Whether this is a machine of Google's cloud."""
    name = read("/sys/class/dmi/id/product_name") if product is None else product
    return name in ("Google Compute Engine", "Google")


@lru_cache(maxsize=1)
def gce() -> dict[str, list[str]]:
    """zone, image and machine_type, which Google's cloud tells its machines; nothing elsewhere."""
    if not is_gce():
        return {}
    for _ in range(_CLOUD_TIMES):
        told = _ask_cloud(os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal")
        if told:
            return parse_gce(told)
        time.sleep(1.0)
    return {}


def _ask_cloud(host: str) -> dict[str, Any]:
    import http.client

    line = http.client.HTTPConnection(host, timeout=2)
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException), contextlib.closing(line):
        line.request("GET", "/computeMetadata/v1/instance/?recursive=true", headers={"Metadata-Flavor": "Google"})
        answer = line.getresponse()
        told = json.loads(answer.read(1 << 20))
        if answer.status == 200 and isinstance(told, dict):
            return told
    return {}


def parse_gce(told: dict[str, Any]) -> dict[str, list[str]]:
    """projects/1/zones/us-central1-a -> us, us-central1, us-central1-a; of the others the last part."""
    zone, image, kind = (str(told.get(key) or "").rpartition("/")[2] for key in ("zone", "image", "machineType"))
    parts = re.fullmatch(r"(([a-z]+)-\w+)-\w+", zone)
    zones = [parts.group(2), parts.group(1), zone] if parts else [zone]
    found = {"zone": zones, "image": [image], "machine_type": [kind]}
    return {key: values for key, values in found.items() if values != [""]}


# ---------------------------------------------------------------- what changes


def disks(folder: str) -> dict[str, dict[str, int]]:
    """Every disk by where it is mounted: bytes free and in all."""
    places = parse_mounts(read("/proc/mounts")) if system.NAME == "linux" else []
    found = {}
    for place in sorted({"/" if system.NAME != "windows" else folder[:3], *places}):
        with contextlib.suppress(OSError):
            free, total = system.free_disk(place)
            found[place] = {"free": free, "size": total}
    return found


def parse_mounts(text: str) -> list[str]:
    """Where disks are mounted, each disk once, by /proc/mounts; blanks in it are written as octal numbers."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) > 2 and words[0].startswith("/dev/") and not words[0].startswith("/dev/loop"):
            place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), words[1])
            found.setdefault(words[0], place)
    return list(found.values())


def free_ram() -> int:
    """Bytes that programs could still have; 0 when unknown."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", read("/proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def uptime() -> float:
    """Seconds since the machine was started."""
    if system.NAME == "macos":
        return parse_boottime(_sysctl("kern.boottime"), time.time())
    return system.awake()


def parse_boottime(text: str, now: float) -> float:
    """{ sec = 1700000000, usec = 0 } Tue Nov 14 ... of macOS"""
    found = re.search(r"sec = (\d+)", text)
    return max(now - int(found.group(1)), 0.0) if found else 0.0


def warmth() -> dict[str, float]:
    """Degrees of every sensor that the machine tells of."""
    found: dict[str, float] = {}
    for name in _names("/sys/class/thermal"):
        with contextlib.suppress(ValueError):
            if name.startswith("thermal_zone"):
                folder = f"/sys/class/thermal/{name}"
                found[read(f"{folder}/type") or name] = int(read(f"{folder}/temp")) / 1000
    return found


def address() -> str:
    """The address under which this machine would reach others. Sends nothing."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect(("192.0.2.1", 9))
        return str(line.getsockname()[0])
    return ""


def reboot_required() -> bool:
    return os.path.exists("/var/run/reboot-required")


def entries(folder: str, most: int) -> int:
    """How many entries a folder has, counted up to one more than ``most``. Raises OSError."""
    count = 0
    with os.scandir(folder) as found:
        for _ in found:
            count += 1
            if count > most:
                break
    return count


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def locale_name() -> str:
    """The language and encoding that programs are told to use."""
    given = [os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    return next((name for name in given if name), "C" if sys.platform != "win32" else "unknown")
