"""HTTP to one server: one connection that is kept, hard limits on every wait, and how long to wait after a failure.

A plain client on a socket costs a third of http.client's time, and a bot's time is its commands' time. It speaks
as much of HTTP/1.1 as servers and proxies answer with: lengths, chunks, and connections that close. It decides
nothing: a failure is an exception, and whoever called tries again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from myrmidon.bot.system import host

CONNECT_S = 10.0
MARGIN_S = 15.0
CAP_S = 30.0
MEANWHILE_S = 0.05
PING = "/healthz"
"""What every server answers, whoever asks."""
_SLICE_S = 5.0
_MOST_HEADERS = 65536
_MOST_BODY = 256 << 20
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000))
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Broken(Exception):
    """No answer: the network, the server or the time."""


class Interrupted(Exception):
    """Somebody in this bot asked for an end of a long wait."""


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.retry_after = retry_after

    @property
    def passing(self) -> bool:
        """The same call may be answered well later."""
        return self.status >= 500 or self.status in (408, 429)


def pause_after(failures: int, retry_after: float | None = None, chance: float | None = None) -> float:
    """Seconds to wait after so many failures in a row: anything up to an exponential, so that a fleet spreads out."""
    chance = random.random() if chance is None else chance  # noqa: S311 - spreads load, hides nothing
    most = min(CAP_S, 0.25 * 2.0 ** min(failures, 10))
    if retry_after is not None:
        return min(max(retry_after, 0.0), 300.0) + chance * min(most, 5.0)
    return chance * most


class Wire:
    """One kept connection to a server. Not for several threads at once."""

    def __init__(self, server: str, bearer: str = "", *, wake: int | None = None) -> None:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the server must be an http or https address, not {server!r}")
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/")
        self.name = parts.netloc.rpartition("@")[2]
        self.wake = wake
        self.extra = ""
        self.bearer = bearer
        self.awake_at = host.awake()
        self.socket: socket.socket | None = None
        self.meanwhile: Callable[[], None] | None = None
        self.patient = False
        self.rest = b""
        self.margin_s = MARGIN_S

    @property
    def bearer(self) -> str:
        return self._bearer

    @bearer.setter
    def bearer(self, token: str) -> None:
        self._bearer = token
        self._word_headers()

    def _word_headers(self) -> None:
        self.common = f"Host: {self.name}\r\nAuthorization: Bearer {self._bearer}\r\n{self.extra}".encode()

    def send_along(self, headers: str) -> None:
        """Lines that go with every call from now on."""
        if headers != self.extra:
            self.extra = headers
            self._word_headers()

    def post(
        self, path: str, body: dict[str, Any], *, wait_s: float = 0.0, meanwhile: Callable[[], None] | None = None
    ) -> Any:
        """Send JSON, return the JSON of the answer; raises Refused for any answer that is an error.

        ``meanwhile`` is done if the answer takes its time.
        """
        raw = self.call("POST", path, _encode(body).encode(), wait_s=wait_s, meanwhile=meanwhile)
        return _parse(raw)

    def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        kind: str = "application/json",
        headers: str = "",
        wait_s: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> bytes:
        """One request and its answer, within wait_s and a margin.

        A kept connection that the server has closed meanwhile is no failure: the request goes out once more on a
        new one. Every call of a bot may be repeated.
        """
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\n{headers}Content-Type: {kind}\r\n"
        request = head.encode() + self.common + b"Content-Length: %d\r\n\r\n" % len(body) + body
        self.meanwhile = meanwhile
        self.patient = wait_s > 0
        status, answered, content = self._exchange(request, wait_s)
        if 200 <= status < 300:
            return content
        raise _refusal(status, answered, content)

    def close(self) -> None:
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.close()
        self.socket = None
        self.rest = b""

    # -- one exchange

    def _exchange(self, request: bytes, wait_s: float) -> tuple[int, dict[bytes, bytes], bytes]:
        kept = self.socket is not None
        try:
            return self._once(request, wait_s)
        except _Closed as error:
            self.close()
            if not kept:
                raise Broken(str(error)) from error
        except Interrupted:
            self.close()
            raise
        except (OSError, ValueError) as error:
            self.close()
            raise Broken(f"{type(error).__name__}: {error}") from error
        try:
            return self._once(request, wait_s)
        except Interrupted:
            self.close()
            raise
        except (OSError, ValueError) as error:
            self.close()
            raise Broken(f"{type(error).__name__}: {error}") from error

    def _once(self, request: bytes, wait_s: float) -> tuple[int, dict[bytes, bytes], bytes]:
        line = self.socket or self._connect()
        try:
            line.settimeout(self.margin_s + len(request) / 65536)
            line.sendall(request)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _Closed(str(error)) from error
        until = host.awake() + wait_s + self.margin_s
        self.awake_at = host.awake()
        head = self._read_head(until)
        status, headers = _read_status(head)
        body = self._read_body(headers, until) if status not in (204, 304) else b""
        if headers.get(b"connection", b"").lower() == b"close":
            self.close()
        return status, headers, body

    def _connect(self) -> socket.socket:
        line = socket.create_connection((self.host, self.port), timeout=min(CONNECT_S, self.margin_s))
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if self.tls is not None:
            line = self.tls.wrap_socket(line, server_hostname=self.host)
        self.socket = line
        self.rest = b""
        return line

    def _read_head(self, until: float) -> bytes:
        data = self.rest
        while True:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                self.rest = data[end + 4 :]
                return data[:end]
            if len(data) > _MOST_HEADERS:
                raise ValueError("the answer has no end of its headers")
            more = self._receive(until)
            if not more:
                if data:
                    raise ValueError("the answer was cut")
                raise _Closed("the server closed the connection")
            data += more

    def _read_body(self, headers: dict[bytes, bytes], until: float) -> bytes:
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            return self._read_chunks(until)
        if b"content-length" in headers:
            return self._read_bytes(int(headers[b"content-length"]), until)
        parts = [self.rest]
        while parts[-1] or len(parts) == 1:
            parts.append(self._receive(until))
        self.close()
        return b"".join(parts)

    def _read_chunks(self, until: float) -> bytes:
        parts = []
        while True:
            size = int(self._read_line(until).split(b";")[0], 16)
            parts.append(self._read_bytes(size, until))
            if size == 0:
                while self._read_line(until):
                    pass
                return b"".join(parts)
            self._read_line(until)

    def _read_line(self, until: float) -> bytes:
        while b"\r\n" not in self.rest:
            more = self._receive(until)
            if not more or len(self.rest) > _MOST_HEADERS:
                raise ValueError("the answer was cut")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\r\n")
        return line

    def _read_bytes(self, size: int, until: float) -> bytes:
        if not 0 <= size <= _MOST_BODY:
            raise ValueError(f"an answer of {size} bytes")
        parts = [self.rest]
        have = len(self.rest)
        while have < size:
            more = self._receive(until)
            if not more:
                raise ValueError("the answer was cut")
            parts.append(more)
            have += len(more)
        data = b"".join(parts)
        self.rest = data[size:]
        return data[:size]

    def _receive(self, until: float) -> bytes:
        """The next bytes; looks at the clock every few seconds, so that a frozen bot can tell for how long."""
        line = self.socket
        if line is None:
            raise ValueError("the connection is closed")
        while not (isinstance(line, ssl.SSLSocket) and line.pending()):
            now = host.awake()
            if now >= until:
                raise TimeoutError("no answer in time")
            wakers = [self.wake] if self.wake is not None and self.patient else []
            slice_s = _SLICE_S if self.meanwhile is None else MEANWHILE_S
            ready = _readable([line.fileno(), *wakers], min(until - now, slice_s))
            if line.fileno() in ready:
                break
            if ready:
                _empty(wakers[0])
                raise Interrupted
            if self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                meanwhile()
            self.awake_at = host.awake()
        line.settimeout(max(until - host.awake(), 0.1))
        try:
            return line.recv(65536)
        except ConnectionResetError:
            return b""


class _Closed(OSError):
    """The other side has closed a kept connection before it answered."""


def _readable(handles: list[int], wait_s: float) -> set[int]:
    if hasattr(select, "poll"):
        poll = select.poll()
        for handle in handles:
            poll.register(handle, select.POLLIN)
        return {handle for handle, _ in poll.poll(wait_s * 1000)}
    return set(select.select(handles, [], [], wait_s)[0])


def _empty(handle: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(handle, 4096):
            pass


def _read_status(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise ValueError("the answer is not HTTP")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return int(words[1]), headers


def _refusal(status: int, headers: dict[bytes, bytes], content: bytes) -> Refused:
    code, message = "", content[:200].decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = json.loads(content.decode())["error"]
        code, message = str(error["code"]), str(error["message"])
    retry_after = None
    with contextlib.suppress(ValueError):
        retry_after = float(headers.get(b"retry-after", b""))
    return Refused(status, code, message, retry_after)


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise Broken("the answer is not JSON: something else than the server answered") from error
