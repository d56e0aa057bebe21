"""Sends a message to a webhook's URL, without letting that URL reach what only this machine can reach.

The name is resolved once. Every address it has must be public or in an allowed network, and the connection is made to
an address that was checked: a name that changes its address between check and connection (DNS rebinding) gains
nothing. Redirects are not followed. The whole exchange has a time limit, and a bounded part of the response is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from msgspec import Struct

from myrmidon.relays import tls

TIMEOUT_S = 10.0
EXCERPT_S = 1.0
HEAD_BYTES = 64 << 10
EXCERPT_BYTES = 1024
URL_CHARS = 2048
_MAX_INTERIM = 5
_SAFE_PORTS = (80, 443)
_FIRST_FREE_PORT = 1024
_URL = re.compile(r"https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?][!-~]*)?")
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
_EMBED_IPV4 = [ipaddress.ip_network(text) for text in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")]
"""NAT64, and the older forms of IPv4 addresses in IPv6: the last 32 bits say where packets go."""
_NOT_PUBLIC = [ipaddress.ip_network(text) for text in ("fec0::/10", "3fff::/20", "5f00::/16", "192.88.99.0/24")]
"""Site-local, documentation, segment routing, relays of 6to4: not every release of Python knows them."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):
    """The URL must not be called; the message says why."""


class Target(Struct, frozen=True):
    """A URL in parts."""

    https: bool
    host: str
    port: int
    path: str
    host_header: str


class Outcome(Struct, frozen=True):
    """What came of a request: the status of the response, or an error. Of an unsuccessful response ``error`` quotes."""

    status: int | None
    error: str | None

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def parse_url(url: str) -> Target:
    """The parts of a URL; Refused if it has no allowed form."""
    if len(url) > URL_CHARS or not _URL.fullmatch(url):
        raise Refused("allowed is http:// or https://, a host, a port and a path, in ASCII, without user and password")
    parts = urlsplit(url)
    https = parts.scheme == "https"
    try:
        port = parts.port if parts.port is not None else 443 if https else 80
    except ValueError:  # above 65535
        port = 0
    if port not in _SAFE_PORTS and port < _FIRST_FREE_PORT:
        raise Refused(f"port {port} is not allowed; use 80, 443, or one from {_FIRST_FREE_PORT}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(https, (parts.hostname or "").lower(), port, path, parts.netloc)


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(line[4][0]) for line in found))


async def checked_addresses(target: Target, allowed: Sequence[Network]) -> list[str]:
    """The addresses of a URL's host; Refused if one of them is neither public nor in an allowed network."""
    try:
        addresses = await resolve(target.host, target.port)
    except (OSError, UnicodeError) as error:
        raise Refused(f"the host {target.host} cannot be resolved ({error})") from None
    for address in addresses:
        if not is_allowed(address, allowed):
            where = f"the host {target.host} has the address {address}"
            raise Refused(f"{where}, which is not public; the server's setting webhooks.allowed_networks can allow it")
    return addresses


def is_allowed(text: str, allowed: Sequence[Network]) -> bool:
    """Whether an address is public, or in an allowed network. IPv4 addresses inside IPv6 ones count as themselves."""
    address = _embedded(ipaddress.ip_address(text.partition("%")[0]))
    if any(address.version == network.version and address in network for network in allowed):
        return True
    is_special = address.is_multicast or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not is_special


def _embedded(address: Address) -> Address:
    """The IPv4 address that packets to an IPv6 address reach in the end, if it is such an address."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if int(address) > 1 and any(address in network for network in _EMBED_IPV4):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def signature(secret: bytes, timestamp: int, body: bytes) -> str:
    """The signature that a receiver compares: HMAC-SHA256 over the timestamp, a dot and the body."""
    return f"v1={hmac.digest(secret, b'%d.' % timestamp + body, hashlib.sha256).hex()}"


async def post(
    url: str, headers: Mapping[str, str], body: bytes, *, allowed: Sequence[Network], ca_file: str = ""
) -> Outcome:
    """Send a request; never raises for anything that the receiver does."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            target = parse_url(url)
            addresses = await checked_addresses(target, allowed)
            context = tls.client_context(ca_file) if target.https else None
            return await _exchange(target, addresses, _request(target, headers, body), context)
    except Refused as error:
        return Outcome(None, str(error))
    except TimeoutError:
        return Outcome(None, f"no response within {TIMEOUT_S:.0f} s")
    except asyncio.LimitOverrunError:
        return Outcome(None, f"the head of the response is larger than {HEAD_BYTES} bytes")
    except asyncio.IncompleteReadError:
        return Outcome(None, "the connection was closed before the response")
    except (OSError, ValueError) as error:
        return Outcome(None, f"{type(error).__name__}: {error}"[:300])


def _request(target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.host_header}", f"Content-Length: {len(body)}"]
    lines += ["Connection: close", "User-Agent: myrmidon", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _exchange(
    target: Target, addresses: Sequence[str], request: bytes, context: ssl.SSLContext | None
) -> Outcome:
    reader, writer = await _connect(target, addresses, context)
    try:
        writer.write(request)
        status = await _status(reader)
        if 200 <= status < 300:
            return Outcome(status, None)
        return Outcome(status, f"status {status}: {await _excerpt(reader)}")
    finally:
        writer.transport.abort()


async def _connect(
    target: Target, addresses: Sequence[str], context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of the checked addresses that accepts; the certificate must be the host's."""
    failure: OSError = OSError(f"{target.host} has no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(
                address, target.port, ssl=context, server_hostname=target.host if context else None, limit=HEAD_BYTES
            )
        except OSError as error:
            failure = error
    raise failure


async def _status(reader: asyncio.StreamReader) -> int:
    """The status of the response, after interim ones."""
    for _ in range(_MAX_INTERIM):
        head = await reader.readuntil(b"\r\n\r\n")
        found = _STATUS.match(head)
        if found is None:
            raise ValueError("the response is not HTTP")
        status = int(found[1])
        if status >= 200:
            return status
    raise ValueError("too many interim responses")


async def _excerpt(reader: asyncio.StreamReader) -> str:
    """The beginning of the body, whatever its headers say about its length."""
    data = b""
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(EXCERPT_S):
            data = await reader.read(EXCERPT_BYTES)
    return data.decode(errors="replace").replace("\x00", "").strip()[:EXCERPT_BYTES]
