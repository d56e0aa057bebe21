"""Parses addresses of clients and the Host header."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import TypeAlias

MAX_ADDRESS_LENGTH = 100
"""With brackets, a zone and a port. Addresses are cached, so their length must be bounded."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(text: str) -> Address | None:
    """An IP address without port and brackets, IPv4 in IPv6 unwrapped; None when it is not one."""
    return _parse_cached(text) if len(text) <= MAX_ADDRESS_LENGTH else None


@lru_cache(maxsize=4096)
def _parse_cached(text: str) -> Address | None:
    bare = text.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        found = ipaddress.ip_address(bare)
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped or found


_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]*)\]|([^\[\]:@/?#\s]*))(?::[0-9]*)?")


def host_name(host: str) -> str | None:
    """The name of a Host header, without the port; None if it is not a name or address with an optional port."""
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    return match[1].lower() if match[1] is not None else match[2].rstrip(".").lower()
