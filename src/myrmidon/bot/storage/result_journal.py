"""Results on disk, from the end of a command until the server has acknowledged them.

A line of JSON per result. It is written as soon as the command has ended, which survives the death of the bot. It is
forced to the disk, which survives the death of the machine, unless the server answers for it at once: results that
end close together share that cost, and no report waits for a disk. After a restart the bot reports what is still
here: the server knows how to take a repeat.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from myrmidon.bot.system import host

_COMPACT_BYTES = 1 << 20
_PLAIN_FIELDS = 7
_quoted = json.encoder.encode_basestring_ascii
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class ResultJournal:
    """The results that are not acknowledged yet. One thread adds, another one acknowledges."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.recovered = _load(path)
        self.open_runs = {record["report"]["run"]: record for record in self.recovered}
        self.dirty = False
        self._open()

    def _open(self) -> None:
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = os.fstat(self.file).st_size

    def add(self, record: dict[str, Any]) -> bool:
        """Write a result down. False when the disk is full: it is then in memory only."""
        with self.lock:
            self.open_runs[record["report"]["run"]] = record
            line = _line(record)
            try:
                os.write(self.file, line)
            except OSError as error:
                if host.disk_is_full(error):
                    return False
                raise
            self.size += len(line)
            self.dirty = True
            return True

    def sync(self) -> None:
        """Everything added so far is on the disk when this returns."""
        if self.dirty:
            self.dirty = False
            os.fsync(self.file)

    def acknowledge(self, runs: list[str]) -> None:
        """The server has answered for these. An empty journal starts anew; so does one with much that is done."""
        with self.lock:
            for run in runs:
                self.open_runs.pop(run, None)
            if not self.open_runs:
                os.ftruncate(self.file, 0)
                self.size = 0
                self.dirty = False  # nothing is left to be kept: the next wait need not stand behind a busy disk
            elif self.size > _COMPACT_BYTES:
                remaining = b"".join(map(_line, self.open_runs.values()))
                if len(remaining) < self.size // 2:
                    host.write_private(self.path, remaining)
                    os.close(self.file)
                    self._open()


def _line(record: dict[str, Any]) -> bytes:
    """With a line end on both sides: a line that a full disk has cut does not spoil the next one."""
    return b"\n%s\n" % (_plain(record) or _encode(record)).encode()


def _plain(record: dict[str, Any]) -> str:
    """What most records are, a command that has ended by itself and said nothing: written in a third of the time."""
    report = record["report"]
    if record["logs"] or len(report) != _PLAIN_FIELDS or report["type"] != "finish":
        return ""
    return (
        f'{{"report":{{"type":"finish","run":{_quoted(report["run"])},"token":{_quoted(report["token"])},'
        f'"exit_code":{report["exit_code"]},"duration":{report["duration"]},'
        f'"stdout_size":{report["stdout_size"]},"stderr_size":{report["stderr_size"]}}},"logs":[]}}'
    )


def _load(path: str) -> list[dict[str, Any]]:
    """The records of an earlier process. A line that was cut by a crash is nothing that was ever reported."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    records = {}
    for line in lines:
        try:
            record = json.loads(line)
            records[record["report"]["run"]] = {"report": dict(record["report"]), "logs": list(record["logs"])}
        except (ValueError, KeyError, TypeError):
            continue
    return list(records.values())
