"""`value put`, `value ref`, `value unref`, and the list of shared values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected, fetch_pages
from myrmidon.cli.job_refs import JobName, job_id
from myrmidon.cli.request_options import Id

if TYPE_CHECKING:
    from myrmidon.wire.shared_values import SharedValueInfo

MAX_BYTES: Final = 64 << 20
_GROUP: Final = click.option("--group", help="Resource group. Default: that of the token.")
_JOB: Final = click.option("--job", type=JobName(), help="The reference of this job, instead of the resource group's.")


def print_list(cli: CliContext, limit: int, group: str | None) -> None:
    """Print shared values, newest first."""
    listing = fetch_pages(cli.client.shared_values, "values", limit, group=group)
    cli.table(
        listing,
        ("id", "size", "groups", "jobs", "at", "type"),
        [
            (
                line.id,
                output.size(line.size),
                str(line.num_groups),
                str(line.num_jobs),
                " ".join(line.localities),
                line.type,
            )
            for line in listing.values
        ],
        empty="No shared values.",
    )


@click.command()
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--type", "type_string", required=True, metavar="TYPE", help="Such as 'Map<string,int64>'.")
@click.option("--msgpack", is_flag=True, help="FILE is MessagePack already; default: JSON.")
@click.option("--at", "addresses", multiple=True, metavar="ADDRESS", help="A machine that has the data; repeatable.")
@_GROUP
@click.option("--job", type=JobName(), help="Keep it with this job, instead of the resource group.")
@connected
def put(
    cli: CliContext,
    file: BinaryIO,
    type_string: str,
    msgpack: bool,
    addresses: Sequence[str],
    group: str | None,
    job: str | None,
) -> None:
    """Store a value that tasks of many jobs share, and print its id. It is read from FILE, or from stdin.

    In JSON, bytes are base64, and keys that are numbers are texts.
    """
    text = file.read(2 * MAX_BYTES + 1)
    data = text if msgpack else _encoded(text, type_string)
    if len(data) > MAX_BYTES:
        raise click.ClickException(f"The value has {output.size(len(data))}; at most {output.size(MAX_BYTES)}.")
    made = _store(cli, type_string, data, addresses, group, job_id(cli, job) if job is not None else None)
    if cli.prints(made):
        return
    output.echo(made.id)
    output.note(f"{made.type}, {output.size(made.size)}; `myrmidon value unref {made.id}` drops it")


def _encoded(text: bytes, type_string: str) -> bytes:
    """The MessagePack form of JSON."""
    from myrmidon.functions.json_values import JsonProblem, encode_json  # late, for startup time

    try:
        return encode_json(json.loads(text), type_string, "the value")
    except JsonProblem as problem:
        raise click.ClickException(f"{str(problem)[:1].upper()}{str(problem)[1:]}.") from None
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"The value is not JSON: {error}. Use --msgpack for MessagePack.") from None


def _store(
    cli: CliContext, type_string: str, data: bytes, addresses: Sequence[str], group: str | None, job: str | None
) -> SharedValueInfo:
    from myrmidon.sdk.job_sender import JobSender  # late, for startup time
    from myrmidon.sdk.shared import store

    return store(JobSender(cli.client, group), type_string, data, addresses, job)


@click.command()
@click.argument("value_id", metavar="VALUE", type=Id())
@_GROUP
@_JOB
@connected
def ref(cli: CliContext, value_id: str, group: str | None, job: str | None) -> None:
    """Reference a shared value, so that it is kept. For another resource group only an administrator can."""
    answer = cli.client.ref_value(value_id, group=group, job=job_id(cli, job) if job is not None else None)
    cli.tell(answer, f"Value {value_id} is referenced.")


@click.command()
@click.argument("value_id", metavar="VALUE", type=Id())
@_GROUP
@_JOB
@connected
def unref(cli: CliContext, value_id: str, group: str | None, job: str | None) -> None:
    """Drop a reference to a shared value. The last one deletes it."""
    answer = cli.client.unref_value(value_id, group=group, job=job_id(cli, job) if job is not None else None)
    cli.tell(answer, f"Value {value_id} is {'deleted' if answer.deleted else 'referenced by others, and kept'}.")


COMMANDS: Final = (put, ref, unref)
