"""Authenticates callers by token, signature, bot credential, session or network.

What a caller may do is in the route table. Secrets are compared in constant time with their stored digest. Valid tokens
are cached, so that a busy client costs no database read per call: a token revoked on this server is dropped at once,
one revoked on another server after at most ``CACHE_S``. A bot's credential is valid in one epoch of the bot, which is
known in memory while the bot is connected to this server, and read from the database otherwise.
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
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, structs

from myrmidon.model.errors import MyrmidonError, Overloaded, StoreError, Unauthorized
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.validation import MAX_INT64
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.auth import run_tokens
from myrmidon.server.auth.addresses import parse_address
from myrmidon.server.auth.hawk import HawkVerifier, SignedCall
from myrmidon.server.auth.origins import Origins
from myrmidon.server.auth.sessions import TOUCH_S, check_session, hashed, token_of
from myrmidon.server.calls import NOBODY, Identity, Role
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.tables import api_token as tokens
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import resource_group, session
from myrmidon.store.tables.api_token import Token

TOKEN = re.compile(r"myr_([0-9a-f]{1,16})_([A-Za-z0-9_-]{43})")
CREDENTIAL = re.compile(r"myb_([A-Za-z0-9_-]{1,1400})\.([0-9a-f]{64})")
CACHE_S = 30
MAX_CACHED = 10_000
SECRET_BYTES = 32
_EPOCH = "e"
REVOKED = "This credential was revoked; introduce the bot again with a bootstrap token."
ADMIN_FILE = "admin.token"
UNKNOWN = "unknown"
"""Stands for an address that could not be parsed; it is in no network."""


# ---------------------------------------------------------------- tokens


class BotBinding(Struct, frozen=True, kw_only=True):
    """Which bots a bootstrap token introduces, and how many times; None for no limit."""

    pool: str | None = None
    group: str | None = None
    ids: str | None = None
    uses: int | None = None


def new_token(
    name: str,
    role: Role,
    group_id: int | None,
    *,
    now: Micros,
    ids: IdSource,
    expires_at: Micros | None = None,
    binding: BotBinding | None = None,
) -> tuple[Token, str]:
    """A new token as a row, and its text. The text is shown once: only a digest of its secret half is stored."""
    bound = binding or BotBinding()
    token_id = ids.next(now)
    secret = secrets.token_urlsafe(SECRET_BYTES)
    row = Token(
        token_id,
        name,
        digest(secret),
        role.value,
        group_id,
        now,
        expires_at,
        None,
        bot_pool=bound.pool,
        bot_group=bound.group,
        bot_ids=bound.ids,
        uses_left=bound.uses,
    )
    return row, token_text(token_id, secret)


def token_text(token_id: int, secret: str) -> str:
    return f"myr_{token_id:x}_{secret}"


def digest(secret: str) -> str:
    """The stored form of a secret. It has 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def make_admin_token(db: Db, folder: Path, *, now: Micros, ids: IdSource) -> Path | None:
    """Create the first administrator's token and its private file; None when an administrator's token exists.

    The file is written before the row: a server killed in between leaves a file with an unknown token, which the next
    start replaces.
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


# ---------------------------------------------------------------- bot credentials


def bot_credential(key: bytes, bot_id: str, epoch: int) -> str:
    """The credential that a bot uses after its introduction: its id and epoch, signed with the server's key."""
    content = f"{bot_id}\n{_EPOCH}{epoch}".encode()
    return f"myb_{_to_base64(content)}.{_sign(key, content)}"


def bot_of_credential(key: bytes, text: str) -> tuple[str, int] | None:
    """The bot that a credential was issued to, and its epoch then; None when the signature is not valid.

    Whether the epoch is still the bot's present one is in the database.
    """
    try:
        return _verified(key, text)
    except ValueError:
        return None


@lru_cache(maxsize=32_768)
def _verified(key: bytes, text: str) -> tuple[str, int]:
    """Cached, because the result never changes. Invalid texts raise and are not cached: anybody can send any number."""
    match = CREDENTIAL.fullmatch(text)
    content = _from_base64(match[1]) if match else None
    if match is None or content is None or not hmac.compare_digest(_sign(key, content), match[2]):
        raise ValueError("not a valid credential")
    bot_id, _, last = content.decode().rpartition("\n")
    # Older code wrote the session in this place, and knew no epochs.
    return bot_id, int(last.removeprefix(_EPOCH)) if last.startswith(_EPOCH) else 0


