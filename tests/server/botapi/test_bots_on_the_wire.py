"""Bots over real HTTP: a whole life, replies that are lost, a server that is killed, credentials that are not good."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from myrmidon.server.facades import every_route
from tests.deadline import HANG_S, POLL_S
from tests.live import live_server
from tests.server.wire import WireBot, a_task, held, num_held, piece, wait_for

OLD_PYTHONS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python"))
pytestmark = pytest.mark.untraced


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    with live_server(f"sqlite:///{folder}/myrmidon.db", folder=folder, failed_attempts=1000) as started:
        yield started


@pytest.fixture
def own_server(tmp_path):
    with live_server(f"sqlite:///{tmp_path}/myrmidon.db", folder=tmp_path) as started:
        yield started


def state_of(server, task_id):
    return server.get(f"/api/v1/tasks/{task_id}")[1]["result"]["state"]


def submit(server, *tasks):
    status, answer = server.post("/api/v1/tasks", {"tasks": list(tasks)})
    assert status == 200, answer
    return [one["task_id"] for one in answer["tasks"]]


def test_a_whole_life_over_http(server):
    bot = WireBot(server, "life")
    welcome = bot.shake(token=server.new_token("bot-bootstrap"), version="")
    assert (welcome["poll_s"], welcome["heartbeat_s"], welcome["quarantined"]) == (30.0, 10.0, None)
    assert 0 < welcome["start_within_s"] < HANG_S, "a bot starts no run that the server may have given to another one"
    assert len(welcome["version"]) == 64
    (task_id,) = submit(server, a_task("echo"))
    task = bot.work()[0]
    bot.start(task)
    chance = random.Random(1)
    whole = chance.randbytes(3 << 20)
    for offset in range(0, len(whole), 1 << 20):
        status, stored = bot.log(task, 0, offset, whole[offset : offset + (1 << 20)])
        assert status == 200, stored
    assert bot.log(task, 0, 0, b"")[1]["length"] == len(whole)
    assert bot.call("/bot/v1/heartbeat", {"session": bot.session, "holds": [[task["run"], task["token"]]]})[1] == {
        "stop": [],
        "order": None,
        "version": None,
        "zip_hmac": None,
    }
    bot.finish(task, 7)
    assert state_of(server, task_id) == "FAILED"
    got = server.call("GET", f"/api/v1/tasks/{task_id}/log?stream=stdout&limit={8 << 20}")
    assert got.headers["x-log-length"] == str(len(whole))
    assert hashlib.sha256(got.data).hexdigest() == hashlib.sha256(whole).hexdigest()
    assert bot.call("/bot/v1/event", {"session": bot.session, "kind": "bot_shutdown"})[0] == 200


def test_output_at_a_place_that_no_log_reaches_is_refused(server):
    bot = WireBot(server, "far out")
    bot.dimensions["os"] = ["far out"]
    bot.shake()
    submit(server, {**a_task(), "slices": [{"properties": {"dimensions": bot.dimensions, "command": ["true"]}}]})
    task = bot.work()[0]
    for offset in ((1 << 50) + 1, 1 << 62, (1 << 63) - 2):
        status, refused = bot.log(task, 0, offset, b"abc")
        assert (status, refused["error"]["code"]) == (400, "request.invalid")
        assert "offset" in json.dumps(refused)
        ask = {"session": bot.session, "logs": [piece(task, 0, offset, b"abc")]}
        status, refused = bot.call("/bot/v1/exchange", ask)
        assert (status, refused["error"]["code"]) == (400, "request.invalid")
    assert bot.log(task, 0, 1 << 50, b"abc")[1]["length"] == (1 << 50) + 3
    bot.finish(task)


def called(server, bot, path, body):
    """A connection on which a call was sent; its answer is not read."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {bot.credential}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    line = socket.create_connection(("127.0.0.1", server.port))
    line.sendall(head.encode() + data)
    return line


def cut_short(server, bot, path, body, *, read):
    """Send a call and hang up: before the answer, or in the middle of it."""
    with called(server, bot, path, body) as line:
        if read:
            assert line.recv(read)


