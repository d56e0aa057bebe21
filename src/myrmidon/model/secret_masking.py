"""Finds the bytes of a log that must not be shown because the task printed its secret.

A byte is masked if it belongs to an occurrence of one of the secret's forms: the whole secret, each of its lines of
MIN_BYTES or more, and the secret in base64, as tasks find it in LUCI_CONTEXT. Masked bytes are shown as ``*``, so that
offsets stay as they are.

Whether a byte is masked depends on at most ``reach`` bytes on either side of it. So every reader, whatever range it
reads, gets the same bytes as if the whole log were masked at once, if it looks at that much more on either side.
Where the bytes beside are unknown, a fragment of a form counts as an occurrence: at the edge of bytes that are missing,
and, from MIN_BYTES on, at the end of a log whose run has ended. While a log can grow, a fragment at its end is not
shown at all.
"""

from __future__ import annotations

import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, TypeAlias

from msgspec import Struct

MIN_BYTES: Final = 8
"""Shorter lines are not masked: they would hide too much that is not secret."""
_FEW_LINES: Final = 16
"""Up to this many lines are searched one by one, which is faster than all at once."""
_LINE_END = re.compile(rb"[\r\n]+")

Span: TypeAlias = tuple[int, int]
"""Offsets from the first to behind the last."""


class Window(Struct, frozen=True, kw_only=True):
    """All stored bytes of a log between two offsets, in order, each with its offset; other bytes there are missing."""

    low: int
    high: int
    stored: Sequence[tuple[int, bytes]]
    length: int
    """The length of the log."""
    growing: bool
    """Whether bytes may be added at the end."""


class Masking(Struct, frozen=True):
    """What to mask in a window: spans in ascending order; and where the bytes end that may be shown already."""

    spans: Sequence[Span]
    visible_end: int

    def apply(self, start: int, content: bytes) -> bytes:
        """The bytes at an offset as they are shown."""
        shown = bytearray(content[: max(0, self.visible_end - start)])
        first = max(0, bisect_right(self.spans, (start, start)) - 1)
        for number in range(first, len(self.spans)):
            low, high = self.spans[number]
            if low >= start + len(shown):
                break
            low, high = max(low - start, 0), min(high - start, len(shown))
            if low < high:
                shown[low:high] = b"*" * (high - low)
        return bytes(shown)


class SecretForms:
    """The texts in which one secret is recognised."""

    def __init__(self, secret: bytes) -> None:
        whole = secret.strip(b"\r\n")
        lines = [line for line in _LINE_END.split(whole) if len(line) >= MIN_BYTES]
        self._lines = list(dict.fromkeys(lines))
        self._whole = [whole, b64encode(secret)] if whole else []
        self._forms = list(dict.fromkeys([*self._whole, *lines]))
        self.reach = max(map(len, self._forms), default=1) - 1
        """How far from a byte those bytes are that decide whether it is masked."""

    def find(self, window: Window) -> Masking:
        """What to mask in a window. Exact for bytes that are ``reach`` away from those edges that cut off bytes."""
        spans: list[Span] = []
        visible_end, known_until = window.length, window.low
        pieces = list(_joined(window.stored))
        for number, (start, content) in enumerate(pieces):
            end = start + len(content)
            after_gap, is_last = start > known_until, number + 1 == len(pieces)
            known_until = end
            spans += self._occurrences(start, content)
            if after_gap:
                spans.append((start, start + self._longest_end(content)))
            if end < window.length:
                if not is_last or end < window.high:
                    spans.append((end - self._longest_begin(content, after_gap=after_gap), end))
                continue
            fragment = self._longest_begin(content, after_gap=after_gap)
            if window.growing:
                visible_end = end - fragment
            elif fragment >= MIN_BYTES or (after_gap and fragment == len(content)):
                # The line end after the first line of a secret stays: it is part of the layout, not of the secret.
                spans.append((end - fragment, start + len(content.rstrip(b"\r\n"))))
        return Masking(list(_merged(spans)), visible_end)

    def mask_text(self, text: str) -> str:
        """A text as it is shown; a character of several bytes becomes as many ``*``."""
        content = text.encode()
        window = Window(low=0, high=len(content), stored=[(0, content)], length=len(content), growing=False)
        return self.find(window).apply(0, content).decode(errors="replace")

    def _occurrences(self, start: int, content: bytes) -> Iterator[Span]:
        if len(self._lines) > _FEW_LINES:
            lines, others = self._line_finder.spans(content), self._whole
        else:
            lines, others = iter(()), self._forms
        for spans in (lines, *(_spans_of(form, content) for form in others)):
            yield from ((start + low, start + high) for low, high in spans)

    @cached_property
    def _line_finder(self) -> LineFinder:
        return LineFinder(self._lines)

    def _longest_begin(self, content: bytes, *, after_gap: bool) -> int:
        """How many of the last bytes may be the beginning of a form; all of them if they may be its middle."""
        if after_gap and any(content in form for form in self._forms):
            return len(content)
        longest, last = 0, content[-1:]
        for form in self._forms:
            size = form.rfind(last, 0, min(len(form) - 1, len(content))) + 1
            while size > longest:
                if content.endswith(form[:size]):
                    longest = size
                size = form.rfind(last, 0, size - 1) + 1
        return longest

    def _longest_end(self, content: bytes) -> int:
        """How many of the first bytes may be the end of a form."""
        longest, first = 0, content[:1]
        for form in self._forms:
            at = form.find(first, max(1, len(form) - len(content)))
            while at >= 0 and len(form) - at > longest:
                if content.startswith(form[at:]):
                    longest = len(form) - at
                at = form.find(first, at + 1)
        return longest


