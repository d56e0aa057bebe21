"""HTTP calls with retries and idempotency keys, and resumed event streams.

A call is retried when there was no response or when the status was 429, 500, 502, 503 or 504. Every call that changes
something sends an idempotency key, the same one in each attempt, so a lost response cannot make it take effect twice.
A server that answers 500 is retried for a shorter time, because the fault may be permanent.
Delays have full jitter, so that clients that failed together do not retry together. Paths are in api/.

A server may have several addresses, separated by commas. The first that answers is used; a call that gets no answer
goes to the next one at once, and after RETURN_S the first one is tried again.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import BadStatusLine, IncompleteRead
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, ProtocolError, ReadTimeoutError

from myrmidon.sdk.errors import (
    CallFailed,
    NotAllowed,
    Overloaded,
    ServerError,
    Unreachable,
    Untrusted,
    WrongScheme,
    error_for_response,
)

_log = logging.getLogger("myrmidon")

KEY_HEADER: Final = "Idempotency-Key"
_EVENT_STREAM: Final = "text/event-stream"
_WARNING_HEADER: Final = "Myrmidon-Warning"
_LENGTH_HEADERS: Final = frozenset({"content-length", "transfer-encoding"})
_MAX_IDLE: Final = 32
"""Connections that are kept for further calls. urllib3 logs a warning when threads use more."""
_CONNECT_S: Final = 5.0
_FAILOVER_CONNECT_S: Final = 3.0
"""The same for a server with other addresses."""
RETURN_S: Final = 60.0
_READ_S: Final = 30.0
_STREAM_READ_S: Final = 60.0  # longer than the interval of the server's keep-alive comments
_PLAIN_TEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""What OpenSSL says, depending on its version, when the first bytes of a server are text."""
_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 10.0


@dataclass(frozen=True)
class RetryPolicy:
    """The time to retry after a failure: less before the first response, since the address is probably wrong then."""

    before_first_answer_s: float = 5.0
    after_first_answer_s: float = 120.0
    internal_error_s: float = 20.0

    def limit_s(self, error: CallFailed, *, answered: bool) -> float:
        """The time to retry after this error."""
        if isinstance(error, ServerError):
            return self.internal_error_s
        return self.after_first_answer_s if answered else self.before_first_answer_s


