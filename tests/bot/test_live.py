"""The real server and the real bot from the zip that the server gives out, on this interpreter and on Python 3.8."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bots import BotProcess, a_bot, alive, wait_for
from tests.deadline import HANG_S
from tests.live import LiveServer, live_server

SHELL = "/bin/sh"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as started:
        yield started


@contextmanager
def live_bot(
    server: LiveServer, folder: Path, pool: str, *flags: str, python: str = sys.executable
) -> Iterator[BotProcess]:
    """A bot of a pool of its own, so that the tests of this file do not take each other's tasks."""
    token = server.new_token("bot-bootstrap")
    folder.mkdir(parents=True, exist_ok=True)
    wait_for(lambda: server.call("GET", "/bot/v1/zip", token=token).status == 200, "the zip")
    (folder / "bot.zip").write_bytes(server.call("GET", "/bot/v1/zip", token=token).data)
    with a_bot(server.url, folder, "--pool", pool, *flags, python=python, token=token) as bot:
        name = folder.name
        wait_for(lambda: server.get(f"/api/v1/bots/{name}")[0] == 200, f"{name}'s handshake")
        yield bot


def submit(server: LiveServer, pool: str, *command: str, **fields: Any) -> str:
    task: dict[str, Any] = {key: fields.pop(key) for key in ("retries", "secret_bytes", "lease_s") if key in fields}
    properties: dict[str, Any] = {
        "command": list(command),
        "dimensions": {"pool": [pool]},
        "grace_period_s": 1,
        **fields,
    }
    request: dict[str, Any] = {"name": "a test", "slices": [{"properties": properties}], **task}
    body = {"tasks": [request]}
    status, answer = server.post("/api/v1/tasks", body)
    assert status == 200, answer
    return str(answer["tasks"][0]["task_id"])


def ended(server: LiveServer, task_id: str) -> dict[str, Any]:
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        status, answer = server.post("/api/v1/tasks/wait", {"task_ids": [task_id], "wait_s": 20})
        if status == 200 and answer["done"]:
            return dict(server.get(f"/api/v1/tasks/{task_id}")[1])
    raise AssertionError(f"{task_id} did not end in time: {server.get(f'/api/v1/tasks/{task_id}')}")


def state(server: LiveServer, task_id: str) -> str:
    return str(server.get(f"/api/v1/tasks/{task_id}")[1]["result"]["state"])


def log(server: LiveServer, task_id: str, stream: str = "stdout") -> bytes:
    parts = b""
    while True:
        answer = server.call("GET", f"/api/v1/tasks/{task_id}/log?stream={stream}&offset={len(parts)}&limit=1000000")
        if answer.status != 200 or not answer.data:
            return parts
        parts += answer.data


