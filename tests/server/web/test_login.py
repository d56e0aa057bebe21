"""Logging in to the web page: links, typed tokens, cookies, and what another site can make a browser do."""

from __future__ import annotations

import re
from functools import partial

import pytest

from myrmidon.server.auth import sessions
from myrmidon.server.auth.cookies import LOCAL_NAME, SECURE_NAME
from myrmidon.server.calls import Role
from myrmidon.server.settings import AllowedNetwork
from myrmidon.store.tables import session
from tests.server.contexts import a_task
from tests.server.inside import Inside, Reply, inside

SECOND = 1_000_000
HOUR = 3600 * SECOND
FROM_PAGE = {"sec-fetch-site": "same-origin", "content-type": "application/json"}
TASKS = {"tasks": [a_task()]}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with inside(tmp_path_factory.mktemp("login")) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


@pytest.fixture(autouse=True)
def the_same_time_afterwards(app):
    now = app.context.now
    yield
    app.context.now = now


def later(app: Inside, micros: int) -> None:
    now = app.context.now
    app.context.now = lambda: now() + micros


class Browser:
    """A browser with a cookie, which it sends with every call."""

    def __init__(self, app: Inside, reply: Reply) -> None:
        assert reply.status == 200, reply
        self.app, self.set_cookie = app, reply.headers["set-cookie"]
        self.cookie = self.set_cookie.partition(";")[0]
        self.csrf = ""

    def get(self, path: str, **headers: str) -> Reply:
        return self.app.get(path, token="", headers={"cookie": self.cookie, **headers})

    def session(self) -> dict:
        reply = self.get("/api/v1/session")
        assert reply.status == 200, reply
        return dict(reply.json)

    def post(self, path: str, body: object, **headers: str | None) -> Reply:
        """A change, as the page makes it; a header that is None is left out."""
        self.csrf = self.csrf or self.session()["csrf_token"]
        sent = {**FROM_PAGE, "cookie": self.cookie, "x-csrf-token": self.csrf}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.app.post(path, body, token="", headers={k: v for k, v in sent.items() if v is not None})


def log_in(app: Inside, role: str = "admin", *, token: str | None = None, **headers: str) -> Browser:
    shown = app.token(role) if token is None else token
    return Browser(app, app.post("/auth/login", {}, token=shown, headers={**FROM_PAGE, **headers}))


# ---------------------------------------------------------------- logging in


def test_a_typed_token_begins_a_session_with_its_rights(app):
    browser = log_in(app, "user")
    told = browser.session()
    assert (told["name"], told["role"], told["group"], told["via"]) == ("a user", "user", "default", "session")
    assert told["csrf_token"]
    assert browser.post("/api/v1/tasks", TASKS).status == 200
    assert browser.get("/api/v1/tokens").status == 403, "a user is no administrator"


def test_a_viewer_may_look_and_not_touch(app):
    browser = log_in(app, "viewer")
    assert browser.get("/api/v1/tasks").status == 200
    assert browser.post("/api/v1/tasks", TASKS).code == "forbidden"


@pytest.mark.parametrize("role", ["bot-bootstrap", "bot", "run"])
def test_other_credentials_begin_no_session(app, role):
    app.meet_bot()
    reply = app.post("/auth/login", {}, token=app.token(role), headers=FROM_PAGE)
    assert (reply.status, reply.headers.get("set-cookie")) == (403, None)


def test_a_wrong_token_begins_no_session(app):
    reply = app.post("/auth/login", {}, token="myr_1_" + "x" * 43, headers=FROM_PAGE)
    assert (reply.status, reply.json["error"]["reason"], reply.headers.get("set-cookie")) == (401, "untrusted", None)


def a_link(app: Inside, to: str = "/", role: str = "admin", **body: object) -> str:
    made = app.post("/auth/links", {"to": to, **body}, token=app.token(role)).json
    page, _, code = made["path"].partition("#")
    assert page == "/auth/link", "the secret is in the fragment, which browsers do not send"
    return str(code)


def follow(app: Inside, code: str, **headers: str) -> Reply:
    return app.post("/auth/link", {"code": code}, token="", headers={**FROM_PAGE, **headers})


def test_a_link_logs_in_once_and_leads_to_its_page(app):
    code = a_link(app, to="/tasks/1a0?log=1", role="viewer")
    first = follow(app, code)
    assert first.json == {"to": "/tasks/1a0?log=1"}
    assert Browser(app, first).session()["role"] == "viewer"
    again = follow(app, code)
    assert (again.status, again.json["error"]["reason"], again.headers.get("set-cookie")) == (401, "expired", None)


def test_a_link_expires(app):
    code, longer = a_link(app), a_link(app, lifetime_s=600)
    later(app, 61 * SECOND)
    assert follow(app, code).status == 401
    assert follow(app, longer).status == 200


