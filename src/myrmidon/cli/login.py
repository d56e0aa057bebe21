"""`login`: save a server and a token for it."""

from __future__ import annotations

import sys

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, find_endpoint, json_option
from myrmidon.sdk import server_discovery
from myrmidon.sdk.errors import NotAllowed

_ANOTHER = "an administrator creates one with `myrmidon token create`."


@click.command()
@click.argument("server", metavar="URL")
@json_option
def login(server: str, *, as_json: bool) -> None:
    """Save a server and a token for it. The token is prompted for, or read from stdin.

    The token is verified first, and saved in a file that only you can read. It is used for this server from then on,
    also if a `myrmidon up` of yours runs there.
    """
    token = (click.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not token:
        raise click.UsageError(f"No token given; {_ANOTHER}")
    cli = CliContext(server, token, as_json=as_json)
    try:
        info = cli.client.server()
    except NotAllowed as error:
        raise NotAllowed(error.message, code=error.code, advice=_ANOTHER) from None
    file = server_discovery.write_config(cli.endpoint.addresses, token)
    if as_json:
        output.print_json({"server": cli.endpoint.server, "who": info.who, "role": info.role, "file": str(file)})
        return
    output.echo(f"Logged in to {cli.endpoint.server} as {info.who} ({info.role}); saved in {file}.")
    _warn_if_overridden(cli.endpoint.server, token)


def _warn_if_overridden(server: str, token: str) -> None:
    """Say so if the next command would use another server or token than those that were just saved."""
    used = find_endpoint(None, None)
    if used.server != server:
        output.note(f"Commands use {used.server} (from {used.server_source}); for this server, add --server {server}.")
    elif used.token != token:
        output.note(f"Commands use another token, from {used.token_source}.")