@pytest.fixture(scope="module")
def pool(server: LiveServer, interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bot that many tests share."""
    name = "old" if "3.8" in interpreter else "new"
    with live_bot(server, tmp_path_factory.mktemp("live") / f"bot-{name}", name, python=interpreter):
        yield name


def test_exit_codes_and_both_streams_come_through(server: LiveServer, pool: str):
    task_id = submit(server, pool, SHELL, "-c", "echo out; echo err >&2; exit 3")
    told = ended(server, task_id)
    assert (told["result"]["state"], told["result"]["exit_code"]) == ("FAILED", 3)
    assert (log(server, task_id), log(server, task_id, "stderr")) == (b"out\n", b"err\n")


@pytest.mark.full
def test_ten_megabytes_are_equal_by_their_digest(server: LiveServer, pool: str):
    script = (
        "import random, sys\nchance = random.Random(1)\n"
        "for _ in range(1000): sys.stdout.buffer.write(chance.getrandbits(80000).to_bytes(10000, 'big'))"
    )
    task_id = submit(server, pool, sys.executable, "-c", script)
    assert ended(server, task_id)["result"]["state"] == "SUCCEEDED"
    wanted = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert hashlib.sha256(log(server, task_id)).digest() == hashlib.sha256(wanted).digest()


def test_everything_a_task_may_ask_for_is_there(server: LiveServer, pool: str):
    script = 'S="$MYRMIDON_SECRET_FILE"; tr h H < "$S"; cat "$S"; echo "$A"; pwd; ls ..; echo "$PATH" | cut -d: -f1'
    task_id = submit(
        server,
        pool,
        SHELL,
        "-c",
        script,
        env={"A": "b", "HOME": ""},
        env_prefixes={"PATH": ["bin"]},
        relative_cwd="here",
        caches=[{"name": "kept", "path": "store"}],
        secret_bytes=b64encode(b"hush\n").decode(),
    )
    assert ended(server, task_id)["result"]["state"] == "SUCCEEDED"
    changed, masked, a, cwd, *listed, path = log(server, task_id).decode().splitlines()
    assert (changed, masked) == ("HusH", "****")
    assert (a, cwd.endswith("/work/run/here"), listed) == ("b", True, ["here", "store"])
    assert path.endswith("/work/run/bin")


def test_a_time_limit_ends_as_one(server: LiveServer, pool: str):
    told = ended(server, submit(server, pool, SHELL, "-c", "sleep 600", execution_timeout_s=1))
    assert (told["result"]["state"], told["result"]["reason"]) == ("TIMED_OUT", "hard_timeout")


def test_a_command_that_does_not_exist_fails_with_a_reason(server: LiveServer, pool: str):
    task_id = submit(server, pool, "/no/such/thing")
    assert ended(server, task_id)["result"]["state"] == "FAILED"
    assert b"/no/such/thing could not be started" in log(server, task_id, "stderr")


def test_a_task_that_is_cancelled_while_it_runs_is_killed(server: LiveServer, pool: str, tmp_path: Path):
    pid = tmp_path / "pid"
    task_id = submit(server, pool, SHELL, "-c", f"echo $$ > {pid}; while :; do echo tick; sleep 0.1; done")
    wait_for(lambda: pid.exists() and pid.read_text().strip() and has_started(server, task_id), "the command's start")
    status, _ = server.post(f"/api/v1/tasks/{task_id}/cancel", {"kill_running": True})
    assert status == 200
    assert ended(server, task_id)["result"]["state"] == "KILLED"
    assert not alive(int(pid.read_text()))


@pytest.mark.full
def test_a_hundred_tasks_run_once_each(server: LiveServer, pool: str, tmp_path: Path):
    ledger = tmp_path / "ledger"
    made = [submit(server, pool, SHELL, "-c", f"echo {number} >> {ledger}") for number in range(100)]
    assert {ended(server, task_id)["result"]["state"] for task_id in made} == {"SUCCEEDED"}
    assert sorted(map(int, ledger.read_text().split())) == list(range(100))


def test_a_bot_that_is_killed_loses_its_run_and_the_task_is_tried_again(
    server: LiveServer, tmp_path: Path, notes: Path
):
    pids = notes / "pids"
    with live_bot(server, tmp_path / "killed", "killed") as bot:
        once = notes / "once"
        script = f"[ -e {once} ] && exit 0; touch {once}; setsid sleep 600 & echo $! > {pids}; sleep 600"
        task_id = submit(server, "killed", SHELL, "-c", script)
        wait_for(lambda: pids.exists() and pids.read_text().strip(), "the command's start")
        wait_for(lambda: has_started(server, task_id), "the run's start")
        os.kill(bot.worker(), signal.SIGKILL)
        told = ended(server, task_id)
        assert told["result"]["state"] == "SUCCEEDED"
        assert [run["state"] for run in told["runs"]] == ["BOT_DIED", "SUCCEEDED"]
        assert not alive(int(pids.read_text()))


def has_started(server: LiveServer, task_id: str) -> bool:
    runs = server.get(f"/api/v1/tasks/{task_id}")[1]["runs"]
    return bool(runs) and runs[0]["started_at"] is not None


@pytest.mark.full
def test_a_result_that_could_not_be_reported_is_delivered_after_both_have_died(tmp_path: Path, notes: Path):
    with live_server(folder=tmp_path / "server") as server, live_bot(server, tmp_path / "journal", "journal") as bot:
        go = notes / "go"
        script = f"echo before; while [ ! -e {go} ]; do sleep 0.02; done; echo after; exit 5"
        task_id = submit(server, "journal", SHELL, "-c", script)
        wait_for(lambda: log(server, task_id) == b"before\n", "the first line")
        server.kill()
        go.touch()
        journal = tmp_path / "journal" / "journal"
        wait_for(lambda: b'"exit_code":5' in journal.read_bytes(), "the journal")
        os.kill(bot.worker(), signal.SIGKILL)
        server.start()
        told = ended(server, task_id)
        assert (told["result"]["state"], told["result"]["exit_code"], len(told["runs"])) == ("FAILED", 5, 1)
        assert log(server, task_id) == b"before\nafter\n"


def test_a_bot_told_to_terminate_ends(server: LiveServer, tmp_path: Path):
    with live_bot(server, tmp_path / "ending", "ending") as bot:
        status, answer = server.post("/api/v1/bots/ending/terminate")
        assert status == 200, answer
        assert bot.process.wait(HANG_S) == 0


@pytest.mark.full
def test_a_bot_that_lost_its_folder_comes_in_when_the_old_one_is_gone(server: LiveServer, tmp_path: Path):
    with live_bot(server, tmp_path / "first" / "wiped", "wiped") as bot:
        bot.kill()
    with live_bot(server, tmp_path / "second" / "wiped", "wiped") as bot:
        log_of = bot.folder / "bot.log"
        wait_for(lambda: log_of.exists() and "The bot wiped is alive" in log_of.read_text(), "the refusal")
        assert bot.process.poll() is None
        assert server.delete("/api/v1/bots/wiped?force=true")[0] == 200
        assert ended(server, submit(server, "wiped", "/bin/echo", "hello"))["result"]["state"] == "SUCCEEDED"
        assert bot.end() == 0
    with live_bot(server, tmp_path / "third" / "wiped", "wiped"):  # the second one has said goodbye
        assert ended(server, submit(server, "wiped", "/bin/echo", "hello"))["result"]["state"] == "SUCCEEDED"


def test_a_bot_starts_with_one_line_on_a_clean_machine(server: LiveServer, interpreter: str, tmp_path: Path):
    token = server.new_token("bot-bootstrap")
    script = server.call("GET", f"/bootstrap?tok={token}&bot_id=strapped{len(interpreter)}&pool=strapped", token="")
    assert script.status == 200
    folder = tmp_path / "strapped"
    clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MYRMIDON_BOT_DIR": str(folder)}
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [interpreter, "-"], stdin=subprocess.PIPE, stdout=out, stderr=out, env=clean, start_new_session=True
        )
    assert process.stdin is not None
    process.stdin.write(script.data)
    process.stdin.close()
    pid = folder / "bot.pid"
    try:
        task_id = submit(server, "strapped", "/bin/echo", "hello")
        assert ended(server, task_id)["result"]["state"] == "SUCCEEDED"
        assert json.loads((folder / "bot.json").read_text())["server"] == server.url
    finally:
        supervisor = int(Path(f"/proc/{pid.read_text().strip()}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(supervisor, signal.SIGTERM)
        wait_for(lambda: not alive(supervisor), "the bot's end")
        process.wait(HANG_S)
