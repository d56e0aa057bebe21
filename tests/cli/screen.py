"""What a person sees: the screen of a terminal after a program's output, for what our programs send."""

from __future__ import annotations

import re

_PIECE = re.compile(r"\x1b\[(?P<args>[\d;?]*)(?P<verb>[A-Za-z])|(?P<char>.)", re.DOTALL)


class Screen:
    """The lines since the beginning, wrapped at ``columns``; a cursor moves in the last ``rows`` of them."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self._lines = [""]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for piece in _PIECE.finditer(text):
            if piece["char"] is not None:
                self._put(piece["char"])
            elif piece["verb"] == "A":
                top = max(0, len(self._lines) - self.rows)
                self._row = max(top, self._row - int(piece["args"] or 1))
            elif piece["verb"] == "K":
                assert piece["args"] == "2", f"an escape that this screen does not know: {piece[0]!r}"
                self._lines[self._row] = ""
            else:
                assert piece["verb"] in "mhl", f"an escape that this screen does not know: {piece[0]!r}"

    def _put(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._row += 1
            if self._row == len(self._lines):
                self._lines.append("")
        else:
            if self._column == self.columns:
                self._put("\r")
                self._put("\n")
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + char + line[self._column + 1 :]
            self._column += 1

    @property
    def visible(self) -> list[str]:
        return [line.rstrip() for line in self._lines[-self.rows :]]
