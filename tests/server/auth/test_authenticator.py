"""Who may come in: tokens, credentials, networks; and what a browser may be tricked into."""

from __future__ import annotations

import os
import stat
import tracemalloc

import pytest

from myrmidon.server.auth.authenticator import bot_credential, bot_of_credential, digest, make_admin_token
from myrmidon.server.settings import AllowedNetwork
from myrmidon.store.tables import api_token as tokens
from tests.server.contexts import a_task
from tests.server.inside import inside
from tests.server.swarming_v1 import swarm

WHO = "/api/v1/server"
SECOND = 1_000_000


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with inside(tmp_path_factory.mktemp("auth"), failed_attempts=10_000) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


# ---------------------------------------------------------------- tokens


def test_nobody_comes_in_without_a_token_not_even_from_this_machine(app):
    reply = app.get(WHO, token="")
    assert (reply.status, reply.code, reply.headers["www-authenticate"]) == (401, "unauthorized", "Bearer")


def test_a_token_says_who_one_is(app):
    told = app.get(WHO, token=app.token("user", "other")).json
    assert (told["who"], told["role"], told["group"]) == ("a user", "user", "other")


def forged(app) -> list[str]:
    good = app.token("admin")
    head, number, secret = good.split("_", 2)
    other = app.token("viewer").split("_")[1]
    return [
        good[:-1] + ("A" if good[-1] != "A" else "B"),
        f"{head}_{other}_{secret}",
        f"{head}_{int(number, 16) + 1:x}_{secret}",
        f"{head}_0{number}_{secret[:-1]}",
        f"{head}_{number}_",
        f"{head}_{'f' * 16}_{secret}",
        f"{head}_{number}_{digest(secret)[:43]}",
        secret,
        "myr__",
        "x" * 5000,
    ]


@pytest.mark.parametrize("which", range(10))
def test_a_forged_token_is_worth_nothing(app, which):
    assert app.get(WHO, token=forged(app)[which]).status == 401


def test_an_expired_token_is_worth_nothing(app):
    good = app.new_token("user", "default", expires_at=app.context.now() + 3600 * SECOND)
    late = app.new_token("user", "default", expires_at=app.context.now())
    assert (app.get(WHO, token=good).status, app.get(WHO, token=late).status) == (200, 401)


def test_a_token_that_expires_is_not_remembered_beyond_its_time(tmp_path):
    with inside(tmp_path) as app:
        now = app.context.now()
        app.context.now = lambda: now
        good = app.new_token("user", "default", expires_at=now + 20 * SECOND)
        assert app.get(WHO, token=good).status == 200
        app.context.now = lambda: now + 20 * SECOND
        assert app.get(WHO, token=good).status == 401


def test_a_request_key_stands_for_one_token_as_long_as_it_is_good(app):
    key, wanted = {"Idempotency-Key": "k"}, {"name": "ci", "role": "user", "expires_in_s": 7200}
    first = app.post("/api/v1/tokens", wanted, headers=key).json
    assert app.post("/api/v1/tokens", wanted, headers=key).json == first
    for other in ({"expires_in_s": 3600}, {"expires_in_s": None}, {"name": "cd"}, {"role": "viewer"}):
        refused = app.post("/api/v1/tokens", {**wanted, **other}, headers=key)
        assert (refused.status, refused.code) == (409, "request.conflict")
    app.delete(f"/api/v1/tokens/{first['id']}")
    refused = app.post("/api/v1/tokens", wanted, headers=key)
    assert (refused.status, refused.code, first["token"] in refused.body.decode()) == (409, "wrong_state", False)


def test_a_revoked_bootstrap_token_is_not_handed_out_again(app):
    key, path = {"Idempotency-Key": "k"}, f"{swarm.NEW}swarming/v1/server/token"
    first, again = (app.post(path, headers=key).json["bootstrap_token"] for _ in range(2))
    assert first == again
    (made,) = [one for one in app.get("/api/v1/tokens").json["tokens"] if one["name"] == "bootstrap"]
    app.delete(f"/api/v1/tokens/{made['id']}")
    assert app.post(path, headers=key).status == 409


def test_a_revoked_token_is_worth_nothing_from_the_next_call_on(app):
    made = app.post("/api/v1/tokens", {"name": "gone", "role": "user"}).json
    assert app.get(WHO, token=made["token"]).status == 200
    assert app.delete(f"/api/v1/tokens/{made['id']}").status == 200
    assert app.get(WHO, token=made["token"]).status == 401
    shown = {one["id"]: one for one in app.get("/api/v1/tokens?limit=1000").json["tokens"]}[made["id"]]
    assert (shown["token"], shown["revoked_at"] is not None) == (None, True)


