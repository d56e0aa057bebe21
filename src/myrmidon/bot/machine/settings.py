"""Settings of a bot: free disk space, cache sizes, price, environments.

Defaults are overridden by those of its group, and these by get_settings.

Overrides are merged key by key. An invalid value is reported and ignored, so that a typing mistake cannot fill a disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from myrmidon.functions.requirements import BUILT, NAME

_GIB = 1 << 30

DEFAULTS: dict[str, Any] = {
    "free_partition": {
        "root": {"size": _GIB, "max_percent": 10.0, "min_percent": 6.0},
        "bot": {"size": 4 * _GIB, "max_percent": 15.0, "min_percent": 7.0, "wiggle": 250 << 20},
    },
    "caches": {
        "named": {"size": 1 << 40, "items": 50, "age_s": 21 * 86400.0},
        "isolated": {"size": 50 * _GIB, "items": 51200},
        "environments": {"size": 50 * _GIB, "items": 100, "age_s": 21 * 86400.0},
    },
    "temp": {"items": 1024},
    "cost_usd_hour": None,
    "environment_build_s": 1800.0,
    "environments": {},
    "pythons": [],
}
LOCAL_OVERRIDES: dict[str, Any] = {
    "free_partition": {
        "root": {"size": _GIB // 4, "min_percent": 0.0},
        "bot": {"size": _GIB, "min_percent": 0.0},
    },
    "temp": {"items": 1 << 30},
}
"""For the bots of `myrmidon up`: disks and temporary folders of developers' machines are often nearly full."""


def defaults() -> dict[str, Any]:
    is_local = os.environ.get("MYRMIDON_BOT_LOCAL")
    return merge(DEFAULTS, LOCAL_OVERRIDES, []) if is_local else DEFAULTS


def merge(base: dict[str, Any], overrides: Any, problems: list[str], path: str = "settings") -> dict[str, Any]:
    """A copy of ``base`` with the valid overrides; problems are appended to ``problems``.

    Unknown keys at the top level of a group's settings are ignored: they may be meant for its script.
    """
    if not isinstance(overrides, dict):
        problems.append(f"{path} must be a dict, not {overrides!r:.100}")
        return base
    result = dict(base)
    if path != "settings":
        problems += [f"{path}.{key} is unknown" for key in overrides if key not in base]
    for key, default in base.items():
        if key not in overrides:
            continue
        value = overrides[key]
        if key in _PATHS and "." not in path:
            result[key] = _PATHS[key](value, default, problems, f"{path}.{key}")
        elif isinstance(default, dict):
            result[key] = merge(default, value, problems, f"{path}.{key}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
            result[key] = value
        else:
            problems.append(f"{path}.{key} must be a non-negative number, not {value!r:.100}")
    return result


def _named_paths(value: Any, default: dict[str, str], problems: list[str], path: str) -> dict[str, str]:
    """The environments of the bot: absolute paths by name."""
    if not isinstance(value, dict):
        problems.append(f"{path} must be a dict of paths by name, not {value!r:.100}")
        return default
    result = dict(default)
    for name, given in value.items():
        if not isinstance(name, str) or not NAME.fullmatch(name) or name == BUILT:
            problems.append(f"{path}: {name!r:.100} is not a name of an environment")
        elif not _is_path(given):
            problems.append(f"{path}.{name} must be an absolute path, not {given!r:.100}")
        else:
            result[name] = given
    return result


def _path_list(value: Any, default: list[str], problems: list[str], path: str) -> list[str]:
    """Interpreters of the bot: absolute paths."""
    if not isinstance(value, (list, tuple)) or not all(map(_is_path, value)):
        problems.append(f"{path} must be a list of absolute paths, not {value!r:.100}")
        return default
    return list(value)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and os.path.isabs(value) and "\0" not in value


_PATHS: dict[str, Callable[[Any, Any, list[str], str], Any]] = {"environments": _named_paths, "pythons": _path_list}


def required_free(total: int, rule: dict[str, float]) -> int:
    """Bytes that must be free on a disk of this size: rule["size"], limited to a range of percentages of the disk."""
    minimum = total * rule["min_percent"] / 100
    return int(max(minimum, min(rule["size"], total * rule["max_percent"] / 100)))