@pytest.mark.parametrize("code", ["", "x", "x" * 43, "x" * 44, "é" * 43])
def test_a_link_that_nobody_made_is_refused(app, code):
    assert follow(app, code).status == 401


def test_a_link_of_a_revoked_token_opens_nothing(app):
    token = app.new_token("admin", None)
    code = str(app.post("/auth/links", {}, token=token).json["path"].partition("#")[2])
    app.delete(f"/api/v1/tokens/{token.split('_')[1]}")
    browser = Browser(app, follow(app, code))
    assert browser.get("/api/v1/session").json["error"]["reason"] == "revoked"


def test_the_secrets_of_links_and_sessions_are_not_stored(app):
    code, browser = a_link(app), log_in(app)
    engine = app.context.db.engine
    stored = str(engine.read(lambda tx: [tx.all("SELECT * FROM login_flows"), tx.all("SELECT * FROM sessions")]))
    assert code not in stored
    assert browser.cookie.partition("=")[2] not in stored


def test_a_session_makes_no_links_and_no_sessions(app):
    browser = log_in(app)
    assert browser.post("/auth/links", {}).status == 403
    assert browser.post("/auth/login", {}).status == 403


# ---------------------------------------------------------------- the end of a session


def test_logging_out_ends_the_session_and_deletes_the_cookie(app):
    browser = log_in(app)
    reply = browser.post("/auth/logout", {})
    assert (reply.status, reply.headers["set-cookie"].split(";")[0]) == (200, f"{LOCAL_NAME}=")
    assert "Max-Age=0" in reply.headers["set-cookie"]
    after = browser.get("/api/v1/session")
    assert (after.status, after.json["error"]["reason"]) == (401, "revoked")