def _sign(key: bytes, content: bytes) -> str:
    return hmac.digest(key, content, "sha256").hex()


def _to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None


# ---------------------------------------------------------------- the authenticator


class CachedToken(Struct, frozen=True):
    """A token that was valid at its last look-up."""

    identity: Identity
    token_id: int
    valid_until: Micros


class Authenticator:
    """Identifies callers and refuses calls that are not meant for this server."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._settings = context.settings
        self._cache: OrderedDict[bytes, CachedToken] = OrderedDict()
        self._failed: dict[str, tuple[int, int]] = {}
        self._hawk = HawkVerifier(context.keys.hawk)
        self._proxies = [ipaddress.ip_network(text) for text in context.settings.proxies]
        self._allowed = [
            (ipaddress.ip_network(one.network), Identity(one.name, Role(one.role), one.group))
            for one in context.settings.allow
        ]
        self.origins = Origins(context.settings)
        context.on_token_revoked = self.forget_token
        context.on_group_deleted = self.forget_group

    def address_of(self, peer: str, forwarded: str | None) -> str:
        """The address of the client. X-Forwarded-For counts only when the peer is one of the configured proxies.

        The list is read from its end: each proxy appends the address it saw, and whatever comes before the last address
        that is no proxy could have been written by the client itself. An entry of a proxy that cannot be parsed gives
        UNKNOWN, so that the client does not get the proxy's address.
        """
        address = peer
        if not self._proxies or forwarded is None:
            return address
        hops = forwarded.split(",")
        while self._is_proxy(address):
            hop = parse_address(hops.pop()) if hops else None
            if hop is None:
                return UNKNOWN
            address = str(hop)
        return address

    def _is_proxy(self, text: str) -> bool:
        address = parse_address(text)
        return address is not None and any(address in network for network in self._proxies)

    def recognize(self, bearer: str, now: Micros) -> Identity | None:
        """The owner of a token or a bot's credential as far as it is known in memory; else ``identify`` must be asked.

        The bots in memory are as the database has them: a change on this server shows at once, one on another server
        within about a second (``recheck_changed_bots``).
        """
        if not bearer.startswith("myb_"):
            cached = self._cache.get(hashlib.sha256(bearer.encode()).digest())
            return cached.identity if cached is not None and cached.valid_until > now else None
        try:
            bot_id, epoch = _verified(self._context.keys.bot, bearer)
        except ValueError:
            return None
        bot = self._context.hub.bots.get(bot_id)
        if bot is None or bot.outdated or bot.epoch != epoch:
            return None
        return Identity(bot_id, Role.BOT, None, bot_id, epoch=epoch)

    async def identify(self, bearer: str, address: str, cookie: str, now: Micros) -> Identity:
        """The owner of a token, else that of a session's cookie, else the identity of the address.

        Unauthorized for an invalid token or session: a caller that presents one gets no other identity instead.
        """
        if not bearer:
            return await self._by_session(cookie, now) if cookie else self._by_address(address)
        if (known := self.recognize(bearer, now)) is not None:
            return known
        if bearer.startswith("myb_"):
            if (verified := bot_of_credential(self._context.keys.bot, bearer)) is not None:
                return await self._check_epoch(*verified)
        elif (identity := await self._by_token(bearer, now)) is not None:
            return identity
        else:
            self._check_failures(address, now)  # not for bots: an answer 401 makes them use their other token
        raise Unauthorized("The token is unknown, expired or revoked.", reason="untrusted")

    async def identify_signed(self, call: SignedCall, address: str, now: Micros) -> Identity:
        """The owner of the token whose key has signed a call; Unauthorized for a wrong signature or an ended token."""
        try:
            token_id = self._hawk.verify(call, now)
        except Unauthorized:
            self._check_failures(address, now)
            raise
        identity = await self._look_up(f"hawk {token_id:x}".encode(), token_id, now)
        if identity is None:
            self._check_failures(address, now)
            raise Unauthorized("The token of this client id is unknown, expired or revoked.")
        return identity

    async def _check_epoch(self, bot_id: str, epoch: int) -> Identity:
        """The identity of a bot; Unauthorized if its credentials of this epoch were revoked, or if it was deleted."""
        current = await self._context.db.read(lambda tx: bots.epoch(tx, bot_id))
        if current != epoch:
            raise Unauthorized(REVOKED, advice="")
        return Identity(bot_id, Role.BOT, None, bot_id, epoch=epoch)

    async def is_still_valid(self, who: Identity, bearer: str, address: str, cookie: str = "") -> bool:
        """Whether a caller would still get the same identity: a stream may outlive its token."""
        try:
            return await self.identify(bearer, address, cookie, self._context.now()) == who
        except MyrmidonError:
            return False

    def forget_token(self, token_id: int) -> None:
        """Drop a revoked token from the cache."""
        for key in [key for key, cached in self._cache.items() if cached.token_id == token_id]:
            del self._cache[key]

    def forget_group(self, group_id: int) -> None:
        """Drop the tokens of a deleted resource group from the cache."""
        for key in [key for key, cached in self._cache.items() if cached.identity.group_id == group_id]:
            del self._cache[key]

    def _by_address(self, text: str) -> Identity:
        address = parse_address(text)
        if address is None:
            return NOBODY
        return next((identity for network, identity in self._allowed if address in network), NOBODY)

    async def _by_session(self, cookie: str, now: Micros) -> Identity:
        """The identity of a session: that of its token, which must still be valid."""
        database = self._context.db
        row = check_session(await database.read(lambda tx: session.read(tx, hashed(cookie))), now)
        token_id = token_of(row.identity)
        identity = await self._look_up(row.identity.encode(), token_id, now) if token_id is not None else None
        if identity is None:
            raise Unauthorized(
                "The token of this session is no longer valid.", advice="Log in again.", reason="revoked"
            )
        if now - row.seen_at >= TOUCH_S * SECOND:
            with suppress(StoreError):  # reading must work while the database accepts no writes
                await database.write(lambda tx: session.touch(tx, row.id_hash, now))
        return structs.replace(identity, session=row.id_hash)

    async def _by_token(self, bearer: str, now: Micros) -> Identity | None:
        key = hashlib.sha256(bearer.encode()).digest()  # so that tokens themselves are not kept in memory
        if bearer.startswith(run_tokens.PREFIX):
            return await self._by_run_token(key, bearer, now)
        match = TOKEN.fullmatch(bearer)
        if match is None or (token_id := int(match[1], 16)) > MAX_INT64:
            return None
        return await self._look_up(key, token_id, now, secret=match[2])

    async def _by_run_token(self, key: bytes, bearer: str, now: Micros) -> Identity | None:
        secret = self._context.keys.run_api
        identity = await self._context.db.read(lambda tx: run_tokens.read_run_token(tx, secret, bearer))
        if identity is not None:
            self._remember(key, CachedToken(identity, 0, now + run_tokens.CACHE_S * SECOND))
        return identity

    async def _look_up(self, key: bytes, token_id: int, now: Micros, *, secret: str | None = None) -> Identity | None:
        """The identity cached under ``key``, or that of the stored token; a ``secret`` must be the token's."""
        if (cached := self._from_cache(key, now)) is not None:
            return cached
        row, group = await self._context.db.read(lambda tx: _with_group(tx, token_id))
        if row is None or (secret is not None and not hmac.compare_digest(row.secret_hash, digest(secret))):
            return None
        if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
            return None
        if row.resource_group_id is not None and group is None:
            return None
        identity = Identity(row.name, Role(row.role), group, group_id=row.resource_group_id, token_id=row.id)
        valid_until = min(now + CACHE_S * SECOND, row.expires_at or now + CACHE_S * SECOND)
        self._remember(key, CachedToken(identity, token_id, valid_until))
        return identity

    def _from_cache(self, key: bytes, now: Micros) -> Identity | None:
        cached = self._cache.get(key)
        if cached is not None and cached.valid_until > now:
            return cached.identity
        self._cache.pop(key, None)
        return None

    def _remember(self, key: bytes, token: CachedToken) -> None:
        self._cache[key] = token
        while len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)

    def _check_failures(self, address: str, now: Micros) -> None:
        """Count an invalid token; Overloaded beyond the limit per minute.

        Valid tokens from the same address are not affected: several callers may share it.
        """
        minute = now // (60 * SECOND)
        last, count = self._failed.get(address, (minute, 0))
        count = count + 1 if minute == last else 1
        if len(self._failed) >= MAX_CACHED:
            self._failed.clear()
        self._failed[address] = (minute, count)
        if count > self._settings.failed_attempts:
            raise Overloaded("Too many invalid tokens from this address. Try again in a minute.")


def _with_group(tx: Tx, token_id: int) -> tuple[Token | None, str | None]:
    row = tokens.read(tx, token_id)
    if row is None or row.resource_group_id is None:
        return row, None
    group = resource_group.read(tx, row.resource_group_id)
    return row, group.external_id if group and not group.deleting else None
