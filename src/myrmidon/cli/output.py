"""How things look: tables, fields, states, times. One style for all commands; no network, no decisions.

What is meant for programs goes to stdout as JSON and has the server's own keys. Notes for people go to stderr, so that
output can always be piped. click drops the colours where there is no terminal, or where NO_COLOR is set.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

_COLOURS: Final = {
    "WAITING": "blue",
    "READY": "cyan",
    "RUNNING": "yellow",
    "SUCCEEDED": "green",
    "CANCELED": "magenta",
    "KILLED": "magenta",
    "idle": "green",
    "busy": "yellow",
    "alive": "green",
    "ok": "green",
    "dead": "red",
    "draining": "blue",
    "quarantined": "red",
    "maintenance": "blue",
}
_BAD: Final = ("FAILED", "TIMED_OUT", "BOT_DIED", "EXPIRED", "NO_RESOURCE", "CLIENT_ERROR")
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))


def as_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def note(text: str) -> None:
    """Something for the person at the keyboard, beside the output."""
    click.echo(click.style(text, dim=True), err=True)


def next_step(command: str) -> None:
    """The command that most likely comes next; not shown to programs."""
    if sys.stderr.isatty():
        note(f"next: {command}")


def state(name: str) -> str:
    return click.style(name, fg="red" if name in _BAD else _COLOURS.get(name))


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Columns as wide as they must be; on a terminal the last one is cut to what fits."""
    lines = [["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    if not lines:
        note(empty)
        return
    head = [title.upper() for title in titles]
    widths = [max(len(click.unstyle(line[i])) for line in [head, *lines]) for i in range(len(head))]
    room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1) if sys.stdout.isatty() else 0
    click.echo(click.style(_line(head, widths, room), bold=True))
    for line in lines:
        click.echo(_line(line, widths, room))


def _line(cells: Sequence[str], widths: Sequence[int], room: int) -> str:
    *first, last = cells
    if 8 < room < len(click.unstyle(last)):
        last = click.unstyle(last)[: room - 1] + "…"
    padded = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(first, widths, strict=False)]
    return "  ".join([*padded, last]).rstrip()


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Name and value, one per line; what is None or empty is left out."""
    given = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        first, *more = str(value).split("\n")
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {first}")
        for line in more:
            click.echo(f"{' ' * width}  {line}")


def moment(micros: int | None) -> str | None:
    """A time of the server in this machine's time zone."""
    if micros is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(micros / 1e6))


def ago(micros: int | None) -> str | None:
    if micros is None:
        return None
    seconds = time.time() - micros / 1e6
    return "just now" if seconds < 1 else f"{span(seconds)} ago"


def span(seconds: float | None) -> str | None:
    """12ms, 3.2s, 4m 10s, 2h 5m, 3d 4h."""
    if seconds is None:
        return None
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    for i, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            smaller, name = _UNITS[i + 1] if i + 1 < len(_UNITS) else (1, "s")
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)}{unit} {rest}{name}" if rest else f"{int(seconds // size)}{unit}"
    return None


def size(count: int | None) -> str | None:
    if count is None:
        return None
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return None


def dimensions(had: Mapping[str, Sequence[str]] | None, *, leave_out: Sequence[str] = ()) -> str:
    pairs = [f"{key}={value}" for key, values in (had or {}).items() if key not in leave_out for value in values]
    return " ".join(pairs)


def command_line(words: Sequence[str]) -> str:
    import shlex  # late: only a few commands show one

    return shlex.join(words)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def record(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one in place of null."""
    return value if isinstance(value, dict) else {}
