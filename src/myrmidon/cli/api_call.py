"""`query` and `post`: any path of the server's APIs, for scripts. Always prints JSON; logs as they are."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import click

from myrmidon.cli import output
from myrmidon.cli.context import Hand, connected

if TYPE_CHECKING:
    from myrmidon.sdk.transport import Reply

_LISTS = ("items", "tasks", "bots", "queues", "pools", "tokens", "groups", "events", "runs", "versions")
_A_PAGE = 200
_DISCOVERY = "/_ah/api/discovery/v1/apis/swarming/v1/rest"


@click.command()
@click.argument("path", required=False)
@click.option(
    "--limit",
    "-L",
    type=click.IntRange(0),
    default=_A_PAGE,
    show_default=True,
    metavar="N",
    help="Of a list; 0 for all of it.",
)
@click.option("--list", "list_methods", is_flag=True, help="The paths of Swarming's API v1.")
@connected
def query(hand: Hand, path: str | None, *, limit: int, list_methods: bool) -> None:
    """GET a path, and print what it answers.

    PATH may have a query. `tasks/list?state=PENDING` is a path of Swarming's API v1; one that begins with a slash, such
    as `/api/v1/tasks?state=READY`, is taken as it stands. The pages of a list are joined, up to --limit.
    """
    if list_methods:
        _print(hand, _methods(hand))
        return
    if not path:
        raise click.UsageError("PATH is missing; `myrmidon query --list` shows those of Swarming's API v1.")
    bare, _, asked = path.partition("?")
    params: dict[str, Any] = {}
    for name, value in parse_qsl(asked, keep_blank_values=True):
        params.setdefault(name, []).append(value)
    reply = hand.client.query(bare, **params)
    found = _decoded(reply)
    noun = _list_in(found)
    if found is None:
        sys.stdout.buffer.write(reply.data)
    elif noun is None:
        _print(hand, found)
    else:
        _print(hand, _joined(hand, bare, params, found, noun, limit))


def _joined(
    hand: Hand, path: str, params: dict[str, Any], found: dict[str, Any], noun: str, limit: int
) -> dict[str, Any]:
    """A list over as many pages as the limit takes; its cursor leads on where there is more.

    Nothing may lie between the last row and the cursor, so the last page is asked for with as many rows as are wanted.
    """
    rows, page = list(found[noun]), len(found[noun])
    if limit and page > limit and found.get("cursor"):
        found = _decoded(hand.client.query(path, **{**params, "limit": limit})) or {}
        rows = found.get(noun, [])
    while found.get("cursor") and (not limit or len(rows) < limit):
        fewer = {"limit": limit - len(rows)} if limit and limit - len(rows) < page else {}
        found = _decoded(hand.client.query(path, **{**params, **fewer, "cursor": found["cursor"]})) or {}
        rows += found.get(noun, [])
    return {**found, noun: rows[:limit] if limit else rows}


def _list_in(found: Any) -> str | None:
    if not isinstance(found, dict):
        return None
    return next((noun for noun in _LISTS if isinstance(found.get(noun), list)), None)


def _methods(hand: Hand) -> list[dict[str, str]]:
    document = _decoded(hand.client.query(_DISCOVERY))
    return [
        {"method": method["httpMethod"], "path": method["path"], "description": method["description"]}
        for held in document["resources"].values()
        for method in held["methods"].values()
    ]


@click.command()
@click.argument("path")
@click.option("--data", "-d", metavar="JSON", help="The body; without it, what stands on standard input.")
@click.option("--key", metavar="KEY", help="A request key: the same one again does nothing twice.")
@connected
def post(hand: Hand, path: str, *, data: str | None, key: str | None) -> None:
    """POST JSON to a path, and print what it answers.

    `myrmidon post tasks/new < task.json` speaks Swarming's API v1; a path that begins with a slash is taken as it
    stands. An empty body is sent as none.
    """
    text = data if data is not None else "" if sys.stdin.isatty() else sys.stdin.read()
    try:
        body = json.loads(text) if text.strip() else None
    except ValueError as wrong:
        raise click.UsageError(f"The body is no JSON: {wrong}.") from None
    reply = hand.client.post(path, body, key=key)
    found = _decoded(reply)
    if found is None:
        sys.stdout.buffer.write(reply.data)
    else:
        _print(hand, found)


def _decoded(reply: Reply) -> Any:
    """What was said in JSON; None for anything else."""
    kind = reply.headers.get("content-type", "")
    return json.loads(reply.data) if kind.startswith("application/json") else None


def _print(hand: Hand, value: object) -> None:
    """For people with line breaks, for programs (--json) in one line."""
    if hand.as_json:
        output.as_json(value)
    else:
        click.echo(json.dumps(value, indent=2))
