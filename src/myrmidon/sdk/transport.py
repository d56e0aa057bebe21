"""One call over HTTP, repeated until it has an answer: retries, request keys and event streams.

A call is repeated when nobody answered or when the answer was "come back later" (429, 502, 503, 504). Every
call that changes something carries a request key, the same one each time: a reply that was lost on its way cannot
make it happen twice. Waits are fully jittered, so that callers that failed together do not return together.
This file knows no route; client.py does.
"""

from __future__ import annotations

import json
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import BadStatusLine, IncompleteRead
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, ProtocolError, ReadTimeoutError

from myrmidon.sdk.errors import CallFailed, NotAllowed, Overloaded, Unreachable, Untrusted, refusal

T = TypeVar("T")

COME_BACK: Final = frozenset({429, 502, 503, 504})
KEY_HEADER: Final = "Idempotency-Key"
_LENGTHS: Final = frozenset({"content-length", "transfer-encoding"})
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 30.0
_QUIET_STREAM_S: Final = 60.0  # the server says something on an idle stream more often than this
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 10.0


@dataclass(frozen=True)
class Patience:
    """How long to go on after a failure. Little before anybody has answered: most likely there is no server there."""

    first_s: float = 5.0
    later_s: float = 120.0


@dataclass(frozen=True)
class Reply:
    """A good answer."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.data) if self.data else None
        except ValueError:
            raise CallFailed("What answered there is no Myrmidon server; check the address.") from None


@dataclass(frozen=True)
class Event:
    """One event of a stream; ``id`` is where to resume after it."""

    name: str
    data: str
    id: str | None

    def json(self) -> Any:
        return json.loads(self.data)


class Clock(Protocol):
    """What waiting needs of time; tests bring their own."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Transport:
    """Calls to one server with one token. ``notice`` is told, once an outage, that there is one."""

    def __init__(
        self,
        server: str,
        token: str | None,
        *,
        patience: Patience | None = None,
        notice: Callable[[str], None] | None = None,
        clock: Clock = time,
        ca_file: str | None = None,
    ) -> None:
        self.server = server.rstrip("/")
        self._token = (token or "").strip()
        self._patience = patience or Patience()
        self._notice = notice or (lambda _: None)
        self._clock = clock
        self._answered = False
        self._pool = urllib3.PoolManager(retries=False, maxsize=4, ca_certs=ca_file)

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
    ) -> Reply:
        """One answered call.

        ``wait_s`` is how long the server may hold its answer back; ``within_s`` ends the patience of a caller that has
        no more time than that.
        """
        headers = self._headers(key)
        data = None
        if body is not None:
            data = json.dumps(body, separators=(",", ":")).encode()
            headers["Content-Type"] = "application/json"

        def once() -> Reply:
            answer = self._send(method, path, query, headers, data, answer_s=_ANSWER_S + wait_s)
            return Reply(answer.status, answer.headers, answer.data)

        return self._until_answered(once, within_s)

    def stream(self, path: str, *, query: Mapping[str, Any] | None = None, after: str | None = None) -> Iterator[Event]:
        """Events as they come, for ever: a stream that breaks or ends is taken up again after its last event.

        The caller closes it, or leaves the loop, when it has seen what it waited for.
        """
        last = after
        fruitless = 0
        while True:
            answer = self._until_answered(lambda resume=last: self._open(path, query, resume))  # type: ignore[misc]
            try:
                for event in parse_events(_pieces(answer)):
                    fruitless = 0
                    last = event.id or last
                    yield event
            except HTTPError as broken:
                self._notice(f"The stream broke ({reason_of(broken)}); taking it up again.")
            finally:
                answer.close()
            self._clock.sleep(_jitter(fruitless))
            fruitless += 1

    def _open(self, path: str, query: Mapping[str, Any] | None, resume: str | None) -> urllib3.BaseHTTPResponse:
        headers = {**self._headers(None), "Accept": "text/event-stream"}
        if resume is not None:
            headers["Last-Event-ID"] = resume
        return self._send("GET", path, query, headers, None, answer_s=_QUIET_STREAM_S, preload=False)

    def _headers(self, key: str | None) -> dict[str, str]:
        headers = {"User-Agent": "myrmidon"}
        if self._token:
            headers["Authorization"] = f"Bearer {_sound(self._token)}"
        if key:
            headers[KEY_HEADER] = key
        return headers

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        data: bytes | None,
        *,
        answer_s: float,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        """One attempt. Raises what the answer means, or urllib3's own error when there is none."""
        answer = self._pool.request(
            method,
            self.server + path + _asked(query),
            body=data,
            headers=headers,
            timeout=urllib3.Timeout(connect=_CONNECT_S, read=answer_s),
            redirect=False,
            preload_content=preload,
        )
        if _LENGTHS.isdisjoint(name.lower() for name in answer.headers):
            answer.close()
            raise ProtocolError("the answer was cut")  # among its headers, which looks like an empty answer
        if answer.status < 300:
            return answer
        failed = refusal(answer.status, _decoded(answer.data))
        if isinstance(failed, Overloaded):
            failed.retry_after_s = _seconds(answer.headers.get("Retry-After"))
        raise failed

    def _until_answered(self, once: Callable[[], T], within_s: float | None = None) -> T:
        """Repeat until there is an answer, or until patience has run out.

        Patience begins with the first failure: before that, the server may have held its answer back for long.
        """
        until = None if within_s is None else self._clock.monotonic() + within_s
        failed_at: float | None = None
        attempt = 0
        while True:
            try:
                found = once()
            except (HTTPError, Overloaded) as failed:
                error = failed if isinstance(failed, Overloaded) else self._unreachable(failed)
                if isinstance(failed, LocationValueError):
                    raise error from None  # no address at all; it will be none the next time
                self._answered = self._answered or _is_there(failed)
            else:
                self._answered = True
                return found
            if isinstance(error, Untrusted):
                raise error
            wait = _jitter(attempt) + (error.retry_after_s if isinstance(error, Overloaded) else 0.0)
            now = self._clock.monotonic()
            failed_at = now if failed_at is None else failed_at
            patience = self._patience.later_s if self._answered else self._patience.first_s
            if until is not None:
                patience = min(patience, until - failed_at)
            if now + wait - failed_at > patience:
                raise error
            if attempt == 1:
                self._notice(f"{error.message.split('. ')[0].rstrip('.')}; trying again for up to {patience:.0f} s.")
            self._clock.sleep(wait)
            attempt += 1

    def _unreachable(self, failed: HTTPError) -> CallFailed:
        cause = _last_cause(failed)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Untrusted(f"The certificate of {self.server} is not trusted here ({cause.verify_message}).")
        return Unreachable(f"No server answers at {self.server} ({reason_of(failed)}).")


