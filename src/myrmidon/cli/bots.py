"""`bots` and `bot`: list, manage and start bots."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected, fetch_pages
from myrmidon.cli.request_options import Duration, Id, Pair
from myrmidon.cli.tokens import bootstrap_command
from myrmidon.sdk.errors import Conflict, NotAllowed

_BOT_ARGUMENT = click.argument("bot_id", metavar="BOT", type=Id())
_STATES = ("alive", "dead", "silent", "idle", "busy", "draining", "quarantined", "maintenance")
_NO_BOTS = "No bots. Start one here with `myrmidon bot`, or elsewhere with the command of `myrmidon bot invite`."
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command()
@click.option(
    "--dimension",
    "-d",
    "dimensions",
    type=Pair(),
    multiple=True,
    help="Only bots with KEY=VALUE. Repeatable; all must match.",
)
@click.option("--state", "-s", type=click.Choice(_STATES), help="Only bots in this state.")
@click.option(
    "--limit", "-l", type=click.IntRange(1, 100_000), default=200, show_default=True, help="Maximum number of bots."
)
@connected
def bots(cli: CliContext, dimensions: tuple[tuple[str, str], ...], state: str | None, limit: int) -> None:
    """List bots.

    The details are the reason of a quarantine or maintenance, else the other dimensions. On a terminal they are cut;
    `myrmidon bot show BOT` shows all of them.
    """
    filters = [f"{key}:{value}" for key, value in dimensions]
    listing = fetch_pages(cli.client.bots, "bots", limit, dimension=filters, state=state)
    if cli.as_json:
        output.print_json(listing)
        return
    output.table(
        ("bot", "state", "pool", "os", "seen", "runs", "details"),
        [_row(bot) for bot in listing["bots"]],
        empty="No matching bots." if dimensions or state else _NO_BOTS,
    )


def _row(bot: dict[str, Any]) -> tuple[object, ...]:
    dimensions = bot["dimensions"]
    details = bot["quarantined"] or bot["maintenance"] or output.dimensions(dimensions, leave_out=("id", "pool", "os"))
    return (
        bot["bot_id"],
        output.state(bot["status"]),
        ",".join(dimensions.get("pool", ())),
        max(dimensions.get("os", ("",)), key=len),  # the most specific one: Debian-12, not Linux
        output.ago(bot["last_seen_at"]),
        " ".join(bot["runs"]),
        details,
    )


class StartByDefault(click.Group):
    """A group whose default command is `start`, also when only options are given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        only_options = bool(args) and args[0].startswith("-") and args[0] not in ("-h", "--help")
        if only_options or not (args or ctx.resilient_parsing):  # completion must offer all commands
            args = ["start", *args]
        return super().parse_args(ctx, args)


@click.group(cls=StartByDefault)
def bot() -> None:
    """Start a bot on this machine, or manage bots.

    The default command is `start`.
    """


@bot.command(name="show")
@_BOT_ARGUMENT
@click.option(
    "--events", "-n", type=click.IntRange(0, 1000), default=10, show_default=True, help="Number of events to show."
)
@connected
def show_bot(cli: CliContext, bot_id: str, events: int) -> None:
    """Show a bot, its current runs and its latest events."""
    bot = cli.client.bot(bot_id)
    bot["events"] = cli.client.bot_events(bot_id, limit=events)["events"] if events else []
    if cli.as_json:
        output.print_json(bot)
        return
    output.fields(
        [
            ("bot", bot["bot_id"]),
            ("state", output.state(bot["status"])),
            ("quarantined", bot["quarantined"]),
            ("maintenance", bot["maintenance"]),
            ("runs", " ".join(bot["runs"])),
            ("seen", output.ago(bot["last_seen_at"])),
            ("first seen", output.local_time(bot["first_seen_at"])),
            ("address", bot["address"]),
            ("version", bot["version"][:12]),
            ("dimensions", output.dimension_list(bot["dimensions"])),
        ]
    )
    if bot["events"]:
        output.echo()
        rows = [(output.local_time(event["at"]), event["kind"], event["message"]) for event in bot["events"]]
        output.table(("time", "event", "message"), rows, empty="")


@bot.command()
@_BOT_ARGUMENT
@click.option("--undo", is_flag=True, help="End draining.")
@connected
def drain(cli: CliContext, bot_id: str, *, undo: bool) -> None:
    """Give a bot no new tasks; its current run continues."""
    answer = cli.client.drain(bot_id, draining=not undo)
    _print_result(cli, answer, f"Bot {bot_id} {'gets tasks again' if undo else 'gets no new tasks'}.")


@bot.command()
@_BOT_ARGUMENT
@click.option("--reason", "-r", default="by hand", show_default=True, help="Reason, shown with the bot.")
@click.option("--undo", is_flag=True, help="End the quarantine.")
@connected
def quarantine(cli: CliContext, bot_id: str, reason: str, *, undo: bool) -> None:
    """Quarantine a bot: it gets no tasks until the quarantine is ended."""
    answer = cli.client.quarantine(bot_id, None if undo else reason)
    _print_result(cli, answer, f"Bot {bot_id} {'is no longer' if undo else 'is'} quarantined.")


