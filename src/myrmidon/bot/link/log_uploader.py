"""Uploads spooled output, one piece per call.

A piece that the server refuses is dropped, and a line in the log says so: otherwise the log, and the result that has to
follow it, would never be delivered.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from myrmidon.bot.link.http_client import HttpClient, HttpError
from myrmidon.bot.storage.log_spool import LogSpool

PIECE_BYTES = 1 << 20
UNWANTED = (403, 404, 410)
"""The server does not accept the log of this run at all."""
REFUSED = (400, 413, 422)
"""The server, or a proxy before it, does not accept this piece."""


class LogNotWanted(Exception):
    """The server does not accept the log of this run."""


class LogUploader:
    """Uploads over the session's connection. Used by the session thread."""

    def __init__(self, http: HttpClient, spool: LogSpool, report_error: Callable[[str], None]) -> None:
        self.http = http
        self.spool = spool
        self.report_error = report_error

    def upload_piece(self, run: str, first_stream: int) -> tuple[int, float]:
        """Upload the next piece of a log; (stream, seconds that the server asks to wait before the next piece).

        Raises LogNotWanted, HttpError, NoResponse.
        """
        for stream in (first_stream, 1 - first_stream):
            offset, data = self.spool.read(run, stream, PIECE_BYTES)
            if data:
                return stream, self._upload(run, stream, offset, data)
        return first_stream, 0.0

    def _upload(self, run: str, stream: int, offset: int, data: bytes) -> float:
        path = f"/bot/v1/log/{run}/{stream}?offset={offset}"
        headers = f"X-Run-Token: {self.spool.tokens.get(run, '')}\r\n"
        end = offset + len(data)
        try:
            answer = self.http.call("POST", path, data, content_type="application/octet-stream", headers=headers)
        except HttpError as error:
            if error.status in UNWANTED:
                raise LogNotWanted(str(error)) from error
            if error.status not in REFUSED:
                raise
            self.report_error(f"the server refused output of {run}: {error}")
            self.spool.drop_refused(run, stream, offset, end, refusal_line(len(data), error.status))
            return 0.0
        self.spool.remove_delivered(run, stream, end)
        return float(json.loads(answer).get("pause_s") or 0.0)


def refusal_line(size: int, status: int) -> bytes:
    """The line in a log after bytes that the server has refused. Before it, the server shows that bytes are missing."""
    return b"\n[myrmidon: the server refused %d bytes of output here: HTTP %d]\n" % (size, status)
