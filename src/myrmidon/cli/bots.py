"""`bots` and `bot`: look at bots, look after one, and bring new ones in."""

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

_WHICH = click.argument("bot_id", metavar="BOT", type=Id())
_STATES = ("alive", "dead", "idle", "busy", "draining", "quarantined", "maintenance")
_NO_BOTS = "No bots. Start one here with `myrmidon bot`; `myrmidon bot invite` tells how to elsewhere."
_LOCAL = ("127.0.0.1", "localhost", "::1")


@click.command()
@click.option("--dimension", "-d", "dimensions", type=Pair(), multiple=True, help="Only with KEY=VALUE. Repeat: all.")
@click.option("--state", "-s", type=click.Choice(_STATES), help="Only bots that are so.")
@click.option("--limit", "-l", type=click.IntRange(1, 100_000), default=200, show_default=True, help="At most so many.")
@connected
def bots(cli: CliContext, dimensions: tuple[tuple[str, str], ...], state: str | None, limit: int) -> None:
    """List bots."""
    wanted = [f"{key}:{value}" for key, value in dimensions]
    found = fetch_pages(cli.client.bots, "bots", limit, dimension=wanted, state=state)
    if cli.as_json:
        output.print_json(found)
        return
    output.table(
        ("bot", "state", "seen", "runs", "dimensions"),
        [_row(one) for one in found["bots"]],
        empty="No bots are so." if dimensions or state else _NO_BOTS,
    )


def _row(bot: dict[str, Any]) -> tuple[object, ...]:
    has = output.dimensions(bot["dimensions"], leave_out=("id",))
    return (bot["bot_id"], output.state(bot["status"]), output.ago(bot["last_seen_at"]), " ".join(bot["runs"]), has)


