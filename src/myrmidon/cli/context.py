"""CliContext: the server, the client and the output format of a command.

urllib3 is imported with the first call, so that `--help` starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from myrmidon.cli import output
from myrmidon.sdk import server_discovery
from myrmidon.sdk.server_discovery import Endpoint

if TYPE_CHECKING:
    from myrmidon.sdk.client import Client
    from myrmidon.wire.bots import BotList
    from myrmidon.wire.queues import PoolList, QueueList
    from myrmidon.wire.resource_groups import GroupList
    from myrmidon.wire.shared_values import SharedValueList
    from myrmidon.wire.tasks import TaskList
    from myrmidon.wire.tokens import TokenList

Page = TypeVar("Page", "BotList", "GroupList", "PoolList", "QueueList", "SharedValueList", "TaskList", "TokenList")


def _record_json_flag(ctx: click.Context, _option: click.Parameter, value: bool) -> bool:
    """Store the flag and the command for main.py, which prints errors.

    A --json behind `run -- COMMAND` belongs to COMMAND, so main.py cannot find it by itself.
    """
    if isinstance(ctx.obj, dict):
        ctx.obj.update(json=value, command=ctx.command)
    return value


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    is_eager=True,
    callback=_record_json_flag,
    help="Print JSON with the keys of the API.",
)


def find_endpoint(server: str | None, token: str | None) -> Endpoint:
    """The server and the token that the options select; an invalid address is an error of usage."""
    try:
        return server_discovery.find_endpoint(server, token)
    except server_discovery.InvalidAddress as error:
        raise click.UsageError(str(error)) from None


def _print_log_messages() -> None:
    """Print what the SDK logs for people: why something that is waited for does not run."""
    import logging  # late, for startup time

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            output.note(record.getMessage())

    logging.getLogger("myrmidon").addHandler(Notes(logging.WARNING))


class CliContext:
    """The server that a command's options select, a client for it, and whether to print JSON."""

    def __init__(self, server: str | None, token: str | None, *, as_json: bool) -> None:
        self._server, self._token = server, token
        self.as_json = as_json

    @cached_property
    def endpoint(self) -> Endpoint:
        return find_endpoint(self._server, self._token)

    @cached_property
    def client(self) -> Client:
        from myrmidon.sdk.client import Client
        from myrmidon.sdk.transport import Transport

        _print_log_messages()
        endpoint = self.endpoint
        advice = endpoint.how_to_log_in
        return Client(Transport(endpoint.addresses, endpoint.token, on_retry=output.note, how_to_log_in=advice))

    def prints(self, answer: object) -> bool:
        """Print an answer of the server as JSON if --json was given; whether it was."""
        if self.as_json:
            output.print_struct(answer)
        return self.as_json

    def tell(self, answer: object, sentence: str) -> None:
        """Print what was done: an answer as JSON, or a sentence."""
        if not self.prints(answer):
            output.echo(sentence)

    def table(self, answer: object, titles: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
        """Print a list: an answer as JSON, or its rows as a table."""
        if not self.prints(answer):
            output.table(titles, rows, empty=empty)


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --server, --token and --json to a command; its first argument becomes a CliContext."""

    @json_option
    @click.option("--token", metavar="TOKEN", help="Access token. Prefer MYRMIDON_TOKEN: `ps` shows options.")
    @click.option(
        "--server",
        "-S",
        metavar="URL",
        help="Address of the server; several with commas between. [env: MYRMIDON_SERVER]",
    )
    @wraps(command)
    def with_context(server: str | None, token: str | None, *, as_json: bool, **options: Any) -> Any:
        return command(CliContext(server, token, as_json=as_json), **options)

    return with_context


def fetch_pages(fetch: Callable[..., Page], key: str, limit: int, **filters: Any) -> Page:
    """Up to ``limit`` rows of a paginated list, over as many pages as needed, as one page; ``key`` has the rows."""
    from msgspec import structs  # late, for startup time

    rows: list[object] = []
    cursor = filters.pop("cursor", None)
    while True:
        page = fetch(limit=min(limit - len(rows), 200), cursor=cursor, **filters)
        rows += getattr(page, key)
        cursor = page.cursor
        if not cursor or len(rows) >= limit:
            return structs.replace(page, **{key: rows})
