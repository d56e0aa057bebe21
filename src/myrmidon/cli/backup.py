"""`backup`, `restore` and `copy-db`: the data of an installation as a whole.

These work on the data folder and the databases themselves, on the machine where those are; server/backup.py does it
all. The one thing added here is the administrator's token: without it nobody could come in after a restore elsewhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from myrmidon.cli import exit_codes, output, server_discovery
from myrmidon.cli.context import json_option
from myrmidon.cli.server import settings_from_options

if TYPE_CHECKING:
    from myrmidon.server.settings import Settings


def _of_which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that name an installation."""
    options = (
        click.option(
            "--data-dir", type=click.Path(), metavar="DIR", help="The data folder. Default: that of the server here."
        ),
        click.option("--database", metavar="URL", help="The database, where it is not in the data folder."),
        click.option("--config", type=click.Path(), metavar="FILE", help="The server's settings in TOML."),
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@_of_which
def backup(folder: Path, *, as_json: bool, **given: Any) -> None:
    """Copy all data into a new FOLDER; the server may run meanwhile.

    The copy holds all tokens and keys: keep it as safe as the data.
    """
    settings = _settings(given)
    with _refusals():
        from myrmidon.server import backup as backups

        about = backups.backup(settings, folder)
    _copy_token(settings.folder / server_discovery.TOKEN_FILE, folder / server_discovery.TOKEN_FILE)
    if as_json:
        output.print_json({"folder": str(folder), "made_at": about.made_at, "version": about.version})
        return
    size = sum(file.stat().st_size for file in folder.iterdir())
    click.echo(f"{output.size(size)} in {folder}.")
    output.next_step(f"myrmidon restore {folder} --data-dir NEW, to see that it works")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--replace", is_flag=True, help="Even where there is data; that is kept beside it under another name.")
@_of_which
def restore(folder: Path, *, replace: bool, as_json: bool, **given: Any) -> None:
    """Put the backup in FOLDER in place. The server must be stopped."""
    settings = _settings(given)
    with _refusals():
        from myrmidon.server import backup as backups

        about = backups.restore(settings, folder, replace=replace)
    _copy_token(folder / server_discovery.TOKEN_FILE, settings.folder / server_discovery.TOKEN_FILE)
    if as_json:
        output.print_json({"data_dir": str(settings.folder), "made_at": about.made_at, "version": about.version})
        return
    click.echo(f"The backup of {output.local_time(about.made_at)} is in place in {settings.folder}.")
    output.next_step(f"myrmidon up --data-dir {settings.folder}")


@click.command(name="copy-db")
@click.argument("from_url", metavar="FROM")
@click.argument("to_url", metavar="TO")
@click.option("--from-logs", metavar="URL", help="Where the logs of FROM lie, if its server has a log_database.")
@click.option("--to-logs", metavar="URL", help="Where those of TO shall lie, if its server gets a log_database.")
@json_option
def copy_db(from_url: str, to_url: str, *, from_logs: str | None, to_logs: str | None, as_json: bool) -> None:
    """Move an installation to another, empty database. No server may be running on either.

    FROM stays as it is: until the new one has proved itself, it is the best backup.

    \b
      myrmidon copy-db sqlite:///$HOME/.local/share/myrmidon/myrmidon.db postgresql://user:password@host/database
    """
    with _refusals():
        from myrmidon.server import backup as backups

        done = backups.copy_db(from_url, to_url, from_logs=from_logs, to_logs=to_logs)
    if as_json:
        output.print_json({name: {"rows": one.rows, "num_bytes": one.num_bytes} for name, one in sorted(done.items())})
        return
    rows = [(name, one.rows, output.size(one.num_bytes)) for name, one in sorted(done.items()) if one.rows]
    output.table(("table", "rows", "size"), rows, empty="There was nothing to copy.")
    logs = "--log-database URL" if to_logs else "no log_database"
    output.next_step(f"myrmidon server --database TO, with {logs} and the same --data-dir")


def _settings(given: dict[str, Any]) -> Settings:
    """Those of the server on this machine, unless another one is named."""
    if not any(given.values()):
        given["data_dir"] = server_discovery.newest_local_server().get("data_dir")
    return settings_from_options({**given, "others": ()})


@contextmanager
def _refusals() -> Iterator[None]:
    """What the store or the system refuses, as a sentence."""
    from myrmidon.model.errors import MyrmidonError

    try:
        yield
    except MyrmidonError as error:
        raise Impossible(error.message) from error
    except OSError as error:
        raise Impossible(f"{error}. Look at the folders and their rights.") from error


class Impossible(click.ClickException):
    """The database does not allow it: in use, not empty, not there."""

    exit_code = exit_codes.CONFLICT


def _copy_token(source: Path, target: Path) -> None:
    """Where there is one: an installation may have had its first token from elsewhere."""
    if not source.exists():
        return
    if target.exists():
        shutil.copy2(target, target.with_name(f"{target.name}.before"))
    server_discovery.write_private(target, source.read_text())
