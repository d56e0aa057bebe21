"""Logging in to the web page: with a token, or by a link that a command has printed; who is logged in; logging out.

The link's secret is in the fragment of its URL, which browsers do not send: the page reads it and posts it here.
"""

from __future__ import annotations

from importlib.metadata import version

from myrmidon.model.errors import Forbidden
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.auth import cookies, origins, sessions
from myrmidon.server.auth.sessions import LIFETIME_S, NewSession
from myrmidon.server.calls import ANYONE, READERS, Answer, Call, Identity, Routes
from myrmidon.server.context import ServerContext
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import session
from myrmidon.wire.fields import Done
from myrmidon.wire.session import LinkInfo, LoggedIn, LogIn, LogOut, NewLink, SessionInfo, UseLink

VERSION = version("myrmidon")
LINK_PATH = "/auth/link"
ROUTES = Routes()


# ---------------------------------------------------------------- who is logged in


@ROUTES.add("GET", "/api/v1/session", READERS, "Who the caller is")
async def get_session(context: ServerContext, call: Call) -> SessionInfo:
    """Who the caller is and how it was identified."""
    who, csrf, expires_at = call.who, None, None
    if who.session:
        csrf = origins.csrf_token(context.keys.csrf, who.session)
        row = await context.db.read(lambda tx: session.read(tx, who.session))
        expires_at = row.expires_at if row else None
    return SessionInfo(
        name=who.name,
        role=who.role,
        group=who.group,
        via="session" if who.session else "address" if who.token_id is None else "token",
        csrf_token=csrf,
        expires_at=expires_at,
        server_time=context.now(),
        version=VERSION,
    )


# ---------------------------------------------------------------- logging in


@ROUTES.add(
    "POST",
    "/auth/login",
    READERS,
    "Log in a browser with a token",
    body=LogIn,
    out=LoggedIn,
    mutates=True,
    from_page=True,
)
async def log_in(context: ServerContext, call: Call) -> Answer:
    """Begin a session for the token that this call is made with. The response sets its cookie."""
    body: LogIn = call.body
    token_id = _require_token(call.who)
    return await _begin(context, call, sessions.identity_of_token(token_id), sessions.return_path(body.to))


def _require_token(who: Identity) -> int:
    if who.token_id is None or who.session:
        raise Forbidden("This needs a token of its own, sent as `Authorization: Bearer ...`.")
    return who.token_id


@ROUTES.add(
    "POST", LINK_PATH, ANYONE, "Log in a browser by a link", body=UseLink, out=LoggedIn, mutates=True, from_page=True
)
async def use_link(context: ServerContext, call: Call) -> Answer:
    """Begin a session by a link, which can be used once. The response sets its cookie."""
    body: UseLink = call.body
    _require_cookie_name(context, call)  # before the link is used up
    now = context.now()
    flow = await context.db.write(lambda tx: sessions.use_link(tx, body.code, now))
    return await _begin(context, call, flow.identity, flow.return_to)


async def _begin(context: ServerContext, call: Call, identity: str, to: str) -> Answer:
    name = _require_cookie_name(context, call)
    former = cookies.session_of(context.settings, call.headers, call.address)
    agent, now = call.headers.get("user-agent", ""), context.now()

    def begin(tx: Tx) -> NewSession:
        return sessions.begin_session(tx, identity, now=now, replaces=former, address=call.address, agent=agent)

    begun = await context.db.write(begin)
    return Answer(headers={"set-cookie": cookies.set_cookie(name, begun.cookie, LIFETIME_S)}, body=LoggedIn(to))


def _require_cookie_name(context: ServerContext, call: Call) -> str:
    name = cookies.cookie_name(context.settings, call.headers, call.address)
    if name is None:
        raise Forbidden(
            "Logging in needs HTTPS, or a browser on the server's own machine: over plain HTTP the session could be"
            " read on its way. See the settings tls_certificate and public_url.",
            reason="plain_http",
        )
    return name


@ROUTES.add("POST", "/auth/logout", READERS, "End the session of this browser", body=LogOut, out=Done, mutates=True)
async def log_out(context: ServerContext, call: Call) -> Answer:
    """End the session of this browser; the response deletes its cookie."""
    who, now = call.who, context.now()
    if not who.session:
        raise Forbidden("There is no session to end: this call was not made by cookie.")
    await context.db.write(lambda tx: session.revoke(tx, [who.session], now))
    name = _require_cookie_name(context, call)
    return Answer(headers={"set-cookie": cookies.set_cookie(name, "", 0)}, body=Done())


# ---------------------------------------------------------------- links


@ROUTES.add("POST", "/auth/links", READERS, "Create a link that logs in a browser", body=NewLink, mutates=True)
async def create_link(context: ServerContext, call: Call) -> LinkInfo:
    """Create a link that logs in a browser with the rights of the token that this call is made with."""
    body: NewLink = call.body
    token_id, now = _require_token(call.who), context.now()
    code = await context.db.write(
        lambda tx: sessions.begin_link(tx, token_id, now=now, lifetime_s=body.lifetime_s, return_to=body.to)
    )
    return LinkInfo(link_path(code), now + body.lifetime_s * SECOND)


def link_path(code: str) -> str:
    return f"{LINK_PATH}#{code}"
