"""Makes text and logs safe to show on a terminal.

Names, tags, dimensions, reasons and messages are chosen by other people, and a terminal interprets control characters
in them: escape sequences move the cursor, set the clipboard or the title, and bidirectional controls reorder text.
``escape`` shows such characters as text (``\\x1b``) instead. It is applied to everything that output.py prints, with or
without a terminal: a table in a file is shown on a terminal later.

A log is data. Piped or written to a file it stays as it is, byte for byte; LogFilter is for a terminal only. It keeps
colours (SGR sequences) and drops all other sequences and control characters.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e]")
_JOINERS: Final = "\u200c\u200d"
"""Invisible, but part of the spelling of some scripts and of emoji."""
_UNSAFE: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories: controls (C0, DEL, C1), formats (bidi, zero width, tags), surrogates, line and paragraph ends."""
_MAX_SGR: Final = 64
"""Characters; a longer sequence sets no colour that a terminal has."""
_MAX_HELD: Final = _MAX_SGR + 8
_RESET: Final = "\x1b[0m"


def escape(text: str) -> str:
    """The text in one line, without control and bidirectional characters: they are shown as ``\\n``, ``\\u202e``."""
    return _NOT_PLAIN.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if not _is_unsafe(character):
        return character
    return character.encode("unicode_escape").decode()


def _is_unsafe(character: str) -> bool:
    import unicodedata  # late, for startup time: most text is ASCII

    return character not in _JOINERS and unicodedata.category(character) in _UNSAFE


_STRING_BODY: Final = r"[^\x07\x1b\x9c\n]*"
_STRING_END: Final = r"(?:\x07|\x1b\\|\x9c)"
_REST_OF_STRING: Final = re.compile(rf"{_STRING_BODY}(?P<end>{_STRING_END})?")
_SPECIAL_IN_LOG: Final = re.compile(r"[^\x20-\x7e\n\t]")
_IN_LOG: Final = re.compile(
    rf"(?P<colour>\x1b\[[0-9;:]{{0,{_MAX_SGR}}}m)"
    r"|(?P<return>\r(?!\n))"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # other CSI sequences
    rf"|(?P<string>(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98]){_STRING_BODY})(?P<end>{_STRING_END})?"  # OSC, DCS, ...
    r"|\x1b[ -/]*[0-~]?"  # other escapes
    r"|(?P<other>[^\x20-\x7e\n\t])"
)
_INCOMPLETE: Final = re.compile(rf"(?:\r|(?:\x1b\[?|\x9b)[0-?]{{0,{_MAX_SGR}}}[ -/]{{0,4}})\Z")
"""The beginning of a sequence at the end of a chunk; the next chunk decides what it is."""


class LogFilter:
    """Copies one stream of a log without control characters and escape sequences, except colours.

    State is kept between calls: a sequence or a character may be split between two chunks. No more than one short
    sequence is held back, and a line break ends a sequence that its sender did not end, so a log cannot hide what
    follows. A carriage return, which would let a line be overwritten, starts a new line.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._in_string = False
        self._coloured = False

    def feed(self, data: bytes) -> bytes:
        """The safe part of the next bytes."""
        text = self._held + self._decoder.decode(data)
        tail = _INCOMPLETE.search(text, max(0, len(text) - _MAX_HELD))
        self._held = tail[0] if tail else ""
        return self._filter(text[: len(text) - len(self._held)]).encode()

    def finish(self) -> bytes:
        """What is still held back, and the end of the last colour."""
        text = self._held + self._decoder.decode(b"", final=True)
        ended = self._filter(text) + (_RESET if self._coloured else "")
        self._held, self._in_string, self._coloured = "", False, False
        return ended.encode()

    def _filter(self, text: str) -> str:
        if self._in_string and text:
            rest = _REST_OF_STRING.match(text)
            end = rest.end() if rest else 0
            self._in_string = end == len(text) and not (rest and rest["end"])
            text = text[end:]
        return _IN_LOG.sub(self._replacement, text) if _SPECIAL_IN_LOG.search(text) else text

    def _replacement(self, match: re.Match[str]) -> str:
        found = match[0]
        if match["colour"] is not None:
            self._coloured = found not in ("\x1b[m", _RESET)
            return found
        if match["return"] is not None:
            return "\n"
        if match["string"] is not None:
            self._in_string = match.end() == len(match.string) and match["end"] is None
        if match["other"] is not None and not _is_unsafe(found):
            return found
        return ""
