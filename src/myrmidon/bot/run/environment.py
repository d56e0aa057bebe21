"""The environment of commands: an allowlist of the bot's own variables, and what the bot and the task add.

The variables of the service manager or shell that started the bot are not passed on: a task must not depend on who
started its bot, and these variables may contain secrets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

PASSED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
     "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY",
     "NO_PROXY"}
)  # fmt: skip
"""Variables of the bot that commands get, like those that begin with LC_ and proxies in lower case; see docs/bot.md."""


def base_environment(passed: Iterable[str], added: dict[str, str]) -> dict[bytes, bytes]:
    """The variables of the bot that commands get, with ``passed`` as further names, and those that the bot adds."""
    further = frozenset(passed)
    env = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items() if _is_passed(name, further)}
    env.update({os.fsencode(name): os.fsencode(value) for name, value in added.items()})
    return env


def _is_passed(name: str, further: frozenset[str]) -> bool:
    is_proxy = name.islower() and name.endswith("_proxy") and name.upper() in PASSED
    return name in PASSED or name in further or name.startswith("LC_") or is_proxy
