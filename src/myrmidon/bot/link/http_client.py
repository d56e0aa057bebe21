"""An HTTP client: a persistent connection, deadlines, interruptible waits, and retry delays.

A server may have several addresses, separated by commas. The client uses the first that answers, goes on to the next
one when a connection or a response fails or a proxy or server says that it is away, and tries the first one again
after RETURN_S.

The head of a response has a hard deadline. What may be large, a request or the body of a response, has a deadline for
each piece, so that a file of any size arrives over a slow line.

It needs a third of the CPU time of http.client, which the bot would take from its commands. It supports as much of
HTTP/1.1 as servers and proxies answer with: Content-Length, chunked bodies, and bodies that end with the connection. It
does not retry: a failure is an exception, and the caller decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from myrmidon.bot.system import clock

CONNECT_S = 10.0
FAILOVER_CONNECT_S = 3.0
"""The same for a server with other addresses."""
RETURN_S = 60.0
AWAY = (502, 503, 504)
"""Statuses of a server that cannot work now, or of a proxy that does not reach it: another address may."""
MARGIN_S = 15.0
MAX_DELAY_S = 30.0
ATTEMPTS = 8
"""How often a call for a run is made that the server answers with an internal error."""
MEANWHILE_S = 0.05  # a response that takes longer is slow
HEALTH_PATH = "/healthz"
"""Answered by every server without authentication."""
HEALTH_S = 5.0
_SLICE_S = 5.0
_MAX_HEADER_BYTES = 65536
_MAX_BODY_BYTES = 256 << 20
_SEND_BYTES = 1 << 18
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000))
_encode = json.JSONEncoder(separators=(",", ":")).encode


_PLAIN_TEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL says, depending on its version, when the first bytes of a server are text."""


class NoResponse(Exception):
    """No valid response: connection failure, timeout, or something that is not a Myrmidon server."""


class Interrupted(Exception):
    """A long poll was interrupted through the wake file descriptor."""


