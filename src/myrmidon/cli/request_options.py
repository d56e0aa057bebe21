"""A request out of options: what `run` and `trigger` send. No network here.

The options are the first slice. Each --fallback is a further one that differs in its dimensions and is tried when the
slice before it found no bot in time.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

_TASK: Final = re.compile(r"[0-9a-f]{0,15}1[0-9a-f]{2}")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """Seconds, or a number with s, m, h or d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        number, unit = (text[:-1], text[-1]) if text[-1:] in _SECONDS else (text, "s")
        if not (number.isascii() and number.isdecimal()):
            self.fail(f"{value!r} is no time; write 90, 90s, 15m, 2h or 1d.", param, ctx)
        return int(number) * _SECONDS[unit]


class Id(click.ParamType):  # type: ignore[type-arg]
    """The id of a bot or a token: anything but nothing, which is what a variable that is not set leaves of it."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip(" ."):
            self.fail(f"{value!r} is no id; perhaps a variable is not set.", param, ctx)
        return str(value)


class TaskId(Id):
    """The id of a task or of one of its runs, as the server shows it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        shown = super().convert(value, param, ctx).strip()
        if not _TASK.fullmatch(shown):
            self.fail(f"{value!r} is no id of a task; a whole one looks like 5cee4880088100.", param, ctx)
        return shown


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
    """[TIME:]KEY=VALUE[,KEY=VALUE...]; a key without a value is no longer asked for."""

    name = "fallback"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, list[tuple[str, str]]]:
        if isinstance(value, tuple):
            return value
        before, colon, pairs = str(value).partition(":")
        if not colon or "=" in before:
            return None, [Pair().convert(pair, param, ctx) for pair in str(value).split(",")]
        changes = [Pair().convert(pair, param, ctx) for pair in pairs.split(",")] if pairs else []
        return Duration().convert(before, param, ctx), changes


_OPTIONS: Final = (
    click.option("--pool", default="default", show_default=True, help="The pool of machines to run in."),
    click.option(
        "--dimension", "-d", "dimensions", type=Pair(), multiple=True,
        help="What the bot must have, KEY=VALUE; VALUE may be a|b. Repeat for more.",
    ),
    click.option(
        "--fallback", "fallbacks", type=Fallback(), multiple=True, metavar="[TIME:]KEY=VALUE,...",
        help="Dimensions to try when no bot was found in time; TIME is how long to try these, KEY= drops one. Repeat.",
    ),
    click.option("--expires", type=Duration(), help="How long to look for a bot before the fallback, or giving up."),
    click.option(
        "--wait-for-capacity/--no-wait-for-capacity", default=True,
        help="Wait for bots that are not there yet, or give up at once when no live bot could ever run it.",
    ),
    click.option("--priority", "-p", type=click.IntRange(0, 255), help="0 is the most urgent, 255 the least."),
    click.option("--name", "-n", help="What the task is called; by default its command."),
    click.option("--tag", "-t", "tags", multiple=True, metavar="KEY:VALUE", help="A tag to find it by. Repeat."),
    click.option("--group", help="The resource group that owns the task."),
    click.option("--user", envvar="USER", help="On whose behalf; free text. Default: you."),
    click.option(
        "--env", "-e", "env", multiple=True, metavar="KEY[=VALUE]",
        help="A variable for the command; without =VALUE it is copied from here, KEY= removes it. Repeat for more.",
    ),
    click.option(
        "--env-prefix", "env_prefixes", type=Pair(), multiple=True, metavar="KEY=PATH",
        help="A path below the run's folder to put before those of a variable, as PATH. Repeat for more.",
    ),
    click.option("--cwd", help="The folder to run in, below the run's own."),
    click.option(
        "--cache", "caches", type=Pair(), multiple=True, metavar="NAME=PATH",
        help="A folder that the bot keeps between runs, at PATH below the run's folder. Repeat for more.",
    ),
    click.option(
        "--secret-file", type=click.Path(allow_dash=True), metavar="FILE",
        help="Secret bytes for the command, from a file or - for stdin; never shown.",
    ),
    click.option("--timeout", type=Duration(), help="How long the command may run. Default: 1h."),
    click.option("--io-timeout", type=Duration(), help="How long it may be silent. Default: for ever."),
    click.option("--grace", type=Duration(), help="Time between SIGTERM and SIGKILL. Default: 30s."),
    click.option("--deadline", type=Duration(), help="When to give up altogether, waiting included. Default: 7d."),
    click.option("--idempotent", is_flag=True, help="An equal earlier success may answer instead of a run."),
    click.option("--retries", type=click.IntRange(0, 100), help="Further runs when the machine failed. Default: 1."),
    click.option("--reruns", type=click.IntRange(0, 100), help="Further runs when the command failed. Default: 0."),
    click.option("--parent", envvar="MYRMIDON_TASK_ID", metavar="RUN", help="The run that this task belongs to."),
    click.option("--detached", is_flag=True, help="Go on when the parent's run ends."),
)  # fmt: skip


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All of them, in this order in the help."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)(command)


def build_request(command: Sequence[str], **given: Any) -> tuple[dict[str, Any], str | None]:
    """(the raw request, the group). Only what was given is in it: the server knows the defaults."""
    dimensions = _dimensions(given["pool"], given["dimensions"])
    properties = _given(
        command=list(command),
        relative_cwd=given["cwd"],
        env=_env(given["env"]),
        env_prefixes=_listed(given["env_prefixes"]),
        caches=[{"name": name, "path": path} for name, path in given["caches"]],
        execution_timeout_s=given["timeout"],
        io_timeout_s=given["io_timeout"],
        grace_period_s=given["grace"],
        idempotent=given["idempotent"] or None,
    )
    request = _given(
        name=given["name"] or Path(command[0]).name or command[0] or "command",
        slices=_slices(properties, dimensions, given),
        priority=given["priority"],
        tags=list(given["tags"]),
        user=given["user"],
        retries=given["retries"],
        reruns=given["reruns"],
        deadline_s=given["deadline"],
        parent=given["parent"],
        detached=given["detached"] or None,
        secret_bytes=_secret(given["secret_file"]),
    )
    return request, given["group"]


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value not in ([], {})}


def _dimensions(pool: str, pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    dimensions = _listed(pairs)
    dimensions.setdefault("pool", [pool])
    return dimensions


def _listed(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _slices(
    properties: dict[str, Any], dimensions: dict[str, list[str]], given: dict[str, Any]
) -> list[dict[str, Any]]:
    patient = None if given["wait_for_capacity"] else False

    def one(wanted: dict[str, list[str]], expires: int | None) -> dict[str, Any]:
        return _given(properties={**properties, "dimensions": wanted}, expiration_s=expires, wait_for_capacity=patient)

    slices = [one(dimensions, given["expires"])]
    for expires, changes in given["fallbacks"]:
        changed = {**dimensions, **_listed(changes)}
        slices.append(one({key: values for key, values in changed.items() if values != [""]}, expires))
    return slices


def _env(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for one in given:
        key, sign, value = one.partition("=")
        if not sign and key not in os.environ:
            raise click.BadParameter(f"{key} is not set here; write {key}=VALUE.", param_hint="--env")
        found[key] = value if sign else _text(key, os.environ[key])
    return found


def _text(key: str, value: str) -> str:
    """What is copied from here may be any bytes; what is sent is text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"The value of {key} here is not UTF-8.", param_hint="--env") from None
    return value


def _secret(file: str | None) -> str | None:
    """Read here and now: a secret is never an argument, since every user of a machine can read those."""
    if file is None:
        return None
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="--secret-file") from None
    return base64.b64encode(data).decode()
