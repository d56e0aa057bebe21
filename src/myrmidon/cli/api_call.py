"""`query` and `post`: call any path of the server's APIs. JSON is printed as JSON, any other response as is."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected
from myrmidon.sdk.errors import error_for_item

if TYPE_CHECKING:
    from myrmidon.sdk.transport import Reply

_LIST_KEYS = ("items", "tasks", "bots", "queues", "pools", "tokens", "groups", "events", "runs", "versions")
_DEFAULT_LIMIT = 200
_DISCOVERY = "/_ah/api/discovery/v1/apis/swarming/v1/rest"


@click.command()
@click.argument("path", required=False)
@click.option(
    "--limit",
    "-L",
    type=click.IntRange(0),
    default=_DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="Maximum number of rows of a list; 0 for all.",
)
@click.option("--list", "list_methods", is_flag=True, help="List the paths of Swarming's API v1.")
@connected
def query(cli: CliContext, path: str | None, *, limit: int, list_methods: bool) -> None:
    """GET a path and print the response.

    PATH may contain a query string. A path without a leading slash, such as `tasks/list?state=PENDING`, belongs to
    Swarming's API v1; `/api/v1/tasks?state=READY` is a full path. Pages of a list are joined, up to --limit rows.
    """
    if list_methods:
        _print(cli, _methods(cli))
        return
    if not path:
        raise click.UsageError("PATH is missing; `myrmidon query --list` lists the paths of Swarming's API v1.")
    path, _, query_string = path.partition("?")
    params: dict[str, Any] = {}
    for name, value in parse_qsl(query_string, keep_blank_values=True):
        params.setdefault(name, []).append(value)
    reply = cli.client.query(path, **params)
    body = _decoded(reply)
    list_key = _list_key(body)
    if body is None:
        _write(reply.data)
    elif list_key is None:
        _print(cli, body)
    else:
        _print(cli, _join_pages(cli, path, params, body, list_key, limit))


def _join_pages(
    cli: CliContext, path: str, params: dict[str, Any], page: dict[str, Any], list_key: str, limit: int
) -> dict[str, Any]:
    """The list over as many pages as the limit requires; its cursor continues after the last row.

    So that no row is skipped, the last page is requested with exactly as many rows as are still missing.
    """
    rows, page_size = list(page[list_key]), len(page[list_key])
    if limit and page_size > limit and page.get("cursor"):
        page = _decoded(cli.client.query(path, **{**params, "limit": limit})) or {}
        rows = page.get(list_key, [])
    while page.get("cursor") and (not limit or len(rows) < limit):
        missing = limit - len(rows)
        smaller_page = {"limit": missing} if limit and missing < page_size else {}
        page = _decoded(cli.client.query(path, **{**params, **smaller_page, "cursor": page["cursor"]})) or {}
        rows += page.get(list_key, [])
    return {**page, list_key: rows[:limit] if limit else rows}


def _list_key(body: Any) -> str | None:
    if not isinstance(body, dict):
        return None
    return next((key for key in _LIST_KEYS if isinstance(body.get(key), list)), None)


def _methods(cli: CliContext) -> list[dict[str, str]]:
    document = _decoded(cli.client.query(_DISCOVERY))
    return [
        {"method": method["httpMethod"], "path": method["path"], "description": method["description"]}
        for resource in document["resources"].values()
        for method in resource["methods"].values()
    ]


@click.command()
@click.argument("path")
@click.option("--data", "-d", metavar="JSON", help="Request body. Default: read from stdin.")
@click.option("--key", metavar="KEY", help="Idempotency key: a repeated call with the same key has no further effect.")
@connected
def post(cli: CliContext, path: str, *, data: str | None, key: str | None) -> int:
    """POST JSON to a path and print the response.

    A path without a leading slash belongs to Swarming's API v1: `myrmidon post tasks/new < task.json`. If the input is
    empty, the request has no body. If the server refused every item of a list, the exit code is that of the first.
    """
    text = data if data is not None else "" if sys.stdin.isatty() else sys.stdin.read()
    try:
        body = json.loads(text) if text.strip() else None
    except ValueError as error:
        raise click.UsageError(f"The body is not valid JSON: {error}.") from None
    reply = cli.client.post(path, body, key=key)
    response = _decoded(reply)
    if response is None:
        _write(reply.data)
    else:
        _print(cli, response)
    return _exit_code(response)


def _exit_code(response: Any) -> int:
    """The exit code of the first item's error if every item of the response has one; else OK."""
    key = _list_key(response)
    items = response[key] if key else []
    errors = [item["error"] for item in items if isinstance(item, dict) and isinstance(item.get("error"), dict)]
    if not errors or len(errors) < len(items):
        return exit_codes.OK
    return exit_codes.of_error(error_for_item(errors[0]))


def _decoded(reply: Reply) -> Any:
    """The decoded JSON; None for any other content type."""
    content_type = reply.headers.get("content-type", "")
    return json.loads(reply.data) if content_type.startswith("application/json") else None


def _print(cli: CliContext, value: object) -> None:
    """Indented, or with --json in one line unless stdout is a terminal."""
    output.print_json(value, indent=None if cli.as_json else True)


def _write(data: bytes) -> None:
    """Write a response that is not JSON: unchanged, or filtered like a log if stdout is a terminal."""
    out = output.LogWriter(err=False)
    out.write(data)
    out.finish()