class HttpError(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status >= 500 or self.status in (408, 429)


def retry_delay(failures: int, retry_after: float | None = None, jitter: float | None = None) -> float:
    """Seconds to wait after this many consecutive failures: exponential, with full jitter so that a fleet spreads out.

    A server's Retry-After is the minimum, with at most five seconds of jitter on top.
    """
    jitter = random.random() if jitter is None else jitter  # noqa: S311 - not a secret
    limit = min(MAX_DELAY_S, 0.25 * 2.0 ** min(failures, 10))
    if retry_after is not None:
        return min(max(retry_after, 0.0), 300.0) + jitter * min(limit, 5.0)
    return jitter * limit


def check_reachable(server: str, timeout_s: float = HEALTH_S) -> None:
    """Raise NoResponse unless the server answers over a new connection in time. Any HTTP status counts as an answer."""
    client = HttpClient(server)
    client.margin_s = timeout_s
    try:
        client.call("GET", HEALTH_PATH)
    except HttpError:
        pass
    finally:
        client.close()


class Address:
    """One address of a server. Raises ValueError."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the server must be an http or https URL, not {url!r}")
        self.is_secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.is_secure else 80)
        self.prefix = parts.path.rstrip("/")
        self.host_header = parts.netloc.rpartition("@")[2]


class HttpClient:
    """A persistent connection to a server. Not thread-safe. ``address_at``: which of the addresses is used.

    A byte on ``wake_fd`` interrupts calls that have a ``wait_s``. ``response_after`` is a time at which the response to
    the last request had not arrived yet, at most _SLICE_S before it did; earlier if this process was suspended.
    """

    def __init__(self, server: str, bearer: str = "", *, wake_fd: int | None = None) -> None:
        self.addresses = [Address(url.strip()) for url in server.split(",")]
        self.address_at = 0
        self.left_first_at = 0.0
        self.tls = ssl.create_default_context() if any(one.is_secure for one in self.addresses) else None
        self.wake_fd = wake_fd
        self.extra = ""
        self.bearer = bearer
        self.response_after = clock.boottime()
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
        authorization = f"Authorization: Bearer {self._bearer}\r\n" if self._bearer else ""
        self.common = f"{authorization}{self.extra}".encode()

    def set_extra_headers(self, headers: str) -> None:
        """Send these header lines with every request from now on."""
        if headers != self.extra:
            self.extra = headers
            self._build_common_headers()

    def forget_interrupts(self) -> None:
        """Let the next call be interrupted only by what happens from now on."""
        if self.wake_fd is not None:
            _drain(self.wake_fd)

    def post(
        self,
        path: str,
        body: dict[str, Any] | bytes,
        *,
        wait_s: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """POST JSON and return the JSON response. Raises HttpError, NoResponse or Interrupted.

        ``meanwhile`` is called once if the response is slow.
        """
        data = body if isinstance(body, bytes) else _encode(body).encode()
        raw = self.call("POST", path, data, wait_s=wait_s, meanwhile=meanwhile)
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
        """Send a request and return the body of the response, which begins within ``wait_s`` plus ``margin_s``.

        If the server has closed the persistent connection, the request is sent again on a new one: all calls of a bot
        are idempotent. Raises HttpError, NoResponse or Interrupted.
        """
        head = f"{headers}Content-Type: {content_type}\r\n".encode() + self.common
        self.meanwhile = meanwhile
        self.interruptible = wait_s > 0
        self._return_to_first()
        request = _Request(method, path, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        status, response_headers, content = self._call_with_reconnect(request, wait_s)
        if 200 <= status < 300:
            return content
        if status in AWAY and len(self.addresses) > 1:
            self.close()
            self._use_next()
            response_headers.pop(b"retry-after", None)  # the next address need not be waited for
        raise _parse_error(status, response_headers, content)

    def call_until_answered(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json", headers: str = ""
    ) -> Any:
        """The JSON response of a call for a run. Raises HttpError if the server refuses it.

        It is repeated while the server is away or busy; the limit is the time of the run. An internal error of the
        server is no outage: it is raised after ATTEMPTS.
        """
        failures = 0
        while True:
            retry_after = None
            try:
                return _parse(self.call(method, path, body, content_type=content_type, headers=headers) or b"null")
            except NoResponse:
                pass
            except HttpError as error:
                if not error.is_transient or (error.status == 500 and failures + 1 >= ATTEMPTS):
                    raise
                retry_after = error.retry_after
            failures += 1
            time.sleep(retry_delay(failures, retry_after))

    def close(self) -> None:
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.close()
        self.socket = None
        self.buffer = b""

    # ---------------------------------------------------------------- addresses

    def _use_next(self) -> None:
        """Use the next address from now on, if there are several."""
        if len(self.addresses) > 1:
            if self.address_at == 0:
                self.left_first_at = clock.boottime()
            self.address_at = (self.address_at + 1) % len(self.addresses)

    def _return_to_first(self) -> None:
        if self.address_at and clock.boottime() - self.left_first_at >= RETURN_S:
            self.close()
            self.address_at = 0

    # ---------------------------------------------------------------- one request

    def _call_with_reconnect(self, request: _Request, wait_s: float) -> tuple[int, dict[bytes, bytes], bytes]:
        kept = self.socket is not None
        while True:
            try:
                return self._attempt(request, wait_s)
            except Interrupted:
                self.close()
                raise
            except (OSError, ValueError) as error:
                self.close()
                if kept and isinstance(error, _ConnectionClosed):
                    kept = False
                    continue
                self._use_next()
                raise NoResponse(_describe(error)) from error

    def _attempt(self, request: _Request, wait_s: float) -> tuple[int, dict[bytes, bytes], bytes]:
        connection = self.socket or self._connect_to_any()
        address = self.addresses[self.address_at]
        line = f"{request.method} {address.prefix}{request.path} HTTP/1.1\r\nHost: {address.host_header}\r\n".encode()
        try:
            connection.settimeout(self.margin_s)
            left = memoryview(line + request.rest)
            while left:
                left = left[connection.send(left[:_SEND_BYTES]) :]
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _ConnectionClosed(str(error)) from error
        until = clock.boottime() + wait_s + self.margin_s
        self.response_after = clock.boottime()
        head = self._read_head(until)
        status, headers = _read_status(head)
        body = self._read_body(headers) if status not in (204, 304) else b""
        if headers.get(b"connection", b"").lower() == b"close":
            self.close()
        return status, headers, body

    def _connect_to_any(self) -> socket.socket:
        """A connection to the present address or the next one that accepts it. Raises OSError."""
        for _ in self.addresses[1:]:
            with contextlib.suppress(OSError):
                return self._connect(FAILOVER_CONNECT_S)
            self._use_next()
        return self._connect(CONNECT_S if len(self.addresses) == 1 else FAILOVER_CONNECT_S)

    def _connect(self, limit_s: float) -> socket.socket:
        address = self.addresses[self.address_at]
        connection = socket.create_connection((address.host, address.port), timeout=min(limit_s, self.margin_s))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if self.tls is not None and address.is_secure:
            connection = self.tls.wrap_socket(connection, server_hostname=address.host)
        self.socket = connection
        self.buffer = b""
        return connection

    def _read_head(self, until: float) -> bytes:
        data = self.buffer
        while True:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                self.buffer = data[end + 4 :]
                return data[:end]
            if len(data) > _MAX_HEADER_BYTES:
                raise ValueError("the response headers are too long")
            more = self._receive(until)
            if not more:
                if data:
                    raise ValueError("the response was cut off")
                raise _ConnectionClosed("the server closed the connection")
            data += more

    def _read_body(self, headers: dict[bytes, bytes]) -> bytes:
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            return self._read_chunks()
        if b"content-length" in headers:
            return self._read_bytes(int(headers[b"content-length"]))
        parts = [self.buffer]
        while parts[-1] or len(parts) == 1:
            parts.append(self._receive_more())
        self.close()
        return b"".join(parts)

    def _receive_more(self) -> bytes:
        """The next bytes of a body, which may take ``margin_s`` to come."""
        return self._receive(clock.boottime() + self.margin_s)

    def _read_chunks(self) -> bytes:
        parts = []
        while True:
            size = int(self._read_line().split(b";")[0], 16)
            parts.append(self._read_bytes(size))
            if size == 0:
                while self._read_line():
                    pass
                return b"".join(parts)
            self._read_line()

    def _read_line(self) -> bytes:
        while b"\r\n" not in self.buffer:
            more = self._receive_more()
            if not more or len(self.buffer) > _MAX_HEADER_BYTES:
                raise ValueError("the response was cut off")
            self.buffer += more
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line

    def _read_bytes(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_BODY_BYTES:
            raise ValueError(f"the response has an invalid length of {size} bytes")
        parts = [self.buffer]
        have = len(self.buffer)
        while have < size:
            more = self._receive_more()
            if not more:
                raise ValueError("the response was cut off")
            parts.append(more)
            have += len(more)
        data = b"".join(parts)
        self.buffer = data[size:]
        return data[:size]

    def _receive(self, until: float) -> bytes:
        """The next bytes, empty at the end of the connection.

        Waits in slices, so that ``response_after`` stays recent: the bot takes it as the time at which the tasks of the
        response were claimed, and gives back those that are too old.
        """
        connection = self.socket
        if connection is None:
            raise ValueError("the connection is closed")
        while not (isinstance(connection, ssl.SSLSocket) and connection.pending()):
            now = clock.boottime()
            if now >= until:
                raise TimeoutError("no response in time")
            wake_fds = [self.wake_fd] if self.wake_fd is not None and self.interruptible else []
            slice_s = _SLICE_S if self.meanwhile is None else MEANWHILE_S
            ready = _readable([connection.fileno(), *wake_fds], min(until - now, slice_s))
            if connection.fileno() in ready:
                break
            if ready:
                _drain(wake_fds[0])
                raise Interrupted
            if self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                meanwhile()
            self.response_after = clock.boottime()
        connection.settimeout(max(until - clock.boottime(), 0.1))
        try:
            return connection.recv(65536)
        except ConnectionResetError:
            return b""


class _Request(NamedTuple):
    """``rest``: all that follows the line of the request and the Host, which depend on the address."""

    method: str
    path: str
    rest: bytes


class _ConnectionClosed(OSError):
    """The server has closed the connection before it answered."""


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
        raise ValueError("the response is not HTTP")
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
        problems = [f"{one['path']}: {one['value']}; allowed: {one['allowed']}" for one in error.get("problems") or ()]
        message = "\n  ".join([message, *problems]) if len(problems) > 1 else message
    retry_after = None
    with contextlib.suppress(ValueError):
        retry_after = float(headers.get(b"retry-after", b""))
    return HttpError(status, code, message, retry_after)


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise NoResponse("the response is not JSON; is a proxy in between?") from error


def _describe(error: Exception) -> str:
    """Why there was no response, in words where the address or the trusted certificates are to be changed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message}); SSL_CERT_FILE can name its authority"
    if isinstance(error, ssl.SSLError) and error.reason in _PLAIN_TEXT:
        return "the server speaks HTTP, not HTTPS: write http:// in place of https://"
    return f"{type(error).__name__}: {error}"
