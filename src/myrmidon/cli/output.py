"""Output of commands: lines, tables, fields, states, times, logs.

Everything that a command prints goes through this file (a test checks it), and so through safe_text.py: text from a
server has no effect on a terminal. JSON for programs goes to stdout, with the keys of the server's API. Notes for
people go to stderr, so that stdout can be piped. Colours are left out without a terminal and with NO_COLOR.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

from myrmidon.cli.safe_text import LogFilter, escape
from myrmidon.sdk.errors import CallFailed

_OWN_ESCAPE: Final = f"\x1b{os.urandom(8).hex()}"
"""Stands for the escape character of this program's own styles until a line is printed. It is random, so that text
from a server cannot contain it."""
_MIN_CELL: Final = 8
_COLOURS: Final = {
    "WAITING": "blue",
    "READY": "cyan",
    "RUNNING": "yellow",
    "SUCCEEDED": "green",
    "CANCELLED": "magenta",
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


# -- lines ---------------------------------------------------------------------------------------------------


def echo(text: str = "", *, err: bool = False) -> None:
    """Print one line. Control characters in it, line breaks too, are shown as text; styles are kept."""
    click.echo(render(text, colour=has_colours(err=err)), err=err, color=True)


def echo_wrapped(start: str, text: str) -> None:
    """Print ``start`` and a text. On a terminal, a long text continues below its beginning, cut between words."""
    lines = [text]
    if sys.stdout.isatty():
        import textwrap  # late, for startup time

        columns = max(20, shutil.get_terminal_size().columns - _width(start))
        lines = textwrap.wrap(text, columns, break_long_words=False, break_on_hyphens=False) or [""]
    for number, line in enumerate(lines):
        echo(f"{' ' * _width(start) if number else start}{line}")


def echo_lines(text: str, *, err: bool = False) -> None:
    """Print a text whose line breaks are meant as such."""
    for line in text.split("\n"):
        echo(line, err=err)


def style(text: str, **how: Any) -> str:
    """The text in a colour, bold or dim; for echo, table and fields. Styles cannot be nested."""
    return click.style(escape(text), **how).replace("\x1b", _OWN_ESCAPE)


def render(text: str, *, colour: bool) -> str:
    """The characters to print for a text with styles: safe for a terminal, with its colours or without."""
    styled = "\x1b".join(escape(part) for part in text.split(_OWN_ESCAPE))
    return styled if colour else click.unstyle(styled)


def has_colours(*, err: bool) -> bool:
    return not os.environ.get("NO_COLOR") and (sys.stderr if err else sys.stdout).isatty()


def print_json(value: object, *, indent: bool | None = None) -> None:
    """Print JSON in ASCII: on a terminal or with ``indent`` on several lines."""
    spaces = 2 if (sys.stdout.isatty() if indent is None else indent) else None
    click.echo(json.dumps(value, indent=spaces).replace("\x7f", "\\u007f"))


def print_struct(value: object, *, indent: bool | None = None) -> None:
    """Print an answer of the SDK as JSON."""
    print_json(as_json(value), indent=indent)


def as_json(value: object) -> Any:
    """An answer of the SDK as the value that print_json prints."""
    import msgspec  # late, for startup time

    return msgspec.to_builtins(value)


def note(text: str) -> None:
    """Print a note for people to stderr."""
    echo(style(text, dim=True), err=True)


def next_step(command: str) -> None:
    """Suggest the next command; only on a terminal."""
    if sys.stderr.isatty():
        note(f"next: {command}")


def problem_lines(error: CallFailed) -> list[str]:
    """The problems of a refused request; each is named by the option that it is about, if one is known."""
    return [
        f"{problem.get('option') or problem.get('path') or 'request'}: got {problem.get('value', '')};"
        f" allowed: {problem.get('allowed', '')}"
        for problem in error.problems
    ]


def state(name: str) -> str:
    return style(name, fg="red" if name in _FAILURES else _COLOURS.get(name))


class LogWriter:
    """Writes bytes of a task to stdout or stderr: unchanged to a file or pipe, filtered to a terminal."""

    def __init__(self, *, err: bool) -> None:
        self._out = sys.stderr if err else sys.stdout
        self._filter = LogFilter() if self._out.isatty() else None
        self._in_line = False

    def write(self, data: bytes) -> None:
        self._write(self._filter.feed(data) if self._filter else data)

    def finish(self) -> None:
        """End the last colour, if one is set. Further bytes can be written."""
        if self._filter:
            self._write(self._filter.finish())

    def end_line(self) -> None:
        """On a terminal, begin a new line for a note; a file or pipe gets the task's bytes only."""
        self.finish()
        if self._filter and self._in_line:
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        if data:
            self._in_line = not data.endswith(b"\n")
            self._out.buffer.write(data)
            self._out.flush()


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout unchanged: JSON in ASCII, or for a file or pipe."""
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


# -- tables and fields ---------------------------------------------------------------------------------------


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table with columns as wide as their content.

    On a terminal, cells are cut until a row fits on a line: first the last column, which has free text, then the widest
    ones; the first one, usually an id, stays whole. Without rows the note ``empty`` is printed instead.
    """
    lines = [["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    if not lines:
        note(empty)
        return
    head = [title.upper() for title in titles]
    widths = [max(_width(line[i]) for line in [head, *lines]) for i in range(len(head))]
    if sys.stdout.isatty():
        widths = _fit(widths, shutil.get_terminal_size().columns)
    echo(style(_line(head, widths), bold=True))
    for line in lines:
        echo(_line(line, widths))


def _width(text: str) -> int:
    return len(render(text, colour=False))


def _fit(widths: Sequence[int], columns: int) -> list[int]:
    *first, last = widths
    too_much = sum(widths) + 2 * len(first) - columns
    cut = min(max(0, too_much), max(0, last - _MIN_CELL))
    fitted = [*first, last - cut]
    for _ in range(too_much - cut):
        widest = max(range(1, len(fitted)), key=lambda i: fitted[i], default=0)
        if not widest or fitted[widest] <= _MIN_CELL:
            break
        fitted[widest] -= 1
    return fitted


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    *first, last = [_cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    padded = [cell + " " * (width - _width(cell)) for cell, width in zip(first, widths, strict=False)]
    return "  ".join([*padded, last]).rstrip()


def _cut(cell: str, width: int) -> str:
    plain = render(cell, colour=False)
    return cell if len(plain) <= width else f"{plain[: width - 1]}…"


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values; a list is printed with one item per line. None and empty values are left out."""
    present = [(name, value) for name, value in pairs if value not in (None, "", [])]
    width = max((len(name) for name, _ in present), default=0)
    for name, value in present:
        first, *more = [str(item) for item in value] if isinstance(value, list) else [str(value)]
        echo(f"{style(name.ljust(width), dim=True)}  {first}")
        for line in more:
            echo(f"{' ' * width}  {line}")


# -- times, sizes, numbers -----------------------------------------------------------------------------------


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
    return " ".join(dimension_list(values_by_key, leave_out=leave_out))


def dimension_list(values_by_key: Mapping[str, Sequence[str]] | None, *, leave_out: Sequence[str] = ()) -> list[str]:
    return [
        f"{key}={value}" for key, values in (values_by_key or {}).items() if key not in leave_out for value in values
    ]


def command_line(words: Sequence[str]) -> str:
    import shlex  # late, for startup time: few commands need it

    return shlex.join(words)


def plural(count: int, noun: str) -> str:
    """``1 bot``, ``2 bots``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
