"""What a person or a script asks of a zip besides running it: what is in it, and single steps of a bot's life."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from myrmidon.bot import console, dimensions, orders, system, updater
from myrmidon.bot.caches import Caches
from myrmidon.bot.standing import Standing


def show_config(_: list[str]) -> int:
    sys.stdout.write(json.dumps(orders.packed(), indent=2) + "\n")
    return 0


def show_server(argv: list[str]) -> int:
    """The server that a bot with these flags would call; 1 when none is known."""
    server = orders.parse(argv)["server"]
    sys.stdout.write(f"{server}\n" if server else "")
    return 0 if server else 1


def show_attributes(argv: list[str]) -> int:
    given = orders.parse(argv)
    bot_id, pool = given["bot_id"] or dimensions.default_id(), given["pool"] or "default"
    found = dimensions.dimensions(bot_id, pool, given["extra"])
    sys.stdout.write(json.dumps(found, indent=2, sort_keys=True) + "\n")
    return 0


def set_up(argv: list[str]) -> int:
    """Call setup_bot, for machines on which somebody else starts the bot; 1 when it fails or wants a reboot first."""
    folder = orders.prepare(argv)
    said: list[str] = []
    standing = Standing(
        orders.Orders(folder),
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
    bots = system.neighbours("")
    if bots:
        sys.stderr.write(f"myrmidon bot: a bot lives here in {bots[0]}; end it first\n")
        return 1
    try:
        system.reboot()
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"myrmidon bot: the machine cannot be rebooted: {error}\n")
        return 1
    return 0


def visit(argv: list[str]) -> int:
    """A Python prompt inside the bot that runs in a folder."""
    return console.visit(orders.folder_of(argv))
