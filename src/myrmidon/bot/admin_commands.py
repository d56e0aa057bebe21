"""Commands of the zip for administrators and scripts: show what it contains, set up or reboot the machine, debug."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from myrmidon.bot import debug_console
from myrmidon.bot.install import startup_config, updater
from myrmidon.bot.install.startup_config import StartupError
from myrmidon.bot.link.http_client import HttpClient, HttpError, NoResponse
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.machine.status import BotStatus
from myrmidon.bot.system import dimensions, host

ADMISSION_S = 5.0
ADMISSION_PATH = "/bot/v1/zip/none"
"""No zip has this name. The status of the error shows whether this machine may introduce a bot."""


def show_config(_: list[str]) -> int:
    sys.stdout.write(json.dumps(startup_config.zip_config(), indent=2) + "\n")
    return 0


def show_server(argv: list[str]) -> int:
    """Print the server that `start` with these options would connect to; exit code 1 when none is set."""
    server = startup_config.parse(argv)["server"]
    sys.stdout.write(f"{server}\n" if server else "")
    return 0 if server else 1


def show_attributes(argv: list[str]) -> int:
    given = startup_config.parse(argv)
    bot_id, pool = given["bot_id"] or dimensions.default_id(), given["pool"] or "default"
    found = dimensions.dimensions(bot_id, pool, given["extra"])
    sys.stdout.write(json.dumps(found, indent=2, sort_keys=True) + "\n")
    return 0


def set_up(argv: list[str]) -> int:
    """Call the hook setup_bot without starting the bot; exit code 1 when it fails or requests a reboot."""
    folder = startup_config.prepare(argv)
    messages: list[str] = []
    status = BotStatus(
        startup_config.StartupConfig(folder),
        NamedCaches(os.path.join(folder, "c")),
        session=0,
        version=updater.own_version(),
        post_event=lambda _, message: messages.append(message),
        wake=lambda: None,
    )
    status.load_hooks()
    status.set_up()
    if status.requested_action is not None:
        messages.append(status.requested_action[1])
    sys.stderr.write("".join(f"myrmidon bot: {message}\n" for message in messages))
    return 1 if messages else 0


def reboot(_: list[str]) -> int:
    """Reboot this machine, unless a bot runs on it."""
    bots = host.other_bots("")
    if bots:
        sys.stderr.write(f"myrmidon bot: a bot runs in {bots[0]}; stop it first\n")
        return 1
    try:
        host.reboot()
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"myrmidon bot: cannot reboot the machine: {error}\n")
        return 1
    return 0


def check_admission(folder: str) -> None:
    """Raise StartupError if the server asks for a token, which the bot of this folder does not have.

    A server may admit a network without one. If it does not answer now, the bot starts and asks again.
    """
    try:
        client = HttpClient(startup_config.StartupConfig(folder).server)
        client.margin_s = ADMISSION_S
        client.call("GET", ADMISSION_PATH)
    except HttpError as error:
        if (error.status, error.code) == (401, "unauthorized"):
            raise StartupError("no token is configured, and the server asks for one: use --token-file FILE") from error
    except ValueError as error:
        raise StartupError(str(error)) from error
    except NoResponse:
        pass


def shell(argv: list[str]) -> int:
    """Open a Python prompt inside the bot that runs in a folder."""
    return debug_console.attach(startup_config.folder_of(argv))