def insist(bot, ask):
    """The poll that was cut may arrive after the one that repeats it, which then goes home empty and comes again."""
    while not (answer := bot.call("/bot/v1/exchange", ask)[1])["tasks"]:
        pass
    return answer


@pytest.mark.parametrize("read", [0, 20], ids=["lost", "half"])
def test_a_call_whose_answer_was_lost_or_cut_is_repeated_with_the_same_result(server, read):
    bot = WireBot(server, f"cut-{read}")
    bot.dimensions["os"] = [f"cut-{read}"]
    bot.shake()
    wanted = {"pool": ["default"], "os": [f"cut-{read}"]}
    raw = {"name": "t", "slices": [{"properties": {"dimensions": wanted, "command": ["true"]}}]}
    ids = submit(server, raw, raw)
    bot.nonce += 1
    claim = {"session": bot.session, "nonce": bot.nonce, "n": 1, "wait_s": POLL_S}
    cut_short(server, bot, "/bot/v1/exchange", claim, read=read)
    first = insist(bot, claim)
    assert bot.call("/bot/v1/exchange", claim)[1] == first
    (task,) = first["tasks"]
    bot.nonce += 1
    report = {
        "session": bot.session,
        "nonce": bot.nonce,
        "n": 1,
        "wait_s": POLL_S,
        "reports": [bot.finish_of(task, duration=1.0)],
        "logs": [piece(task, 0, 0, b"hello"), piece(task, 1, 0, b"")],
    }
    cut_short(server, bot, "/bot/v1/exchange", report, read=read)
    second = insist(bot, report)
    assert bot.call("/bot/v1/exchange", report)[1] == second
    assert second["replies"] == [{"outcome": "accepted", "stop": False}]
    assert second["log_lengths"] == [5, 0]
    assert len(second["tasks"]) == 1
    bot.finish(second["tasks"][0])
    assert [state_of(server, one) for one in ids] == ["SUCCEEDED", "SUCCEEDED"]
    for one in ids:
        runs = server.get(f"/api/v1/tasks/{one}")[1]["runs"]
        assert len(runs) == 1, "a lost answer must not cost a run"


def test_a_held_poll_whose_connection_is_lost_is_let_go(server):
    bot = WireBot(server, "vanishes")
    bot.dimensions["os"] = ["vanishes"]
    bot.shake()
    wait_for(lambda: num_held(server) == 0)
    ask = {"session": bot.session, "nonce": 1, "n": 1, "wait_s": POLL_S}
    with called(server, bot, "/bot/v1/exchange", ask):
        wait_for(lambda: num_held(server) == 1)
    wait_for(lambda: num_held(server) == 0)
    assert "Traceback" not in server.log


def test_a_held_poll_is_answered_when_work_comes(server):
    bot = WireBot(server, "waits")
    bot.dimensions["os"] = ["waits"]
    bot.shake()
    wanted = {"pool": ["default"], "os": ["waits"]}
    raw = {"name": "t", "slices": [{"properties": {"dimensions": wanted, "command": ["true"]}}]}
    for _ in range(5):
        with held(server, bot.exchange, wait_s=POLL_S) as poll:
            submit(server, raw)
            (task,) = poll.result(HANG_S)["tasks"]
        bot.finish(task)


# ---------------------------------------------------------------- a server that dies


def test_a_killed_server_forgets_nothing_that_it_has_answered(own_server):
    server = own_server
    bot = WireBot(server, "b1")
    bot.shake()
    ids = submit(server, *[a_task() for _ in range(3)])
    first = bot.work()[0]
    bot.start(first)
    bot.log(first, 0, 0, b"before the crash")
    server.kill()
    server.start()
    answer = bot.exchange(nonce=bot.nonce, n=0, holds=[[first["run"], first["token"]]])
    assert answer["stop"] == [], "the run is still the bot's"
    bot.log(first, 0, 16, b", and after")
    second = bot.exchange(n=1, reports=[bot.finish_of(first)], wait_s=POLL_S)
    assert second["replies"] == [{"outcome": "accepted", "stop": False}]
    assert state_of(server, ids[0]) == "SUCCEEDED"
    assert server.call("GET", f"/api/v1/tasks/{ids[0]}/log").data == b"before the crash, and after"
    assert len(second["tasks"]) == 1


