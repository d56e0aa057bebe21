"""A bad network: lost replies do not run a task twice, and a broken stream loses no line."""

from __future__ import annotations

import json
import random
import re
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from myrmidon.sdk import client, transport
from myrmidon.wire.logs import Ended
from tests.chaos.proxy import chaos
from tests.cli.conftest import Up
from tests.cli.proxy import cutting
from tests.cli.terminal import Terminal
from tests.cli.test_run import a_fifo
from tests.deadline import HANG_S
from tests.live import live_server

KEY = re.compile(rb"idempotency-key: (\w+)", re.IGNORECASE)


def through(up: Up, url: str) -> Terminal:
    token = (up.data / "admin.token").read_text().strip()
    return Terminal(up.terminal.home, MYRMIDON_SERVER=url, MYRMIDON_TOKEN=token)


def test_a_lost_reply_is_asked_for_again_with_the_same_key_and_one_task_runs(up: Up):
    with cutting(up.url) as proxy:
        proxy.swallow = 3  # the second connection only finds out whether HTTPS is spoken here
        done = through(up, proxy.url).run("run", "--name", "lost-reply", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    keys = [key for request in proxy.requests for key in KEY.findall(request)]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len(up.terminal.json("tasks", "--name", "lost-reply")["tasks"]) == 1


WRITES = "import random, sys; sys.stdout.buffer.write(random.Random(%d).randbytes(%d).hex().encode())"
FAULTS = ("refused", "lost", "cut", "twice", "late")


def test_commands_through_a_bad_network_run_once_each_with_every_byte(up: Up):
    """Every other call or stream is harmed, each in its own way; nobody at the terminal sees any of it."""
    with chaos(up.url, rate=0.0) as proxy:
        proxy.plan = [fault for kind in FAULTS * 5 for fault in (kind, "")]
        terminal = through(up, proxy.url)
        for number, size in enumerate((10, 30_000, 100_000)):
            name = ("--name", f"bad-network-{number}")
            done = terminal.run("run", *name, "--", sys.executable, "-c", WRITES % (number, size))
            wanted = random.Random(number).randbytes(size).hex()
            assert done.returncode == 0, (done.stderr, proxy.done)
            assert sha256(done.stdout.encode()).digest() == sha256(wanted.encode()).digest(), proxy.done
        said = terminal.ok("trigger", "--json", "--name", "bad-network-9", "--", "true")
        made = json.loads(said)["tasks"][0]["task_id"]
        assert terminal.json("collect", made)["tasks"][0]["result"]["state"] == "SUCCEEDED", proxy.done
        assert set(proxy.count()) == set(FAULTS), proxy.done
    for number in (0, 1, 2, 9):
        (task,) = up.terminal.json("tasks", "--name", f"bad-network-{number}")["tasks"]
        assert len(up.terminal.json("task", "show", task["task_id"])["runs"]) == 1


def test_a_hole_is_noticed_and_the_call_said_again(up: Up, monkeypatch: pytest.MonkeyPatch):
    """Also the very first one: what takes the connection and says nothing is a server, not its absence."""
    monkeypatch.setattr(transport, "_READ_S", 0.5)
    monkeypatch.setattr(transport, "_STREAM_READ_S", 1.0)
    token = (up.data / "admin.token").read_text().strip()
    with chaos(up.url, rate=0.0) as proxy:
        proxy.plan = ["hole", "hole"]
        caller = client.Client(
            transport.Transport(proxy.url, token, retry_policy=transport.RetryPolicy(before_first_answer_s=0.1))
        )
        properties = {"command": ["echo", "hello"], "dimensions": {"pool": ["default"]}}
        [made] = caller.submit_tasks([{"name": "in-a-hole", "slices": [{"properties": properties}]}])
        proxy.plan = ["hole"]
        *_, end = caller.follow(str(made.task_id))
        assert isinstance(end, Ended)
        assert end.state == "SUCCEEDED"
        proxy.calm()
    assert len(up.terminal.json("tasks", "--name", "in-a-hole")["tasks"]) == 1


def test_a_cut_stream_is_taken_up_where_it_broke(up: Up, tmp_path: Path):
    fifo = a_fifo(tmp_path)
    with (
        cutting(up.url) as proxy,
        through(up, proxy.url).start("run", "--", "sh", "-c", f"echo first; cat {fifo}; exit 4") as running,
    ):
        assert running.stdout is not None
        assert running.stdout.readline() == "first\n"
        proxy.cut()
        fifo.write_text("second\nthird\n")
        rest, _ = running.communicate(timeout=HANG_S)
    assert (running.returncode, rest) == (4, "second\nthird\n")


def test_a_run_outlives_the_server_it_was_started_with(tmp_path: Path):
    fifo = a_fifo(tmp_path)
    with live_server(folder=tmp_path / "server") as server:
        terminal = Terminal(tmp_path, MYRMIDON_SERVER=server.url, MYRMIDON_TOKEN=server.token)
        with (
            terminal.start("bot", "--dir", str(tmp_path / "bot"), "--id", "one"),
            terminal.start("run", "--", "sh", "-c", f"echo first; cat {fifo}; exit 4") as running,
        ):
            assert running.stdout is not None
            assert running.stdout.readline() == "first\n"
            server.kill()
            fifo.write_text("second\n")
            server.start()
            rest, _ = running.communicate(timeout=HANG_S)
            terminal.ok("bot", "terminate", "one")
    assert (running.returncode, rest) == (4, "second\n")
