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
MAX_DELAY_S = 30.0
MEANWHILE_S = 0.05
HEALTH_PATH = "/healthz"
"""What every server answers, whoever asks."""
_SLICE_S = 5.0
_MAX_HEADER_BYTES = 65536
_MAX_BODY_BYTES = 256 << 20
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000))
_encode = json.JSONEncoder(separators=(",", ":")).encode


class NoResponse(Exception):
    """No answer: the network, the server or the time."""


class Interrupted(Exception):
    """Somebody in this bot asked for an end of a long wait."""


class HttpError(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """The same call may be answered well later."""
        return self.status >= 500 or self.status in (408, 429)


def retry_delay(failures: int, retry_after: float | None = None, jitter: float | None = None) -> float:
    """Seconds to wait after so many failures in a row: anything up to an exponential, so that a fleet spreads out."""
    jitter = random.random() if jitter is None else jitter  # noqa: S311 - spreads load, hides nothing
    limit = min(MAX_DELAY_S, 0.25 * 2.0 ** min(failures, 10))
    if retry_after is not None:
        return min(max(retry_after, 0.0), 300.0) + jitter * min(limit, 5.0)
    return jitter * limit


class HttpClient:
    """One kept connection to a server. Not for several threads at once."""

    def __init__(self, server: str, bearer: str = "", *, wake_fd: int | None = None) -> None:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the server must be an http or https address, not {server!r}")
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/")
        self.host_header = parts.netloc.rpartition("@")[2]
        self.wake_fd = wake_fd
        self.extra = ""
        self.bearer = bearer
        self.response_after = host.awake()
        self.socket: socket.socket | None = None
        self.meanwhile: Callable[[], None] | None = None
        self.interruptible = False
        self.buffer = b""
        self.margin_s = MARGIN_S

    @property
    def bearer(self) -> str:
        return self._bearer

    @bearer.setter
    def bearer(self, token: str) -> None:
        self._bearer = token
        self._build_common_headers()

    def _build_common_headers(self) -> None:
        self.common = f"Host: {self.host_header}\r\nAuthorization: Bearer {self._bearer}\r\n{self.extra}".encode()

    def set_extra_headers(self, headers: str) -> None:
        """Lines that go with every call from now on."""
        if headers != self.extra:
            self.extra = headers
            self._build_common_headers()

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
        content_type: str = "application/json",
        headers: str = "",
        wait_s: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> bytes:
        """One request and its answer, within wait_s and a margin.

        A kept connection that the server has closed meanwhile is no failure: the request goes out once more on a
        new one. Every call of a bot may be repeated.
        """
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\n{headers}Content-Type: {content_type}\r\n"
        request = head.encode() + self.common + b"Content-Length: %d\r\n\r\n" % len(body) + body
        self.meanwhile = meanwhile
        self.interruptible = wait_s > 0
        status, response_headers, content = self._call_with_reconnect(request, wait_s)
        if 200 <= status < 300:
            return content
        raise _parse_error(status, response_headers, content)

    def close(self) -> None:
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.close()
        self.socket = None
        self.buffer = b""

    # -- one exchange

    def _call_with_reconnect(self, request: bytes, wait_s: float) -> tuple[int, dict[bytes, bytes], bytes]:
        kept = self.socket is not None
        try:
            return self._attempt(request, wait_s)
        except _ConnectionClosed as error:
            self.close()
            if not kept:
                raise NoResponse(str(error)) from error
        except Interrupted:
            self.close()
            raise
        except (OSError, ValueError) as error:
            self.close()
            raise NoResponse(f"{type(error).__name__}: {error}") from error
        try:
            return self._attempt(request, wait_s)
        except Interrupted:
            self.close()
            raise
        except (OSError, ValueError) as error:
            self.close()
            raise NoResponse(f"{type(error).__name__}: {error}") from error

    def _attempt(self, request: bytes, wait_s: float) -> tuple[int, dict[bytes, bytes], bytes]:
        line = self.socket or self._connect()
        try:
            line.settimeout(self.margin_s + len(request) / 65536)
            line.sendall(request)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _ConnectionClosed(str(error)) from error
        until = host.awake() + wait_s + self.margin_s
        self.response_after = host.awake()
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
        self.buffer = b""
        return line

    def _read_head(self, until: float) -> bytes:
        data = self.buffer
        while True:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                self.buffer = data[end + 4 :]
                return data[:end]
            if len(data) > _MAX_HEADER_BYTES:
                raise ValueError("the answer has no end of its headers")
            more = self._receive(until)
            if not more:
                if data:
                    raise ValueError("the answer was cut")
                raise _ConnectionClosed("the server closed the connection")
            data += more

    def _read_body(self, headers: dict[bytes, bytes], until: float) -> bytes:
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            return self._read_chunks(until)
        if b"content-length" in headers:
            return self._read_bytes(int(headers[b"content-length"]), until)
        parts = [self.buffer]
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
        while b"\r\n" not in self.buffer:
            more = self._receive(until)
            if not more or len(self.buffer) > _MAX_HEADER_BYTES:
                raise ValueError("the answer was cut")
            self.buffer += more
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line

    def _read_bytes(self, size: int, until: float) -> bytes:
        if not 0 <= size <= _MAX_BODY_BYTES:
            raise ValueError(f"an answer of {size} bytes")
        parts = [self.buffer]
        have = len(self.buffer)
        while have < size:
            more = self._receive(until)
            if not more:
                raise ValueError("the answer was cut")
            parts.append(more)
            have += len(more)
        data = b"".join(parts)
        self.buffer = data[size:]
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
            wake_fds = [self.wake_fd] if self.wake_fd is not None and self.interruptible else []
            slice_s = _SLICE_S if self.meanwhile is None else MEANWHILE_S
            ready = _readable([line.fileno(), *wake_fds], min(until - now, slice_s))
            if line.fileno() in ready:
                break
            if ready:
                _drain(wake_fds[0])
                raise Interrupted
            if self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                meanwhile()
            self.response_after = host.awake()
        line.settimeout(max(until - host.awake(), 0.1))
        try:
            return line.recv(65536)
        except ConnectionResetError:
            return b""


class _ConnectionClosed(OSError):
    """The other side has closed a kept connection before it answered."""


def _readable(handles: list[int], wait_s: float) -> set[int]:
    if hasattr(select, "poll"):
        poll = select.poll()
        for handle in handles:
            poll.register(handle, select.POLLIN)
        return {handle for handle, _ in poll.poll(wait_s * 1000)}
    return set(select.select(handles, [], [], wait_s)[0])


def _drain(handle: int) -> None:
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


def _parse_error(status: int, headers: dict[bytes, bytes], content: bytes) -> HttpError:
    code, message = "", content[:200].decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = json.loads(content.decode())["error"]
        code, message = str(error["code"]), str(error["message"])
    retry_after = None
    with contextlib.suppress(ValueError):
        retry_after = float(headers.get(b"retry-after", b""))
    return HttpError(status, code, message, retry_after)


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise NoResponse("the answer is not JSON: something else than the server answered") from error