def test_a_kill_in_the_middle_of_many_exchanges_loses_and_doubles_nothing(own_server):
    """The bots repeat what was not answered; every task runs once, and every answer that was given still holds."""
    server = own_server
    bots = [WireBot(server, f"b{i}") for i in range(4)]
    for bot in bots:
        bot.shake()
    ids = submit(server, *[a_task() for _ in range(200)])
    finished: list[str] = []

    def at_least(enough):
        return len(finished) >= enough

    def stubborn(bot, body):
        while True:
            try:
                status, answer = bot.call("/bot/v1/exchange", body)
            except Exception:  # noqa: BLE001 - the server is dead for a moment
                time.sleep(0.02)
                continue
            if status == 200:
                return answer

    def labour(bot):
        reports: list[Any] = []
        done = 0
        while True:
            bot.nonce += 1
            body = {"session": bot.session, "nonce": bot.nonce, "n": 4, "wait_s": 1, "reports": reports}
            answer = stubborn(bot, body)
            assert all(reply["outcome"] == "accepted" for reply in answer["replies"]), answer
            finished.extend(report["run"] for report in reports)
            reports = [bot.finish_of(task, duration=0.02) for task in answer["tasks"]]
            done += len(reports)
            if not reports and len(finished) >= len(ids):
                return done

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(labour, bot) for bot in bots]
        for enough in (40, 110):
            wait_for(partial(at_least, enough))
            server.kill()
            server.start()
        assert sum(one.result(HANG_S) for one in working) == 200
    assert len(finished) == len(set(finished)) == 200
    status, waited = server.post("/api/v1/tasks/wait", {"task_ids": ids, "mode": "all", "wait_s": POLL_S})
    assert (status, waited["done"]) == (200, True)
    assert {(one["state"], one["run"][-2:]) for one in waited["tasks"]} == {("SUCCEEDED", "01")}


def test_a_bot_that_runs_a_command_is_held_beside_other_commands_and_gets_a_function_when_one_comes(own_server):
    server = own_server
    bot = WireBot(server, "slots")
    bot.shake(token=server.new_token("bot-bootstrap"))
    first, second = submit(server, a_task("long"), a_task("other"))
    running = bot.work()[0]
    holds = [[running["run"], running["token"]]]
    properties = {"dimensions": {"pool": ["default"], "os": ["Linux"]}}
    function = {"function": {"package_name": "p", "func_name": "f"}, "slices": [{"properties": properties}]}
    with held(server, bot.exchange, wait_s=POLL_S, n=4, accepts="functions", holds=holds) as poll:
        (third,) = submit(server, a_task("another"))
        assert server.post("/api/v1/jobs", {"job": {"tasks": {"f": {"task": function}}}})[0] == 200
        [task] = poll.result(HANG_S)["tasks"]
    assert task["function"]["func_name"] == "f"
    assert {state_of(server, task_id) for task_id in (first, second, third)} == {"RUNNING", "READY"}
    bot.finish(running)
    assert bot.work()[0]["command"] == ["other"]


def test_a_stop_answers_held_polls_and_ends(own_server):
    server = own_server
    bot = WireBot(server, "b1")
    bot.shake()
    with held(server, bot.exchange, wait_s=POLL_S) as poll:
        assert server.stop() == 0
        assert poll.result(HANG_S)["tasks"] == []


# ---------------------------------------------------------------- who may do what


