"""Calls that are signed with Hawk: what a signature covers, how long it is good, and where it counts."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from myrmidon.model.errors import Overloaded
from myrmidon.server.auth import hawk
from myrmidon.server.auth.hawk import HawkVerifier, SignedCall
from myrmidon.server.settings import AllowedNetwork
from tests.server.inside import Inside, Reply, inside
from tests.server.taskcluster.scheduler_client import (
    a_graph,
    a_node,
    as_body,
    check_shape,
    hawk_token,
    sign,
    slug,
)

SECOND = 1_000_000


@pytest.fixture
def app(tmp_path):
    with inside(tmp_path) as opened:
        yield opened


def now_s(app: Inside) -> int:
    return int(app.context.now() // SECOND)


def put(
    app: Inside,
    credentials: tuple[str, str],
    graph: str,
    body: bytes,
    *,
    sent: bytes | None = None,
    hashed: bool = True,
) -> Reply:
    """A signed PUT; ``sent`` is the body that arrives, if it is another one."""
    path = f"/v1/task-graph/{graph}"
    header = sign("PUT", path, credentials, ts=now_s(app), body=body if hashed else None)
    headers = {"authorization": header, "content-type": "application/json; charset=utf-8"}
    reply = app.call("PUT", path, body if sent is None else sent, token="", headers=headers)
    check_shape(reply)
    return reply


def get(
    app: Inside, credentials: tuple[str, str], path: str, *, at: str = "127.0.0.1", again: str = "", **options: Any
) -> Reply:
    """A signed GET, or one with a header that was signed before; ``at`` is the Host header."""
    header = again or sign("GET", path, credentials, **{"ts": now_s(app), **options})
    reply = app.call("GET", path, token="", headers={"authorization": header, "host": at})
    check_shape(reply)
    return reply


def test_signed_calls_have_the_rights_of_their_token(app):
    made, credentials = hawk_token(app)
    assert made["token"].split("_")[1] == credentials[0]
    graph, body = slug(), as_body(a_graph(a_node("a")))
    assert put(app, credentials, graph, body).status == 200
    assert put(app, credentials, graph, body, hashed=False).status == 200  # one client signs no bodies
    assert get(app, credentials, f"/v1/task-graph/{graph}/status?x=%2F1").status == 200
    viewer = hawk_token(app, "viewer")[1]
    assert get(app, viewer, f"/v1/task-graph/{graph}/inspect").status == 200
    assert put(app, viewer, slug(), body).status == 403


def test_a_token_created_again_with_its_key_has_the_same_credentials(app):
    key = {"Idempotency-Key": "k1"}
    body = {"name": "hawk", "role": "user", "hawk": True}
    first = app.post("/api/v1/tokens", body, headers=key).json
    assert app.post("/api/v1/tokens", body, headers=key).json["hawk"] == first["hawk"]
    other = hawk_token(app)[1]
    assert other != (first["hawk"]["client_id"], first["hawk"]["access_key"])
    listed = app.get("/api/v1/tokens").json["tokens"]
    assert [token["hawk"] for token in listed] == [None] * len(listed)


def test_a_signature_is_good_for_one_method_path_query_host_port_body_and_key(app):
    credentials = hawk_token(app)[1]
    graph, body = slug(), as_body(a_graph(a_node("a")))
    put(app, credentials, graph, body)
    path = f"/v1/task-graph/{graph}/status"

    def as_signed(method: str, resource: str, **options: Any) -> int:
        header = sign(method, resource, credentials, ts=now_s(app), **options)
        return get(app, credentials, path, again=header).status

    assert as_signed("GET", path) == 200
    assert as_signed("PUT", path) == 401
    assert as_signed("GET", path.replace("status", "info")) == 401
    assert as_signed("GET", f"{path}?a=b") == 401
    assert as_signed("GET", path, host="localhost") == 401
    assert as_signed("GET", path, port=8080) == 401
    assert as_signed("GET", path, body=b"", media="") == 200  # one client signs the body of calls without one
    assert as_signed("GET", path, body=b"x", media="") == 401
    assert get(app, (credentials[0], "x" * 43), path).status == 401
    assert get(app, (credentials[0][:-1] + "0", credentials[1]), path).status == 401
    changed = as_body(a_graph(a_node("b")))
    reply = put(app, credentials, slug(), body, sent=changed)
    assert (reply.status, "body" in reply.json["message"]) == (401, True)


@pytest.mark.parametrize(
    ("host", "signed", "port", "status"),
    [
        ("127.0.0.1", "127.0.0.1", 443, 404),
        ("127.0.0.1:8080", "127.0.0.1", 8080, 404),
        ("127.0.0.1:8080", "127.0.0.1", 80, 401),
        ("LocalHost:8080", "localhost", 8080, 404),
        ("[::1]:8080", "::1", 8080, 404),
    ],
)
def test_the_port_is_that_of_host_or_of_http_or_https(app, host, signed, port, status):
    credentials = hawk_token(app, "admin")[1]
    reply = get(app, credentials, "/v1/task-graph/none/status", at=host, host=signed, port=port)
    assert reply.status == status


@pytest.mark.parametrize(("ahead", "status"), [(-62, 401), (-58, 404), (58, 404), (62, 401)])
def test_the_time_may_differ_by_a_minute(app, ahead, status, monkeypatch):
    credentials = hawk_token(app, "admin")[1]
    now = app.context.now()
    monkeypatch.setattr(app.context, "now", lambda: now)
    reply = get(app, credentials, "/v1/task-graph/none/status", ts=now_s(app) + ahead)
    assert reply.status == status
    assert status == 404 or str(now_s(app)) in reply.json["message"]


def test_a_call_is_refused_when_it_comes_again(app, monkeypatch):
    now = app.context.now()
    monkeypatch.setattr(app.context, "now", lambda: now)
    one, two = hawk_token(app, "admin")[1], hawk_token(app, "admin")[1]
    path = "/v1/task-graph/none/status"
    ahead = sign("GET", path, one, ts=now_s(app) + 59, nonce="abc")
    assert get(app, one, path, again=ahead).status == 404
    again = get(app, one, path, again=ahead)
    assert (again.status, "nonce" in again.json["message"]) == (401, True)
    now += 118 * SECOND  # the last second in which the time stamp is good
    assert get(app, one, path, again=ahead).status == 401
    other: dict[str, Any] = {"ts": now_s(app), "nonce": "abc"}
    assert get(app, one, path, **other).status == 404  # another time
    assert get(app, two, path, **other).status == 404  # another client


def test_nonces_are_forgotten_when_their_time_is_over_and_never_before():
    credentials = (hawk.client_id(7), hawk.access_key(b"key", 7))
    verifier = HawkVerifier(b"key", max_nonces=2)

    def call(at: int) -> int:
        header = sign("GET", "/v1/x", credentials, ts=at)
        return verifier.verify(
            SignedCall(authorization=header, method="GET", resource="/v1/x", host="127.0.0.1"), at * SECOND
        )

    assert [call(1000), call(1001)] == [7, 7]
    with pytest.raises(Overloaded):
        call(1002)
    assert call(1000 + 2 * hawk.SKEW_S + 1) == 7


@pytest.mark.parametrize(
    ("asked", "status"),
    [({}, 404), ({"x": 1}, 404), ({"certificate": {"version": 1}}, 401), ({"authorizedScopes": []}, 401), ([], 404)],
)
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_temporary_credentials_and_restricted_scopes_are_refused_in_words(app, asked, status, encode):
    credentials = hawk_token(app, "admin")[1]
    ext = encode(json.dumps(asked).encode()).decode()
    reply = get(app, credentials, "/v1/task-graph/none/status", ext=ext)
    assert reply.status == status
    assert status == 404 or "not supported" in reply.json["message"]


def test_an_ext_that_is_something_else_is_covered_and_ignored(app):
    credentials = hawk_token(app, "admin")[1]
    path = "/v1/task-graph/none/status"
    assert get(app, credentials, path, ext="and welcome!").status == 404
    header = sign("GET", path, credentials, ts=now_s(app), ext="and welcome!")
    assert get(app, credentials, path, again=header.replace("welcome", "goodbye")).status == 401


@pytest.mark.parametrize(
    "header",
    [
        "Hawk ",
        "Hawk x",
        'Hawk id="1"',
        'Hawk id="1", ts="1", nonce="1", mac="1", mac="1"',
        'Hawk id="1", ts="1", nonce="1", mac="1", app="1"',
        'Hawk id="zz", ts="1", nonce="1", mac="1"',
        'Hawk id="ffffffffffffffff", ts="1", nonce="1", mac="1"',
        'Hawk id="1", ts="x", nonce="1", mac="\xe9"',
        f'Hawk id="1", ts="1", nonce="{"n" * 9000}", mac="1"',
    ],
)
def test_a_header_that_is_wrong_is_refused(app, header):
    reply = get(app, ("", ""), "/v1/task-graph/none/status", again=header)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Hawk")


def test_the_credentials_end_with_their_token(app, monkeypatch):
    path = "/v1/task-graph/none/status"
    made, credentials = hawk_token(app)
    assert get(app, credentials, path).status == 404
    app.delete(f"/api/v1/tokens/{made['id']}")
    assert get(app, credentials, path).status == 401
    _, short = hawk_token(app, expires_in_s=10)
    assert get(app, short, path).status == 404
    later = app.context.now() + 11 * SECOND
    monkeypatch.setattr(app.context, "now", lambda: later)
    assert get(app, short, path).status == 401


def test_a_signature_counts_for_the_scheduler_only(app):
    credentials = hawk_token(app, "admin")[1]
    header = sign("GET", "/api/v1/jobs", credentials, ts=now_s(app))
    assert app.get("/api/v1/jobs", token="", headers={"authorization": header}).status == 401
    client_id, key = credentials
    for bearer in (key, f"hawk {client_id}", f"myr_{client_id}_{key}"):
        assert app.get("/api/v1/jobs", token=bearer).status == 401


def test_without_credentials_only_allowed_networks_may_call(tmp_path):
    allow = [AllowedNetwork(network="10.0.0.0/8", name="ci", role="user", group="default")]
    with inside(tmp_path, allow=allow) as app:
        path, document = f"/v1/task-graph/{slug()}", a_graph(a_node("a"))
        assert app.put(path, document, token="").status == 401
        assert app.put(path, document, token="", peer="10.1.2.3").status == 200
        wrong = sign("PUT", path, ("1", "x"), ts=now_s(app))
        refused = app.put(path, document, token="", peer="10.1.2.3", headers={"authorization": wrong})
        assert refused.status == 401  # a wrong signature is not the same as none


def test_guessing_is_limited(tmp_path):
    with inside(tmp_path, failed_attempts=3) as app:
        good = hawk_token(app, "admin")[1]
        path = "/v1/task-graph/none/status"
        codes = [get(app, (good[0], "x"), path).status for _ in range(4)]
        assert codes == [401, 401, 401, 429]
        assert get(app, good, path).status == 404
