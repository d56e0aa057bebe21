"""The options of `run` and `trigger`, and the task request that they build: an option is named as the field it sets.

The options describe the first slice. Each --fallback adds a slice with other dimensions, which is tried when the slice
before it has expired.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from myrmidon.cli.standard_input import read_file, read_stdin

_TASK_ID: Final = re.compile(r"[1-9a-f][0-9a-f]{8,14}1[0-9a-f]{2}")
_WHOLE: Final = re.compile(r"[0-9]+")
_DECIMAL: Final = re.compile(r"[0-9]+\.[0-9]+")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """Seconds, or a number with s, m, h or d; a whole number of seconds unless ``fractions`` are allowed."""

    name = "time"

    def __init__(self, *, fractions: bool = False) -> None:
        self.fractions = fractions

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int | float):
            return value
        text = str(value).strip()
        number, unit = (text[:-1], text[-1]) if text[-1:] in _SECONDS else (text, "s")
        if _WHOLE.fullmatch(number):
            return int(number) * _SECONDS[unit]
        if self.fractions and _DECIMAL.fullmatch(number):
            return round(float(number) * _SECONDS[unit], 6)
        also = ", 1.5s" if self.fractions else ""
        return self.fail(f"{value!r} is not a duration; write 90, 90s{also}, 15m, 2h or 1d.", param, ctx)


class Id(click.ParamType):  # type: ignore[type-arg]
    """The id of a bot or a token. Not empty, which is what an unset shell variable expands to."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip(" ."):
            self.fail(f"{value!r} is not an id; perhaps a shell variable is not set.", param, ctx)
        return str(value)


class TaskId(Id):
    """The id of a task or of one of its runs, as the server prints it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        task_id = super().convert(value, param, ctx).strip()
        if not looks_like_task_id(task_id):
            self.fail(f"{value!r} is not a task id; a complete one looks like 7c07a39dc80000100.", param, ctx)
        return task_id


def looks_like_task_id(text: str) -> bool:
    """Whether this has the form of the ids of tasks, runs and jobs."""
    return _TASK_ID.fullmatch(text) is not None


class Tag(click.ParamType):  # type: ignore[type-arg]
    """KEY:VALUE."""

    name = "key:value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        key, sign, _ = str(value).partition(":")
        if not (key and sign):
            self.fail(f"{value!r} is not KEY:VALUE.", param, ctx)
        return str(value)


class Pair(click.ParamType):  # type: ignore[type-arg]
    """KEY=VALUE."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, sign, rest = str(value).partition("=")
        if not key or not sign:
            self.fail(f"{value!r} is not KEY=VALUE.", param, ctx)
        return key, rest


class Fallback(click.ParamType):  # type: ignore[type-arg]
    """[TIME:]KEY=VALUE[,KEY=VALUE...]; an empty value removes the key."""

    name = "fallback"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float | None, list[tuple[str, str]]]:
        if isinstance(value, tuple):
            return value
        before, colon, pairs = str(value).partition(":")
        if not colon or "=" in before:
            return None, [Pair().convert(pair, param, ctx) for pair in str(value).split(",")]
        changes = [Pair().convert(pair, param, ctx) for pair in pairs.split(",")] if pairs else []
        return Duration().convert(before, param, ctx), changes


