"""`config show` and `config put`: the configuration files of the fleet, which all servers of a database share."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected

SCRIPTS = "scripts"


@click.command()
@click.argument("name", required=False)
@connected
def show(cli: CliContext, name: str | None) -> None:
    """List the files of the active configuration, or print one of them."""
    active = cli.client.config()
    if name is not None:
        _print_text(_text_of(cli, name))
    elif cli.as_json:
        output.print_struct(active)
    else:
        rows = [(file, output.ago(info.created_at), info.who) for file, info in sorted(active.files.items())]
        output.table(("file", "changed", "by"), rows, empty="There is no configuration: servers use their defaults.")


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--remove", "removed", multiple=True, metavar="NAME", help="Remove this file; repeatable.")
@click.option("--dry-run", is_flag=True, help="Check the change and show it, but change nothing.")
@connected
def put(cli: CliContext, files: tuple[Path, ...], removed: tuple[str, ...], dry_run: bool) -> None:
    """Check FILES, show what they change, and activate them.

    They are checked together with the rest of the configuration, and activated on all servers.


    A file keeps its name: bots.toml, pools.toml, bot_config.py, bootstrap.py, or scripts/NAME.py for a file in a folder
    with this name. An invalid change is refused as a whole.
    """
    if not files and not removed:
        raise click.UsageError("Name at least one file.")
    active = cli.client.config()
    change: dict[str, str | None] = {_name_of(path): path.read_text() for path in files}
    change.update(dict.fromkeys(removed))
    cli.client.change_config(change, base=active.version, dry_run=True)
    if not cli.as_json:
        for name, text in change.items():
            _show_difference(name, _text_of(cli, name) if name in active.files else "", text or "")
    done = cli.client.change_config(change, base=active.version, dry_run=dry_run)
    if cli.as_json:
        output.print_struct(done)
    elif dry_run:
        output.note("The change is valid. Nothing was changed.")
    elif done.version == active.version:
        output.note("The configuration has these files already.")
    else:
        output.note(f"Version {done.version[:12]} is active; other servers load it within seconds.")


def _print_text(text: str) -> None:
    """Print a text as it is into files and pipes; without control characters on a terminal."""
    if sys.stdout.isatty():
        output.echo_lines(text.removesuffix("\n"))
    else:
        output.write_bytes(text.encode())


def _name_of(path: Path) -> str:
    """The name of a file in the configuration."""
    return f"{SCRIPTS}/{path.name}" if path.absolute().parent.name == SCRIPTS else path.name


def _text_of(cli: CliContext, name: str) -> str:
    return cli.client.config_history(name, limit=1).versions[0].content or ""


def _show_difference(name: str, before: str, after: str) -> None:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"{name} (active)", name, lineterm="")
    for line in lines:
        output.echo(line)
