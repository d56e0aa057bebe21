"""`token`: create, list and revoke tokens."""

from __future__ import annotations

import time
from typing import Any

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected, fetch_pages
from myrmidon.cli.request_options import Duration, Id

ROLES = ("admin", "user", "viewer", "bot-bootstrap")


@click.group()
def token() -> None:
    """Create, list and revoke tokens."""


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="user", show_default=True, help="Permissions of the token.")
@click.option("--group", help="Resource group the token is bound to. Default: the server's default group.")
@click.option("--expires", type=Duration(), help="How long the token is valid. Default: until it is revoked.")
@connected
def create(cli: CliContext, name: str, role: str, group: str | None, expires: int | None) -> None:
    """Create a token for NAME and print it. It cannot be shown again."""
    if role == "admin" and group is not None:
        raise click.UsageError(
            "--group cannot be used with role admin: administrators have access to all resource groups."
        )
    created = cli.client.create_token(name, role=role, group=group, expires_in_s=expires)
    if cli.as_json:
        output.print_json(created)
        return
    output.echo(created["token"])
    output.note(f"token {created['id']} for {name}, role {role}; it cannot be shown again")
    if role == "bot-bootstrap":
        output.note("to start a bot on another machine: " + bootstrap_command(cli.endpoint.server, created["token"]))
    else:
        output.note(f"to use it: myrmidon login {cli.endpoint.server}")


def bootstrap_command(server: str, token: str) -> str:
    """The command that starts a bot on a machine with Python. curl -f keeps an error page from being run."""
    return f"curl -sSf '{server}/bootstrap?tok={token}' | python3 -"


@token.command(name="list")
@connected
def list_tokens(cli: CliContext) -> None:
    """List tokens, without their secrets."""
    listing = fetch_pages(cli.client.tokens, "tokens", 10_000)
    if cli.as_json:
        output.print_json(listing)
        return
    output.table(
        ("id", "role", "group", "state", "created", "name"),
        [
            (row["id"], row["role"], row["group"], _state(row), output.local_time(row["created_at"]), row["name"])
            for row in listing["tokens"]
        ],
        empty="No tokens.",
    )


def _state(token: dict[str, Any]) -> str:
    if token["revoked_at"]:
        return "revoked"
    if token["expires_at"] and token["expires_at"] <= time.time() * 1e6:
        return "expired"
    if token["expires_at"]:
        return f"until {output.local_time(token['expires_at'])}"
    return "valid"


@token.command()
@click.argument("token_id", metavar="ID", type=Id())
@connected
def revoke(cli: CliContext, token_id: str) -> None:
    """Revoke a token. It takes effect on every server within 30 seconds."""
    answer = cli.client.revoke_token(token_id)
    if cli.as_json:
        output.print_json(answer)
        return
    output.echo(f"Token {token_id} is revoked.")
