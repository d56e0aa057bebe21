"""What every command that talks to a server has at hand: where it is, a client, and whether a program reads along.

urllib3 is imported when the first call is made, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

import click

from myrmidon.cli import output
from myrmidon.cli.server_discovery import Place, find_place

if TYPE_CHECKING:
    from myrmidon.sdk.client import Client


def _noted(ctx: click.Context, _option: click.Parameter, value: bool) -> bool:
    """main.py tells what goes wrong, and has to know for whom: a --json in what is to be run is not ours."""
    if isinstance(ctx.obj, dict):
        ctx.obj["json"] = value
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_noted, help="Print JSON with the keys of the API."
)


class Hand:
    """One server, as the options of a command name it."""

    def __init__(self, server: str | None, token: str | None, *, as_json: bool) -> None:
        self._server, self._token = server, token
        self.as_json = as_json

    @cached_property
    def place(self) -> Place:
        return find_place(self._server, self._token)

    @cached_property
    def client(self) -> Client:
        from myrmidon.sdk.client import Client
        from myrmidon.sdk.transport import Transport

        return Client(Transport(self.place.server, self.place.token, notice=output.note))


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --server, --token and --json; the command gets them as its first argument, a Hand."""

    @json_option
    @click.option("--token", metavar="TOKEN", help="A token; better is MYRMIDON_TOKEN, which `ps` does not show.")
    @click.option("--server", "-S", metavar="URL", help="The server's address. [env: MYRMIDON_SERVER]")
    @wraps(command)
    def with_hand(server: str | None, token: str | None, *, as_json: bool, **options: Any) -> Any:
        return command(Hand(server, token, as_json=as_json), **options)

    return with_hand


def pages(fetch: Callable[..., dict[str, Any]], noun: str, limit: int, **filters: Any) -> dict[str, Any]:
    """Up to ``limit`` rows, over as many pages as that takes: ``{noun: [...], cursor}``."""
    rows: list[dict[str, Any]] = []
    cursor = filters.pop("cursor", None)
    while True:
        page = fetch(limit=min(limit - len(rows), 200), cursor=cursor, **filters)
        rows += page[noun]
        cursor = page.get("cursor")
        if not cursor or len(rows) >= limit:
            return {noun: rows, "cursor": cursor}
