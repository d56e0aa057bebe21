"""A server whose every text is hostile: what others have written, or what an attacker answers in its place."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import urllib3

EVIL = "\x1b[95m\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\r\n\tfake  row\u202e\u2066\u2028\x08\x00\x7f\x85\U000e0041\ud800"
"""A colour that the program does not use, the clipboard, a cleared screen, C1, a line, bidi, tags, a surrogate."""
LEFT_AS_THEY_ARE = ("task_id", "job_id", "run", "cursor", "deduped_from", "slice", "token")
"""Ids that further calls need, and what a program reads."""
TYPED = "/api/v1/jobs"
"""The client decodes these answers as structs, and refuses those with another state or with half a character."""
ENUMERATED = ("state", "view", "failure_policy", "what", "digest", "data")


def made_hostile(value: Any, key: str = "", *, typed: bool = False) -> Any:
    """The same document with EVIL in every text and in every key that is chosen by people."""
    if isinstance(value, dict):
        chosen = key in ("dimensions", "env", "metadata", "state", "counts")
        end = evil(typed=typed) if chosen else ""
        return {f"{name}{end}": made_hostile(inner, name, typed=typed) for name, inner in value.items()}
    if isinstance(value, list):
        return [made_hostile(item, "" if isinstance(item, dict) else key, typed=typed) for item in value]
    if isinstance(value, str) and key not in LEFT_AS_THEY_ARE and not (typed and key in ENUMERATED):
        return f"{value}{evil(typed=typed)}"
    return value


def evil(*, typed: bool) -> str:
    return EVIL.replace("\ud800", "") if typed else EVIL


@contextmanager
def hostile(url: str) -> Iterator[str]:
    """The address of a server that answers what the one at ``url`` answers, made hostile."""
    http = urllib3.PoolManager(retries=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name not in ("Host", "Content-Length")}
            reply = http.request(self.command, url + self.path, body=body, headers=headers, redirect=False)
            data = reply.data
            if reply.headers.get("content-type", "").startswith("application/json"):
                data = json.dumps(made_hostile(json.loads(data), typed=self.path.startswith(TYPED))).encode()
            self.send_response(reply.status)
            for name in ("Content-Type", "X-Log-Next", "X-Log-Length"):
                if name in reply.headers:
                    self.send_header(name, reply.headers[name])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Tests read what the program prints."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
