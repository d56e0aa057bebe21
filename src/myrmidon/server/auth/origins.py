"""Refuses calls that a browser was tricked into: foreign Host names, foreign origins, changes without the page's token.

A session's cookie is sent by the browser with every call to this server, also with one that another site has caused. So
a change by cookie needs three things that no other site can provide (``check_change_by_cookie``).
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from urllib.parse import urlsplit

from myrmidon.model.errors import Forbidden, InvalidRequest, Problem
from myrmidon.model.shown_input import show_value
from myrmidon.server.auth.addresses import host_name
from myrmidon.server.settings import ALL_ADDRESSES, Settings

MAX_KNOWN = 100
CSRF = "csrf"
"""The reason of an error for a change that may not come from the page."""


class Origins:
    """The host names of this server, and the origins of pages that may call it."""

    def __init__(self, settings: Settings) -> None:
        self.hosts: frozenset[str] = _hosts(settings)
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_origins)
        self._public = _origin_of(settings.public_url)
        self.known: set[str] = set()
        """Texts of Host that were allowed, each checked once. Few, because clients may send any number of them."""

    def check_host(self, host: str, origin: str, *, mutates: bool) -> None:
        """Refuse calls with a foreign Host (DNS rebinding) or, if they change something, a foreign Origin (CSRF)."""
        if "," in host:
            # A proxy may have checked the other value.
            raise InvalidRequest([Problem("host", show_value(host), "one name", "host")])
        name = host_name(host)
        if name is None or (self.hosts and name not in self.hosts):
            raise Forbidden(f"The host name {host[:100]!r} is not allowed; add it to the setting allowed_hosts.")
        if len(self.known) < MAX_KNOWN:
            self.known.add(host)
        if mutates and origin and not (self.allows_origin(origin) or self._is_ours(origin, host)):
            raise Forbidden(f"The origin {origin[:100]!r} is not allowed; add it to the setting allowed_origins.")

    def allows_origin(self, origin: str) -> bool:
        """Whether the settings allow calls from pages of this origin."""
        return origin.rstrip("/").lower() in self._allowed

    def _is_ours(self, origin: str, host: str) -> bool:
        plain = origin.rstrip("/").lower()
        return plain == self._public or urlsplit(plain).netloc == host.lower()

    def check_same_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse what does not come from a page of this server, by what the browser says about it."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin", "")
        if site is not None:
            if site == "same-origin":
                return
        elif origin and self._is_ours(origin, headers.get("host", "")):
            return
        raise Forbidden(
            "This call does not come from a page of this server; open the page itself, or send a token.", reason=CSRF
        )

    def check_change_by_cookie(self, headers: Mapping[str, str], expected_token: str, *, has_body: bool) -> None:
        """Refuse a change by cookie unless it is from our page, has the session's CSRF token, and is JSON."""
        self.check_same_origin(headers)
        if not hmac.compare_digest(headers.get("x-csrf-token", "").encode(), expected_token.encode()):
            raise Forbidden("X-CSRF-Token is missing or not that of this session; load the page again.", reason=CSRF)
        if has_body:
            check_is_json(headers)


def check_is_json(headers: Mapping[str, str]) -> None:
    """Refuse bodies that a form of another site could have sent."""
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Forbidden("The body must be JSON; send it with the Content-Type application/json.", reason=CSRF)


def csrf_token(key: bytes, session_hash: str) -> str:
    """What the page of this session must send with each change."""
    return urlsafe_b64encode(hmac.digest(key, f"csrf {session_hash}".encode(), "sha256")).rstrip(b"=").decode()


def _origin_of(url: str) -> str:
    parts = urlsplit(url.lower())
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""


def _hosts(settings: Settings) -> frozenset[str]:
    """The allowed host names. Empty for any: only when the server listens on all addresses and no name is set."""
    named = {name for host in settings.allowed_hosts if (name := host_name(host))}
    if settings.public_url:
        named.add((urlsplit(settings.public_url).hostname or "").lower())
    if settings.is_local:
        return frozenset({*named, "localhost", "127.0.0.1", "::1", settings.host.lower()})
    if settings.host in ALL_ADDRESSES and not named:
        return frozenset()
    return frozenset({*named, "localhost", "127.0.0.1", "::1", settings.host.lower()})