_OPTIONS: Final = (
    click.option("--pool", default="default", show_default=True, help="Pool to run in."),
    click.option(
        "--dimension", "-d", "dimensions", type=Pair(), multiple=True,
        help="Required dimension, KEY=VALUE; VALUE may be a|b. Repeatable.",
    ),
    click.option(
        "--fallback", "slices", type=Fallback(), multiple=True, metavar="[TIME:]KEY=VALUE,...",
        help="Dimensions to try when no bot was found; TIME is how long to try them, KEY= removes one. Repeatable.",
    ),
    click.option(
        "--expires", "expiration_s", type=Duration(),
        help="How long to wait for a bot, before the first fallback if any.",
    ),
    click.option(
        "--wait-for-capacity/--no-wait-for-capacity", default=True,
        help="Wait even if no live bot matches, or fail at once.",
    ),
    click.option("--priority", "-p", type=click.IntRange(0, 255), help="Priority; 0 is the highest, 255 the lowest."),
    click.option("--name", "-n", help="Name of the task. Default: the name of its program."),
    click.option("--tag", "-t", "tags", multiple=True, metavar="KEY:VALUE", help="Tag of the task. Repeatable."),
    click.option("--group", help="Resource group that owns the task."),
    click.option("--user", envvar="USER", help="User the task is run for; free text. [env: USER]"),
    click.option(
        "--env", "-e", "env", multiple=True, metavar="KEY[=VALUE]",
        help="Environment variable; without =VALUE it is copied from this shell, KEY= unsets it. Repeatable.",
    ),
    click.option(
        "--env-prefix", "env_prefixes", type=Pair(), multiple=True, metavar="KEY=PATH",
        help="Path in the run's folder to prepend to a variable such as PATH. Repeatable.",
    ),
    click.option("--cwd", "relative_cwd", help="Working directory, relative to the run's folder."),
    click.option(
        "--cache", "caches", type=Pair(), multiple=True, metavar="NAME=PATH",
        help="Named cache that the bot keeps between runs, at PATH in the run's folder. Repeatable.",
    ),
    click.option(
        "--secret-file", "secret_bytes", type=click.Path(allow_dash=True), metavar="FILE",
        help="File with secret bytes for the command, or - for stdin. The server does not show them.",
    ),
    click.option(
        "--stdin", "-i", "stdin", is_flag=True,
        help="Pass standard input on to the command, up to 1 MiB. Without it the command's stdin is empty.",
    ),
    click.option(
        "--timeout", "execution_timeout_s", type=Duration(fractions=True),
        help="Maximum run time of the command. Default: 1h.",
    ),
    click.option(
        "--io-timeout", "io_timeout_s", type=Duration(fractions=True),
        help="Maximum time without output. Default: none.",
    ),
    click.option("--grace", "grace_period_s", type=Duration(), help="Time between SIGTERM and SIGKILL. Default: 30s."),
    click.option(
        "--deadline", "deadline_s", type=Duration(),
        help="Maximum total time, waiting included. Default: 7d.",
    ),
    click.option("--merge-output", is_flag=True, help="Make stdout and stderr one stream, in the order written."),
    click.option("--idempotent", is_flag=True, help="Reuse the result of an identical task that succeeded."),
    click.option(
        "--lease", "lease_s", type=Duration(),
        help="How long the bot of a run may be silent before it is given up.",
    ),
    click.option("--retries", type=click.IntRange(0, 100), help="Further runs after the bot failed. Default: 1."),
    click.option("--reruns", type=click.IntRange(0, 100), help="Further runs after the command failed. Default: 0."),
    click.option(
        "--parent", envvar="MYRMIDON_TASK_ID", metavar="RUN", help="The task's parent run. [env: MYRMIDON_TASK_ID]"
    ),
    click.option("--detached", is_flag=True, help="Continue when the parent run ends."),
    click.option(
        "--max-instances", type=click.IntRange(1), help="Bots that may run a slow task at the same time. Default: 1."
    ),
    click.option(
        "--soft-timeout", "soft_timeout_s", type=Duration(fractions=True),
        help="A run is slow after this time; see --max-instances.",
    ),
    click.option("--service-account", metavar="EMAIL", help="Service account of the task: an address, bot or none."),
    click.option("--external-id", metavar="ID", help="Id of the task in another system."),
    click.option(
        "--metadata", type=Pair(), multiple=True, metavar="NAME=TEXT", help="Text to store with the task. Repeatable."
    ),
    click.option("--evaluate-only", is_flag=True, help="Check the request without storing a task."),
)  # fmt: skip


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options and the COMMAND argument to a command."""
    return click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)(_with_options(command))


def optional_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Like request_options, for a command that can do without COMMAND."""
    return click.argument("command", nargs=-1, type=click.UNPROCESSED)(_with_options(command))


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


