"""`job watch`: on a terminal, without one, and as JSON."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.bot.bots import wait_for
from tests.cli.screen import Screen
from tests.cli.terminal import Terminal
from tests.cli.test_jobs import graph, node, submit
from tests.deadline import HANG_S


def test_a_watch_without_a_terminal_prints_a_line_per_change_and_the_reason_of_a_failure(terminal: Terminal):
    document = graph(a=node("echo out; echo err >&2; exit 7"), b=node("true", "a"))
    done = terminal.run("job", "submit", "-", "--watch", given=json.dumps(document))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert any(line.startswith("a  FAILED with exit code 7 on ") for line in lines)
    assert lines[-1].startswith("job ")
    assert lines[-1].endswith("  FAILED")
    assert [line for line in lines if line.startswith("b ")] == [], "it never changed"
    told = done.stderr.splitlines()
    assert "  | out" in told
    assert "  | err" in told
    job = lines[-1].split()[1]
    assert f"  again: myrmidon job rerun {job} --task a" in told
    assert any(line.startswith("  here: myrmidon task reproduce ") for line in told)
    assert "1 task cannot run because a did not succeed: b" in told
    assert f"To run what did not succeed again: myrmidon job rerun {job}" in told


def test_a_watch_with_json_prints_an_object_per_line(terminal: Terminal):
    job = submit(terminal, graph(a=node("true"), b=node("true", "a")))
    done = terminal.run("job", "watch", "--json", job)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert lines[-1]["job"]["state"] == "SUCCEEDED"
    ends = [line["task"]["label"] for line in lines[:-1] if line["task"]["state"] == "SUCCEEDED"]
    assert ends == ["a", "b"]


@contextmanager
def watched(terminal: Terminal, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], Screen]]]:
    """A command on a terminal of 80 columns and 24 lines; the call reads on until its screen shows a text."""
    ours, theirs = pty.openpty()
    env = {**terminal.env, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    child = subprocess.Popen([sys.executable, "-m", "myrmidon", *words], env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen = Screen(80, 24)

    def read_until(text: str) -> Screen:
        while not any(text in line for line in screen.visible):
            try:
                piece = os.read(ours, 65_536).decode()
            except OSError:  # Linux says so when the last writer is gone
                break
            screen.feed(piece)
        assert any(text in line for line in screen.visible), "\n".join(screen.visible)
        return screen

    try:
        yield child, read_until
    finally:
        child.kill()
        child.wait(HANG_S)
        os.close(ours)


def test_a_watch_on_a_terminal_is_a_tree_with_states_durations_and_a_bar(terminal: Terminal):
    job = submit(
        terminal, graph(build=node("true"), test=node("echo oh no; exit 3", "build"), report=node("true", "test"))
    )
    with watched(terminal, "job", "watch", job) as (child, read_until):
        shown = read_until("To run what did not succeed again").visible
        assert child.wait(HANG_S) == 1
    text = "\n".join(shown)
    assert "test: FAILED with exit code 3" in text
    assert "  | oh no" in shown
    assert f"  again: myrmidon job rerun {job} --task test" in shown
    head = next(number for number, line in enumerate(shown) if line.endswith("  nightly"))
    assert shown[head].startswith("FAILED  ")
    assert shown[head + 1] == f"[{'#' * 26}{'.' * 14}]  67%  2 of 3 tasks ended"
    assert shown[head + 2] == "1 FAILED, 1 WAITING, 1 SUCCEEDED"
    assert [line.split()[0] for line in shown[head + 3 : head + 6]] == ["SUCCEEDED", "FAILED", "WAITING"]
    assert shown[head + 4].endswith("    test  exit code 3".removeprefix("  "))
    assert shown[head + 5] == "WAITING                   report  (cannot run: test did not succeed)"


def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(terminal: Terminal):
    job = submit(terminal, graph(a=node("true", hold=True)))
    with watched(terminal, "job", "watch", job) as (child, read_until):
        read_until("0 of 1 tasks ended")
        child.send_signal(signal.SIGINT)
        shown = read_until("stop it").visible
        assert child.wait(HANG_S) == 130
    assert "The job goes on." in shown
    assert f"  watch it again: myrmidon job watch {job}" in shown
    assert terminal.json("job", "show", job)["state"] == "RUNNING"
    terminal.ok("job", "release", job)
    assert terminal.run("job", "result", job).returncode == 0


def test_ten_thousand_nodes_are_readable_on_80_by_24(terminal: Terminal):
    tasks: dict[str, Any] = {"gate": node("true", hold=True), **{f"bad-{n}": node("exit 1") for n in range(12)}}
    tasks |= {f"test-{n}": node("true", "gate") for n in range(8_987)}
    tasks |= {f"pack-{n}": node("true", f"test-{n}") for n in range(1_000)}
    job = submit(
        terminal,
        {"name": "ten thousand", "tasks": {**tasks, "report": node("true", *(f"pack-{n}" for n in range(1_000)))}},
    )
    wait_for(lambda: terminal.json("job", "show", job)["counts"].get("FAILED") == 12, "the tasks that fail")
    with watched(terminal, "job", "watch", job) as (_, read_until):
        screen = read_until("report ")
    shown = screen.visible
    head = next(number for number, line in enumerate(shown) if line.endswith("  ten thousand"))
    assert shown[head].startswith("RUNNING (blocked)  ")
    assert shown[head + 1] == f"[{'.' * 40}]   0%  12 of 10001 tasks ended"
    assert shown[head + 2] == "12 FAILED, 9989 WAITING"
    assert [line.split()[2] for line in shown[head + 3 : head + 8]] == ["bad-0", "bad-1", "bad-10", "bad-11", "bad-2"]
    assert shown[head + 8 : head + 14] == [
        "7 more without success",
        "bad*                            12 FAILED",
        "gate                            1 WAITING",
        "  test*                         8987 WAITING",
        "    pack*                       1000 WAITING",
        "      report                    1 WAITING",
    ]
    assert all(len(line) <= 80 for line in shown)
    terminal.ok("job", "cancel", job)
