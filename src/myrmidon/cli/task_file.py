"""`trigger --file`: submit the task requests of a file, one JSON object per line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext
from myrmidon.cli.standard_input import read_text, shown
from myrmidon.sdk.errors import CallFailed, error_for_item

if TYPE_CHECKING:
    from myrmidon.wire.tasks import TaskAnswer


_RULE: Final = (
    'Write one task request per line, such as {"command": ["make"]}. `myrmidon job submit` takes whole graphs.'
)


class Submitted(NamedTuple):
    """The server's entries, one per request, and the error of the first request that it refused."""

    entries: list[TaskAnswer]
    refused: CallFailed | None

    @property
    def task_ids(self) -> list[str]:
        return [entry.task_id for entry in self.entries if entry.task_id]

    @property
    def exit_code(self) -> int:
        return exit_codes.of_error(self.refused) if self.refused else exit_codes.OK


def submit_file(cli: CliContext, file: str, group: str | None) -> Submitted:
    """Submit all requests of a file. Without --json, ids are printed as soon as the server has stored the tasks.

    The whole file is read first: a line that is not JSON is an error before anything is submitted.
    """
    from myrmidon.sdk.api.tasks import batches  # late, for startup time

    numbered = _read_requests(file)
    numbers = iter([number for number, _ in numbered])
    entries: list[TaskAnswer] = []
    refused: list[CallFailed] = []
    for batch in batches(request for _, request in numbered):
        for entry in cli.client.submit_tasks(batch, group=group):
            number = next(numbers)
            entries.append(entry)
            if entry.error is not None:
                refused.append(error_for_item(entry.error))
                for line in output.problem_lines(refused[-1]) or [refused[-1].message]:
                    output.echo(f"{shown(file)}:{number}: {line}", err=True)
            elif not cli.as_json:
                output.echo(entry.task_id or f"{shown(file)}:{number}: valid")
    if refused:
        rest = "the others are stored" if len(refused) < len(entries) else "nothing is stored"
        output.note(f"{len(refused)} of {output.plural(len(entries), 'task')} refused; {rest}.")
    return Submitted(entries, refused[0] if refused else None)


def _read_requests(file: str) -> list[tuple[int, dict[str, Any]]]:
    """The requests with their line numbers; empty lines are skipped."""
    requests = []
    for number, line in enumerate(read_text(file, "--file").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            request = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _wrong(f"{shown(file)}:{number}: not valid JSON: {error}. {_RULE}") from None
        if not isinstance(request, dict):
            raise _wrong(f"{shown(file)}:{number}: not a JSON object. {_RULE}")
        requests.append((number, request))
    if not requests:
        raise _wrong(f"{shown(file)} contains no task requests.")
    return requests


def _wrong(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--file")
