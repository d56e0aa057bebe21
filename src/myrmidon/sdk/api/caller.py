"""Making one call: the path, the idempotency key, and the struct of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.transport import Transport, new_key

T = TypeVar("T")

API: Final = "/api/v1"


class Caller:
    """Calls paths of one server. Calls that change something send an idempotency key, given or generated."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
        wait_s: float = 0.0,
        within_s: float | None = None,
        data: bytes | None = None,
    ) -> T:
        """Call a path below /api/v1 and decode the answer as this type.

        ``wait_s`` is how long a long poll may hold the answer; ``within_s`` limits the retries further. ``data`` is a
        body that is encoded already.
        """
        reply = self.transport.call(
            method, f"{API}/{path}", body=body, query=query, key=key, wait_s=wait_s, within_s=within_s, data=data
        )
        return decode(reply.data, answer)

    def _post(self, path: str, answer: type[T], body: Mapping[str, Any], key: str | None) -> T:
        return self.call("POST", path, answer, body=body, key=key or new_key())

    def _delete(self, path: str, answer: type[T], key: str | None, query: Mapping[str, Any] | None = None) -> T:
        return self.call("DELETE", path, answer, query=query, key=key or new_key())


def decode(data: bytes | str, answer: type[T]) -> T:
    """Decode an answer; CallFailed if it is not of this type. Fields that a newer server adds are left out."""
    try:
        return msgspec.json.decode(data, type=answer)
    except msgspec.ValidationError as error:
        raise CallFailed(f"The response is not the expected one: {error}. Check the server's version.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = "This is no response of a Myrmidon server."
        raise CallFailed(message, advice="Check the server's address.") from None


def segment(text: str) -> str:
    """Quote an id as one path segment: a slash in it must not change the route."""
    if not isinstance(text, str):
        raise TypeError(f"the id is {text!r}; write it as the server shows it, as a text")
    return quote(text, safe="")
