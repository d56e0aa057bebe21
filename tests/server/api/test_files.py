"""Files of clients and of runs: uploads are verified, and a digest alone gives no right to a file."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from hashlib import sha256

import pytest

from myrmidon.model.task_request import Payload
from myrmidon.server.settings import Quota
from myrmidon.store.tables import stored_file
from myrmidon.wire.files import MAX_FILE_BYTES
from tests.server.functions import file_path, finish_with, run_headers, stored_constant, world_of
from tests.server.inside import BOT, Inside, Reply, inside
from tests.world import a_function, a_node, finish

SMALL = b"a large constant" * 100
LARGE = b"0123456789abcdef" * (3 << 16)


@pytest.fixture
def app(tmp_path, db_url):
    with inside(tmp_path, db_url) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


def digest_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def upload(app: Inside, content: bytes, **options) -> Reply:
    return app.put(f"/api/v1/files/{digest_of(content)}", content, **options)


def missing(app: Inside, *contents: bytes, **options) -> list[str]:
    files = [{"digest": digest_of(content), "size": len(content)} for content in contents]
    reply = app.post("/api/v1/files/missing", {"files": files}, **options)
    assert reply.status == 200, reply
    found: list[str] = reply.json["missing"]
    return found


def folder_of(app: Inside):
    return app.context.files.folder


# ---------------------------------------------------------------- clients


def test_a_file_is_missing_until_it_is_uploaded(app):
    assert missing(app, SMALL, LARGE) == sorted([digest_of(SMALL), digest_of(LARGE)])
    for content in (SMALL, LARGE):
        assert upload(app, content).json == {"digest": digest_of(content), "size": len(content)}
        assert folder_of(app).read(digest_of(content)) == content
    assert missing(app, SMALL, LARGE) == []
    assert upload(app, SMALL).status == 200


def test_a_file_of_another_group_is_missing_until_the_group_has_sent_its_bytes(app):
    other = app.token("user", "other")
    upload(app, SMALL)
    assert missing(app, SMALL, token=other) == [digest_of(SMALL)]
    upload(app, SMALL, token=other)
    assert missing(app, SMALL, token=other) == []


def test_an_administrator_names_the_group(app):
    reply = app.put(f"/api/v1/files/{digest_of(SMALL)}?group=other", SMALL)
    assert reply.status == 200
    assert missing(app, SMALL) == [digest_of(SMALL)]
    assert missing(app, SMALL, token=app.token("user", "other")) == []
    assert app.put(f"/api/v1/files/{digest_of(SMALL)}?group=other", SMALL, token=app.token("user")).code == "forbidden"


def test_a_running_task_uploads_for_its_own_group(app):
    token = app.token("run", "other")
    assert upload(app, SMALL, token=token).status == 200
    assert missing(app, SMALL, token=token) == []
    assert missing(app, SMALL, token=app.token("user", "other")) == []
    assert missing(app, SMALL) == [digest_of(SMALL)]


def announced(app: Inside, content: bytes, **options) -> Reply:
    return upload(app, content, headers={"content-length": str(len(content))}, **options)


def test_a_group_stores_no_more_bytes_than_its_quota(tmp_path, db_url, monkeypatch):
    first, second, limit = SMALL, SMALL[::-1], len(SMALL) + 10
    with inside(tmp_path, db_url, quota=Quota(stored_bytes=limit)) as app:
        app.post("/api/v1/groups", {"name": "other"})
        assert announced(app, first).status == 200
        refused = announced(app, second)
        assert (refused.status, refused.code) == (413, "storage_quota")
        assert f"its quota is {limit} bytes, and this file has {len(second)}." in refused.json["error"]["message"]
        assert not folder_of(app).has(digest_of(second), len(second))
        assert announced(app, second, token=app.token("user", "other")).status == 200, "another group, another quota"
        world_of(app).db.write(
            partial(stored_file.delete_unused, digests=[digest_of(first)], before=app.context.now() + 1)
        )
        monkeypatch.setattr("myrmidon.server.quotas.COUNT_MAX_AGE", -1)
        assert announced(app, second).status == 200, "files that were deleted do not count"
        assert announced(app, second).status == 200, "the group has this file already"


def test_an_upload_of_unknown_size_is_refused_once_the_quota_is_used_up(tmp_path):
    with inside(tmp_path, quota=Quota(stored_bytes=len(SMALL))) as app:
        assert app.put(f"/api/v1/files/{digest_of(SMALL)}", SMALL[::-1]).status == 400, "this one needs no quota"
        assert upload(app, SMALL).status == 200
        assert upload(app, b"more").code == "storage_quota"


def test_a_file_that_is_gone_from_the_folder_is_missing(app):
    upload(app, SMALL)
    folder_of(app).path_of(digest_of(SMALL)).unlink()
    assert missing(app, SMALL) == [digest_of(SMALL)]
    upload(app, SMALL)
    assert missing(app, SMALL) == []


def test_a_wrong_size_makes_a_file_missing(app):
    upload(app, SMALL)
    reply = app.post("/api/v1/files/missing", {"files": [{"digest": digest_of(SMALL), "size": 1}]})
    assert reply.json == {"missing": [digest_of(SMALL)]}


@pytest.mark.parametrize("given", [b"", b"other bytes", SMALL[:-1], SMALL + b"x"])
def test_other_bytes_are_refused_and_not_stored(app, given):
    reply = app.put(f"/api/v1/files/{digest_of(SMALL)}", given)
    assert (reply.status, reply.code) == (400, "request.invalid")
    assert digest_of(given) in reply.json["error"]["message"]
    assert missing(app, SMALL) == [digest_of(SMALL)]
    assert not folder_of(app).has(digest_of(SMALL), len(SMALL))
    assert upload(app, SMALL).status == 200


@pytest.mark.parametrize("digest", ["nope", "A" * 64, "a" * 65, "..%2f..%2fx", "%2e%2e", f"{'a' * 63}%0a"])
def test_only_a_digest_names_a_file(app, digest):
    reply = app.put(f"/api/v1/files/{digest}", SMALL)
    assert reply.status in (400, 404)
    listed = app.post("/api/v1/files/missing", {"files": [{"digest": "../x", "size": 1}]})
    assert (listed.status, listed.code) == (400, "request.invalid")


def test_a_file_over_the_limit_is_refused_before_it_is_sent(app):
    announced = {"Content-Length": str(MAX_FILE_BYTES + 1)}
    reply = app.put(f"/api/v1/files/{digest_of(SMALL)}", headers=announced, pieces=[])
    assert (reply.status, reply.code) == (413, "request.too_large")
    assert str(MAX_FILE_BYTES) in reply.json["error"]["message"]


def test_a_file_over_the_limit_is_refused_while_it_arrives(app):
    piece = b"x" * (16 << 20)
    reply = app.put(f"/api/v1/files/{digest_of(SMALL)}", pieces=[piece] * 4 + [b"y", b""])
    assert (reply.status, reply.code) == (413, "request.too_large")
    assert reply.headers["connection"] == "close"
    assert left_over(app) == []


def left_over(app: Inside) -> list[str]:
    """Parts of files in the folder."""
    return os.listdir(folder_of(app).root / "tmp")


def test_the_largest_file_is_stored_piece_by_piece(app):
    content = b"z" * MAX_FILE_BYTES
    pieces = [content[start : start + (1 << 20)] for start in range(0, MAX_FILE_BYTES, 1 << 20)]
    reply = app.put(f"/api/v1/files/{digest_of(content)}", pieces=[*pieces, b""])
    assert reply.json == {"digest": digest_of(content), "size": MAX_FILE_BYTES}


def test_other_calls_are_answered_while_a_file_arrives(app):
    """A body counts as arriving until its last piece, and not as load."""

    async def story() -> tuple[Reply, Reply, int]:
        begun, end = asyncio.Event(), asyncio.Event()

        async def body() -> bytes:
            begun.set()
            await end.wait()
            return SMALL

        path = f"/api/v1/files/{digest_of(SMALL)}"
        uploading = asyncio.create_task(app.ask("PUT", path, waiting_for=body))
        await begun.wait()
        other = await app.ask("GET", "/api/v1/server")
        arriving = app.context.state.num_bodies
        end.set()
        return await uploading, other, arriving

    uploaded, other, arriving = app.run(story())
    assert (uploaded.status, other.status, arriving) == (200, 200, 1)
    assert (app.context.state.num_bodies, app.context.state.num_calls) == (0, 0)


def test_a_file_that_arrives_too_slowly_is_refused(tmp_path):
    with inside(tmp_path, body_timeout_s=0.1) as app:
        reply = app.put(f"/api/v1/files/{digest_of(SMALL)}", pieces=[SMALL[:10]])
        assert (reply.status, reply.code) == (408, "request.too_slow")
        assert left_over(app) == []


def test_an_upload_whose_server_stops_leaves_nothing(app):
    async def story() -> None:
        begun = asyncio.Event()

        async def body() -> bytes:
            begun.set()
            return await asyncio.Future()

        path = f"/api/v1/files/{digest_of(SMALL)}"
        uploading = asyncio.create_task(app.ask("PUT", path, waiting_for=body))
        await begun.wait()
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading

    app.run(story())
    assert left_over(app) == []


def test_a_full_disk_is_told_and_the_upload_can_be_repeated(app, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        reply = upload(app, SMALL)
    assert (reply.status, reply.code) == (503, "files.unavailable")
    assert "is full" in reply.json["error"]["message"]
    assert reply.headers["retry-after"]
    assert upload(app, SMALL).status == 200


# ---------------------------------------------------------------- runs


def a_live_run(app: Inside, *constants: bytes):
    """A run of a function with these constants, on the bot of the tests."""
    for content in constants:
        upload(app, content)
    world = world_of(app)
    inputs = [stored_constant(digest_of(content), len(content)) for content in constants]
    world.job({"f": a_node(task=a_function(*inputs))})
    return world, world.running(BOT)[0]


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["in one piece", "in several pieces"])
def test_a_bot_fetches_the_inputs_of_its_run(app, content):
    _, run = a_live_run(app, content)
    reply = app.get(file_path(run, digest_of(content)), token=app.credential(BOT), headers=run_headers(run))
    assert (reply.status, reply.body) == (200, content)
    assert reply.headers["content-length"] == str(len(content))
    assert reply.headers["content-type"] == "application/octet-stream"


def test_a_bot_fetches_the_parts_of_a_gathered_input(app):
    upload(app, SMALL)
    world = world_of(app)
    part = {"label": "a", "position": 0, "type": "string"}
    gathered = {"kind": "gathered", "type": "List<string>", "parts": [part]}
    world.job({"a": a_node(task=a_function(outputs=("string",))), "join": a_node(task=a_function(gathered))})
    first = world.running(BOT)[0]
    world.report(finish_with(first, ("string", Payload(digest=digest_of(SMALL), size=len(SMALL)))))
    join = world.running(BOT)[0]
    reply = app.get(file_path(join, digest_of(SMALL)), token=app.credential(BOT), headers=run_headers(join))
    assert (reply.status, reply.body) == (200, SMALL)


def test_a_bot_fetches_the_code_of_its_run(app):
    upload(app, SMALL)
    upload(app, LARGE)
    world = world_of(app)
    function = {"package_name": "lib", "func_name": "f", "code": digest_of(SMALL)}
    other = {**function, "code": digest_of(LARGE)}
    world.job(
        {
            "f": a_node(task={**a_function(), "function": function}),
            "g": a_node(task={**a_function(), "function": other}),
        }
    )
    run = world.running(BOT)[0]
    ask = {"token": app.credential(BOT), "headers": run_headers(run)}
    assert app.get(file_path(run, digest_of(SMALL)), **ask).body == SMALL
    assert app.get(file_path(run, digest_of(LARGE)), **ask).status == 404


def test_a_bot_fetches_no_file_that_its_run_does_not_need(app):
    _, run = a_live_run(app, SMALL)
    upload(app, LARGE)
    reply = app.get(file_path(run, digest_of(LARGE)), token=app.credential(BOT), headers=run_headers(run))
    assert (reply.status, reply.code) == (404, "not_found")


def test_a_bot_stores_what_its_run_has_produced_for_the_group_of_the_run(app):
    _, run = a_live_run(app)
    reply = app.put(file_path(run, digest_of(LARGE)), LARGE, token=app.credential(BOT), headers=run_headers(run))
    assert reply.json == {"digest": digest_of(LARGE), "size": len(LARGE)}
    assert missing(app, LARGE) == []
    assert missing(app, LARGE, token=app.token("user", "other")) == [digest_of(LARGE)]


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_files_of_a_run_are_for_its_own_bot_with_the_token_of_the_run(app, method):
    world, run = a_live_run(app, SMALL)
    world.bot("another")
    path, body = file_path(run, digest_of(SMALL)), SMALL if method == "PUT" else None
    token = app.credential(BOT)
    for wrong in (
        app.call(method, path, body, token=app.credential("another"), headers=run_headers(run)),
        app.call(method, path, body, token=token, headers={"X-Run-Token": "nope"}),
        app.call(method, path, body, token=token),
        app.call(method, path.replace("/runs/", "/runs/ff"), body, token=token, headers=run_headers(run)),
    ):
        assert (wrong.status, wrong.code) == (404, "not_found")
    assert app.call(method, path, body, token=token, headers=run_headers(run)).status == 200


@pytest.mark.parametrize("stored_by", ["nobody", "other", "default"])
def test_an_output_is_a_file_that_the_group_of_the_run_has(app, stored_by):
    if stored_by != "nobody":
        app.put(f"/api/v1/files/{digest_of(LARGE)}?group={stored_by}", LARGE)
    world, run = a_live_run(app)
    world.report(finish_with(run, ("int64", Payload(digest=digest_of(LARGE), size=len(LARGE)))))
    assert world.state(run.task_id) == ("SUCCEEDED" if stored_by == "default" else "FAILED")


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_files_of_a_run_end_with_it(app, method):
    world, run = a_live_run(app, SMALL)
    world.report(finish(run, b"\x01"))
    body = SMALL if method == "PUT" else None
    path = file_path(run, digest_of(SMALL))
    reply = app.call(method, path, body, token=app.credential(BOT), headers=run_headers(run))
    assert (reply.status, reply.code) == (404, "not_found")


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["in one piece", "in several pieces"])
def test_a_damaged_file_is_told_and_put_aside(app, content):
    _, run = a_live_run(app, content)
    path = folder_of(app).path_of(digest_of(content))
    path.write_bytes(content[:-1] + b"?")
    ask = {"token": app.credential(BOT), "headers": run_headers(run)}
    reply = app.get(file_path(run, digest_of(content)), **ask)
    assert (reply.status, reply.code) == (410, "files.damaged")
    assert (folder_of(app).root / "damaged" / digest_of(content)).exists()
    upload(app, content)
    assert app.get(file_path(run, digest_of(content)), **ask).body == content
