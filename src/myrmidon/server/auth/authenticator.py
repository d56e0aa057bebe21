"""Who is calling: bearer tokens, bots' credentials, allowlisted networks; and whether the call was meant for us.

What a caller may do is the route table's business, not this file's. Tokens are compared with their digest in
constant time and remembered for a short while, so that a busy client costs no database read per call; a token
revoked here is forgotten at once, one revoked through another server within ``REMEMBERED_S``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from myrmidon.model.errors import Forbidden, InvalidRequest, MyrmidonError, Overloaded, Problem, Unauthorized
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.validation import LARGEST, show_value
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.calls import NOBODY, Identity, Role
from myrmidon.server.context import ServerContext
from myrmidon.server.settings import EVERYWHERE, Settings
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.tables import api_token as tokens
from myrmidon.store.tables import resource_group
from myrmidon.store.tables.api_token import Token

TOKEN = re.compile(r"myr_([0-9a-f]{1,16})_([A-Za-z0-9_-]{43})")
CREDENTIAL = re.compile(r"myb_([A-Za-z0-9_-]{1,1400})\.([0-9a-f]{64})")
REMEMBERED_S = 30
MOST_REMEMBERED = 10_000
SECRET_BYTES = 32
LONGEST_ADDRESS = 100
"""With brackets, a zone and a port; what is remembered of callers must not be as long as they like."""
ADMIN_FILE = "admin.token"
UNKNOWN = "unknown"
"""An address that is in no network."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


# ---------------------------------------------------------------- tokens


def new_token(
    name: str,
    role: Role,
    group_id: int | None,
    *,
    now: Micros,
    ids: IdSource,
    expires_at: Micros | None = None,
) -> tuple[Token, str]:
    """A token and its text. The text is shown once: the secret half is not stored."""
    token_id = ids.next(now)
    secret = secrets.token_urlsafe(SECRET_BYTES)
    row = Token(token_id, name, digest(secret), role.value, group_id, now, expires_at, None)
    return row, token_text(token_id, secret)


def token_text(token_id: int, secret: str) -> str:
    return f"myr_{token_id:x}_{secret}"