class LineFinder:
    """Finds many lines at once, in a time that does not depend on how many they are (Aho and Corasick, 1975).

    A state is the longest begin of a line that ends at the current byte. ``_fallback`` is the state for the next
    shorter begin; ``_longest`` the length of the longest line that ends there.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._longest = [0]
        for line in lines:
            self._add(line)
        self._fallback = [0] * len(self._next)
        states = list(self._next[0].values())
        for state in states:  # grows: a state comes after all shorter ones
            for byte, longer in self._next[state].items():
                shorter = self._step(self._fallback[state], byte)
                self._fallback[longer] = shorter
                self._longest[longer] = self._longest[longer] or self._longest[shorter]
                states.append(longer)

    def _add(self, line: bytes) -> None:
        state = 0
        for byte in line:
            if byte not in self._next[state]:
                self._next[state][byte] = len(self._next)
                self._next.append({})
                self._longest.append(0)
            state = self._next[state][byte]
        self._longest[state] = len(line)

    def _step(self, state: int, byte: int) -> int:
        while byte not in self._next[state]:
            if not state:
                return 0
            state = self._fallback[state]
        return self._next[state][byte]

    def spans(self, content: bytes) -> Iterator[Span]:
        """For each byte that ends a line, the longest such line."""
        begins, longest, step, state = self._next[0], self._longest, self._step, 0
        for end, byte in enumerate(content, 1):
            state = step(state, byte) if state else begins.get(byte, 0)
            if size := longest[state]:
                yield end - size, end


def _spans_of(form: bytes, content: bytes) -> Iterator[Span]:
    """The occurrences of one form, those that overlap by half or more as one span.

    Only a form that repeats itself overlaps so much, and it may do so at every byte: one search for each would take
    time that grows with the product of both lengths.
    """
    at = content.find(form)
    while at >= 0:
        end, following = at + len(form), content.find(form, at + 1)
        period = following - at
        if 0 < period <= len(form) // 2:
            repeated = form[-period:]
            while content.startswith(repeated, end):
                end += period
            following = content.find(form, end - len(form) + 1)
        yield at, end
        at = following


def _joined(stored: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The pieces of a window, adjacent ones as one, so that an occurrence across their border is found."""
    start, parts, end = 0, list[bytes](), -1
    for offset, content in stored:
        if not content:
            continue
        if parts and offset != end:
            yield start, b"".join(parts)
            parts = []
        if not parts:
            start = offset
        parts.append(content)
        end = offset + len(content)
    if parts:
        yield start, b"".join(parts)


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """The union of spans, ascending and disjoint."""
    current: Span | None = None
    for low, high in sorted(spans):
        if current is not None and low <= current[1]:
            current = current[0], max(current[1], high)
            continue
        if current is not None:
            yield current
        current = (low, high) if low < high else None
    if current is not None:
        yield current