@pytest.mark.parametrize("step", [HOUR, 12 * HOUR])
def test_a_session_ends_after_twelve_hours_at_most(app, step):
    browser = log_in(app)
    for _ in range(12 * HOUR // step - 1):
        later(app, step)
        assert browser.get("/api/v1/tasks").status == 200
    later(app, step)
    ended = browser.get("/api/v1/tasks")
    assert (ended.status, ended.json["error"]["reason"]) == (401, "expired")


def test_a_session_that_is_not_used_ends_after_two_hours(app):
    browser = log_in(app)
    later(app, 2 * HOUR - SECOND)
    assert browser.get("/api/v1/tasks").status == 200
    later(app, 2 * HOUR - SECOND)
    assert browser.get("/api/v1/tasks").status == 200
    later(app, 2 * HOUR)
    assert browser.get("/api/v1/tasks").json["error"]["reason"] == "expired"


def test_a_session_ends_with_its_token(app):
    token = app.new_token("user", "default")
    browser = log_in(app, token=token)
    assert browser.get("/api/v1/tasks").status == 200
    app.delete(f"/api/v1/tokens/{token.split('_')[1]}")
    ended = browser.get("/api/v1/tasks")
    assert (ended.status, ended.json["error"]["reason"]) == (401, "revoked")
    short = app.new_token("user", "default", expires_at=app.context.now() + HOUR)
    browser = log_in(app, token=short)
    later(app, HOUR)
    assert browser.get("/api/v1/tasks").status == 401


def test_logging_in_again_ends_the_former_session_of_this_browser(app):
    first = log_in(app)
    second = log_in(app, cookie=first.cookie)
    assert first.cookie != second.cookie
    assert first.get("/api/v1/session").json["error"]["reason"] == "revoked"
    assert second.session()["via"] == "session"


def test_the_oldest_sessions_of_an_identity_end(app):
    token = app.new_token("viewer", "default")
    browsers = []
    for _ in range(sessions.MAX_SESSIONS + 1):
        later(app, SECOND)
        browsers.append(log_in(app, token=token))
    assert [browser.get("/api/v1/session").status for browser in browsers[:2]] == [401, 200]
    assert browsers[-1].get("/api/v1/session").status == 200


def test_a_stream_ends_with_its_session(app):
    browser = log_in(app)
    who = app.run(app.guard.identify("", "", browser.cookie.partition("=")[2], app.context.now()))
    still = partial(app.guard.is_still_valid, who, "", "", browser.cookie.partition("=")[2])
    assert app.run(still())
    browser.post("/auth/logout", {})
    assert not app.run(still())


def test_rows_of_old_sessions_are_deleted(app):
    old = log_in(app)
    later(app, (sessions.LIFETIME_S + sessions.KEPT_S + 1) * SECOND)
    log_in(app)
    old_hash = sessions.hashed(old.cookie.partition("=")[2])
    assert app.context.db.engine.read(lambda tx: session.read(tx, old_hash)) is None


# ---------------------------------------------------------------- cookies


def test_without_https_the_cookie_is_for_this_machine_only(app):
    parts = set(log_in(app).set_cookie.split("; ")[1:])
    assert log_in(app).cookie.startswith(f"{LOCAL_NAME}=mys_")
    assert parts == {"Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Lax"}


def test_over_https_no_other_host_can_set_or_read_the_cookie(tmp_path):
    with inside(tmp_path, public_url="https://myr.example", proxies=["127.0.0.1"]) as app:
        proxied = {"host": "myr.example", "x-forwarded-for": "192.0.2.7"}
        browser = log_in(app, **proxied)
        assert browser.cookie.startswith(f"{SECURE_NAME}=mys_")
        parts = set(browser.set_cookie.split("; ")[1:])
        assert parts == {"Path=/", "Max-Age=43200", "Secure", "HttpOnly", "SameSite=Lax"}
        assert browser.get("/api/v1/session", **proxied).status == 200
        plain = browser.cookie.replace(SECURE_NAME, LOCAL_NAME)
        assert app.get("/api/v1/session", token="", headers={"cookie": plain, **proxied}).status == 401


def test_over_plain_http_from_elsewhere_nobody_logs_in(tmp_path):
    with inside(tmp_path, host="0.0.0.0", plain_http=True) as app:
        code = a_link(app)
        for headers, peer in (({"host": "192.0.2.1"}, "192.0.2.7"), ({"host": "127.0.0.1"}, "192.0.2.7")):
            reply = app.post("/auth/link", {"code": code}, token="", headers={**FROM_PAGE, **headers}, peer=peer)
            assert (reply.status, reply.json["error"]["reason"]) == (403, "plain_http")
        assert follow(app, code).status == 200, "the refused calls have not used it up"


def test_a_cookie_counts_only_for_the_page(app):
    browser = log_in(app)
    closed = [line for line in app.routes if not line.takes_cookie and Role.NOBODY not in line.who]
    assert {"/metrics", "/bot/v1/exchange", "/_ah/api/swarming/v1/tasks/list"} <= {line.path for line in closed}
    for route in closed:
        path = re.sub(r"\{\w+(:\w+)?\}", "1", route.path)
        sent = {**FROM_PAGE, "cookie": browser.cookie, "x-csrf-token": browser.session()["csrf_token"]}
        assert app.call(route.method, path, {}, token="", headers=sent).status == 401, route.path


def test_a_call_with_a_token_is_judged_by_the_token_alone(app):
    browser = log_in(app, "admin")
    viewer = app.get("/api/v1/session", token=app.token("viewer"), headers={"cookie": browser.cookie}).json
    assert (viewer["role"], viewer["via"], viewer["csrf_token"]) == ("viewer", "token", None)
    for authorization in ("Bearer nonsense", "Basic bm9uZTo=", "Bearer"):
        reply = app.get("/api/v1/session", token="", headers={"cookie": browser.cookie, "authorization": authorization})
        assert reply.status == 401, authorization


@pytest.mark.parametrize("value", ["x", "mys_", "mys_" + "x" * 43, "é", "a" * 9000])
def test_a_wrong_cookie_is_refused_and_gives_no_rights_of_the_address(tmp_path, value):
    allow = [AllowedNetwork(network="127.0.0.0/8", name="here", role="viewer")]
    with inside(tmp_path, allow=allow) as app:
        here = app.get("/api/v1/session", token="").json
        assert (here["name"], here["via"], here["csrf_token"]) == ("here", "address", None)
        wrong = app.get("/api/v1/session", token="", headers={"cookie": f"{LOCAL_NAME}={value}"})
        assert (wrong.status, wrong.json["error"]["reason"]) == (401, "untrusted")


def test_two_cookies_of_the_same_name_are_refused(app):
    one, two = log_in(app), log_in(app, "viewer")
    both = app.get("/api/v1/session", token="", headers={"cookie": f"{two.cookie}; {one.cookie}"})
    assert both.status == 401


# ---------------------------------------------------------------- other sites


GOOD_PROOFS = [
    {"sec_fetch_site": "same-origin"},
    {"sec_fetch_site": "same-origin", "origin": "http://127.0.0.1"},
    {"sec_fetch_site": None, "origin": "http://127.0.0.1"},
]
BAD_PROOFS = [
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "none"},
    {"sec_fetch_site": ""},
    {"sec_fetch_site": None},
    {"sec_fetch_site": None, "origin": "null"},
    {"sec_fetch_site": None, "origin": "http://evil.example"},
    {"sec_fetch_site": None, "origin": "http://127.0.0.1:9"},
    {"sec_fetch_site": "same-origin", "origin": "http://evil.example"},
    {"sec_fetch_site": "cross-site", "origin": "http://127.0.0.1"},
    {"x_csrf_token": None},
    {"x_csrf_token": ""},
    {"x_csrf_token": "é"},
    {"x_csrf_token": "A" * 43},
    {"content_type": None},
    {"content_type": "text/plain"},
    {"content_type": "application/x-www-form-urlencoded"},
    {"content_type": "multipart/form-data; boundary=x"},
]


