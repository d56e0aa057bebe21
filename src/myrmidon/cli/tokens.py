"""`token`: create, list and revoke tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected, fetch_pages
from myrmidon.cli.request_options import Duration, Id

if TYPE_CHECKING:
    from myrmidon.wire.tokens import TokenInfo

ROLES = ("admin", "user", "viewer", "bot-bootstrap")


@click.group()
def token() -> None:
    """Create, list and revoke tokens."""


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="user", show_default=True, help="Permissions of the token.")
@click.option("--group", help="Resource group the token is bound to. Default: the server's default group.")
@click.option("--expires", type=Duration(), help="How long it is valid. Default: until it is revoked, 1d for bots.")
@click.option("--bot-pool", help="Pool of introduced bots; * for any. Default: default, unless bound to a group.")
@click.option("--bot-group", help="Group of bots.toml that introduced bots must be in.")
@click.option("--bot-ids", metavar="ID", help="Id of an introduced bot, or the beginning of ids and *.")
@click.option("--uses", type=click.IntRange(1), help="How many bots it introduces. Default: 1.")
@click.option("--hawk", is_flag=True, help="Print a client id and an access key for TaskCluster's clients instead.")
@connected
def create(
    cli: CliContext, name: str, role: str, group: str | None, expires: int | None, hawk: bool, **binding: Any
) -> None:
    """Create a token for NAME and print it. It cannot be shown again.

    The options --bot-pool, --bot-group, --bot-ids and --uses are for the role bot-bootstrap; `bot invite` has them too.
    """
    if role == "admin" and group is not None:
        raise click.UsageError(
            "--group cannot be used with role admin: administrators have access to all resource groups."
        )
    created = cli.client.create_token(name, role=role, group=group, expires_in_s=expires, hawk=hawk, **binding)
    if cli.prints(created):
        return
    if created.hawk is not None:
        output.echo(f"export TASKCLUSTER_CLIENT_ID={created.hawk.client_id}")
        output.echo(f"export TASKCLUSTER_ACCESS_TOKEN={created.hawk.access_key}")
        output.note(f"Hawk credentials of token {created.id} for {name}, role {role}; they cannot be shown again")
        output.note(f"their clients' baseUrl: {cli.endpoint.server}/v1")
        return
    text = created.token or ""
    output.echo(text)
    output.note(f"token {created.id} for {name}, role {role}; it cannot be shown again")
    if role == "bot-bootstrap":
        output.note("to start a bot on another machine: " + bootstrap_command(cli.endpoint.server, text))
    else:
        output.note(f"to use it: myrmidon login {cli.endpoint.server}")


def bootstrap_command(
    server: str,
    token: str,
    *,
    pool: str | None = None,
    bot_id: str | None = None,
    dimensions: Sequence[tuple[str, str]] = (),
) -> str:
    """The command that starts a bot on a machine with Python. curl -f keeps an error page from being run."""
    query = [("tok", token), *([("pool", pool)] if pool else []), *([("bot_id", bot_id)] if bot_id else [])]
    query += [("dimension", f"{key}:{value}") for key, value in dimensions]
    return f"curl -sSf {quote(f'{server}/bootstrap?{urlencode(query)}')} | python3 -"


@token.command(name="list")
@connected
def list_tokens(cli: CliContext) -> None:
    """List tokens, without their secrets."""
    listing = fetch_pages(cli.client.tokens, "tokens", 10_000)
    cli.table(
        listing,
        ("id", "role", "group", "state", "created", "name", "introduces"),
        [
            (
                row.id,
                row.role,
                row.group,
                _state(row),
                output.local_time(row.created_at),
                row.name,
                _binding(row),
            )
            for row in listing.tokens
        ],
        empty="No tokens.",
    )


def _binding(token: TokenInfo) -> str:
    """The bots that a bootstrap token introduces."""
    if token.role != "bot-bootstrap":
        return ""
    uses = token.uses_left
    limits = [(name, getattr(token, f"bot_{name}")) for name in ("pool", "group", "ids")]
    words = [f"{name} {value}" for name, value in limits if value is not None]
    return " ".join([output.plural(uses, "bot") if uses is not None else "bots", *words])


def _state(token: TokenInfo) -> str:
    if token.revoked_at:
        return "revoked"
    if token.expires_at and token.expires_at <= time.time() * 1e6:
        return "expired"
    if token.expires_at:
        return f"until {output.local_time(token.expires_at)}"
    return "valid"


@token.command()
@click.argument("token_id", metavar="ID", type=Id())
@connected
def revoke(cli: CliContext, token_id: str) -> None:
    """Revoke a token. It takes effect on every server within 30 seconds."""
    answer = cli.client.revoke_token(token_id)
    cli.tell(answer, f"Token {token_id} is revoked.")
