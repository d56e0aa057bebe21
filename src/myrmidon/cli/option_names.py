"""Which option sets which field of a request, to name the option when the server refuses a value.

An option has the name of its field. Those of `run` and `trigger` are in docs/requests.md too, and a test compares them
with the structs of a task request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from myrmidon.cli.request_options import REQUEST_PARAMETERS

WITHOUT_OPTION: Final = ("api", "function", "inputs", "output_refs", "outputs", "payload", "routing")
"""Fields that only graph documents need, or only the server sets, and files, which servers do not have yet."""

_BY_KEY: Final = ("--dimension", "--env", "--env-prefix", "--metadata")
_PATH: Final = re.compile(
    r"(?:slices\[(?P<slice>\d+)\](?:\.properties)?\.?)?(?P<field>\w*)(?:\.(?P<key>[\w$-]+)|\[(?P<quoted>['\"].*?)\])?.*"
)


def option_for(path: str) -> str | None:
    """The option that sets the field at a path of the request: ``--timeout``, ``--dimension os``; None if unknown."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    number, field, key = found["slice"], found["field"], found["key"] or found["quoted"]
    option = REQUEST_PARAMETERS.get(field, None if number is None else "--fallback")
    if option == "--dimension" and key == "pool":
        return "--pool"
    if option == "--expires" and number != "0":
        return "--fallback"
    return f"{option} {key}" if key and option in _BY_KEY else option


def option_of(command: click.Command, path: str) -> str | None:
    """The option or argument of a command with the name of a field: ``--expires`` for ``expires_in_s``, or None."""
    field = path.partition("[")[0].partition(".")[0]
    names = {field, f"{field}s", field.removesuffix("_s"), field.removesuffix("_in_s")}
    found = next((parameter for parameter in command.params if parameter.name in names), None)
    if isinstance(found, click.Option):
        return max(found.opts, key=len)
    return found.human_readable_name if found else None


def with_options(problems: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add ``option`` to problems with a request that options have built.

    All slices have the same command and the same limits, so a problem with one of these is reported for each slice; it
    is kept once. A dimension that is wrong in a later slice only was given with --fallback.
    """
    kept: dict[tuple[object, ...], dict[str, Any]] = {}
    for problem in problems:
        path = str(problem.get("path", ""))
        option = option_for(path)
        identity = (option or path, problem.get("value"), problem.get("allowed"))
        later_slice = path.startswith("slices[") and not path.startswith("slices[0]")
        if later_slice and option and option.startswith("--dimension"):
            option = "--fallback"
        kept.setdefault(identity, {**problem, "option": option})
    return list(kept.values())
