"""How a bot comes in: with a token that is gone afterwards, with none where its network is admitted, or not at all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.install.exit_codes import SUPERSEDED
from tests.bot.bots import a_bot, wait_for
from tests.bot.stub import Stub
from tests.bot.test_live import ended, live_bot, submit
from tests.deadline import HANG_S
from tests.live import LiveServer, live_server

ADMITTED = [{"network": "127.0.0.0/8", "name": "the lab", "role": "bot-bootstrap"}]

pytestmark = [pytest.mark.full, pytest.mark.untraced]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as started:
        yield started


@pytest.fixture(scope="module")
def admitting() -> Iterator[LiveServer]:
    with live_server(allow=ADMITTED) as started:
        yield started


def with_zip(server: LiveServer, folder: Path) -> Path:
    folder.mkdir()
    (folder / "bot.zip").write_bytes(server.call("GET", "/bot/v1/zip").data)
    return folder


def authenticated(server: LiveServer, name: str) -> str:
    found: Any = server.get(f"/api/v1/bots/{name}")
    return str(found[1]["authenticated"]) if found[0] == 200 else ""


@pytest.mark.short
def test_a_bot_needs_no_token_where_the_server_admits_its_network(admitting: LiveServer, tmp_path: Path):
    with a_bot(admitting.url, with_zip(admitting, tmp_path / "free"), "--pool", "free", token=""):
        assert ended(admitting, submit(admitting, "free", "/bin/true"))["result"]["state"] == "SUCCEEDED"
        assert authenticated(admitting, "free") == "the lab"
    with a_bot(admitting.url, tmp_path / "free", token=""):
        wait_for(lambda: authenticated(admitting, "free") == "free", "its own credential")


@contextlib.contextmanager
def bootstrapped(script: bytes, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {"HOME": str(folder.parent), "PATH": os.environ["PATH"], "MYRMIDON_BOT_DIR": str(folder)}
    with (folder.parent / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
        )
    assert process.stdin is not None
    process.stdin.write(script)
    process.stdin.close()
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(HANG_S)


def test_the_script_for_a_new_machine_needs_no_token_there_either(admitting: LiveServer, tmp_path: Path):
    script = admitting.call("GET", "/bootstrap?bot_id=fresh&pool=fresh&dimension=shelf:3", token="")
    assert script.status == 200
    with bootstrapped(script.data, tmp_path / "bot"):
        wait_for(lambda: authenticated(admitting, "fresh"), "the new bot")
        shown = admitting.get("/api/v1/bots/fresh")[1]
        assert (shown["dimensions"]["pool"], shown["dimensions"]["shelf"]) == (["fresh"], ["3"])


def test_the_script_leaves_its_token_in_no_file_and_no_environment(server: LiveServer, tmp_path: Path):
    token = server.new_token("bot-bootstrap")
    script = server.call("GET", f"/bootstrap?tok={token}&bot_id=scripted&pool=scripted", token="").data
    with bootstrapped(script, tmp_path / "bot") as process:
        wait_for(lambda: authenticated(server, "scripted"), "the new bot")
        wait_for(lambda: not (tmp_path / "bot" / "token").exists(), "the end of its token")
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path for path in files if token.encode() in path.read_bytes()] == []
        pids = [process.pid, int((tmp_path / "bot" / "bot.pid").read_text())]
        shown = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for pid in pids for name in ("environ", "cmdline"))
        assert token.encode() not in shown


def test_a_bot_without_a_token_says_so_where_one_is_needed(server: LiveServer, tmp_path: Path):
    folder = with_zip(server, tmp_path / "b")
    command = [sys.executable, str(folder / "bot.zip"), "start", "--dir", str(folder)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=HANG_S)
    assert (done.returncode, b"use --token-file FILE" in done.stderr) == (2, True)


def test_a_bot_without_a_token_starts_while_its_server_is_away(stub: Stub, tmp_path: Path):
    stub.down = True
    with a_bot(stub.url, tmp_path / "b1", token=""):
        wait_for(lambda: (tmp_path / "b1" / "bot.pid").exists(), "its process")
        stub.down = False
        assert stub.run("/bin/true")["exit_code"] == 0
        assert "Authorization" not in stub.headers[0]


@pytest.mark.short
def test_a_revoked_bot_comes_back_with_a_token_that_is_put_into_its_folder(server: LiveServer, tmp_path: Path):
    with live_bot(server, tmp_path / "revoked", "revoked"):
        wait_for(lambda: not (tmp_path / "revoked" / "token").exists(), "the end of its token")
        assert server.post("/api/v1/bots/revoked/revoke")[0] == 200
        (tmp_path / "new").write_text(server.new_token("bot-bootstrap"))
        (tmp_path / "new").rename(tmp_path / "revoked" / "token")
        assert ended(server, submit(server, "revoked", "/bin/true"))["result"]["state"] == "SUCCEEDED"
        assert not (tmp_path / "revoked" / "token").exists()


def test_a_copy_of_a_bot_displaces_it_once_and_both_are_quarantined_when_they_go_on(server: LiveServer, tmp_path: Path):
    """As with two machines made from one disk, whose bots are started again whenever they end."""
    ours, copy = tmp_path / "ours" / "twin", tmp_path / "copy" / "twin"

    def reason() -> str:
        return str(server.get("/api/v1/bots/twin")[1]["quarantined"] or "")

    with live_bot(server, ours, "twins") as first:
        wait_for(lambda: (ours / "credential").exists(), "its credential")
        copy.mkdir(parents=True)
        for name in ("bot.zip", "bot.json", "credential", "session"):
            (copy / name).write_bytes((ours / name).read_bytes())
        with a_bot(server.url, copy, token="") as second:
            assert first.process.wait(HANG_S) == SUPERSEDED
            assert reason() == "", "one of them has given way"
            with a_bot(server.url, ours, token=""):
                assert second.process.wait(HANG_S) == SUPERSEDED
                assert "two bots use this id" in reason()
