"""A bad network: lost replies do not run a task twice, and a broken stream loses no line."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.conftest import Up
from tests.cli.proxy import cutting
from tests.cli.terminal import Terminal
from tests.cli.test_run import a_fifo
from tests.live import live_server

KEY = re.compile(rb"idempotency-key: (\w+)", re.IGNORECASE)


def through(up: Up, url: str) -> Terminal:
    token = (up.data / "admin.token").read_text().strip()
    return Terminal(up.terminal.home, MYRMIDON_SERVER=url, MYRMIDON_TOKEN=token)


def test_a_lost_reply_is_asked_for_again_with_the_same_key_and_one_task_runs(up: Up):
    with cutting(up.url) as proxy:
        proxy.swallow = 2
        done = through(up, proxy.url).run("run", "--name", "lost-reply", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    keys = [key for request in proxy.requests for key in KEY.findall(request)]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len(up.terminal.json("tasks", "--name", "lost-reply")["tasks"]) == 1


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
        rest, _ = running.communicate(timeout=30)
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
            rest, _ = running.communicate(timeout=60)
            terminal.ok("bot", "terminate", "one")
    assert (running.returncode, rest) == (4, "second\n")