@bot.command()
@_BOT_ARGUMENT
@click.option("--reason", default="", help="Reason; becomes part of the task's name.")
@click.option("--wait", is_flag=True, help="Wait until the task has ended; it expires after a day.")
@connected
def terminate(cli: CliContext, bot_id: str, reason: str, *, wait: bool) -> None:
    """Make a bot exit after its current run, by a task addressed to it."""
    answer = cli.client.terminate(bot_id, reason=reason)
    task_id = answer.get("task_id")
    while wait and task_id is not None and not cli.client.wait([task_id])["done"]:
        pass
    _print_result(
        cli, answer, f"Bot {bot_id} {'has ended' if wait else 'exits after its current run'} (task {task_id})."
    )


@bot.command()
@_BOT_ARGUMENT
@connected
def delete(cli: CliContext, bot_id: str) -> None:
    """Delete a bot that no longer runs.

    If it connects again, it needs a bootstrap token like a new bot.
    """
    _print_result(cli, cli.client.delete_bot(bot_id), f"Bot {bot_id} is deleted.")


def _print_result(cli: CliContext, answer: dict[str, Any], sentence: str) -> None:
    if cli.as_json:
        output.print_json(answer)
    else:
        output.echo(sentence)


# -- starting bots -------------------------------------------------------------------------------------------


@bot.command()
@click.option("--expires", type=Duration(), help="How long the token is valid. Default: until it is revoked.")
@connected
def invite(cli: CliContext, expires: int | None) -> None:
    """Print a command that starts a bot on another machine.

    The machine needs curl and Python 3.8 or newer. The command contains a new token that can only register bots;
    `myrmidon token revoke` revokes it.
    """
    info = cli.client.server()
    server = info.get("public_url") or cli.endpoint.server
    created = cli.client.create_token("invited bots", role="bot-bootstrap", expires_in_s=expires)
    if cli.as_json:
        output.print_json({**created, "command": bootstrap_command(server, created["token"])})
        return
    output.echo(bootstrap_command(server, created["token"]))
    if urlsplit(server).hostname in _LOOPBACK:
        output.note(
            "This address works on this machine only; for others, start the server with --host and --public-url."
        )


@bot.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(),
    metavar="DIR",
    help="The bot's folder; each bot needs its own. Default: ~/myrmidon-bot.",
)
@click.option("--pool", help="Pool of the bot. Default: default.")
@click.option("--id", "bot_id", help="Id of the bot. Default: the host name.")
@click.option(
    "--dimension", "-d", "dimensions", type=Pair(), multiple=True, help="Additional dimension, KEY=VALUE. Repeatable."
)
@connected
def start(
    cli: CliContext, folder: str | None, pool: str | None, bot_id: str | None, dimensions: tuple[tuple[str, str], ...]
) -> None:
    """Start a bot on this machine; Ctrl-C stops it.

    The token must have the role admin or bot-bootstrap. An administrator token is not passed to the bot: a token that
    can only register bots is created for it.
    """
    bot_folder = Path(folder or "~/myrmidon-bot").expanduser().absolute()
    cli = _with_bootstrap_token(cli, bot_folder)
    words = bot_command(cli, bot_folder, pool=pool, bot_id=bot_id, dimensions=dimensions)
    if cli.as_json:
        output.print_json({"server": cli.endpoint.server, "dir": str(bot_folder)})
    else:
        output.echo(f"Starting a bot of {cli.endpoint.server} in {bot_folder}; Ctrl-C stops it.", err=True)
    sys.stdout.flush()
    os.execve(words[0], words, bot_environment(cli))  # noqa: S606 - this process becomes the bot


def _with_bootstrap_token(cli: CliContext, folder: Path) -> CliContext:
    """A context with a token that can only register bots: tasks can read their bot's token.

    The idempotency key gives the same host and folder the same token at each start.
    """
    host = socket.gethostname()
    folder_key = sha256(os.fsencode(f"{host} {folder}")).hexdigest()
    for key in (folder_key, None):
        try:
            created = cli.client.create_token(f"bot on {host}", role="bot-bootstrap", key=key)
        except Conflict:
            continue  # the token of this key was revoked: create another one
        except NotAllowed:
            break  # already a bootstrap token, or an invalid one, which the bot will report
        return CliContext(cli.endpoint.server, created["token"], as_json=cli.as_json)
    return cli


def bot_command(
    cli: CliContext,
    folder: Path,
    *,
    pool: str | None = None,
    bot_id: str | None = None,
    dimensions: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """The command that starts a bot in a folder, from the zip that the server serves, which is downloaded here."""
    first_zip = folder.with_name(f"{folder.name}.first.zip")
    first_zip.parent.mkdir(parents=True, exist_ok=True)
    first_zip.write_bytes(cli.client.bot_zip())
    words = [sys.executable, str(first_zip), "start", "--dir", str(folder), "--server", cli.endpoint.server]
    for flag, value in (("--pool", pool), ("--bot-id", bot_id)):
        words += [flag, value] if value else []
    return words + [word for key, value in dimensions for word in ("--dimension", f"{key}={value}")]


def bot_environment(cli: CliContext) -> dict[str, str]:
    """The environment of a bot: without this program's MYRMIDON_ variables, with the bootstrap token."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MYRMIDON_")}
    return {**env, "MYRMIDON_BOT_TOKEN": cli.endpoint.token or ""}