class StartsBots(click.Group):
    """`myrmidon bot` with options only starts one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        only_options = bool(args) and args[0].startswith("-") and args[0] not in ("-h", "--help")
        if only_options or not (args or ctx.resilient_parsing):  # a shell that completes wants to see all commands
            args = ["start", *args]
        return super().parse_args(ctx, args)


@click.group(cls=StartsBots)
def bot() -> None:
    """A bot on this machine; or look after one.

    Without a command, `start`.
    """


@bot.command(name="show")
@_WHICH
@click.option("--events", "-n", type=click.IntRange(0, 1000), default=10, show_default=True, help="So many events.")
@connected
def show_bot(cli: CliContext, bot_id: str, events: int) -> None:
    """What a bot is, what it does, and what happened to it."""
    found = cli.client.bot(bot_id)
    found["events"] = cli.client.bot_events(bot_id, limit=events)["events"] if events else []
    if cli.as_json:
        output.print_json(found)
        return
    output.fields(
        [
            ("bot", found["bot_id"]),
            ("state", output.state(found["status"])),
            ("quarantined", found["quarantined"]),
            ("maintenance", found["maintenance"]),
            ("runs", " ".join(found["runs"])),
            ("seen", output.ago(found["last_seen_at"])),
            ("first seen", output.local_time(found["first_seen_at"])),
            ("address", found["address"]),
            ("version", found["version"][:12]),
            ("dimensions", output.dimensions(found["dimensions"]).replace(" ", "\n")),
        ]
    )
    if found["events"]:
        click.echo()
        rows = [(output.local_time(one["at"]), one["kind"], one["message"]) for one in found["events"]]
        output.table(("when", "what", "message"), rows, empty="")


@bot.command()
@_WHICH
@click.option("--undo", is_flag=True, help="Let it work again.")
@connected
def drain(cli: CliContext, bot_id: str, *, undo: bool) -> None:
    """Give a bot no new work; what it runs now goes on."""
    answer = cli.client.drain(bot_id, draining=not undo)
    _told(cli, answer, f"Bot {bot_id} {'works again' if undo else 'gets no new work'}.")


@bot.command()
@_WHICH
@click.option("--reason", "-r", default="by hand", show_default=True, help="Why; shown beside the bot.")
@click.option("--undo", is_flag=True, help="Let it work again.")
@connected
def quarantine(cli: CliContext, bot_id: str, reason: str, *, undo: bool) -> None:
    """Put a bot aside because something is wrong with it."""
    answer = cli.client.quarantine(bot_id, None if undo else reason)
    _told(cli, answer, f"Bot {bot_id} {'is no longer' if undo else 'is'} quarantined.")


@bot.command()
@_WHICH
@click.option("--reason", default="", help="Why; it becomes part of the task's name.")
@click.option("--wait", is_flag=True, help="Return when the bot has obeyed, or has not for a day.")
@connected
def terminate(cli: CliContext, bot_id: str, reason: str, *, wait: bool) -> None:
    """Tell a bot to finish what it runs and exit; a task of its own tells it so."""
    answer = cli.client.terminate(bot_id, reason=reason)
    task_id = answer.get("task_id")
    while wait and task_id is not None and not cli.client.wait([task_id])["done"]:
        pass
    _told(cli, answer, f"Bot {bot_id} {'has ended' if wait else 'exits when its work is done'} (task {task_id}).")


@bot.command()
@_WHICH
@connected
def delete(cli: CliContext, bot_id: str) -> None:
    """Forget a bot that is gone.

    One that comes again must be introduced again, as a new one.
    """
    _told(cli, cli.client.delete_bot(bot_id), f"Bot {bot_id} is forgotten.")


def _told(cli: CliContext, answer: dict[str, Any], sentence: str) -> None:
    if cli.as_json:
        output.print_json(answer)
    else:
        click.echo(sentence)


# -- bringing bots in ----------------------------------------------------------------------------------------


@bot.command()
@click.option("--expires", type=Duration(), help="How long new bots may come with it. Default: until it is revoked.")
@connected
def invite(cli: CliContext, expires: int | None) -> None:
    """Print a command that starts a bot elsewhere.

    It works on any machine with curl and Python 3.8 or newer. It holds a token of its own that can do nothing but
    bring in bots; `myrmidon token revoke` ends that.
    """
    info = cli.client.server()
    server = info.get("public_url") or cli.endpoint.server
    made = cli.client.create_token("invited bots", role="bot-bootstrap", expires_in_s=expires)
    if cli.as_json:
        output.print_json({**made, "command": bootstrap_command(server, made["token"])})
        return
    click.echo(bootstrap_command(server, made["token"]))
    if urlsplit(server).hostname in _LOCAL:
        output.note(
            "This address is good on this machine only: start the server with --host and --public-url for others."
        )


@bot.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(),
    metavar="DIR",
    help="The bot's folder; one for each bot. Default: ~/myrmidon-bot.",
)
@click.option("--pool", help="Its pool. Default: default.")
@click.option("--id", "bot_id", help="Its id. Default: the name of this machine.")
@click.option(
    "--dimension", "-d", "dimensions", type=Pair(), multiple=True, help="More of what it has, KEY=VALUE. Repeat."
)
@connected
def start(
    cli: CliContext, folder: str | None, pool: str | None, bot_id: str | None, dimensions: tuple[tuple[str, str], ...]
) -> None:
    """Turn this machine into a bot of the server, until Ctrl-C.

    The token must be an administrator's, or one with the role bot-bootstrap. A bot never gets an administrator's:
    one is made for it that can bring in bots and nothing else.
    """
    place = Path(folder or "~/myrmidon-bot").expanduser().absolute()
    cli = _introducer(cli, place)
    words = bot_command(cli, place, pool=pool, bot_id=bot_id, dimensions=dimensions)
    if cli.as_json:
        output.print_json({"server": cli.endpoint.server, "dir": str(place)})
    else:
        click.echo(f"Starting a bot of {cli.endpoint.server} in {place}; Ctrl-C stops it.", err=True)
    sys.stdout.flush()
    os.execve(words[0], words, bot_environment(cli))  # noqa: S606 - becomes the bot


def _introducer(cli: CliContext, folder: Path) -> CliContext:
    """Tasks can read whatever their bot has, so it gets a token of the least rights; the same one at each start."""
    host = socket.gethostname()
    same = sha256(os.fsencode(f"{host} {folder}")).hexdigest()
    for key in (same, None):
        try:
            made = cli.client.create_token(f"bot on {host}", role="bot-bootstrap", key=key)
        except Conflict:
            continue  # that one was revoked
        except NotAllowed:
            break  # it is such a token already, or the bot will be told what is wrong with it
        return CliContext(cli.endpoint.server, made["token"], as_json=cli.as_json)
    return cli


def bot_command(
    cli: CliContext,
    folder: Path,
    *,
    pool: str | None = None,
    bot_id: str | None = None,
    dimensions: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """The command that starts a bot in a folder: from the zip of its server, as on any other machine."""
    first = folder.with_name(f"{folder.name}.first.zip")
    first.parent.mkdir(parents=True, exist_ok=True)
    first.write_bytes(cli.client.bot_zip())
    words = [sys.executable, str(first), "start", "--dir", str(folder), "--server", cli.endpoint.server]
    for flag, value in (("--pool", pool), ("--bot-id", bot_id)):
        words += [flag, value] if value else []
    return words + [word for key, value in dimensions for word in ("--dimension", f"{key}={value}")]


def bot_environment(cli: CliContext) -> dict[str, str]:
    """What a bot's process sees: nothing of our own settings but the token that introduces it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MYRMIDON_")}
    return {**env, "MYRMIDON_BOT_TOKEN": cli.endpoint.token or ""}
