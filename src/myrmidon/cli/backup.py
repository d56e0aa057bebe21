"""`backup`, `restore` and `copy-db`: commands for all data of an installation.

They access the data folder and the databases directly, through server/backup.py, on the machine that holds them. The
administrator token is copied too: without it a restored server would have no token to log in with.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import find_endpoint, json_option
from myrmidon.cli.server import hide_password, settings_from_options
from myrmidon.sdk import server_discovery

if TYPE_CHECKING:
    from myrmidon.server.settings import Settings


def _installation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select an installation."""
    added = (
        click.option(
            "--data-dir",
            type=click.Path(),
            metavar="DIR",
            help="Data folder. Default: the one of the selected server, if it is a `myrmidon up` of yours.",
        ),
        click.option("--database", metavar="URL", help="Database, if it is not in the data folder."),
        click.option("--config", type=click.Path(), metavar="FILE", help="TOML file with the server's settings."),
        click.option("--server", "-S", metavar="URL", help="A `myrmidon up` on this machine. [env: MYRMIDON_SERVER]"),
        json_option,
    )
    for option in reversed(added):
        command = option(command)
    return command


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@_installation_options
def backup(folder: Path, *, as_json: bool, **options: Any) -> None:
    """Back up all data to a new FOLDER; the server may be running.

    Without options, the data is that of the server that other commands use. It must be on this machine. The backup
    contains tokens and keys: protect it like the data itself.
    """
    settings = _settings(options)
    with _error_messages():
        from myrmidon.server import backup as backups

        about = backups.backup(settings, folder)
    _copy_token(settings.data_folder / server_discovery.TOKEN_FILE, folder / server_discovery.TOKEN_FILE)
    if as_json:
        source = {"data_dir": str(settings.data_folder), "database": hide_password(settings.database_url)}
        made = {"made_at": about.made_at, "version": about.version}
        files = {"num_files": about.num_files, "damaged_files": about.damaged_files}
        output.print_json({"folder": str(folder), **source, **made, **files})
        return
    size = sum(file.stat().st_size for file in folder.rglob("*"))
    output.echo(f"Backed up {_described(settings)} to {folder}: {output.size(size)}.")
    if about.num_files is None:
        output.note(f"There are no files of values at {settings.files_folder}: the backup has none.")
    if about.damaged_files:
        output.note(f"{output.plural(len(about.damaged_files), 'file')} of values: damaged, not in the backup.")
    output.next_step(f"myrmidon restore {folder} --data-dir NEW, to test the backup")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--replace", is_flag=True, help="Replace existing data; it is kept under another name.")
@_installation_options
def restore(folder: Path, *, replace: bool, as_json: bool, **options: Any) -> None:
    """Restore the backup in FOLDER. The server must be stopped."""
    settings = _settings(options)
    with _error_messages():
        from myrmidon.server import backup as backups

        about = backups.restore(settings, folder, replace=replace)
    _copy_token(folder / server_discovery.TOKEN_FILE, settings.data_folder / server_discovery.TOKEN_FILE)
    if as_json:
        output.print_json({"data_dir": str(settings.data_folder), "made_at": about.made_at, "version": about.version})
        return
    output.echo(f"Restored the backup of {output.local_time(about.made_at)} to {_described(settings)}.")
    output.next_step(f"myrmidon up --data-dir {settings.data_folder}")


@click.command(name="copy-db")
@click.argument("from_url", metavar="FROM")
@click.argument("to_url", metavar="TO")
@click.option("--from-logs", metavar="URL", help="Log database of FROM, if its server has a log_database.")
@click.option("--to-logs", metavar="URL", help="Log database of TO, if its server will have a log_database.")
@json_option
def copy_db(from_url: str, to_url: str, *, from_logs: str | None, to_logs: str | None, as_json: bool) -> None:
    """Copy all data to another, empty database. No server may be running on either.

    FROM is not changed.

    \b
      myrmidon copy-db sqlite:///$HOME/.local/share/myrmidon/myrmidon.db postgresql://user:password@host/database
    """
    with _error_messages():
        from myrmidon.server import backup as backups

        copied = backups.copy_db(from_url, to_url, from_logs=from_logs, to_logs=to_logs)
    if as_json:
        output.print_json(
            {name: {"rows": table.rows, "num_bytes": table.num_bytes} for name, table in sorted(copied.items())}
        )
        return
    rows = [(name, table.rows, output.size(table.num_bytes)) for name, table in sorted(copied.items()) if table.rows]
    output.table(("table", "rows", "size"), rows, empty="Nothing to copy.")
    logs = "--log-database URL" if to_logs else "no log_database"
    output.next_step(f"myrmidon server --database TO, with {logs} and the same --data-dir")


def _settings(options: dict[str, Any]) -> Settings:
    """The settings of the selected installation; by default of the server that other commands use."""
    server = options.pop("server")
    if server is not None and any(options.values()):
        raise click.UsageError("--server cannot be used with --data-dir, --database or --config: they name the data.")
    if not any(options.values()):
        options["data_dir"] = _data_dir_of(server)
    return settings_from_options({**options, "others": ()})


def _data_dir_of(server: str | None) -> str | None:
    """The data folder of the selected server. None for the default one, if no server is selected or running.

    A selected server whose folder is unknown is an error: the data of another one would be copied.
    """
    endpoint = find_endpoint(server, None)
    local = server_discovery.local_server(endpoint.server)
    is_default = endpoint.server_source == server_discovery.DEFAULT_SOURCE
    if local and (local["up"] or is_default):
        return str(local["data_dir"])
    if not is_default:  # also a `myrmidon server` whose folder is known: its database may be elsewhere
        raise click.UsageError(
            f"The data folder of {endpoint.server} (from {endpoint.server_source}) is not known here. On the machine of"
            " that server, name it with --data-dir, or its settings with --config."
        )
    return None


def _described(settings: Settings) -> str:
    """The owner of the data: the data folder, the database if it is elsewhere, and the `myrmidon up` that uses it."""
    inside = settings.database_url.startswith(f"sqlite:///{settings.data_folder}/")
    database = "" if inside else f" with {hide_password(settings.database_url)}"
    running = [entry for entry in server_discovery.local_servers() if entry["data_dir"] == str(settings.data_folder)]
    server = f" (server {running[0]['server']})" if running else ""
    return f"{settings.data_folder}{database}{server}"


@contextmanager
def _error_messages() -> Iterator[None]:
    """Turn errors of the store and the system into error messages."""
    from myrmidon.model.errors import MyrmidonError

    try:
        yield
    except MyrmidonError as error:
        # The message says what to do; the advice of its class is about the settings of a server.
        raise DataCommandFailed(error.message.removesuffix(error.advice).strip()) from error
    except OSError as error:
        raise DataCommandFailed(f"{error}. Check the folders and their permissions.") from error


class DataCommandFailed(click.ClickException):
    """The database is in use, not empty or missing, or a folder is not accessible."""

    exit_code = exit_codes.CONFLICT


def _copy_token(source: Path, target: Path) -> None:
    """Copy the administrator token, if the file still exists. A token that it replaces is kept as .before."""
    if not source.exists():
        return
    if target.exists():
        shutil.copy2(target, target.with_name(f"{target.name}.before"))
    server_discovery.write_private(target, source.read_text())