def _sound(token: str) -> str:
    """The token; one that fits into no header is refused here, in words that do not show it."""
    if not (token.isascii() and token.isprintable()):
        raise NotAllowed("The token holds characters that no token has, such as a line break; copy it once more.")
    return token


def parse_events(pieces: Iterator[bytes]) -> Iterator[Event]:
    """The events in a stream of bytes, as the HTML standard cuts them; comments keep the connection alive."""
    name, data, last_id = "message", list[str](), None
    for line in _lines(pieces):
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


def _pieces(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Bytes as soon as they are there, however few."""
    while piece := answer.read1(65_536):
        yield piece


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Whole lines only: what a cut connection leaves behind is part of no event."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def reason_of(failed: HTTPError) -> str:
    """What a person needs of urllib3's nested errors: the last cause, or that there should have been more."""
    if any(isinstance(cause, IncompleteRead) for cause in _causes(failed)):
        return "the answer was cut"
    cause = _last_cause(failed)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return str(cause).rsplit(": ", 1)[-1].strip() or type(cause).__name__


def _is_there(failed: HTTPError | Overloaded) -> bool:
    """Whether somebody took the connection, though no answer came; what speaks another language is no server."""
    if isinstance(failed, ProtocolError):
        cause = _last_cause(failed)
        return isinstance(cause, ConnectionError) or not isinstance(cause, BadStatusLine)
    return isinstance(failed, Overloaded | ReadTimeoutError)


def _last_cause(failed: BaseException) -> BaseException:
    *_, cause = _causes(failed)
    return cause


def _causes(failed: BaseException) -> Iterator[BaseException]:
    yield failed
    cause = failed
    while isinstance(inner := getattr(cause, "reason", None) or cause.__cause__ or cause.__context__, BaseException):
        yield inner
        cause = inner


def _jitter(attempt: int) -> float:
    longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(attempt, 16))
    return random.uniform(0, longest)  # noqa: S311 - jitter, not a secret


def _asked(query: Mapping[str, Any] | None) -> str:
    """``?a=1&b=2&b=3``; what is None was not asked."""
    given = [
        (name, str(one).lower() if isinstance(one, bool) else one)
        for name, value in (query or {}).items()
        for one in (value if isinstance(value, list | tuple) else [value])
        if one is not None
    ]
    return f"?{urlencode(given)}" if given else ""


def _decoded(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _seconds(text: str | None) -> float:
    return min(float(text), _ANSWER_S) if text and text.isdigit() else 0.0
