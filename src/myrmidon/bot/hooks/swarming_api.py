"""Modules for hooks that were written for Swarming: `from api import os_utilities, platforms`.

They contain the functions that such hooks use most, which describe the machine. They are installed before hooks are
loaded, so that an existing bot_config.py works unchanged.
"""

from __future__ import annotations

import os
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from myrmidon.bot.hooks.api import Bot
from myrmidon.bot.system import dimensions as machine
from myrmidon.bot.system import facts

_MIB = 1 << 20


def install(bot: Bot | None) -> None:
    """Add the modules to sys.modules. Without a bot, as in the self-test, they describe the machine only."""
    inside = {"get_inside_docker": lambda: "stock" if facts.inside_container() else None}
    platforms = _module("api.platforms", {"is_gce": facts.is_gce, "linux": _module("api.platforms.linux", inside)})
    _module("api", {"os_utilities": _module("api.os_utilities", _functions(bot)), "platforms": platforms})


def _functions(bot: Bot | None) -> dict[str, Callable[[], Any]]:
    return {
        "get_dimensions": lambda: bot.dimensions if bot is not None else machine.host(),
        "get_state": lambda: bot.state if bot is not None else {},
        "get_hostname": socket.gethostname,
        "get_hostname_short": machine.default_id,
        "get_ip": facts.ip_address,
        "get_num_processors": lambda: os.cpu_count() or 1,
        "get_physical_ram": lambda: facts.ram() // _MIB,
        "get_disks_info": _disks,
        "get_uptime": facts.uptime,
        "get_reboot_required": facts.reboot_required,
    }


def _disks() -> dict[str, dict[str, float]]:
    found = facts.disks(os.getcwd())
    return {
        mount_point: {"free_mb": disk["free"] / _MIB, "size_mb": disk["size"] / _MIB}
        for mount_point, disk in found.items()
    }


def _module(name: str, content: dict[str, Any]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
    return module
