"""A server that takes what functions on a bot send for their job, and remembers it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class JobServer:
    """Use as a context manager. ``refusals`` are answered first, each once: (status, code, message)."""

    def __init__(self) -> None:
        self.extensions: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.asked: list[list[str]] = []
        self.tokens: set[str] = set()
        self.paths: set[str] = set()
        self.refusals: list[tuple[int, str, str]] = []

    def __enter__(self) -> Self:
        job_server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.answer(*job_server.take(self.path, self.headers["Authorization"], self.body()))

            def do_PUT(self) -> None:
                self.do_POST()

            def body(self) -> bytes:
                return self.rfile.read(int(self.headers["Content-Length"]))

            def answer(self, status: int, document: dict[str, Any]) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def take(self, path: str, token: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if self.refusals:
            status, code, message = self.refusals.pop(0)
            return status, {"error": {"code": code, "message": message}}
        self.tokens.add(token)
        if path == "/api/v1/files/missing":
            digests = [one["digest"] for one in json.loads(body)["files"]]
            self.asked.append(digests)
            return 200, {"missing": [digest for digest in digests if digest not in self.files]}
        if path.startswith("/api/v1/files/"):
            self.files[path.rsplit("/", 1)[1]] = body
            return 200, {}
        self.paths.add(path)
        self.extensions.append(json.loads(body)["job"])
        return 200, {"num_new": len(self.extensions[-1]["tasks"])}
