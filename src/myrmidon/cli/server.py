"""`server`, `servers` and `config`: server processes and their settings.

The server itself is imported when one is started or its settings are checked, and never by a command that talks to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected, json_option

if TYPE_CHECKING:
    from myrmidon.server.settings import Settings

_SETTINGS = (
    click.option("--config", type=click.Path(), metavar="FILE", help="Settings in TOML. [env: MYRMIDON_CONFIG]"),
    click.option(
        "--data-dir", type=click.Path(), metavar="DIR", help="Where the data lies. Default: ~/.local/share/myrmidon."
    ),
    click.option("--database", metavar="URL", help="sqlite:///file, postgresql://... or mysql://..."),
    click.option("--host", metavar="ADDRESS", help="The address to listen on. Default: 127.0.0.1."),
    click.option("--port", type=click.IntRange(0, 65_535), help="The port; 0 takes any free one. Default: 8910."),
    click.option("--public-url", metavar="URL", help="How bots and people reach this server."),
    click.option("--tls-certificate", type=click.Path(), metavar="FILE", help="Certificate chain for HTTPS."),
    click.option("--tls-key", type=click.Path(), metavar="FILE", help="The certificate's key."),
    click.option("--plain-http", is_flag=True, default=None, help="Allow other machines to come without HTTPS."),
    click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
    click.argument("others", nargs=-1, type=click.UNPROCESSED, metavar="[--SETTING VALUE]..."),
)


def _with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


_MORE_OPTIONS: Final = {"ignore_unknown_options": True}


@click.command(context_settings=_MORE_OPTIONS)
@_with_settings
def server(**given: Any) -> int:
    """Start a server; SIGTERM or Ctrl-C stops it.

    Settings come from a TOML file, the environment (MYRMIDON_ and the name in capitals) and these options, each
    stronger than the one before; docs/server.md lists them all, and each is an option here. The first start makes an
    administrator's token in DIR/admin.token.
    """
    from myrmidon.model.errors import MyrmidonError
    from myrmidon.server.process import run_server

    settings = settings_from_options(given)
    try:
        return run_server(settings)
    except MyrmidonError as error:
        raise click.ClickException(error.message) from error


@click.group()
def config() -> None:
    """The server's settings: check."""


@config.command(context_settings=_MORE_OPTIONS)
@_with_settings
@json_option
def check(*, as_json: bool, **given: Any) -> None:
    """Read the settings as `server` would, and show them, or everything that is wrong with them.

    The settings folder (`config_dir`) is checked with them: bots.toml, pools.toml, and the Python files of the bots.
    """
    from msgspec import json, to_builtins

    from myrmidon.server.config.config_folder import check_folder

    settings = settings_from_options(given)
    if problems := check_folder(settings.config_folder):
        lines = [f"  {problem}" for problem in problems]
        raise InvalidSettings("\n".join([f"The settings folder {settings.config_folder} is wrong:", *lines]))
    shown = {**to_builtins(settings), "data_dir": str(settings.folder), "database": _no_password(settings.database_url)}
    shown["log_database"] = _no_password(settings.log_database_url)
    shown["config_dir"] = str(settings.config_folder)
    if as_json:
        output.print_json(shown)
        return
    output.fields(
        [(name, value if isinstance(value, str) else json.encode(value).decode()) for name, value in shown.items()]
    )
    output.note("These settings are fine.")


class InvalidSettings(click.ClickException):
    """All that is wrong with them, one line each."""

    exit_code = exit_codes.INVALID


def settings_from_options(given: dict[str, Any]) -> Settings:
    """Settings from all places, these options the strongest."""
    from myrmidon.model.errors import InvalidRequest
    from myrmidon.server.settings import read_settings

    others = _pairs(given.pop("others"))
    file = given.pop("config")
    try:
        return read_settings(file, flags={**given, **others})
    except InvalidRequest as error:
        lines = [f"  {problem}" for problem in error.problems]
        raise InvalidSettings("\n".join(["These settings are wrong:", *lines])) from None


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    """``--log-mib 10 --metrics-open=true``: every setting is an option, whether the help names it or not."""
    found: dict[str, Any] = {}
    left = list(words)
    while left:
        name, sign, value = left.pop(0).partition("=")
        if not name.startswith("--") or not (sign or left):
            raise click.UsageError(f"{name!r} is not a setting with its value.")
        found[name.removeprefix("--").replace("-", "_")] = _value(value if sign else left.pop(0))
    return found


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def _no_password(url: str) -> str:
    """A URL fit to be shown."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@") if parts.password else url


@click.command()
@connected
def servers(cli: CliContext) -> None:
    """The servers at work on this database, and those that fell silent."""
    found = cli.client.servers()
    if cli.as_json:
        output.print_json(found)
        return
    output.table(
        ("server", "state", "address", "heartbeat", "started"),
        [
            (
                one["id"],
                output.state("alive" if one["alive"] else "dead") + (" (this)" if one["this"] else ""),
                f"{one['address']}:{one['port']}",
                output.ago(one["heartbeat"]),
                output.local_time(one["started_at"]),
            )
            for one in found["servers"]
        ],
        empty="No servers.",
    )