def test_credentials_that_are_not_good_are_refused(server):
    mine, other = WireBot(server, "mine"), WireBot(server, "other")
    mine.shake()
    other.shake()
    ask = {"session": mine.session, "nonce": 1, "n": 0}
    forged = mine.credential[:-4] + ("0000" if mine.credential[-4:] != "0000" else "1111")
    head, _, sign = mine.credential.partition(".")
    swapped = f"{other.credential.partition('.')[0]}.{sign}"
    for bad in (forged, swapped, head, "myb_", "nonsense", ""):
        assert server.post("/bot/v1/exchange", ask, token=bad)[0] == 401, bad
    assert server.post("/bot/v1/exchange", ask, token=server.token)[0] == 403, "an administrator is no bot"
    assert server.post("/bot/v1/exchange", ask, token=mine.credential)[0] == 200
    body = {"bot_id": "other", "session": 1, "dimensions": other.dimensions}
    assert server.post("/bot/v1/handshake", body, token=mine.credential)[0] == 403
    for role in ("user", "viewer"):
        assert server.post("/bot/v1/handshake", body, token=server.new_token(role))[0] == 403
    assert server.get("/api/v1/tasks", token=mine.credential)[0] == 403, "a bot is no user"
    assert server.get(f"/bootstrap?tok={server.new_token('user')}", token="")[0] == 403


OF_BOTS = [line for line in every_route() if line.path.startswith("/bot/v1/") and line.method == "POST"]


@pytest.mark.parametrize("route", OF_BOTS, ids=lambda line: line.path)
def test_no_call_of_a_bot_takes_a_credential_that_is_not_good(server, route):
    """Made from the route table, so that a new call is tried on the day it appears."""
    name = f"cred-{route.path.split('/')[3]}"
    mine, other, gone = (WireBot(server, f"{name}-{who}") for who in ("mine", "other", "gone"))
    for bot in (mine, other, gone):
        bot.dimensions["os"] = [name]
        bot.shake()
    wanted = {"pool": ["default"], "os": [name]}
    submit(server, {"name": "t", "slices": [{"properties": {"dimensions": wanted, "command": ["true"]}}]})
    (task,) = mine.work()
    path = route.path.format(run=task["run"], stream=0) + ("?offset=0" if "{run}" in route.path else "")
    hello = {"bot_id": mine.name, "session": mine.session, "dimensions": mine.dimensions}
    held = {"session": mine.session, "holds": [[task["run"], task["token"]]]}
    body = {"/bot/v1/handshake": hello, "/bot/v1/event": {**held, "kind": "bot_log", "message": "x"}}
    data = b"stolen" if "{run}" in route.path else body.get(route.path, held)
    head, _, sign = mine.credential.partition(".")
    assert server.delete(f"/api/v1/bots/{gone.name}?force=true")[0] == 200
    bad = {
        "forged": mine.credential[:-4] + ("0000" if not mine.credential.endswith("0000") else "1111"),
        "with another's signature": f"{head}.{other.credential.partition('.')[2]}",
        "another's name": f"{other.credential.partition('.')[0]}.{sign}",
        "of another bot": other.credential,
        "of a bot that was deleted": gone.credential,
        "without a signature": head,
        "nothing": "",
        "a user's": server.new_token("user"),
    }
    for what, credential in bad.items():
        answer = server.call("POST", path, data, token=credential, headers={"X-Run-Token": task["token"]})
        assert answer.status in (401, 403, 404, 409), (what, answer.status, answer.data)
    assert mine.finish(task)["replies"] == [{"outcome": "accepted", "stop": False}], "the run is still its own"
    assert server.call("GET", f"/api/v1/tasks/{task['run']}/log").data == b""


def test_a_bot_of_another_installation_is_a_stranger(server, own_server):
    theirs = WireBot(own_server, "mine")
    theirs.shake()
    ask = {"session": theirs.session, "nonce": 1, "n": 0}
    assert server.post("/bot/v1/exchange", ask, token=theirs.credential)[0] == 401
    assert server.post("/bot/v1/handshake", {}, token=own_server.token)[0] == 401


def test_a_revoked_bootstrap_token_brings_no_bot_in(server):
    status, made = server.post("/api/v1/tokens", {"name": "short", "role": "bot-bootstrap"})
    assert status == 200
    bot = WireBot(server, "late")
    bot.shake(token=made["token"])
    listed = server.get("/api/v1/tokens")[1]["tokens"]
    (token_id,) = [one["id"] for one in listed if one["name"] == "short"]
    assert server.delete(f"/api/v1/tokens/{token_id}")[0] == 200
    body = {"bot_id": "late", "session": bot.session, "dimensions": bot.dimensions}
    assert server.post("/bot/v1/handshake", body, token=made["token"])[0] == 401
    assert bot.exchange(n=0)["order"] is None, "the bot that is in stays in"