def test_another_server_learns_of_a_revocation_within_half_a_minute(app):
    made = app.post("/api/v1/tokens", {"name": "gone", "role": "user"}).json
    assert app.get(WHO, token=made["token"]).status == 200
    app.context.db.engine.write(lambda tx: tokens.revoke(tx, int(made["id"], 16), app.context.now()))
    clock = app.context.now
    app.context.now = lambda: clock() + 31 * SECOND
    try:
        assert app.get(WHO, token=made["token"]).status == 401
    finally:
        app.context.now = clock


def test_a_token_dies_with_its_group(app):
    app.post("/api/v1/groups", {"name": "short"})
    text = app.new_token("user", "short")
    assert app.get(WHO, token=text).status == 200, "it is remembered from now on"
    app.delete("/api/v1/groups/short")
    assert app.get(WHO, token=text).status == 401


def test_only_a_digest_of_a_token_is_stored(app):
    secret = app.token("user").split("_", 2)[2]
    stored = app.context.db.engine.read(lambda tx: tokens.page(tx, before=1 << 62, n=1000))
    assert digest(secret) in {one.secret_hash for one in stored}
    assert secret not in repr(stored)


def test_a_bound_token_works_in_its_group_only(app):
    user = app.token("user", "other")
    assert app.post("/api/v1/tasks", {"tasks": [a_task()], "group": "default"}, token=user).code == "forbidden"
    task = app.submit(a_task(), token=user)[0]
    assert app.get(f"/api/v1/tasks/{task}", token=user).json["group"] == "other"
    assert [one["name"] for one in app.get("/api/v1/groups", token=user).json["groups"]] == ["other"]
    assert {one["group"] for one in app.get("/api/v1/tasks", token=user).json["tasks"]} == {"other"}
    assert {one["group"] for one in app.get("/api/v1/queues", token=user).json["queues"]} == {"other"}


def test_an_administrator_is_bound_to_no_group(app):
    refused = app.post("/api/v1/tokens", {"name": "half", "role": "admin", "group": "other"})
    assert (refused.status, refused.code) == (400, "request.invalid")
    assert [one["path"] for one in refused.json["error"]["problems"]] == ["group"]
    assert app.post("/api/v1/tokens", {"name": "whole", "role": "admin", "group": None}).json["group"] is None


@pytest.mark.parametrize("name", ["nl\n", "\n", "a\nb", "a\x1f", ""])
def test_a_name_has_no_control_characters(app, name):
    for path, body in (("/api/v1/tokens", {"name": name, "role": "user"}), ("/api/v1/groups", {"name": name})):
        assert app.post(path, body).code == "request.invalid"


def test_users_may_not_overtake_everybody(app):
    asked = {"tasks": [a_task(priority=19), a_task(priority=20)]}
    answers = app.post("/api/v1/tasks", asked, token=app.token("user")).json["tasks"]
    assert [answer.get("error", {}).get("code") for answer in answers] == ["forbidden", None]
    assert "error" not in app.post("/api/v1/tasks", asked).json["tasks"][0]


def test_guessing_is_slowed_down(tmp_path):
    with inside(tmp_path, failed_attempts=3) as app:
        known = app.token("user")
        assert app.get(WHO, token=known).status == 200
        replies = [app.get(WHO, token=f"myr_{n:x}_{'x' * 43}") for n in range(1, 6)]
        assert [reply.status for reply in replies] == [401, 401, 401, 429, 429]
        assert replies[-1].headers["retry-after"]
        assert app.get(WHO, token=known).status == 200, "who is known goes on working"
        assert app.get(WHO, token=app.token("viewer"), peer="10.0.0.9").status == 200, "others are not affected"


def test_wrong_tokens_lock_out_no_good_one_behind_the_same_address(tmp_path):
    with inside(tmp_path, failed_attempts=3) as app:
        never_seen = app.token("viewer")
        for n in range(1, 30):
            assert app.get(WHO, token=f"myr_{n:x}_{'x' * 43}").status == (401 if n <= 3 else 429)
            assert app.get(WHO, token=never_seen).status == 200
            app.guard.forget_token(int(never_seen.split("_")[1], 16))
        made = app.post("/api/v1/tokens", {"name": "new", "role": "viewer", "group": "default"}).json["token"]
        assert app.get(WHO, token=made).status == 200


# ---------------------------------------------------------------- the first start


