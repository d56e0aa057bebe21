"""`job diff`: two jobs side by side, with the changes of the code of their functions."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.code_archive import fetch_code
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.job_refs import JobName, job_id
from myrmidon.cli.jobs import JOB_ARGUMENT, handle
from myrmidon.sdk.errors import CallFailed

if TYPE_CHECKING:
    from myrmidon.wire.job_compare import JobComparison, JobDifference

_SHOWN_FUNCTIONS = 50
_MAX_SOURCE_BYTES = 1 << 20
_MAX_SOURCES_BYTES = 64 << 20


@click.command()
@JOB_ARGUMENT
@click.argument("other", metavar="OTHER", type=JobName())
@click.option("--no-code", is_flag=True, help="Do not show how the sources of functions differ.")
@connected
def diff(cli: CliContext, name: str, other: str, *, no_code: bool) -> int:
    """Compare two jobs by label: code, inputs, results and durations.

    \b
      myrmidon job diff wc-1~1 wc-1
    """
    compared = handle(cli, name).compare(job_id(cli, other))
    if cli.as_json:
        output.print_struct(compared)
        return exit_codes.FAILED if compared.differences else exit_codes.OK
    rows = [
        (d.label, ", ".join(word.replace("_", " ") for word in d.what), *(state or "-" for state in d.states),
         *(output.duration(seconds) for seconds in d.durations_s))
        for d in compared.differences
    ]  # fmt: skip
    titles = ("label", "differs in", "first", "second", "time 1", "time 2")
    output.table(titles, rows, empty="The jobs do not differ.")
    if compared.cursor:
        output.note("There are more differences; --json with a cursor shows all.")
    for function in _changed_functions(compared.differences)[:_SHOWN_FUNCTIONS]:
        output.note(f"changed: {function}")
    for line in () if no_code else _code_diff(cli, compared):
        output.echo(line)
    return exit_codes.FAILED if compared.differences else exit_codes.OK


def _changed_functions(differences: Sequence[JobDifference]) -> list[str]:
    return sorted({d.function for d in differences if "code" in d.what and d.function is not None})


def _code_diff(cli: CliContext, compared: JobComparison) -> Iterator[str]:
    """How the sources differ, for each two zips of code in which a function has changed."""
    pairs = {d.codes for d in compared.differences if "code" in d.what}
    groups = (compared.first.group, compared.second.group)
    for first, second in sorted((a, b) for a, b in pairs if a is not None and b is not None and a != b):
        try:
            sources = [_sources(cli, digest, group) for digest, group in zip((first, second), groups, strict=True)]
        except CallFailed:
            yield f"The code {first[:12]} or {second[:12]} is not stored any more."
            continue
        for path in sorted({*sources[0], *sources[1]}):
            before, after = (source.get(path, "").splitlines() for source in sources)
            yield from difflib.unified_diff(before, after, f"first/{path}", f"second/{path}", lineterm="")


def _sources(cli: CliContext, digest: str, group: str) -> dict[str, str]:
    """The Python files of a zip of code; in place of one that is too large to be compared, what tells it apart."""
    sources: dict[str, str] = {}
    total = 0
    with fetch_code(cli, digest, group) as archive:
        for entry in archive.infolist():
            if not entry.filename.endswith(".py"):
                continue
            total += entry.file_size
            if entry.file_size > _MAX_SOURCE_BYTES or total > _MAX_SOURCES_BYTES:
                told = f"{entry.file_size} bytes with the checksum {entry.CRC:08x}, too many to compare"
            else:
                told = archive.read(entry).decode(errors="replace")
            sources[entry.filename] = told
    return sources