def digest(secret: str) -> str:
    """What is stored of a secret. It has 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def make_admin_token(db: Db, folder: Path, *, now: Micros, ids: IdSource) -> Path | None:
    """The first start: an administrator's token in a file only its owner can read; None when there is one already.

    The file comes first: a server killed in between leaves a file with a token that means nothing yet, and the
    next start writes it anew.
    """
    if db.read(lambda tx: tokens.has_role(tx, Role.ADMIN.value)):
        return None
    row, text = new_token("first administrator", Role.ADMIN, None, now=now, ids=ids)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / ADMIN_FILE
    fresh = folder / f".{ADMIN_FILE}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    db.write(lambda tx: tokens.insert(tx, row) or tx.attempt > 1)
    return path


# ---------------------------------------------------------------- bots' credentials


def bot_credential(key: bytes, bot_id: str, issued_at: Micros) -> str:
    """What a bot shows after its first handshake. It says who the bot is; nobody else can make one."""
    said = f"{bot_id}\n{issued_at}".encode()
    return f"myb_{_to_base64(said)}.{_sign(key, said)}"


def bot_of_credential(key: bytes, text: str) -> str | None:
    """The bot that a credential was given to; None when it is none of ours."""
    try:
        return _named(key, text)
    except ValueError:
        return None


@lru_cache(maxsize=32_768)
def _named(key: bytes, text: str) -> str:
    """Remembered, for it never changes. A text that is none of ours is not: anybody can make up any number of them."""
    found = CREDENTIAL.fullmatch(text)
    said = _from_base64(found[1]) if found else None
    if found is None or said is None or not hmac.compare_digest(_sign(key, said), found[2]):
        raise ValueError("not a credential of ours")
    return said.decode().rpartition("\n")[0]


def _sign(key: bytes, said: bytes) -> str:
    return hmac.digest(key, said, "sha256").hex()


def _to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None


# ---------------------------------------------------------------- the guard


class Known(Struct, frozen=True):
    """A token that was right a moment ago."""

    identity: Identity
    token_id: int
    until: Micros


class Authenticator:
    """Tells who calls, and turns away what is not meant for this server."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._settings = context.settings
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self._failed: dict[str, tuple[int, int]] = {}
        self._proxies = [ipaddress.ip_network(text) for text in context.settings.proxies]
        self._allowed = [
            (ipaddress.ip_network(one.network), Identity(one.name, Role(one.role), one.group))
            for one in context.settings.allow
        ]
        self._origins = frozenset(origin.rstrip("/").lower() for origin in context.settings.allowed_origins)
        self.hosts: frozenset[str] = _hosts(context.settings)
        context.on_token_revoked = self.forget
        context.on_group_deleted = self.forget_group

    def check_host(self, host: str, origin: str, *, mutates: bool) -> None:
        """Refuse calls that a browser was tricked into: names that are not ours, pages that are not ours."""
        if "," in host:
            # Who stands before us may have judged the call by the other one.
            raise InvalidRequest([Problem("host", show_value(host), "one name, said once", "host")])
        if self.hosts and _host_name(host) not in self.hosts:
            raise Forbidden(f"This server does not answer to the name {host[:100]!r}; see the setting allowed_hosts.")
        if mutates and origin and not self._is_our_page(origin, host):
            raise Forbidden(f"Pages of {origin[:100]!r} may not call this server; see the setting allowed_origins.")

    def _is_our_page(self, origin: str, host: str) -> bool:
        return self.knows_page(origin) or urlsplit(origin.rstrip("/").lower()).netloc == host.lower()

    def knows_page(self, origin: str) -> bool:
        """Whether the settings let pages of this server call."""
        return origin.rstrip("/").lower() in self._origins

    def address_of(self, peer: str, forwarded: str | None) -> str:
        """Where a call comes from. What a header says counts only when the peer is one of our own proxies.

        The list is read from its end: each proxy appends whom it saw, and whatever stands before the last
        stranger could have been written by that stranger. A proxy that speaks for somebody, and not for whom in
        words that we read, does not lend that somebody its own address.
        """
        seen = peer
        if not self._proxies or forwarded is None:
            return seen
        hops = forwarded.split(",")
        while self._is_proxy(seen):
            said = _address(hops.pop()) if hops else None
            if said is None:
                return UNKNOWN
            seen = str(said)
        return seen

    def _is_proxy(self, text: str) -> bool:
        address = _address(text)
        return address is not None and any(address in network for network in self._proxies)

    async def identify(self, bearer: str, address: str) -> Identity:
        """Who shows this token, or comes from this address without one. Unauthorized for a token that is not good."""
        if not bearer:
            return self._by_address(address)
        if bearer.startswith("myb_"):
            bot_id = bot_of_credential(self._context.keys.bot, bearer)
            if bot_id is not None:
                return Identity(bot_id, Role.BOT, None, bot_id)
        elif (identity := self._remembered(bearer) or await self._looked_up(bearer, address)) is not None:
            return identity
        self._count_failure(address)
        raise Unauthorized("The token is unknown, expired or revoked.")

    async def still_knows(self, who: Identity, bearer: str, address: str) -> bool:
        """Whether a caller would be let in again as who it was: streams last longer than tokens may."""
        try:
            return await self.identify(bearer, address) == who
        except MyrmidonError:
            return False

    def forget(self, token_id: int) -> None:
        """A token was revoked: it is worth nothing from the next call on."""
        for key in [key for key, known in self._known.items() if known.token_id == token_id]:
            del self._known[key]

    def forget_group(self, group_id: int) -> None:
        """A resource group was deleted: so are the tokens that are bound to it."""
        for key in [key for key, known in self._known.items() if known.identity.group_id == group_id]:
            del self._known[key]

    def _by_address(self, text: str) -> Identity:
        address = _address(text)
        if address is None:
            return NOBODY
        return next((identity for network, identity in self._allowed if address in network), NOBODY)

    def _remembered(self, bearer: str) -> Identity | None:
        key = _fingerprint(bearer)
        known = self._known.get(key)
        if known is None:
            return None
        if known.until <= self._context.now():
            del self._known[key]
            return None
        return known.identity

    async def _looked_up(self, bearer: str, address: str) -> Identity | None:
        found = TOKEN.fullmatch(bearer)
        if found is None or (token_id := int(found[1], 16)) > LARGEST:
            return None
        self._check_failures(address)
        secret = found[2]
        now = self._context.now()
        row, group = await self._context.db.read(lambda tx: _with_group(tx, token_id))
        if row is None or not hmac.compare_digest(row.secret_hash, digest(secret)):
            return None
        if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
            return None
        if row.resource_group_id is not None and group is None:
            return None
        identity = Identity(row.name, Role(row.role), group, group_id=row.resource_group_id)
        until = min(now + REMEMBERED_S * SECOND, row.expires_at or now + REMEMBERED_S * SECOND)
        self._known[_fingerprint(bearer)] = Known(identity, token_id, until)
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return identity

    def _check_failures(self, address: str) -> None:
        """Guessing is slowed down: past the limit even a right token that is not remembered has to wait."""
        minute, count = self._failed.get(address, (0, 0))
        if minute == self._context.now() // (60 * SECOND) and count >= self._settings.failed_attempts:
            raise Overloaded("Too many wrong tokens came from this address.")

    def _count_failure(self, address: str) -> None:
        now = self._context.now() // (60 * SECOND)
        minute, count = self._failed.get(address, (now, 0))
        if len(self._failed) >= MOST_REMEMBERED:
            self._failed.clear()
        self._failed[address] = (now, count + 1 if minute == now else 1)


def _with_group(tx: Tx, token_id: int) -> tuple[Token | None, str | None]:
    row = tokens.read(tx, token_id)
    if row is None or row.resource_group_id is None:
        return row, None
    group = resource_group.read(tx, row.resource_group_id)
    return row, group.external_id if group and not group.deleting else None


def _fingerprint(bearer: str) -> bytes:
    """What is kept in memory in place of a token, and what it is looked up by."""
    return hashlib.sha256(bearer.encode()).digest()


def _address(text: str) -> Address | None:
    """An address as it is compared: without port or brackets, IPv4 in IPv6 unwrapped."""
    return _read_address(text) if len(text) <= LONGEST_ADDRESS else None


@lru_cache(maxsize=4096)
def _read_address(text: str) -> Address | None:
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


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0].strip("[").lower()
    return host.partition(":")[0].rstrip(".").lower()


def _hosts(settings: Settings) -> frozenset[str]:
    """The names this server answers to. Empty: any; only when it listens for everybody and nobody named one."""
    named = {_host_name(host) for host in settings.allowed_hosts}
    if settings.public_url:
        named.add((urlsplit(settings.public_url).hostname or "").lower())
    if settings.local:
        return frozenset({*named, "localhost", "127.0.0.1", "::1", settings.host.lower()})
    if settings.host in EVERYWHERE and not named:
        return frozenset()
    return frozenset({*named, "localhost", "127.0.0.1", "::1", settings.host.lower()})


def bearer_of(headers: Mapping[str, str]) -> str:
    """The token that a call shows; empty when it shows none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
