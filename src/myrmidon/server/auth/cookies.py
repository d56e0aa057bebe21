"""The cookie of a browser's session: its name, its text, and when it may be set.

Over HTTPS it has the prefix ``__Host-``, so that no other host of the domain can set or read it. Without HTTPS a
session is possible only on the machine of the server itself, where nobody can read the connection.
"""

from __future__ import annotations

from collections.abc import Mapping

from myrmidon.server.auth.addresses import host_name, parse_address
from myrmidon.server.settings import Settings

SECURE_NAME = "__Host-myr_session"
LOCAL_NAME = "myr_session"


def cookie_name(settings: Settings, headers: Mapping[str, str], address: str) -> str | None:
    """The name of the session's cookie for a call; None if the call could be read on its way."""
    if settings.tls_certificate:
        return SECURE_NAME
    if _is_loopback(host_name(headers.get("host", "")) or "") and _is_loopback(address):
        return LOCAL_NAME
    return SECURE_NAME if settings.public_url.lower().startswith("https://") else None


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    parsed = parse_address(name)
    return parsed is not None and parsed.is_loopback


def session_of(settings: Settings, headers: Mapping[str, str], address: str) -> str:
    """The text of the session's cookie of a call; empty if it has none.

    A text of any form is returned, so that a wrong one is refused instead of ignored.
    """
    sent = headers.get("cookie", "")
    name = cookie_name(settings, headers, address) if sent else None
    if name is None:
        return ""
    pairs = (part.partition("=") for part in sent.split(";"))
    return ",".join(value.strip() for key, _, value in pairs if key.strip() == name)


def set_cookie(name: str, value: str, max_age_s: int) -> str:
    """The Set-Cookie header; an age of 0 deletes the cookie."""
    secure = " Secure;" if name == SECURE_NAME else ""
    return f"{name}={value}; Path=/; Max-Age={max_age_s};{secure} HttpOnly; SameSite=Lax"
