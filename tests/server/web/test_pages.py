"""The files of the web page: addresses, headers, caching, compression; and the addresses of Swarming's page."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from myrmidon.server.web import pages
from myrmidon.server.web.files import PageFiles
from tests.server.inside import Inside, inside

INDEX = b"<!doctype html><title>Myrmidon</title>"
SCRIPT = b"console.log('hello');" * 50
ADDRESSES = [
    "/", "/login", "/auth/link", "/tasks", "/tasks/1a0", "/jobs", "/jobs/name/nightly", "/jobs/1a0/graph",
    "/jobs/1a0/time", "/jobs/1a0/tasks", "/functions/pkg:f", "/bots", "/bots/a%2Fb", "/bots/%3Cscript%3E",
    "/queues", "/values", "/system", "/system/tokens", "/system/config/bot_config.py", "/tasks/", "/tasks?tag=a:b",
]  # fmt: skip


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with inside(tmp_path_factory.mktemp("pages")) as opened:
        yield opened


@pytest.fixture
def built(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_bytes(INDEX)
    (folder / "favicon.svg").write_bytes(b"<svg/>")
    (folder / "assets" / "app-1a2b.js").write_bytes(SCRIPT)
    (folder / "assets" / "app-1a2b.js.gz").write_bytes(gzip.compress(SCRIPT))
    (folder / "assets" / "app-1a2b.js.br").write_bytes(b"as brotli")
    (folder / "assets" / "notes.pem").write_bytes(b"no file of a page")
    monkeypatch.setattr(pages, "FILES", PageFiles(folder))
    return folder


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_of_the_page_gets_its_document(app: Inside, built: Path, address: str):
    reply = app.get(address, token="")
    assert (reply.status, reply.body) == (200, INDEX)
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("address", ["/nope", "/api/nope", "/api/v1/nope", "/assets/none.js", "/task/x", "/bot/v2/x"])
def test_other_addresses_do_not(app: Inside, built: Path, address: str):
    assert (app.get(address).status, app.get(address).code) == (404, "not_found")


@pytest.mark.parametrize("address", ["/", "/tasks/1", "/assets/app-1a2b.js"])
@pytest.mark.parametrize("is_built", [True, False])
def test_no_site_can_frame_the_page_and_nothing_inline_runs(app: Inside, request, address: str, is_built: bool):
    if is_built:
        request.getfixturevalue("built")
    reply = app.get(address, token="")
    if not is_built and "assets" in address:
        return
    rules = dict(rule.split(" ", 1) for rule in reply.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("", ""), ("gzip, deflate, br", "br"), ("gzip;q=1.0", "gzip"), ("br;q=0, gzip", "gzip"), ("identity", "")],
)
def test_files_are_sent_compressed_and_cached_for_ever(app: Inside, built: Path, accepted: str, encoding: str):
    reply = app.get("/assets/app-1a2b.js", token="", headers={"accept-encoding": accepted})
    contents = {"": SCRIPT, "gzip": gzip.compress(SCRIPT), "br": b"as brotli"}
    assert reply.headers.get("content-encoding", "") == encoding
    assert gzip.decompress(reply.body) == SCRIPT if encoding == "gzip" else reply.body == contents[encoding]
    assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
    assert reply.headers["vary"] == "accept-encoding"


def test_what_a_browser_has_is_not_sent_again(app: Inside, built: Path):
    etag = app.get("/", token="").headers["etag"]
    again = app.get("/", token="", headers={"if-none-match": etag})
    assert (again.status, again.body) == (304, b"")
    (built / "index.html").write_bytes(b"a new build")
    os.utime(built / "index.html", ns=(1, 1))
    assert app.get("/", token="", headers={"if-none-match": etag}).body == b"a new build"


@pytest.mark.parametrize(
    "name", ["notes.pem", "..%2findex.html", "%2e%2e/index.html", "..%2f..%2fpages.py", "app-1a2b.js.br", "%00"]
)
def test_only_files_of_the_page_are_served(app: Inside, built: Path, name: str):
    assert app.get(f"/assets/{name}", token="").status == 404


def test_files_that_browsers_ask_for_by_themselves(app: Inside, built: Path):
    assert app.get("/favicon.svg", token="").headers["content-type"] == "image/svg+xml"
    assert app.get("/favicon.ico", token="").status == 404


def test_a_server_without_the_page_says_how_to_get_it(app: Inside, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(pages, "FILES", PageFiles(tmp_path / "static"))
    reply = app.get("/tasks", token="")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"make ui" in reply.body
    assert b"<script" not in reply.body
    assert app.get("/api/v1/server").status == 200
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "index.html").write_bytes(INDEX)
    assert app.get("/tasks", token="").body == INDEX, "built while the server runs"


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("/task?id=1a0", "/tasks/1a0"),
        ("/user/task/1a0", "/tasks/1a0"),
        ("/task?id=1a0&refresh=5&d=true", "/tasks/1a0"),
        ("/task", "/tasks"),
        ("/bot?id=vm1", "/bots/vm1"),
        ("/bot?id=a/b&sort_events=x", "/bots/a%2Fb"),
        ("/bot?id=//evil.example", "/bots/%2F%2Fevil.example"),
        ("/task?id=..%2f..%2f%2fevil.example", "/tasks/..%2F..%2F%2Fevil.example"),
        ("/task?id=%0d%0aset-cookie:a", "/tasks/%0D%0Aset-cookie%3Aa"),
        ("/botlist", "/bots"),
        ("/botlist?c=id&c=os&f=pool:linux&f=gpu:none&s=id:asc", "/bots?dimension=pool%3Alinux&dimension=gpu%3Anone"),
        ("/botlist?f=status:quarantined&f=task:busy", "/bots?state=quarantined&state=busy"),
        ("/tasklist", "/tasks"),
        ("/tasklist?f=state:PENDING&f=pool-tag:linux", "/tasks?state=WAITING&state=READY&tag=pool%3Alinux"),
        ("/tasklist?f=state:BOT_DIED&f=name:n&f=nonsense", "/tasks?state=BOT_DIED&name=n"),
        ("/tasklist?st=1700000000000&et=x", "/tasks?start=1700000000000000"),
    ],
)
def test_the_addresses_of_swarmings_page_lead_to_the_same_view(app: Inside, address: str, target: str):
    reply = app.get(address, token="")
    assert (reply.status, reply.headers["location"]) == (302, target)
