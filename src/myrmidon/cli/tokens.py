"""`token`: who may come in."""

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
    """Tokens: create, list, revoke."""


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="user", show_default=True, help="What it may do.")
@click.option("--group", help="The resource group it is bound to. Default: that of the server.")
@click.option("--expires", type=Duration(), help="How long it is good. Default: until it is revoked.")
@connected
def create(cli: CliContext, name: str, role: str, group: str | None, expires: int | None) -> None:
    """Make a token for NAME and print it: it is shown only this once."""
    if role == "admin" and group is not None:
        raise click.UsageError("--group is not for role admin: administrators have all resource groups.")
    made = cli.client.create_token(name, role=role, group=group, expires_in_s=expires)
    if cli.as_json:
        output.print_json(made)
        return
    click.echo(made["token"])
    output.note(f"token {made['id']} for {name}, role {role}; it is not shown again")
    if role == "bot-bootstrap":
        output.note("a bot on another machine: " + bootstrap_command(cli.endpoint.server, made["token"]))
    else:
        output.note(f"its owner runs: myrmidon login {cli.endpoint.server}")


def bootstrap_command(server: str, bootstrap: str) -> str:
    """The command that starts a bot on any machine with Python; a refusal is shown, and not run."""
    return f"curl -sSf '{server}/bootstrap?tok={bootstrap}' | python3 -"


@token.command(name="list")
@connected
def list_tokens(cli: CliContext) -> None:
    """List tokens; never the tokens themselves."""
    found = fetch_pages(cli.client.tokens, "tokens", 10_000)
    if cli.as_json:
        output.print_json(found)
        return
    output.table(
        ("id", "role", "group", "state", "created", "name"),
        [
            (one["id"], one["role"], one["group"], _state(one), output.local_time(one["created_at"]), one["name"])
            for one in found["tokens"]
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
    return "good"


@token.command()
@click.argument("token_id", metavar="ID", type=Id())
@connected
def revoke(cli: CliContext, token_id: str) -> None:
    """Make a token useless, on every server within 30 seconds."""
    answer = cli.client.revoke_token(token_id)
    if cli.as_json:
        output.print_json(answer)
        return
    click.echo(f"Token {token_id} is revoked.")
