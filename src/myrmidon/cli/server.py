"""`server`, `servers` and `config`: server processes and their settings.

The server's code is imported only to start a server or to check its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from myrmidon.cli import exit_codes, fleet_config, output
from myrmidon.cli.context import CliContext, connected, json_option
from myrmidon.sdk import server_discovery

if TYPE_CHECKING:
    from myrmidon.server.settings import Settings

_SETTING_OPTIONS = (
    click.option("--config", type=click.Path(), metavar="FILE", help="TOML file with settings. [env: MYRMIDON_CONFIG]"),
    click.option("--data-dir", type=click.Path(), metavar="DIR", help="Data folder. Default: ~/.local/share/myrmidon."),
    click.option("--database", metavar="URL", help="Database: sqlite:///FILE, postgresql://... or mysql://..."),
    click.option("--host", metavar="ADDRESS", help="Address to listen on. Default: 127.0.0.1."),
    click.option("--port", type=click.IntRange(0, 65_535), help="Port; 0 for any free port. Default: 8910."),
    click.option("--public-url", metavar="URL", help="URL at which bots and users reach this server."),
    click.option("--tls-certificate", type=click.Path(), metavar="FILE", help="Certificate chain for HTTPS."),
    click.option("--tls-key", type=click.Path(), metavar="FILE", help="Private key of the certificate."),
    click.option(
        "--plain-http", is_flag=True, default=None, help="Accept connections from other machines without HTTPS."
    ),
    click.option("--log-level", metavar="LEVEL", help="Log level: debug, info, warning or error."),
    click.argument("others", nargs=-1, type=click.UNPROCESSED, metavar="[--SETTING VALUE]..."),
)


def _with_setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SETTING_OPTIONS):
        command = option(command)
    return command


_ALLOW_UNKNOWN_OPTIONS: Final = {"ignore_unknown_options": True}


@click.command(context_settings=_ALLOW_UNKNOWN_OPTIONS)
@_with_setting_options
def server(**options: Any) -> int:
    """Start a server; SIGTERM or Ctrl-C stops it.

    Settings come from a TOML file, environment variables (MYRMIDON_ and the name in capitals) and options; later ones
    override earlier ones. Every setting of docs/server.md is also an option. The first start creates an administrator
    token in DIR/admin.token.
    """
    from myrmidon.model.errors import MyrmidonError
    from myrmidon.server.process import run_server

    settings = settings_from_options(options)
    try:
        return run_server(settings, on_listening=partial(_register, settings))
    except MyrmidonError as error:
        raise click.ClickException(error.message) from error
    finally:
        server_discovery.unregister_local_server()


def _register(settings: Settings, url: str) -> None:
    """Let the commands of this user find the token of this server. One that runs as a service may have no home."""
    with suppress(OSError):
        server_discovery.register_local_server(url, settings.data_folder, up=False)


@click.group()
def config() -> None:
    """Check a server's settings; show and change the configuration of the fleet."""


config.add_command(fleet_config.show)
config.add_command(fleet_config.put)


@config.command(context_settings=_ALLOW_UNKNOWN_OPTIONS)
@_with_setting_options
@json_option
def check(*, as_json: bool, **options: Any) -> None:
    """Print the settings as `server` reads them, or all their problems.

    The configuration folder (`config_dir`) is checked too: bots.toml, pools.toml and the bots' Python files.
    """
    from msgspec import json, to_builtins

    from myrmidon.server.config.config_folder import check_folder

    settings = settings_from_options(options)
    if problems := check_folder(settings.config_folder):
        lines = [f"  {problem}" for problem in problems]
        raise InvalidSettings("\n".join([f"The configuration folder {settings.config_folder} is invalid:", *lines]))
    shown = {
        **to_builtins(settings),
        "data_dir": str(settings.data_folder),
        "database": hide_password(settings.database_url),
    }
    shown["log_database"] = hide_password(settings.log_database_url)
    shown["amqp"]["url"] = hide_password(settings.amqp.url)
    shown["config_dir"] = str(settings.config_folder)
    if as_json:
        output.print_json(shown)
        return
    output.fields(
        [(name, value if isinstance(value, str) else json.encode(value).decode()) for name, value in shown.items()]
    )
    output.note("The settings are valid.")


class InvalidSettings(click.ClickException):
    """The message lists every problem, one per line."""

    exit_code = exit_codes.INVALID


def settings_from_options(options: dict[str, Any]) -> Settings:
    """The settings of the file, the environment and these options; the options take precedence."""
    from myrmidon.model.errors import InvalidRequest
    from myrmidon.server.settings_reader import read_settings

    others = _parse_extra_settings(options.pop("others"))
    file = options.pop("config")
    try:
        return read_settings(file, flags={**options, **others})
    except InvalidRequest as error:
        lines = [f"  {problem}" for problem in error.problems]
        raise InvalidSettings("\n".join(["The settings are invalid:", *lines])) from None


def _parse_extra_settings(words: Sequence[str]) -> dict[str, Any]:
    """Parse settings that are not declared as options: ``--log-mib 10 --metrics-open=true``."""
    settings: dict[str, Any] = {}
    remaining = list(words)
    while remaining:
        name, sign, value = remaining.pop(0).partition("=")
        if not name.startswith("--") or not (sign or remaining):
            raise click.UsageError(f"{name!r} is not a setting with a value.")
        settings[name.removeprefix("--").replace("-", "_")] = _value(value if sign else remaining.pop(0))
    return settings


def _value(text: str) -> Any:
    """The text decoded as JSON, or the text itself if it is not JSON."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def hide_password(url: str) -> str:
    """Replace the password of a URL by ***."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@") if parts.password else url


@click.command()
@connected
def servers(cli: CliContext) -> None:
    """List the servers of this database, dead ones included."""
    listing = cli.client.servers()
    cli.table(
        listing,
        ("server", "state", "address", "heartbeat", "started"),
        [
            (
                server.id,
                output.state("alive" if server.alive else "dead") + (" (this)" if server.this else ""),
                f"{server.address}:{server.port}",
                output.ago(server.heartbeat),
                output.local_time(server.started_at),
            )
            for server in listing.servers
        ],
        empty="No servers.",
    )
