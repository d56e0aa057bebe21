"""Sessions of browsers, and the links that begin one.

A session acts for a token: with the token's role and resource group, and only as long as the token is valid. What a
cookie or a link holds has 256 random bits; the database has a digest of it.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from msgspec import Struct

from myrmidon.model.errors import Unauthorized
from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import login_flow, session
from myrmidon.store.tables.login_flow import LINK, LoginFlow
from myrmidon.store.tables.session import Session

HOUR_S = 3600
LIFETIME_S = 12 * HOUR_S
IDLE_S = 2 * HOUR_S
TOUCH_S = 60
"""How exactly the last use of a session is known."""
MAX_SESSIONS = 20
"""Of one identity; a further one ends the oldest."""
KEPT_S = 7 * 24 * HOUR_S
"""The time for which rows of ended sessions and links are kept, for an investigation of what happened."""
MAX_PATH = 512
CODE = re.compile(r"[A-Za-z0-9_-]{43}")
_IDENTITY = re.compile(r"service:token-([0-9a-f]{1,16})")
_CONTROLS = re.compile(r"[\x00-\x20\x7f\\]")
_LOG_IN_AGAIN = "Log in again."


class NewSession(Struct, frozen=True):
    """A session as a row, and the text of its cookie."""

    row: Session
    cookie: str


def hashed(secret: str) -> str:
    """The stored form of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def identity_of_token(token_id: int) -> str:
    return f"service:token-{token_id:x}"


def token_of(identity: str) -> int | None:
    """The token that an identity stands for; None for an identity that is not a token's."""
    match = _IDENTITY.fullmatch(identity)
    return int(match[1], 16) if match else None


def return_path(text: str) -> str:
    """Where to go after a login: a path of this server, else the first page.

    ``//host`` and ``/\\host`` are other servers to a browser, and it ignores tabs and line ends inside of them.
    """
    if not text.startswith("/") or text.startswith("//") or len(text) > MAX_PATH or _CONTROLS.search(text):
        return "/"
    return text


def begin_session(tx: Tx, identity: str, *, now: Micros, replaces: str, address: str, agent: str) -> NewSession:
    """Store a new session. The browser's former one ends, and so do the oldest beyond ``MAX_SESSIONS``."""
    cookie = f"mys_{secrets.token_urlsafe(32)}"
    row = Session(
        id_hash=hashed(cookie),
        identity=identity,
        auth_time=now,
        created_at=now,
        seen_at=now,
        expires_at=now + LIFETIME_S * SECOND,
        address=address[:100],
        agent="".join(char for char in agent if char.isprintable())[:256],
    )
    ended = session.older(tx, identity, now, keep=MAX_SESSIONS - 1)
    if replaces:
        ended.append(hashed(replaces))
    session.revoke(tx, ended, now)
    session.delete_expired(tx, now - KEPT_S * SECOND)
    session.insert(tx, row)
    return NewSession(row, cookie)


def check_session(row: Session | None, now: Micros) -> Session:
    """The session if it is valid; else Unauthorized."""
    if row is None:
        raise Unauthorized("There is no such session.", advice=_LOG_IN_AGAIN, reason="untrusted")
    if row.revoked_at is not None:
        raise Unauthorized("This session was ended.", advice=_LOG_IN_AGAIN, reason="revoked")
    if row.expires_at <= now or row.seen_at + IDLE_S * SECOND <= now:
        raise Unauthorized("This session has expired.", advice=_LOG_IN_AGAIN, reason="expired")
    return row


def begin_link(tx: Tx, token_id: int, *, now: Micros, lifetime_s: int, return_to: str = "/") -> str:
    """Store a link that logs in one browser with the rights of a token; returns its secret part."""
    code = secrets.token_urlsafe(32)
    login_flow.delete_expired(tx, now - KEPT_S * SECOND)
    flow = LoginFlow(
        state_hash=hashed(code),
        kind=LINK,
        identity=identity_of_token(token_id),
        return_to=return_path(return_to),
        expires_at=now + lifetime_s * SECOND,
    )
    login_flow.insert(tx, flow)
    return code


def use_link(tx: Tx, code: str, now: Micros) -> LoginFlow:
    """Use up a link; Unauthorized if it is unknown, expired or was used before."""
    flow = login_flow.claim(tx, hashed(code), LINK, now) if CODE.fullmatch(code) else None
    if flow is None:
        raise Unauthorized(
            "This link was used before or has expired.", advice="`myrmidon open` prints another one.", reason="expired"
        )
    return flow
