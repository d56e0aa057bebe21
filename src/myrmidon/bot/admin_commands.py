"""What a person or a script asks of a zip besides running it: what is in it, and single steps of a bot's life."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from myrmidon.bot import debug_console
from myrmidon.bot.install import startup_config, updater
from myrmidon.bot.machine.named_caches import Caches
from myrmidon.bot.machine.status import Standing
from myrmidon.bot.system import dimensions, host


def show_config(_: list[str]) -> int:
    sys.stdout.write(json.dumps(startup_config.packed(), indent=2) + "\n")
    return 0


def show_server(argv: list[str]) -> int:
    """The server that a bot with these flags would call; 1 when none is known."""
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
    """Call setup_bot, for machines on which somebody else starts the bot; 1 when it fails or wants a reboot first."""
    folder = startup_config.prepare(argv)
    said: list[str] = []
    standing = Standing(
        startup_config.Orders(folder),
        Caches(os.path.join(folder, "c")),
        session=0,
        version=updater.own_version(),
        tell=lambda _, message: said.append(message),
        wake=lambda: None,
    )
    standing.load_hooks()
    standing.set_up()
    if standing.wish is not None:
        said.append(standing.wish[1])
    sys.stderr.write("".join(f"myrmidon bot: {message}\n" for message in said))
    return 1 if said else 0


def reboot(_: list[str]) -> int:
    """Restart this machine, unless a bot lives on it."""
    bots = host.neighbours("")
    if bots:
        sys.stderr.write(f"myrmidon bot: a bot lives here in {bots[0]}; end it first\n")
        return 1
    try:
        host.reboot()
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"myrmidon bot: the machine cannot be rebooted: {error}\n")
        return 1
    return 0


def visit(argv: list[str]) -> int:
    """A Python prompt inside the bot that runs in a folder."""
    return debug_console.visit(startup_config.folder_of(argv))
