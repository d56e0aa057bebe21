"""`bots` and `bot`: list, manage and start bots."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from myrmidon.cli import output
from myrmidon.cli.bot_start import bot_command, bot_environment
from myrmidon.cli.collect import as_they_end
from myrmidon.cli.context import CliContext, connected, fetch_pages
from myrmidon.cli.request_options import Duration, Id, Pair
from myrmidon.cli.tokens import bootstrap_command

if TYPE_CHECKING:
    from myrmidon.wire.bots import BotSummary

_BOT_ARGUMENT = click.argument("bot_id", metavar="BOT", type=Id())
_STATES = ("alive", "dead", "silent", "idle", "busy", "draining", "quarantined", "maintenance")
_NO_BOTS = "No bots. Start one here with `myrmidon bot`, or elsewhere with the command of `myrmidon bot invite`."
_SHOWN_TASKS = 3
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
    cli.table(
        listing,
        ("bot", "state", "pool", "os", "seen", "runs", "details"),
        [_row(bot) for bot in listing.bots],
        empty="No matching bots." if dimensions or state else _NO_BOTS,
    )


def _row(bot: BotSummary) -> tuple[object, ...]:
    dimensions = bot.dimensions
    details = bot.quarantined or bot.maintenance or output.dimensions(dimensions, leave_out=("id", "pool", "os"))
    return (
        bot.bot_id,
        output.state(bot.status),
        ",".join(dimensions.get("pool", ())),
        max(dimensions.get("os", ("",)), key=len),  # the most specific one: Debian-12, not Linux
        output.ago(bot.last_seen_at),
        _work(bot),
        details,
    )


def _work(bot: BotSummary) -> str:
    """The names of the tasks that a bot runs; the ids of those that have no name."""
    names = [task.name or task.run for task in bot.tasks]
    more = len(names) - _SHOWN_TASKS
    return ", ".join(names[:_SHOWN_TASKS]) + (f" and {more} more" if more > 0 else "")


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
    latest = cli.client.bot_events(bot_id, limit=events).events if events else []
    if cli.prints({**output.as_json(bot), "events": output.as_json(latest)}):
        return
    output.fields(
        [
            ("bot", bot.bot_id),
            ("state", output.state(bot.status)),
            ("quarantined", bot.quarantined),
            ("maintenance", bot.maintenance),
            ("runs", "  ".join(f"{task.run} {task.name}".rstrip() for task in bot.tasks)),
            ("seen", output.ago(bot.last_seen_at)),
            ("first seen", output.local_time(bot.first_seen_at)),
            ("address", bot.address),
            ("version", bot.version[:12]),
            ("dimensions", output.dimension_list(bot.dimensions)),
        ]
    )
    if latest:
        output.echo()
        rows = [(output.local_time(event.at), event.kind, event.message) for event in latest]
        output.table(("time", "event", "message"), rows, empty="")


@bot.command()
@_BOT_ARGUMENT
@click.option("--undo", is_flag=True, help="End draining.")
@connected
def drain(cli: CliContext, bot_id: str, *, undo: bool) -> None:
    """Give a bot no new tasks; its current run continues."""
    answer = cli.client.drain(bot_id, draining=not undo)
    cli.tell(answer, f"Bot {bot_id} {'gets tasks again' if undo else 'gets no new tasks'}.")


@bot.command()
@_BOT_ARGUMENT
@click.option("--reason", "-r", default="", help="Reason, shown with the bot. Default: the one it has, or: by hand.")
@click.option("--undo", is_flag=True, help="End the quarantine.")
@connected
def quarantine(cli: CliContext, bot_id: str, reason: str, *, undo: bool) -> None:
    """Give a bot no tasks until its quarantine is ended."""
    answer = cli.client.quarantine(bot_id, None if undo else reason)
    cli.tell(answer, f"Bot {bot_id} {'is no longer' if undo else 'is'} quarantined.")


@bot.command()
@_BOT_ARGUMENT
@click.option("--reason", default="", help="Reason; becomes part of the task's name.")
@click.option("--wait", is_flag=True, help="Wait until the task has ended; it expires after a day.")
@connected
def terminate(cli: CliContext, bot_id: str, reason: str, *, wait: bool) -> None:
    """Make a bot exit after its current run. It gets a task for that."""
    answer = cli.client.terminate(bot_id, reason=reason)
    task_id = answer.task_id
    if wait and task_id is not None:
        for _ in as_they_end(cli, [task_id], None):
            pass
    cli.tell(answer, f"Bot {bot_id} {'has ended' if wait else 'exits after its current run'} (task {task_id}).")


@bot.command()
@_BOT_ARGUMENT
@click.option("--force", is_flag=True, help="Delete the bot although it is alive.")
@connected
def delete(cli: CliContext, bot_id: str, *, force: bool) -> None:
    """Delete a bot that no longer runs, and end its credentials.

    If it connects again, it needs a bootstrap token like a new bot. A bot that is alive is deleted with --force only:
    `bot terminate` ends it.
    """
    cli.tell(cli.client.delete_bot(bot_id, force=force), f"Bot {bot_id} is deleted.")


@bot.command()
@_BOT_ARGUMENT
@connected
def revoke(cli: CliContext, bot_id: str) -> None:
    """Revoke the credentials of a bot. Do it if a task may have read them.

    The bot is rejected at once. Its runs end with their leases, because their commands may go on until then. To use
    the bot again, start it with a new token: see `bot invite`.
    """
    cli.tell(cli.client.revoke_bot(bot_id), f"The credentials of bot {bot_id} are revoked.")


# -- starting bots -------------------------------------------------------------------------------------------


@bot.command()
@click.option("--pool", help="Pool of the bots. Default: default, unless --group is given.")
@click.option("--group", help="Group of bots.toml that the bots must be in.")
@click.option("--id", "bot_ids", metavar="ID", help="Id of the bot, or the beginning of ids and *, such as 'rack3--*'.")
@click.option("--uses", type=click.IntRange(1), default=1, show_default=True, help="How many bots it introduces.")
@click.option("--expires", type=Duration(), default="1d", show_default=True, help="How long the token is valid.")
@click.option(
    "--dimension", "-d", "dimensions", type=Pair(), multiple=True, help="Dimension of the bots, KEY=VALUE. Repeatable."
)
@connected
def invite(
    cli: CliContext,
    pool: str | None,
    group: str | None,
    bot_ids: str | None,
    dimensions: tuple[tuple[str, str], ...],
    *,
    uses: int,
    expires: int,
) -> None:
    """Print a command that starts a bot on another machine.

    The machine needs curl and Python 3.8 or newer. The command contains a new token that can only introduce such bots;
    `myrmidon token revoke` revokes it. A bot whose id a group's prefix trusts needs --group, or --id with that prefix.
    """
    info = cli.client.server()
    server = info.public_url or cli.endpoint.server
    created = cli.client.create_token(
        "invited bots",
        role="bot-bootstrap",
        expires_in_s=expires,
        bot_pool=pool,
        bot_group=group,
        bot_ids=bot_ids,
        uses=uses,
    )
    bot_id = bot_ids if bot_ids and not bot_ids.endswith("*") else None
    command = bootstrap_command(server, created.token or "", pool=pool, bot_id=bot_id, dimensions=dimensions)
    if cli.prints({**output.as_json(created), "command": command}):
        return
    output.echo(command)
    until = output.local_time(created.expires_at)
    output.note(
        f"The command starts {output.plural(uses, 'bot')}, until {until}. `myrmidon token revoke {created.id}` ends it."
    )
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
@click.option(
    "--slots", type=click.IntRange(0, 1024), help="How many functions run at a time. Default: number of processors."
)
@click.option(
    "--library-dir",
    "library_dirs",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    multiple=True,
    metavar="DIR",
    help="A folder with shared libraries whose functions tasks may call. Repeatable.",
)
@connected
def start(
    cli: CliContext,
    folder: str | None,
    pool: str | None,
    bot_id: str | None,
    dimensions: tuple[tuple[str, str], ...],
    slots: int | None,
    library_dirs: tuple[str, ...],
) -> None:
    """Start a bot on this machine; Ctrl-C stops it.

    The token must have the role admin or bot-bootstrap. An administrator token is not passed to the bot: a token that
    can only introduce this bot is created for it, and deleted once it has.
    """
    bot_folder = Path(folder or "~/myrmidon-bot").expanduser().absolute()
    words = bot_command(cli, bot_folder, pool=pool, bot_id=bot_id, dimensions=dimensions, slots=slots)
    words += [word for path in library_dirs for word in ("--library-dir", path)]
    if cli.as_json:
        output.print_json({"server": cli.endpoint.server, "dir": str(bot_folder)})
    else:
        output.echo(f"Starting a bot of {cli.endpoint.server} in {bot_folder}; Ctrl-C stops it.", err=True)
    sys.stdout.flush()
    os.execve(words[0], words, bot_environment())  # noqa: S606 - this process becomes the bot