def test_the_first_administrators_token_is_for_its_owner_only(tmp_path):
    with inside(tmp_path) as app:
        path = make_admin_token(app.context.db.engine, tmp_path, now=app.context.now(), ids=app.context.ids)
        assert path is not None
        assert path == tmp_path / "admin.token"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert app.get(WHO, token=path.read_text().strip()).json["role"] == "admin"
        assert make_admin_token(app.context.db.engine, tmp_path, now=app.context.now(), ids=app.context.ids) is None


# ---------------------------------------------------------------- bots


def test_a_credential_names_its_bot_and_cannot_be_made_by_others():
    key = b"k" * 32
    text = bot_credential(key, "bot ü\n7", 17)
    assert bot_of_credential(key, text) == ("bot ü\n7", 17)
    assert bot_of_credential(b"x" * 32, text) is None
    head, _, mac = text.partition(".")
    for wrong in (f"{head}A.{mac}", f"{head}.{mac[:-1]}0", head, "myb_.", f"myb_!!!.{mac}", f"myb_A.{mac}"):
        assert bot_of_credential(key, wrong) is None or wrong == text


def test_a_bot_acts_as_itself_only(app):
    app.meet_bot("b1")
    app.meet_bot("b2")
    mine = app.credential("b1")
    hello = {"bot_id": "b2", "session": 2, "dimensions": {"id": ["b2"], "pool": ["default"]}}
    assert app.post("/bot/v1/handshake", hello, token=mine).code == "forbidden"
    assert app.get("/api/v1/tasks", token=mine).code == "forbidden"


# ---------------------------------------------------------------- networks


@pytest.fixture
def allowing(tmp_path):
    allow = [
        AllowedNetwork(network="10.1.0.0/16", name="lab", role="user", group="default"),
        AllowedNetwork(network="fd00::/8", name="six", role="viewer", group="default"),
        AllowedNetwork(network="10.0.0.0/8", name="ops", role="admin"),
    ]
    with inside(tmp_path, allow=allow, proxies=["192.168.0.0/24", "127.0.0.1", "10.9.0.7"]) as opened:
        yield opened


@pytest.mark.parametrize(
    ("peer", "forwarded", "name"),
    [
        ("10.1.2.3", "", "lab"),
        ("10.2.2.3", "", "ops"),
        ("::ffff:10.1.2.3", "", "lab"),
        ("fd00::1", "", "six"),
        ("11.0.0.1", "", None),
        ("192.168.0.7", "10.1.2.3", "lab"),
        ("192.168.0.7", "10.2.0.1, 10.1.2.3", "lab"),
        ("192.168.0.7", "10.1.2.3, 192.168.0.8", "lab"),
        ("192.168.0.7", "10.1.2.3, 8.8.8.8", None),
        ("192.168.0.7", "8.8.8.8", None),
        ("192.168.0.7", "", None),
        ("192.168.0.7", "nonsense", None),
        ("10.9.0.7", "", "ops"),
        ("10.9.0.7", "10.1.2.3", "lab"),
        ("10.9.0.7", "unknown", None),
        ("10.9.0.7", " ", None),
        ("10.9.0.7", "10.9.0.7", None),
        ("192.168.0.7", "unknown, 10.9.0.7", None),
        ("192.168.0.7", "6.6.6.6, 10.9.0.7", None),
        ("192.168.0.7", "10.1.2.3,, 10.9.0.7", None),
        ("192.168.0.7", "[fd00::2]:80", "six"),
        ("11.0.0.1", "10.1.2.3", None),
        ("11.0.0.1", "10.1.2.3, 192.168.0.7", None),
        ("10.1.2.3", "10.2.2.3", "lab"),
    ],
)
def test_a_network_stands_for_a_name_and_only_our_proxies_are_believed(allowing, peer, forwarded, name):
    reply = allowing.get(WHO, token="", peer=peer, headers={"X-Forwarded-For": forwarded} if forwarded else {})
    assert (reply.json.get("who"), reply.status) == (name, 200 if name else 401)


def test_what_proxies_say_in_several_lines_counts_as_one(allowing):
    """Each proxy may append a line of its own."""
    for first, last, name in (("6.6.6.6", "10.9.0.7", None), ("10.1.2.3", "10.9.0.7", "lab"), ("10.9.0.7", "x", None)):
        said = {"headers": {"X-Forwarded-For": first}, "again": [("X-Forwarded-For", last)]}
        assert allowing.get(WHO, token="", peer="192.168.0.7", **said).json.get("who") == name