@dataclass(frozen=True)
class Reply:
    """A successful response."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.data) if self.data else None
        except ValueError:
            message = "This is no response of a Myrmidon server: it is not JSON."
            raise CallFailed(message, advice="Check the server's address.") from None


class _Request(NamedTuple):
    """What is sent in each attempt. ``place``: the path with its query; ``read_s``: the longest silence."""

    method: str
    place: str
    headers: Mapping[str, str]
    data: bytes | None
    read_s: float
    is_stream: bool = False


@dataclass(frozen=True)
class Event:
    """One event of a stream; ``id`` is the cursor that resumes after it."""

    name: str
    data: str
    id: str | None

    def json(self) -> Any:
        return json.loads(self.data)


def new_key() -> str:
    """A new random idempotency key."""
    return uuid.uuid4().hex


class Clock(Protocol):
    """The clock that delays use; tests pass a fake one."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Transport:
    """Calls one server with one token. ``server``: its address, or several with commas between.

    ``on_retry`` gets a message once per call that is being retried, and whenever a stream breaks. ``how_to_log_in`` is
    the advice for a token that is missing or not accepted.
    """

    def __init__(
        self,
        server: str,
        token: str | None,
        *,
        retry_policy: RetryPolicy | None = None,
        on_retry: Callable[[str], None] | None = None,
        clock: Clock = time,
        ca_file: str | None = None,
        how_to_log_in: str = "Give a valid token.",
    ) -> None:
        self._addresses = [one.strip().rstrip("/") for one in server.split(",")]
        self._address_at = 0
        self._left_first_at = 0.0
        self._token = (token or "").strip()
        self._retry_policy = retry_policy or RetryPolicy()
        self._on_retry = on_retry or (lambda _: None)
        self._clock = clock
        self._answered = False
        self._told_outage = False
        self._how_to_log_in = how_to_log_in
        self._pool = urllib3.PoolManager(retries=False, maxsize=_MAX_IDLE, ca_certs=ca_file)

    @property
    def server(self) -> str:
        """The address that is used now."""
        return self._addresses[self._address_at]

    def close(self) -> None:
        """Close the idle connections. Later calls open new ones."""
        self._pool.clear()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
        wait_s: float = 0.0,
        within_s: float | None = None,
        data: bytes | None = None,
        content_type: str = "application/json",
    ) -> Reply:
        """Make a call, with retries, and return its response.

        ``body`` is sent as JSON; ``data`` is a body that is encoded already. ``wait_s`` is how long a long poll may
        hold the response; ``within_s`` limits the retries further.
        """
        headers = self._headers(key)
        if body is not None:
            data = _json(body)
        if data is not None:
            headers["Content-Type"] = content_type
        place = path + _query_string(query)
        reply: Reply = self._with_retries(_Request(method, place, headers, data, _READ_S + wait_s), within_s)
        if (warning := reply.headers.get(_WARNING_HEADER)) is not None:
            _log.warning("warning: %s", warning)
        return reply

    def stream(self, path: str, *, query: Mapping[str, Any] | None = None, after: str | None = None) -> Iterator[Event]:
        """Events of a stream, without end: a stream that breaks or ends is resumed after its last event.

        The caller leaves the loop or closes the iterator.
        """
        last_id = after
        empty_streams = 0
        while True:
            headers = {**self._headers(None), "Accept": _EVENT_STREAM}
            if last_id is not None:
                headers["Last-Event-ID"] = last_id
            place = path + _query_string(query)
            response = self._with_retries(_Request("GET", place, headers, None, _STREAM_READ_S, is_stream=True))
            try:
                for event in parse_events(pieces_of(response)):
                    empty_streams = 0
                    last_id = event.id or last_id
                    yield event
            except HTTPError as error:
                self._on_retry(f"The event stream broke ({reason_of(error)}); reconnecting.")
            finally:
                response.close()
            self._clock.sleep(_jitter(empty_streams))
            empty_streams += 1

    def open(self, method: str, path: str, *, body: Any, read_s: float = 20.0) -> urllib3.BaseHTTPResponse:
        """Make a call whose answer is a stream, with retries until it begins. ``read_s``: its longest silence."""
        headers = {**self._headers(None), "Accept": _EVENT_STREAM, "Content-Type": "application/json"}
        request = _Request(method, path, headers, _json(body), read_s, is_stream=True)
        response: urllib3.BaseHTTPResponse = self._with_retries(request)
        return response

    def _headers(self, key: str | None) -> dict[str, str]:
        headers = {"User-Agent": "myrmidon"}
        if self._token:
            headers["Authorization"] = f"Bearer {_checked_token(self._token)}"
        if key:
            headers[KEY_HEADER] = key
        return headers

    def _address(self) -> int:
        """The address for the next attempt: the first one again, some time after it was left."""
        if self._address_at and self._clock.monotonic() >= self._left_first_at + RETURN_S:
            self._address_at = 0
        return self._address_at

    def _leave(self, address: int) -> None:
        """Use the next address, unless another thread has done that."""
        if self._address_at == address and len(self._addresses) > 1:
            self._address_at = (address + 1) % len(self._addresses)
            if address == 0:
                self._left_first_at = self._clock.monotonic()

    def _attempt(self, address: int, request: _Request) -> Reply | urllib3.BaseHTTPResponse:
        """Send a request once. Raises the error of the response, or urllib3's error when there is no response."""
        connect_s = _CONNECT_S if len(self._addresses) == 1 else _FAILOVER_CONNECT_S
        response = self._pool.request(
            request.method,
            self._addresses[address] + request.place,
            body=request.data,
            headers=request.headers,
            timeout=urllib3.Timeout(connect=connect_s, read=request.read_s),
            redirect=False,
            preload_content=not request.is_stream,
        )
        if _LENGTH_HEADERS.isdisjoint(name.lower() for name in response.headers):
            # A connection that is cut within the headers looks like an empty response.
            response.close()
            raise ProtocolError("the response was cut off")
        if response.status < 300:
            return response if request.is_stream else Reply(response.status, response.headers, response.data)
        error = error_for_response(response.status, _json_or_none(response.data))
        if isinstance(error, Overloaded):
            error.retry_after_s = _retry_after(response.headers.get("Retry-After"))
        if error.code == "unauthorized":  # the server's advice is for programs that write headers themselves
            raise NotAllowed(_first_sentence(error), code=error.code, advice=self._how_to_log_in)
        if isinstance(error, NotAllowed) and error.reason == "role":
            raise NotAllowed(error.message, code=error.code, advice=self._how_to_log_in)
        raise error

    def _with_retries(self, request: _Request, within_s: float | None = None) -> Any:
        """Send a request until it gets a response or the retry limit is reached: a Reply, or an open stream.

        The limit counts from the first failure: a long poll may have taken long before that.
        """
        until = None if within_s is None else self._clock.monotonic() + within_s
        failed_at: float | None = None
        attempt = 0
        while True:
            address = self._address()
            try:
                result = self._attempt(address, request)
            except (HTTPError, Overloaded, ServerError) as failure:
                if not isinstance(failure, ServerError):
                    self._leave(address)
                error = self._unreachable(failure) if isinstance(failure, HTTPError) else failure
                if isinstance(failure, LocationValueError):
                    raise error from None  # the address is malformed: a retry cannot help
                if isinstance(failure, ServerError) and failure.status != 500:
                    raise
                self._answered = self._answered or _reached_server(failure)
            else:
                self._answered, self._told_outage = True, False
                return result
            if isinstance(error, Untrusted | WrongScheme):
                raise error from None
            others = len(self._addresses) - 1 - attempt  # which are tried at once
            wait = 0.0
            if others <= 0:
                wait = _jitter(-others) + (error.retry_after_s if isinstance(error, Overloaded) else 0.0)
            now = self._clock.monotonic()
            failed_at = now if failed_at is None else failed_at
            limit = self._retry_policy.limit_s(error, answered=self._answered)
            if until is not None:
                limit = min(limit, until - failed_at)
            if now + wait - failed_at > limit:
                raise error
            if others == -1 and not self._told_outage:  # several threads may be waiting for the same server
                self._told_outage = True
                self._on_retry(f"{_first_sentence(error).rstrip('.')}; trying again for up to {limit:.0f} s.")
            self._clock.sleep(wait)
            attempt += 1

    def _unreachable(self, error: HTTPError) -> CallFailed:
        cause = _last_cause(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Untrusted(f"The certificate of {self.server} is not trusted ({cause.verify_message}).")
        scheme, _, place = self.server.partition("://")
        if isinstance(cause, ssl.SSLError) and cause.reason in _PLAIN_TEXT:
            return WrongScheme(f"The server at {place} speaks HTTP, not HTTPS.", advice=f"Write http://{place}.")
        if scheme == "http" and isinstance(cause, ConnectionError) and not self._answered and _speaks_tls(self.server):
            return WrongScheme(f"The server at {place} speaks HTTPS, not HTTP.", advice=f"Write https://{place}.")
        return Unreachable(f"No server answers at {self.server} ({reason_of(error)}).")


def _speaks_tls(url: str) -> bool:
    """Whether a TLS handshake succeeds at an address, whatever the certificate."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError):
        with socket.create_connection((parts.hostname, parts.port or 80), _CONNECT_S) as plain:
            context.wrap_socket(plain).close()
        return True
    return False


def _first_sentence(error: CallFailed) -> str:
    return f"{error.message.split('. ')[0].rstrip('.')}."


def _checked_token(token: str) -> str:
    """Refuse a token that is not valid in a header; http.client's own error would contain the token."""
    if not (token.isascii() and token.isprintable()):
        raise NotAllowed("The token contains an invalid character, such as a line break; copy it again.")
    return token


def parse_events(chunks: Iterator[bytes]) -> Iterator[Event]:
    """Parse server-sent events as the HTML standard specifies; comments, the keep-alive, are skipped."""
    name, data, last_id = "message", list[str](), None
    for line in _lines(chunks):
        if not line:
            if data:
                yield Event(name, "\n".join(data), last_id)
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id" and "\0" not in value:
            last_id = value


def pieces_of(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Bytes as soon as they arrive, however few."""
    while chunk := response.read1(65_536):
        yield chunk


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Complete lines only: a partial last line of a broken connection is dropped."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def reason_of(error: HTTPError) -> str:
    """A short reason out of urllib3's nested errors: the innermost cause, or that the response was cut off."""
    if any(isinstance(cause, IncompleteRead) for cause in _causes(error)):
        return "the response was cut off"
    cause = _last_cause(error)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return str(cause).rsplit(": ", 1)[-1].strip() or type(cause).__name__


def _reached_server(error: HTTPError | CallFailed) -> bool:
    """Whether an HTTP server accepted the connection, though it sent no complete response."""
    if isinstance(error, ProtocolError):
        cause = _last_cause(error)
        return isinstance(cause, ConnectionError) or not isinstance(cause, BadStatusLine)
    return isinstance(error, Overloaded | ServerError | ReadTimeoutError)


def _last_cause(error: BaseException) -> BaseException:
    *_, cause = _causes(error)
    return cause


def _causes(error: BaseException) -> Iterator[BaseException]:
    yield error
    cause = error
    while isinstance(inner := getattr(cause, "reason", None) or cause.__cause__ or cause.__context__, BaseException):
        yield inner
        cause = inner


def _jitter(attempt: int) -> float:
    max_delay = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** min(attempt, 16))
    return random.uniform(0, max_delay)  # noqa: S311 - jitter, not a secret


def _json(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _query_string(query: Mapping[str, Any] | None) -> str:
    """``?a=1&b=2&b=3``; None values are left out."""
    pairs = [
        (name, str(item).lower() if isinstance(item, bool) else item)
        for name, value in (query or {}).items()
        for item in (value if isinstance(value, list | tuple) else [value])
        if item is not None
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def _json_or_none(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _retry_after(text: str | None) -> float:
    return min(float(text), _READ_S) if text and text.isdigit() else 0.0