# ---------------------------------------------------------------- coming to a new machine


def test_the_zip_is_handed_out_by_its_digest_only_to_those_who_may_have_it(server):
    token = server.new_token("bot-bootstrap")
    got = server.call("GET", f"/bot/v1/zip?tok={token}", token="")
    tag = got.headers["etag"]
    assert (got.status, got.data[:2]) == (200, b"PK")
    same = server.call("GET", f"/bot/v1/zip/{tag.strip(chr(34))}", token=token)
    assert same.data == got.data
    assert server.call("GET", "/bot/v1/zip", token=token, headers={"If-None-Match": tag}).status == 304
    assert server.call("GET", f"/bot/v1/zip/{'0' * 64}", token=token).status == 404
    assert server.call("GET", "/bot/v1/zip", token="").status == 401


@pytest.mark.parametrize("python", [sys.executable, *map(str, OLD_PYTHONS[-1:])])
def test_one_line_turns_a_machine_into_a_bot(server, python, tmp_path):
    """As a person does it: the script from the server into Python, and a task runs on the new bot."""
    name = f"new-{Path(python).resolve().parent.parent.name}"
    script = server.call("GET", f"/bootstrap?tok={server.new_token('bot-bootstrap')}&bot_id={name}", token="").data
    folder = tmp_path / "bot"
    with (tmp_path / "err").open("wb") as errors:
        process = subprocess.Popen(
            [python, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MYRMIDON_BOT_DIR": str(folder)},
            start_new_session=True,
        )
    try:
        assert process.stdin is not None
        process.stdin.write(script)
        process.stdin.close()
        wanted = {"pool": ["default"], "id": [name]}
        command = ["/bin/echo", "hello from a new bot"]
        properties = {"dimensions": wanted, "command": command}
        (task_id,) = submit(server, {"name": "first", "slices": [{"properties": properties}]})
        body = {"task_ids": [task_id], "mode": "all", "wait_s": POLL_S}
        status, waited = server.post("/api/v1/tasks/wait", body)
        assert (status, waited["done"]) == (200, True), (tmp_path / "err").read_text()[-2000:]
        assert waited["tasks"][0]["state"] == "SUCCEEDED"
        assert server.call("GET", f"/api/v1/tasks/{task_id}/log").data == b"hello from a new bot\n"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# ---------------------------------------------------------------- streams


def events_of(server, path, token=None):
    """The events of a stream over HTTP, as they come."""
    answer = server.call("GET", path, preload_content=False)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    rest = b""
    while True:
        more = answer.read1(65536)
        if not more:
            return
        rest += more
        while b"\n\n" in rest:
            block, _, rest = rest.partition(b"\n\n")
            fields = dict(
                line.split(": ", 1) for line in block.decode().split("\n") if line and not line.startswith(":")
            )
            if fields:
                yield fields["id"], fields["event"], json.loads(fields["data"])


def test_logs_and_events_are_streamed_over_http(server):
    bot = WireBot(server, "streams")
    bot.dimensions["os"] = ["streams"]
    bot.shake()
    wanted = {"pool": ["default"], "os": ["streams"]}
    (task_id,) = submit(server, {"name": "t", "slices": [{"properties": {"dimensions": wanted, "command": ["true"]}}]})
    (task,) = bot.work()
    log = events_of(server, f"/api/v1/tasks/{task_id}/log/follow")
    story = events_of(server, "/api/v1/events?after=0")
    bot.exchange(n=0, logs=[piece(task, 0, 0, b"hello")])
    assert next(log)[1:] == (
        "log",
        {"run": task["run"], "stream": 0, "offset": 0, "data": "aGVsbG8="},
    )
    bot.finish(task)
    _, event, said = next(log)
    assert (event, said["state"], said["exit_code"]) == ("end", "SUCCEEDED", 0)
    states = []
    for _, _, told in story:
        if told["id"] == task_id:
            states.append(told["state"])
            if told["state"] == "SUCCEEDED":
                break
    assert states == ["READY", "RUNNING", "SUCCEEDED"]
