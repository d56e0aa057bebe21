"""A small server that speaks the bot's wire and forgets everything: for what bots do, and for what can go wrong.

It hands out tasks in order, remembers reports, logs and events, and plays the faults of a network on request: a
reply that is lost, cut, delayed for ever, or an error. Its claims follow the real rule: the same nonce, the same tasks.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from base64 import b64decode
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from myrmidon.bot import protocol
from tests.deadline import HANG_S

FORMS: dict[str, Any] = {
    "exchange": protocol.ExchangeMessage,
    "handshake": protocol.HandshakeMessage,
    "heartbeat": protocol.HeartbeatMessage,
    "event": protocol.EventMessage,
    "finish": protocol.FinishReport,
    "fault": protocol.FaultReport,
    "start": protocol.StartReport,
    "give_back": protocol.GiveBackReport,
}
DEFAULTS = {
    name: {field: value for field, value in form._field_defaults.items() if value is not None}
    for name, form in FORMS.items()
}
"""What a bot leaves out."""


def accepts(body: dict[str, Any], task: dict[str, Any]) -> bool:
    """Whether the claim of a request takes this task."""
    return body.get("accepts", "any") in ("any", "functions" if task["function"] else "commands")


class Stub:
    """The server's side of everything; use as a context manager."""

    def __init__(self) -> None:
        self.change = threading.Condition()
        self.waiting: deque[dict[str, Any]] = deque()
        self.results: dict[str, dict[str, Any]] = {}
        self.reports: list[dict[str, Any]] = []
        self.outcomes: dict[str, str] = {}
        self.logs: dict[tuple[str, int], bytearray] = {}
        self.log_posts: list[float] = []
        self.log_pause_s = 0.0
        self.events: list[tuple[str, str]] = []
        self.said: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.gives: dict[str, Any] = {}
        self.hellos: list[dict[str, Any]] = []
        self.calls: list[tuple[float, str, dict[str, Any]]] = []
        self.stops: set[str] = set()
        self.lost: set[str] = set()
        self.answered: dict[int, int] = {}
        self.order: dict[str, Any] | None = None
        self.bot_of: dict[int, str] = {}
        self.latest: dict[str, int] = {}
        self.claims: dict[tuple[int, int], list[dict[str, Any]]] = {}
        self.turns: dict[int, int] = {}
        self.files: dict[str, bytes] = {}
        self.file_calls: list[tuple[str, str, str]] = []
        self.given_back: set[tuple[str, int, int]] = set()
        self.faults: list[tuple[str, str]] = []
        self.holes = threading.Event()
        self.zips: dict[str, bytes] = {}
        self.sessions_ended: set[int] = set()
        self.heartbeat_s = 10.0
        self.poll_s = 30.0
        self.count = 0
        self.most = 256
        self.repeats_stops = False
        self.log_refusal = 0
        self.file_refusal = ""
        self.log_limit = 1 << 30
        self.down = False

    # -- what a test does

    def submit(self, *command: str, **fields: Any) -> str:
        with self.change:
            self.count += 1
            run = f"{0x5CEE48800881 + self.count * 16:x}101"
            task: dict[str, Any] = {
                "run": run, "token": f"token-of-{run}", "name": "", "command": list(command), "env": {},
                "env_prefixes": {}, "relative_cwd": "", "caches": [], "secret_bytes": None, "execution_timeout_s": 60,
                "io_timeout_s": None, "grace_period_s": 1, "lease_s": 300, "deadline_at": 0, "outputs": [],
                "idempotent": False, "user": "", "priority": 100, "function": None, "inputs": [],
            }  # fmt: skip
            task.update(fields)
            self.waiting.append(task)
            self.change.notify_all()
            return run

    def until(self, true: Any, what: str = "") -> Any:
        """Wait for something to be so; the condition is looked at whenever the bot has said something."""
        end = time.monotonic() + HANG_S
        with self.change:
            while not (found := true()):
                left = end - time.monotonic()
                assert left > 0, f"did not happen in time: {what or true}"
                self.change.wait(min(left, 0.2))
            return found

    def result(self, run: str) -> dict[str, Any]:
        return self.until(lambda: self.results.get(run), f"a result of {run}")

    def run(self, *command: str, **fields: Any) -> dict[str, Any]:
        return self.result(self.submit(*command, **fields))

    def log(self, run: str, stream: int = 0) -> bytes:
        with self.change:
            return bytes(self.logs.get((run, stream), b""))

    def fault(self, path: str, *kinds: str) -> None:
        """The next calls of this path go wrong: lost, cut, hole, refused, twice, 503, 401, 409."""
        with self.change:
            self.faults += [(path, kind) for kind in kinds]

    def give_out(self, zipped: bytes, digest: str) -> None:
        self.zips[digest] = zipped
        credential = self.hellos[-1]["credential"]
        signature = hmac.new(credential.encode(), digest.encode(), hashlib.sha256).hexdigest()
        with self.change:
            self.order = {
                "order": "update",
                "version": digest,
                "zip_hmac": signature,
                "bot_id": self.hellos[-1]["bot_id"],
            }
            self.change.notify_all()

    def says(self, kind: str) -> list[str]:
        return [message for said, message in self.events if said == kind]

    # -- what a bot does

    def handshake(self, body: dict[str, Any]) -> dict[str, Any]:
        credential = f"myb_{body['bot_id']}"
        body["credential"] = credential
        self.hellos.append(body)
        self.sessions_ended.discard(body["session"])
        self.bot_of[body["session"]] = body["bot_id"]
        self.latest[body["bot_id"]] = body["session"]
        self.change.notify_all()
        keep = [run for run in body["holds"] if run not in self.lost]
        return {
            "credential": credential, "bot_id": body["bot_id"], "session": body["session"], "keep": keep,
            "quarantined": body.get("quarantined"), "version": body["version"], "zip_hmac": "", "poll_s": self.poll_s,
            "heartbeat_s": self.heartbeat_s, "server_time": int(time.time() * 1e6), "config": "",
            "start_within_s": 20.0, **self.gives,
        }  # fmt: skip

    def exchange(self, body: dict[str, Any]) -> dict[str, Any]:
        self._return_unreceived(body)
        lengths = [self._append(p["run"], p["stream"], p["offset"], b64decode(p["data"])) for p in body["logs"]]
        replies = [self._take(report, body) for report in body["reports"]]
        turn = self.turns[body["session"]] = self.turns.get(body["session"], 0) + 1
        tasks = self._claim(body)
        self.change.notify_all()
        end = time.monotonic() + body["wait_s"]
        while not (tasks or self._has_news(body) or self._over(body)) and time.monotonic() < end:
            self.change.wait(min(0.2, end - time.monotonic()))
            if self.turns[body["session"]] != turn:
                break  # the bot has given this call up and made another one
            tasks = self._claim(body)
        more = any(accepts(body, task) for task in self.waiting)
        self.answered[body["session"]] = max(body["nonce"], self.answered.get(body["session"], 0))
        return {"replies": replies, "log_lengths": lengths, "tasks": tasks, "more": more, **self._orders(body)}

    def heartbeat(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._orders(body)

    def _orders(self, body: dict[str, Any]) -> dict[str, Any]:
        order = self._order_for(body)
        if order:
            self.order = None
        return {"stop": self._stops(body), **(order or {"order": None})}

    def _order_for(self, body: dict[str, Any]) -> dict[str, Any] | None:
        mine = self.order and self.order.get("bot_id") in (None, self.bot_of.get(body["session"]))
        return self.order if mine else None

    def _has_news(self, body: dict[str, Any]) -> bool:
        """An order, or a stop that the bot does not carry out yet; to an old server every stop is news."""
        known = [] if self.repeats_stops else body.get("stopping", [])
        return bool(self._order_for(body) or [run for run in self._stops(body) if run not in known])

    def _over(self, body: dict[str, Any]) -> bool:
        """Nobody waits for this answer any more: the server has gone, or the bot has come back without it."""
        bot = self.bot_of.get(body["session"])
        return self.down or bot is None or self.latest[bot] != body["session"]

    def _stops(self, body: dict[str, Any]) -> list[str]:
        return [run for run, _ in body["holds"] if run in self.stops or run in self.lost]

    def _claim(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The tasks of a claim. A call that comes after its repetition was answered gets no others: nobody reads it."""
        key = (body["session"], body["nonce"])
        if not self.claims.get(key) and self.answered.get(body["session"], 0) < body["nonce"]:
            n = 0 if self._order_for(body) or self._over(body) else min(body["n"], self.most, len(self.waiting))
            found = [task for task in self.waiting if accepts(body, task)][:n]
            self.claims[key] = found
            for task in found:
                self.waiting.remove(task)
        return self.claims.get(key, [])

    def _return_unreceived(self, body: dict[str, Any]) -> None:
        """The tasks of claims that the bot has given up go back to the queue."""
        for (session, nonce), tasks in self.claims.items():
            if session == body["session"] and body["received"] < nonce < body["nonce"]:
                self.waiting.extend(tasks)
                tasks.clear()

    def _take(self, report: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        run, report = report["run"], {**DEFAULTS[report["type"]], **report}
        self.reports.append(report)
        if run in self.lost or report["token"] != f"token-of-{run}":
            self.outcomes[run] = "stale"
            return {"outcome": "stale", "stop": True}
        if report["type"] in ("finish", "fault"):
            self.results.setdefault(run, report)
        if report["type"] == "give_back":
            self.outcomes[run] = "given_back"
            self._hand_out_again(run, body)
        return {"outcome": "accepted", "stop": report["type"] == "start" and run in self.stops}

    def _hand_out_again(self, run: str, body: dict[str, Any]) -> None:
        """A bot gives back what a slow command keeps it from beginning; a call that is repeated says so once."""
        said = (run, body["session"], body["nonce"])
        if said not in self.given_back:
            self.given_back.add(said)
            self.waiting.append(next(task for tasks in self.claims.values() for task in tasks if task["run"] == run))

    def _append(self, run: str, stream: int, at: int, data: bytes) -> int:
        log = self.logs.setdefault((run, stream), bytearray())
        if at > len(log):
            log.extend(b"\0" * (at - len(log)))
        log[at : at + len(data)] = data
        return len(log)

    def append_log(self, path: str, query: dict[str, list[str]], data: bytes) -> dict[str, Any]:
        _, _, _, _, run, stream = path.split("/")
        self.log_posts.append(time.monotonic())
        length = self._append(run, int(stream), int(query["offset"][0]), data)
        return {"length": length, "pause_s": self.log_pause_s}

    def event(self, body: dict[str, Any]) -> dict[str, Any]:
        self.events.append((body["kind"], body["message"]))
        self.said.append(body)
        return {}

    def file(self, method: str, path: str, token: str, data: bytes) -> tuple[int, Any]:
        """Files of runs: those of a test, by their digest."""
        _, _, _, _, run, _, digest = path.split("/")
        self.file_calls.append((method, run, digest))
        if token != f"token-of-{run}":
            return 404, {"error": {"code": "not_found", "message": "no such run"}}
        if method == "PUT":
            if self.file_refusal:
                return 413, {"error": {"code": "storage_quota", "message": self.file_refusal}}
            self.files[digest] = data
            return 200, {"digest": digest, "size": len(data)}
        if digest not in self.files:
            return 410, {"error": {"code": "files.damaged", "message": "the file is damaged"}}
        return 200, self.files[digest]

    # -- the wire

    def __enter__(self) -> Self:
        self.http = _Http(("127.0.0.1", 0), self)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.down = True
        self.holes.set()
        self.http.shutdown()
        self.http.server_close()

    def next_fault(self, path: str) -> str:
        if self.down:
            return "refused"
        for item in self.faults:
            if path.startswith(item[0]):
                self.faults.remove(item)
                return item[1]
        return ""


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], stub: Stub) -> None:
        self.stub = stub
        super().__init__(address, _Handler)

    def handle_error(self, *_: object) -> None:
        """A bot that was killed in the middle of a call is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        stub: Stub = self.server.stub  # type: ignore[attr-defined]
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        with stub.change:
            fault = stub.next_fault(parts.path)
        if fault == "refused":
            self.close_connection = True
            self.connection.close()
            return
        if fault == "hole":
            stub.holes.wait(120)
            self.close_connection = True
            return
        if fault.isdigit():
            self._answer(int(fault), {"error": {"code": "wrong_state" if fault == "409" else "x", "message": "fault"}})
            return
        with stub.change:
            status, answer = self._act(stub, parts.path, parse_qs(parts.query), data)
            if fault == "twice":
                status, answer = self._act(stub, parts.path, parse_qs(parts.query), data)
            stub.change.notify_all()
        self._answer(status, answer, fault)

    def _act(self, stub: Stub, path: str, query: dict[str, list[str]], data: bytes) -> tuple[int, Any]:
        if path.startswith("/bot/v1/zip/"):
            return 200, stub.zips[path.rsplit("/", 1)[1]]
        if path.startswith("/bot/v1/runs/"):
            return stub.file(self.command, path, self.headers.get("X-Run-Token", ""), data)
        if path.startswith("/bot/v1/log/"):
            if len(data) > stub.log_limit:
                return 413, {"error": {"code": "too_large", "message": "too large"}}
            return 200, stub.append_log(path, query, data)
        if path == "/healthz":
            return 200, {}
        verb = path.rsplit("/", 1)[1]
        body = {**DEFAULTS[verb], **json.loads(data)}
        stub.calls.append((time.monotonic(), path, body))
        stub.headers.append(dict(self.headers))
        if stub.log_refusal and body.get("logs"):
            return stub.log_refusal, {"error": {"code": "too_large", "message": "no logs here"}}
        if verb != "handshake" and body["session"] in stub.sessions_ended:
            return 409, {"error": {"code": "wrong_state", "message": "the session has ended"}}
        return 200, getattr(stub, verb)(body)

    def _answer(self, status: int, answer: Any, fault: str = "") -> None:
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        if fault == "lost":
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status in (429, 503):
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
        self.wfile.flush()
        if fault == "cut":
            self.close_connection = True
