"""Reading stored logs. Every byte of a log that leaves the server passes through ``LogReader``.

Each stream has its own offsets. Bytes can be missing: the middle of a log over its size limit is cut out, and what a
bot could not upload leaves a gap. A range contains a line in place of missing bytes, which says how many they are.
The secret of the task is masked, see model/secret_masking.py; tasks without a secret do not pay for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from myrmidon.model.secret_masking import SecretForms, Window
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import log as logs
from myrmidon.store.tables import task_request
from myrmidon.store.tables.log import LogInfo, LogPart


class RunLog(Struct, frozen=True):
    """Which log to read, and what to mask in it: ``forms`` is None for a task without a secret."""

    task_id: int
    run: int
    growing: bool = False
    """Whether the run has not ended, so that bytes may be added."""
    forms: SecretForms | None = None


def run_log(tx: Tx, task_id: int, run: int, *, growing: bool) -> RunLog:
    """The log of a run. Reads the main database, which on SQLite is not that of the logs."""
    secret = task_request.secrets(tx, [task_id]).get(task_id)
    return RunLog(task_id, run, growing, SecretForms(secret) if secret else None)


class LogReader:
    """Reads one stream of a log, with the secret masked."""

    def __init__(self, tx: Tx, log: RunLog, stream: int) -> None:
        self._tx = tx
        self._log = log
        self._stream = stream
        self.info: LogInfo = logs.info(tx, log.task_id, log.run, stream)

    def visible_length(self) -> int:
        """The length of the log without bytes at its end that may be the beginning of a secret."""
        length, forms = self.info.length, self._log.forms
        if forms is None or not self._log.growing:
            return length
        low = max(0, length - forms.reach)
        window = self._window(low, self._stored(low, length), growing=True, length=length)
        return forms.find(window).visible_end

    def read(self, start: int, length: int, *, until_gap: bool = False) -> list[LogPart]:
        """The stored bytes of a range, or the next ones after it if it has none; see ``store.tables.log.read``.

        ``until_gap`` stops at bytes that are missing and may still arrive.
        """
        log = self._log
        parts = logs.read(self._tx, log.task_id, log.run, stream=self._stream, start=start, length=length)
        if until_gap:
            parts = self._before_gap(parts, start)
        return self._masked(parts, until_gap=until_gap) if log.forms is not None and parts else parts

    def _before_gap(self, parts: Sequence[LogPart], start: int) -> list[LogPart]:
        kept = []
        for part in parts:
            if part.start > start and not is_cut(self.info, start):
                break
            kept.append(part)
            start = part.end
        return kept

    def _masked(self, parts: Sequence[LogPart], *, until_gap: bool) -> list[LogPart]:
        forms = self._log.forms
        if forms is None:
            return list(parts)
        first, last, length = parts[0].start, parts[-1].end, max(self.info.length, parts[-1].end)
        low, high = max(0, first - forms.reach), min(length, last + forms.reach)
        stored = [*self._stored(low, first), *parts, *self._stored(last, high)]
        growing = self._log.growing
        if until_gap and (gap := self._gap_after(stored, last, high)) is not None:
            # The reader will continue here once the bytes have arrived: this is the end of what is known.
            stored, high, length, growing = [part for part in stored if part.start < gap], gap, gap, True
        masking = forms.find(self._window(low, stored, growing=growing, length=length, high=high))
        shown = [structs.replace(part, content=masking.apply(part.start, part.content)) for part in parts]
        return [part for part in shown if part.content]

    def _gap_after(self, stored: Sequence[LogPart], offset: int, high: int) -> int | None:
        """The first offset from ``offset`` on whose byte is missing and may still arrive; None if there is none."""
        for part in stored:
            if part.start > offset:
                break
            offset = max(offset, part.end)
        return offset if offset < high and not is_cut(self.info, offset) else None

    def _stored(self, low: int, high: int) -> list[LogPart]:
        log = self._log
        return logs.stored(self._tx, log.task_id, log.run, stream=self._stream, low=low, high=high)

    @staticmethod
    def _window(low: int, stored: Sequence[LogPart], *, growing: bool, length: int, high: int | None = None) -> Window:
        return Window(
            low=low,
            high=length if high is None else high,
            stored=[(part.start, part.content) for part in stored],
            length=length,
            growing=growing,
        )


class LogRange(Struct):
    """Bytes of one or more streams, concatenated; offsets count from the start of the first stream."""

    content: bytes = b""
    length: int = 0
    """The length of all streams."""
    next_offset: int = 0
    """Where the next range begins."""
    cut: list[tuple[int, int]] = []
    """Offsets between which bytes were cut out because a log was over its limit."""


def read_range(tx: Tx, log: RunLog, *, streams: Sequence[int], offset: int, limit: int) -> LogRange:
    """Up to ``limit`` stored bytes of a run's streams, from ``offset`` on."""
    pieces: list[bytes] = []
    result = LogRange(next_offset=offset)
    remaining = limit
    for stream in streams:
        reader = LogReader(tx, log, stream)
        info, length = reader.info, reader.visible_length()
        start = max(0, result.next_offset - result.length)
        if remaining > 0 and start < length:
            parts, start, remaining = _read_stream(reader, start, length, remaining)
            pieces += parts
            result.next_offset = result.length + start
        if info.cut_from is not None and info.cut_to is not None:
            result.cut.append((result.length + info.cut_from, result.length + info.cut_to))
        result.length += length
    result.content = b"".join(pieces)
    return result


def _read_stream(reader: LogReader, start: int, end: int, remaining: int) -> tuple[list[bytes], int, int]:
    """Stored bytes from an offset on, with a line in place of missing ones; the next offset; the rest of the limit."""
    pieces: list[bytes] = []
    while remaining > 0 and start < end:
        low = start if not is_cut(reader.info, start) else reader.info.cut_to or start
        if low > start:
            pieces.append(missing_line(low - start))
            start = low
        parts = reader.read(start, min(remaining, end - start))
        if not parts:
            break
        for part in parts:
            if part.missing:
                pieces.append(missing_line(part.missing))
            pieces.append(part.content)
            remaining -= len(part.content)
            start = part.end
    return pieces, start, remaining


def is_cut(info: LogInfo, offset: int) -> bool:
    """Whether the byte at this offset was cut out."""
    return info.cut_from is not None and info.cut_to is not None and info.cut_from <= offset < info.cut_to


def missing_line(n: int) -> bytes:
    """The line in place of n missing bytes."""
    return b"\n[myrmidon: %d bytes are missing here]\n" % n
