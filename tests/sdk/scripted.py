"""A tiny HTTP server that answers as a test tells it to, and remembers what it was asked.

    with scripted(answer(503, retry_after=1), answer(200, {"tasks": []})) as server:
        ...
    assert server.seen[0].headers["Idempotency-Key"]

An answer may also be `CUT`: the connection ends before a byte of it, or in the middle of a stream.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Seen:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """One answer; ``whole`` False promises more than it sends, as a server that dies does.

    ``meanwhile`` is done before it is given, for example to let a test's clock go on.
    """

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    whole: bool = True
    meanwhile: Callable[[], None] | None = None


CUT = Answer(0, b"")


def answer(status: int, value: object = None, **headers: object) -> Answer:
    named = {name.replace("_", "-"): str(text) for name, text in headers.items()}
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **named})


def events(*lines: str, whole: bool = True) -> Answer:
    """A stream of server-sent events; one that is not whole breaks after its last line."""
    text = "".join(f"{line}\n" for line in lines)
    return Answer(200, text.encode(), {"Content-Type": "text/event-stream"}, whole)


def streamed(*outcomes: object) -> Answer:
    """A stream of results that ends after these."""
    sent = ["event: results", f"data: {json.dumps({'results': outcomes})}", ""] if outcomes else []
    return events("event: open", 'data: {"stream": "s"}', "", *sent)


@dataclass
class Scripted:
    url: str
    seen: list[Seen]


@contextmanager
def scripted(*answers: Answer) -> Iterator[Scripted]:
    """A server that gives these answers in order, the last one for ever."""
    seen: list[Seen] = []
    waiting = list(answers)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            with lock:
                is_json = body and self.headers.get("Content-Type", "application/json") == "application/json"
                decoded = json.loads(body) if is_json else body or None
                seen.append(Seen(self.command, self.path, dict(self.headers), decoded))
                given = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            if given.meanwhile:
                given.meanwhile()
            if given.status == CUT.status:
                self._hang_up()
                return
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(given.body) + (0 if given.whole else 100)))
            self.end_headers()
            self.wfile.write(given.body)
            if not given.whole:
                self._hang_up()

        do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815

        def _hang_up(self) -> None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Tests read what was seen, not a log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Scripted(f"http://127.0.0.1:{server.server_address[1]}", seen)
        finally:
            server.shutdown()
            thread.join()
