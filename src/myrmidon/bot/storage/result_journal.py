"""The result journal: a file with all results that the server has not acknowledged, one JSON object per line.

A result is written as soon as its command has ended, so that it survives a crash of the bot. The file is synced to the
disk, to survive a crash of the machine, only if the server does not answer at once: results that end close together
share one sync, and no report waits for the disk. An error of the disk is reported and costs no result: the bot has it
in memory, too. After a restart the bot reports what is left in the journal; the server accepts repeated reports.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Callable

from myrmidon.bot.protocol import Record, decode, encode
from myrmidon.bot.system import filesystem

_COMPACT_BYTES = 1 << 20


class ResultJournal:
    """Unacknowledged results. Thread-safe.

    ``recovered`` are the records that an earlier process has left; ``open_runs`` all that are not acknowledged, by run;
    ``encoded`` the JSON of their reports, which is needed again to send them.
    ``on_error`` is called when the file cannot be used; nothing here raises an error after the start.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.recovered = _load(path)
        self.open_runs = {record.report.run: record for record in self.recovered}
        self.encoded = {record.report.run: encode(record.report) for record in self.recovered}
        self.dirty = False
        self.on_error: Callable[[str], None] = lambda _: None
        self._open()

    def _open(self) -> None:
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = os.fstat(self.file).st_size

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.on_error(f"the results on disk cannot be changed: {error}")

    def add(self, record: Record) -> None:
        """Write a result."""
        self.add_all([record])

    def add_all(self, records: Sequence[Record]) -> None:
        """Write results that have ended together, usually by one system call."""
        with self.lock, self._reporting():
            for record in records:
                self.open_runs[record.report.run] = record
                self.encoded[record.report.run] = encode(record.report)
            left = memoryview(b"".join(map(self._line, records)))
            self.dirty = True
            while left:
                written = os.write(self.file, left)
                self.size += written
                left = left[written:]

    def _line(self, record: Record) -> bytes:
        """The record with a newline on both sides, so that a line cut off by a full disk does not damage the next."""
        return b'\n{"report":%s,"logs":%s}\n' % (self.encoded[record.report.run], encode(record.logs))

    def sync(self) -> None:
        """Force everything added so far to the disk."""
        if self.dirty:
            self.dirty = False
            with self._reporting():
                os.fsync(self.file)

    def acknowledge(self, runs: list[str]) -> None:
        """Remove acknowledged runs. Truncates an empty journal, and rewrites a large one that is mostly obsolete."""
        with self.lock, self._reporting():
            for run in runs:
                self.open_runs.pop(run, None)
                self.encoded.pop(run, None)
            if not self.open_runs:
                os.ftruncate(self.file, 0)
                self.size = 0
                self.dirty = False  # nothing is left to sync, and a sync of a busy disk may be slow
            elif self.size > _COMPACT_BYTES:
                remaining = b"".join(map(self._line, self.open_runs.values()))
                if len(remaining) < self.size // 2:
                    filesystem.write_private(self.path, remaining)
                    os.close(self.file)
                    self._open()


def _load(path: str) -> list[Record]:
    """The records of an earlier process. Lines cut off by a crash are skipped: they were never reported."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    records = {}
    for line in lines:
        try:
            record: Record = decode(Record, json.loads(line))
            records[record.report.run] = record
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return list(records.values())
