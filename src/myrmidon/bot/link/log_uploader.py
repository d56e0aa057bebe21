"""Uploads spooled output, one piece per call.

A piece that is too large for the server, or for a proxy before it, is sent in smaller pieces. A piece that the server
refuses nevertheless is dropped, and a line in the log says so: otherwise the log, and the result that has to follow it,
would never be delivered.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from myrmidon.bot.link.http_client import HttpClient, HttpError
from myrmidon.bot.storage import log_marks
from myrmidon.bot.storage.log_spool import LogSpool

PIECE_BYTES = 1 << 20
MIN_PIECE_BYTES = 1 << 16
"""A piece that is refused as too large is divided down to this size."""
TOO_LARGE = 413
UNWANTED = (403, 404, 410)
"""The server does not accept the log of this run at all."""
REFUSED = (400, TOO_LARGE, 422)
"""The server, or a proxy before it, does not accept this piece."""


class LogNotWanted(Exception):
    """The server does not accept the log of this run."""


class LogUploader:
    """Uploads over the session's connection. Used by the session thread.

    ``piece_bytes``: the size of a piece, as far as the server takes it. ``line_bytes``: the length of a line about a
    refusal that comes next in a stream; it is sent by itself, so that it is not lost with another piece.
    """

    def __init__(self, http: HttpClient, spool: LogSpool, report_error: Callable[[str], None]) -> None:
        self.http = http
        self.spool = spool
        self.report_error = report_error
        self.piece_bytes = PIECE_BYTES
        self.line_bytes: dict[tuple[str, int], int] = {}

    def upload_piece(self, run: str, first_stream: int) -> tuple[int, float]:
        """Upload the next piece of a log; (stream, seconds that the server asks to wait before the next piece).

        Raises LogNotWanted, HttpError, NoResponse.
        """
        for stream in (first_stream, 1 - first_stream):
            limit = self.line_bytes.pop((run, stream), self.piece_bytes)
            offset, data = self.spool.read(run, stream, limit)
            if data:
                return stream, self._upload(run, stream, offset, data)
        return first_stream, 0.0

    def _upload(self, run: str, stream: int, offset: int, data: bytes) -> float:
        path = f"/bot/v1/log/{run}/{stream}?offset={offset}"
        headers = f"X-Run-Token: {self.spool.tokens.get(run, '')}\r\n"
        if marks := self.spool.marks(run, stream, offset + len(data)):
            headers += f"X-Log-Marks: {log_marks.header(marks)}\r\n"
        try:
            answer = self.http.call("POST", path, data, content_type="application/octet-stream", headers=headers)
        except HttpError as error:
            if error.status in UNWANTED:
                raise LogNotWanted(str(error)) from error
            if error.status not in REFUSED:
                raise
            self._on_refused(run, stream, offset, len(data), error)
            return 0.0
        self.spool.remove_delivered(run, stream, offset + len(data))
        return float(json.loads(answer).get("pause_s") or 0.0)

    def _on_refused(self, run: str, stream: int, offset: int, size: int, error: HttpError) -> None:
        """Divide a piece that is too large; drop any other one."""
        if error.status == TOO_LARGE and size > MIN_PIECE_BYTES:
            self.piece_bytes = max(MIN_PIECE_BYTES, size // 2)
            return
        self.report_error(f"the server refused output of {run}: {error}")
        line = refusal_line(size, error.status)
        if self.spool.drop_refused(run, stream, offset, offset + size, line):
            self.line_bytes[run, stream] = len(line)


def refusal_line(size: int, status: int) -> bytes:
    """The line in a log after bytes that the server has refused. Before it, the server shows that bytes are missing."""
    return b"\n[myrmidon: the server refused %d bytes of output here: HTTP %d]\n" % (size, status)
