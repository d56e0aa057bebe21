"""Hawk: a client signs each call with a key instead of sending a secret.

    Authorization: Hawk id="1a2b", ts="1763440000", nonce="x7Tq", mac="...", hash="...", ext="..."

The key of a token is an HMAC of the server's key and the token's id, so it is not stored. It is as good as the token:
it ends when the token expires or is revoked. ``hash`` covers the body; clients may leave it out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections import OrderedDict
from typing import Final, NoReturn

from msgspec import Struct

from myrmidon.model.errors import Overloaded, Unauthorized
from myrmidon.model.ids import Micros
from myrmidon.model.validation import MAX_INT64
from myrmidon.scheduler.policy import SECOND

SKEW_S: Final = 60
"""The largest difference between the time of a call and the server's."""
MAX_NONCES: Final = 200_000
_MAX_HEADER: Final = 8_192
_ATTRIBUTE: Final = re.compile(r'(\w+)="([^"\\]*)"\s*(?:,\s*|$)')
_REQUIRED: Final = frozenset({"id", "ts", "nonce", "mac"})
_KNOWN: Final = _REQUIRED | {"hash", "ext"}
_CLIENT_ID: Final = re.compile(r"[0-9a-f]{1,16}")
_SECONDS: Final = re.compile(r"[0-9]{1,12}")
_DEFAULT_PORTS: Final = ("443", "80")
_ADVICE: Final = "`myrmidon token create NAME --hawk` creates credentials for Hawk."


def client_id(token_id: int) -> str:
    """The id that a Hawk client sends for a token."""
    return f"{token_id:x}"


def access_key(server_key: bytes, token_id: int) -> str:
    """The key that belongs to a token."""
    return urlsafe_b64encode(hmac.digest(server_key, f"hawk {token_id:x}".encode(), "sha256")).rstrip(b"=").decode()


class SignedCall(Struct, frozen=True, kw_only=True):
    """A call with a Hawk header: what its signature covers."""

    authorization: str
    method: str
    resource: str
    """Path and query as they were sent, before decoding."""
    host: str
    """The Host header."""

    def check_payload(self, body: bytes, content_type: str) -> None:
        """Unauthorized if the header has a hash that is not the body's. The signature covers the hash."""
        given = _attributes(self.authorization).get("hash")
        if given and not hmac.compare_digest(given.encode(), _payload_hash(body, content_type)):
            _refuse("The hash of the Hawk header is not that of the body.")


def is_hawk(authorization: str) -> bool:
    return authorization[:5].lower() == "hawk "


class HawkVerifier:
    """Verifies signatures, and refuses a call that it has seen before.

    Nonces are kept in memory, so each server refuses only the repetitions of the calls that it got itself.
    """

    def __init__(self, server_key: bytes, max_nonces: int = MAX_NONCES) -> None:
        self._server_key = server_key
        self._max_nonces = max_nonces
        self._seen: OrderedDict[bytes, Micros] = OrderedDict()

    def verify(self, call: SignedCall, now: Micros) -> int:
        """The id of the token whose key has signed the call; Unauthorized if none has, or not now, or not once."""
        given = _attributes(call.authorization)
        _check_ext(given.get("ext", ""))
        if not _CLIENT_ID.fullmatch(given["id"]) or (token_id := int(given["id"], 16)) > MAX_INT64:
            _refuse("The client id is not known.")
        key = access_key(self._server_key, token_id).encode()
        valid = [hmac.compare_digest(given["mac"].encode(), _mac(key, call, given, port)) for port in _ports(call.host)]
        if not any(valid):
            _refuse("The client id is not known, or the call was signed with another key, for another host or path.")
        if not _SECONDS.fullmatch(given["ts"]) or abs(int(given["ts"]) * SECOND - now) > SKEW_S * SECOND:
            _refuse(f"The call was signed more than {SKEW_S} s from the server's time, which is {now // SECOND}.")
        self._check_first(f"{token_id:x} {given['ts']} {given['nonce']}", now)
        return token_id

    def _check_first(self, text: str, now: Micros) -> None:
        """Only calls with a valid signature come here, so that nobody else can fill the memory."""
        while self._seen and next(iter(self._seen.values())) < now:
            self._seen.popitem(last=False)
        key = hashlib.sha256(text.encode()).digest()
        if key in self._seen:
            _refuse("This call was received before: its nonce was used.")
        if len(self._seen) >= self._max_nonces:
            raise Overloaded("Too many calls with Hawk in two minutes.")
        self._seen[key] = now + 2 * SKEW_S * SECOND  # a time stamp up to SKEW_S ahead is valid that long


def _attributes(authorization: str) -> dict[str, str]:
    """The attributes of a header; Unauthorized if it is not one."""
    text = authorization[5:].strip()
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text) <= _MAX_HEADER and (match := _ATTRIBUTE.match(text, position)):
        found.append((match[1], match[2]))
        position = match.end()
    given = dict(found)
    if position < len(text) or len(given) < len(found) or not _REQUIRED <= given.keys() <= _KNOWN:
        _refuse("The Hawk header must have id, ts, nonce and mac, may have hash and ext, and nothing else.")
    return given


def _check_ext(ext: str) -> None:
    """Refuse what ``ext`` may ask for and this server cannot do. Ignoring a restriction would give more than was meant.

    Other content is ignored: one client sends an empty object with each call.
    """
    try:
        asked = json.loads(b64decode(ext + "=" * (-len(ext) % 4), altchars=b"-_"))
    except (ValueError, RecursionError):
        return
    if not isinstance(asked, dict):
        return
    if "certificate" in asked:
        _refuse("Temporary credentials are not supported: `ext` has a certificate.")
    if "authorizedScopes" in asked:
        _refuse("Scopes are not supported: `ext` has authorizedScopes.")


def _ports(host: str) -> tuple[str, ...]:
    """The ports that the client may have signed: without one in Host, that of HTTPS (a proxy ends it) or of HTTP."""
    port = host.rpartition("]")[2].partition(":")[2]
    return (port,) if port else _DEFAULT_PORTS


def _host_name(host: str) -> str:
    return (host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]).lower()


def _mac(key: bytes, call: SignedCall, given: dict[str, str], port: str) -> bytes:
    lines = (
        "hawk.1.header",
        given["ts"],
        given["nonce"],
        call.method.upper(),
        call.resource,
        _host_name(call.host),
        port,
        given.get("hash", ""),
        given.get("ext", ""),
        "",
    )
    return b64encode(hmac.digest(key, "\n".join(lines).encode(), "sha256"))


def _payload_hash(body: bytes, content_type: str) -> bytes:
    media = content_type.partition(";")[0].strip().lower()
    return b64encode(hashlib.sha256(b"hawk.1.payload\n" + media.encode() + b"\n" + body + b"\n").digest())


def _refuse(why: str) -> NoReturn:
    raise Unauthorized(why, advice=_ADVICE)