def test_nothing_is_kept_of_what_strangers_make_up(allowing):
    def meet(start: int) -> int:
        for number in range(start, start + 50):
            text = f"{number}{'A' * 50_000}"
            assert allowing.get(WHO, token=f"myb_{text}.{'0' * 64}").status == 401
            told = {"X-Forwarded-For": text}
            assert allowing.get(WHO, token="", peer="192.168.0.7", headers=told).status == 401
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = meet(0)
        assert meet(50) - before < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_group_named_in_the_settings_is_there_from_the_start_and_stays(tmp_path):
    allow = [AllowedNetwork(network="10.0.0.0/8", name="lab", role="user", group="new")]
    with inside(tmp_path, allow=allow) as app:
        assert app.post("/api/v1/tasks", {"tasks": [a_task()]}, token="", peer="10.1.2.3").status == 200
        assert {one["name"] for one in app.get("/api/v1/groups").json["groups"]} == {"default", "new"}
        for name in ("default", "new"):
            refused = app.delete(f"/api/v1/groups/{name}")
            assert (refused.status, refused.code) == (409, "wrong_state")
            assert "settings" in refused.json["error"]["message"]
        assert app.submit(a_task())


def test_a_wrong_token_is_not_healed_by_the_right_network(allowing):
    assert allowing.get(WHO, token="myr_1_nonsense", peer="10.1.2.3").status == 401


def test_a_network_has_no_more_rights_than_its_role(allowing):
    assert allowing.get("/api/v1/tokens", token="", peer="10.1.2.3").code == "forbidden"
    assert allowing.post("/api/v1/tasks", {"tasks": [a_task()]}, token="", peer="10.1.2.3").status == 200


# ---------------------------------------------------------------- browsers


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("127.0.0.1:8910", True), ("localhost", True), ("[::1]:80", True), ("LOCALHOST.", True),
        ("evil.example", False), ("127.0.0.1.evil.example", False), ("", False),
        ("[::1]evil.com", False), ("[::1]:80evil.com", False), ("[::1", False), ("::1", False), ("[::1]:", True),
        ("localhost:80:evil.com", False), ("localhost:evil.com", False), ("evil.com@localhost", False),
        ("localhost/evil.com", False), ("[localhost]", False), ("local host", False),
    ],
)  # fmt: skip
def test_a_name_that_is_not_ours_is_refused(app, host, fine):
    """A page that makes its own name point to this machine must not speak with our server."""
    assert app.get(WHO, headers={"host": host}).status == (200 if fine else 403)


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", [WHO, "/", "/nothing", "/api/v1/tasks/", "/api/v1/tasks/1", "/_ah/api/x/"])
def test_a_name_that_is_not_ours_is_refused_on_every_path(app, method, path):
    reply = app.call(method, path, headers={"host": "evil.example"}, token="")
    assert reply.status == 403
    assert "location" not in reply.headers


def test_nobody_is_led_to_another_path(app):
    for path in ("/api/v1/tasks/", "/api/v1/server/", "/healthz/"):
        assert (app.get(path).status, app.get(path).code) == (404, "not_found")


@pytest.mark.parametrize("again", ["127.0.0.1", "evil.example"])
def test_two_names_in_one_call_are_refused(app, again):
    reply = app.get(WHO, again=[("host", again)])
    assert (reply.status, reply.code, reply.json["error"]["problems"][0]["path"]) == (400, "request.invalid", "host")


@pytest.mark.parametrize(
    ("origin", "fine"),
    [
        ("http://127.0.0.1", True), ("http://localhost:8910", False), ("https://evil.example", False),
        ("null", False), ("http://127.0.0.1.evil.example", False), ("https://ui.example", True),
    ],
)  # fmt: skip
def test_only_our_own_pages_may_change_something(tmp_path, origin, fine):
    with inside(tmp_path, allowed_origins=["https://ui.example"]) as app:
        headers = {"origin": origin}
        assert app.post("/api/v1/tasks", {"tasks": [a_task()]}, headers=headers).status == (200 if fine else 403)
        assert app.get(WHO, headers=headers).status == 200


def test_the_public_name_is_ours(tmp_path):
    with inside(tmp_path, public_url="https://swarm.example:444", allowed_hosts=["alias"]) as app:
        for host, status in (("swarm.example:444", 200), ("alias:1", 200), ("other", 403)):
            assert app.get(WHO, headers={"host": host}).status == status
        message = "The host name 'other' is not allowed; add it to the setting allowed_hosts."
        assert app.get(WHO, headers={"host": "other"}).json["error"]["message"] == message
