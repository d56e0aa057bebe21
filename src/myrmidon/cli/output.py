"""Output of commands: tables, fields, states, times.

JSON for programs goes to stdout, with the keys of the server's API. Notes for people go to stderr, so that stdout can
be piped. Colours are removed without a terminal (by click) and with NO_COLOR (in main.py).
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

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
_FAILURES: Final = ("FAILED", "TIMED_OUT", "BOT_DIED", "EXPIRED", "NO_RESOURCE", "CLIENT_ERROR")
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"))


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def print_struct(value: object) -> None:
    """Print an answer of the SDK as JSON."""
    import msgspec  # late, for startup time

    print_json(msgspec.to_builtins(value))


def note(text: str) -> None:
    """Print a note for people to stderr."""
    click.echo(click.style(text, dim=True), err=True)


def next_step(command: str) -> None:
    """Suggest the next command; only on a terminal."""
    if sys.stderr.isatty():
        note(f"next: {command}")


def state(name: str) -> str:
    return click.style(name, fg="red" if name in _FAILURES else _COLOURS.get(name))


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table with columns as wide as their content; on a terminal the last one is cut to the screen's width.

    Without rows the note ``empty`` is printed instead.
    """
    lines = [["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    if not lines:
        note(empty)
        return
    head = [title.upper() for title in titles]
    widths = [max(len(click.unstyle(line[i])) for line in [head, *lines]) for i in range(len(head))]
    max_last = (
        shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1) if sys.stdout.isatty() else 0
    )
    click.echo(click.style(_line(head, widths, max_last), bold=True))
    for line in lines:
        click.echo(_line(line, widths, max_last))


def _line(cells: Sequence[str], widths: Sequence[int], max_last: int) -> str:
    *first, last = cells
    if 8 < max_last < len(click.unstyle(last)):
        last = click.unstyle(last)[: max_last - 1] + "…"
    padded = [cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(first, widths, strict=False)]
    return "  ".join([*padded, last]).rstrip()


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line; None and empty values are left out."""
    present = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in present), default=0)
    for name, value in present:
        first, *more = str(value).split("\n")
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {first}")
        for line in more:
            click.echo(f"{' ' * width}  {line}")


def local_time(micros: int | None) -> str | None:
    """A server timestamp in the local time zone."""
    if micros is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(micros / 1e6))


def ago(micros: int | None) -> str | None:
    if micros is None:
        return None
    seconds = time.time() - micros / 1e6
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


def duration(seconds: float | None) -> str | None:
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


def dimensions(values_by_key: Mapping[str, Sequence[str]] | None, *, leave_out: Sequence[str] = ()) -> str:
    pairs = [
        f"{key}={value}" for key, values in (values_by_key or {}).items() if key not in leave_out for value in values
    ]
    return " ".join(pairs)


def command_line(words: Sequence[str]) -> str:
    import shlex  # late, for startup time: few commands need it

    return shlex.join(words)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
