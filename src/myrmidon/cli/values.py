"""`value`: list the values of a job or shared values, show and save one, share one, keep and drop it."""

from __future__ import annotations

import base64
import math
import pprint
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from myrmidon.cli import output, shared_values
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.job_refs import JobName, job_id
from myrmidon.cli.request_options import Id

if TYPE_CHECKING:
    from myrmidon.sdk.client import Client
    from myrmidon.wire.jobs import OutputValue
    from myrmidon.wire.values import ValueInfo, ValueList

MAX_SHOWN_CHARS = 64 << 10
MAX_CELL_CHARS = 60
_PART = 1
"""The extension type of MessagePack that stands for a part of a gathered input."""


@click.group()
def value() -> None:
    """Inspect the inputs and outputs of functions, and share values between jobs."""


@value.command(name="list")
@click.argument("job", type=JobName(), required=False)
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Values to list.")
@click.option("--group", help="Only the shared values of this resource group; without JOB.")
@connected
def list_values(cli: CliContext, job: str | None, limit: int, group: str | None) -> None:
    """List the values of a job; without JOB, shared values.

    A job has constants of its request, and outputs of its tasks.
    """
    if job is None:
        shared_values.print_list(cli, limit, group)
        return
    if group is not None:
        raise click.UsageError("--group is for the list of shared values; leave JOB out.")
    listing = _fetch(cli.client, job_id(cli, job), limit)
    if cli.prints(listing):
        return
    output.table(
        ("id", "from", "size", "read by", "type"),
        [
            (line.value_id, _source(line), output.size(line.size) or "not written", line.num_consumers, line.type)
            for line in listing.values
        ],
        empty="The job has no values: its tasks are commands without outputs.",
    )
    if listing.cursor:
        output.note(f"There are more than {len(listing.values)}; use --limit.")


def _fetch(client: Client, job: str, limit: int) -> ValueList:
    """At least ``limit`` values, over as many pages as needed: a page has all values of its tasks."""
    from myrmidon.wire.values import ValueList  # late, for startup time

    found: list[ValueInfo] = []
    cursor: str | None = None
    while True:
        page = client.job_values(job, cursor=cursor)
        found += page.values
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            return ValueList(found, cursor)


def _source(line: ValueInfo) -> str:
    return "constant" if line.producer is None else f"{line.producer}:{line.position}"


@value.command()
@click.argument("value_id", metavar="VALUE", type=Id())
@connected
def show(cli: CliContext, value_id: str) -> None:
    """Show a value as readable text; VALUE is an id of `value list`."""
    found = cli.client.value(value_id)
    content = decode(found.data)
    if cli.as_json:
        output.print_json({"type": found.type, "size": len(found.data), "value": to_json(content)})
        return
    output.note(f"{found.type}, {output.size(len(found.data))}")
    text = pprint.pformat(content, width=100, sort_dicts=False)
    output.echo_lines(text[:MAX_SHOWN_CHARS])
    if len(text) > MAX_SHOWN_CHARS:
        output.note(f"cut after {MAX_SHOWN_CHARS} characters; `myrmidon value get {value_id} --json` prints all")


@value.command()
@click.argument("value_id", metavar="VALUE", type=Id())
@click.option("-o", "--output", "file", type=click.Path(dir_okay=False, path_type=Path), help="A file to write to.")
@connected
def get(cli: CliContext, value_id: str, file: Path | None) -> None:
    """Write the bytes of a value to stdout or FILE. They are MessagePack; with --json, JSON is printed.

    In JSON, bytes are base64, and numbers that JSON does not have are texts, such as "nan".
    """
    if file is None and not cli.as_json and sys.stdout.isatty():
        raise click.UsageError("A value is not text. Name a file with -o, or use --json or `myrmidon value show`.")
    data = cli.client.value(value_id).data
    if cli.as_json:
        import json  # late, for startup time

        data = json.dumps(to_json(decode(data))).encode() + b"\n"
    if file is not None:
        file.write_bytes(data)
        return
    output.write_bytes(data)


def short_text(value: OutputValue) -> str:
    """A value in a cell of a table: its beginning, or where to find it."""
    if value.size is None:
        return "not written"
    if value.data is None:
        return f"{output.size(value.size)}: value {value.value_id}"
    text = repr(decode(value.data))
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 3]}..."


def decode(data: bytes) -> Any:
    """The content of a value. Extensions of MessagePack become texts: a part of a gathered input is its number."""
    import msgspec  # late, for startup time

    try:
        return msgspec.msgpack.decode(data, ext_hook=_show_extension)
    except msgspec.MsgspecError:
        raise click.ClickException("The value is not MessagePack. `myrmidon value get` writes its bytes.") from None


def _show_extension(code: int, data: memoryview) -> str:
    if code == _PART and len(data) == 4:
        return f"<part {int.from_bytes(data, 'big')}>"
    return f"<extension {code}, {output.plural(len(data), 'byte')}>"


def to_json(content: Any) -> Any:
    """The nearest form that JSON has: bytes as base64, keys as texts, nan and infinities as texts."""
    if isinstance(content, dict):
        return {key if isinstance(key, str) else str(key): to_json(item) for key, item in content.items()}
    if isinstance(content, (list, tuple)):
        return [to_json(item) for item in content]
    if isinstance(content, (bytes, bytearray)):
        return base64.b64encode(content).decode()
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    if content is None or isinstance(content, (bool, int, float, str)):
        return content
    return str(content)


for _command in shared_values.COMMANDS:
    value.add_command(_command)