@pytest.mark.parametrize("proof", GOOD_PROOFS, ids=str)
def test_the_page_itself_may_change_things(app, proof):
    assert log_in(app, "user").post("/api/v1/tasks", TASKS, **proof).status == 200


@pytest.mark.parametrize("proof", BAD_PROOFS, ids=str)
def test_another_site_changes_nothing(app, proof):
    browser = log_in(app, "user")
    before = browser.get("/api/v1/tasks?limit=1").json
    reply = browser.post("/api/v1/tasks", TASKS, **proof)
    assert (reply.status, reply.code) == (403, "forbidden")
    assert browser.get("/api/v1/tasks?limit=1").json == before


def test_every_change_by_cookie_needs_the_token_of_the_session(app):
    browser = log_in(app)
    for route in app.routes:
        if route.mutates and route.takes_cookie and not route.from_page:
            path = route.path.replace("{", "").replace("}", "")
            sent = {**FROM_PAGE, "cookie": browser.cookie}
            reply = app.call(route.method, path, {}, token="", headers=sent)
            assert (reply.status, reply.json["error"].get("reason")) == (403, "csrf"), route.path


def test_the_csrf_token_of_another_session_is_worth_nothing(app):
    one, two = log_in(app, "user"), log_in(app, "user")
    assert one.session()["csrf_token"] != two.session()["csrf_token"]
    reply = one.post("/api/v1/tasks", TASKS, x_csrf_token=two.session()["csrf_token"])
    assert (reply.status, reply.json["error"]["reason"]) == (403, "csrf")


def test_a_page_of_an_allowed_origin_gets_no_rights_of_the_cookie(tmp_path):
    with inside(tmp_path, allowed_origins=["https://dashboard.example"]) as app:
        browser = log_in(app, "user")
        foreign = {"origin": "https://dashboard.example", "sec_fetch_site": "cross-site"}
        assert browser.post("/api/v1/tasks", TASKS, **foreign).status == 403
        shown = browser.get("/api/v1/session", origin="https://dashboard.example")
        assert "access-control-allow-credentials" not in shown.headers
        assert "access-control-allow-origin" not in shown.headers


@pytest.mark.parametrize(
    "proof",
    [{"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}, {}, {"content-type": "text/plain"}],
    ids=str,
)
def test_another_site_logs_nobody_in(app, proof):
    sent = proof if "content-type" not in proof else {**FROM_PAGE, **proof}
    sent = {"content-type": "application/json", **sent}
    code = a_link(app)
    replies = [
        app.post("/auth/link", {"code": code}, token="", headers=sent),
        app.post("/auth/login", {}, headers=sent),
    ]
    assert [(reply.status, reply.headers.get("set-cookie")) for reply in replies] == [(403, None)] * 2
    assert follow(app, code).status == 200


def test_behind_a_proxy_the_public_address_is_ours_too(tmp_path):
    with inside(tmp_path, public_url="https://myr.example", proxies=["127.0.0.1"]) as app:
        proxied = {"x-forwarded-for": "192.0.2.7"}  # the proxy calls the server by its address
        browser = log_in(app, "user", **proxied, origin="https://myr.example")
        csrf = browser.get("/api/v1/session", **proxied).json["csrf_token"]
        sent = {**FROM_PAGE, **proxied, "cookie": browser.cookie, "x-csrf-token": csrf}
        good = app.post("/api/v1/tasks", TASKS, token="", headers={**sent, "origin": "https://myr.example"})
        evil = app.post("/api/v1/tasks", TASKS, token="", headers={**sent, "origin": "https://myr.example.evil"})
        assert (good.status, evil.status) == (200, 403)


# ---------------------------------------------------------------- where one goes afterwards


OURS = ["/", "/tasks/1a0", "/tasks?tag=a:b&state=READY", "/jobs/x/graph#n", "/bots/a%2Fb", "/a" * 256]
NOT_OURS = [
    "", "tasks", "//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example", "/\t/evil.example",
    "/\n/evil.example", "javascript:alert(1)", " /", "/x\r\nset-cookie: a=b", "///evil.example", "/" + "a" * 512,
    "/\x00", "data:text/html,x", "/a\\b", "/ /evil.example",
]  # fmt: skip


@pytest.mark.parametrize("to", [*OURS, *NOT_OURS], ids=repr)
def test_after_logging_in_one_stays_on_this_server(app, to):
    wanted = to if to in OURS else "/"
    assert app.post("/auth/login", {"to": to}, headers=FROM_PAGE).json == {"to": wanted}
    if "\x00" not in to:
        assert follow(app, a_link(app, to=to)).json == {"to": wanted}