REQUEST_PARAMETERS: Final = {
    str(parameter.name): max(parameter.opts, key=len) if isinstance(parameter, click.Option) else "COMMAND"
    for parameter in click.command()(request_options(lambda **_: None)).params
}
"""The options that describe a task, by the field of the request that each of them sets."""
_PROPERTIES: Final = (
    "relative_cwd", "execution_timeout_s", "io_timeout_s", "grace_period_s", "idempotent", "merge_output",
)  # fmt: skip
_TASK: Final = (
    "priority", "user", "retries", "reruns", "deadline_s", "parent", "detached", "lease_s", "max_instances",
    "soft_timeout_s", "service_account", "external_id", "evaluate_only",
)  # fmt: skip
"""Fields whose values are those of their options."""


def build_request(command: Sequence[str], **options: Any) -> tuple[dict[str, Any], str | None]:
    """The request as JSON, and the resource group. Options that are not set are left to the server's defaults."""
    if options["stdin"] and options["secret_bytes"] == "-":
        raise click.UsageError("--stdin and --secret-file - cannot both read standard input.")
    dimensions = _dimensions(options["pool"], options["dimensions"])
    properties = _without_empty(
        command=list(command),
        env=_env(options["env"]),
        env_prefixes=_values_by_key(options["env_prefixes"]),
        caches=[{"name": name, "path": path} for name, path in options["caches"]],
        **{field: options[field] for field in _PROPERTIES},
    )
    request = _without_empty(
        name=options["name"] or Path(command[0]).name or command[0] or "command",
        slices=_slices(properties, dimensions, options),
        tags=list(options["tags"]),
        metadata=dict(options["metadata"]),
        secret_bytes=_secret(options["secret_bytes"]),
        stdin=read_stdin() if options["stdin"] else None,
        **{field: options[field] for field in _TASK},
    )
    return request, options["group"]


def _without_empty(**fields: Any) -> dict[str, Any]:
    """The fields that are set."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and value is not False and value not in ([], {})
    }


def _dimensions(pool: str, pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    dimensions = _values_by_key(pairs)
    dimensions.setdefault("pool", [pool])
    return dimensions


def _values_by_key(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for key, value in pairs:
        grouped.setdefault(key, []).append(value)
    return grouped


def _slices(
    properties: dict[str, Any], dimensions: dict[str, list[str]], options: dict[str, Any]
) -> list[dict[str, Any]]:
    at_once = {} if options["wait_for_capacity"] else {"wait_for_capacity": False}

    def build_slice(dimensions: dict[str, list[str]], expires: float | None) -> dict[str, Any]:
        built = _without_empty(properties={**properties, "dimensions": dimensions}, expiration_s=expires)
        return {**built, **at_once}

    slices = [build_slice(dimensions, options["expiration_s"])]
    for expires, changes in options["slices"]:
        changed = {**dimensions, **_values_by_key(changes)}
        slices.append(build_slice({key: values for key, values in changed.items() if values != [""]}, expires))
    return slices


def _env(assignments: Sequence[str]) -> dict[str, str]:
    env = {}
    for assignment in assignments:
        key, sign, value = assignment.partition("=")
        if not sign and key not in os.environ:
            raise click.BadParameter(f"{key} is not set in this shell; write {key}=VALUE.", param_hint="--env")
        env[key] = value if sign else _checked_text(key, os.environ[key])
    return env


def _checked_text(key: str, value: str) -> str:
    """Refuse a variable that is not UTF-8: it cannot be sent as JSON."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"The value of {key} is not UTF-8.", param_hint="--env") from None
    return value


def _secret(file: str | None) -> str | None:
    """Read the secret from a file: arguments are visible to every user of the machine."""
    if file is None:
        return None
    return base64.b64encode(read_file(file, "--secret-file")).decode()
