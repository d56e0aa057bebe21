"""TLS of connections to receivers of messages."""

from __future__ import annotations

import ssl
from functools import cache


@cache
def client_context(ca_file: str = "") -> ssl.SSLContext:
    """Trusts the authorities of this machine and, if one is named, those of a PEM file. Host names are checked."""
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(ca_file)
    return context
