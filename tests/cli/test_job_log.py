"""`job log -f` follows several tasks at once; `job annotate` and `job meta`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from myrmidon.cli.job_log import WholeLines
from tests.cli.terminal import Terminal
from tests.deadline import HANG_S


def submit(terminal: Terminal, **scripts: str) -> str:
    tasks = {label: {"task": {"payload": {"command": ["sh", "-c", script]}}} for label, script in scripts.items()}
    return terminal.ok("job", "submit", "-", given=json.dumps({"name": "logs", "tasks": tasks})).strip()


def test_tasks_that_run_at_the_same_time_are_followed_at_the_same_time(terminal: Terminal, tmp_path: Path):
    """Neither of the two tasks ends before the lines of both were seen."""
    gates = {label: tmp_path / label for label in "ab"}
    for gate in gates.values():
        os.mkfifo(gate)
    first, second = (f"echo one; read line < {gate}" for gate in gates.values())
    job = submit(terminal, a=f"{first}; echo two", b=f"{second}; echo two >&2; printf three; exit 4")
    with terminal.start("job", "log", "-f", job) as following:
        assert following.stdout is not None
        seen = {following.stdout.readline(), following.stdout.readline()}
        assert seen == {"a | one\n", "b | one\n"}
        for gate in gates.values():
            gate.write_text("go\n")
        out, err = following.communicate(timeout=HANG_S)
    assert (following.returncode, sorted(out.splitlines())) == (1, ["a | two", "b | three"])
    assert "b | two\n" in err
    assert "--- a: SUCCEEDED" in err
    assert "--- b: FAILED with exit code 4" in err


def test_more_tasks_than_are_followed_at_once_are_all_shown(terminal: Terminal):
    labels = [f"t{n}" for n in range(40)]
    job = submit(terminal, **{label: f"echo {label}" for label in labels})
    done = terminal.run("job", "log", "-f", job)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, sorted(f"{label} | {label}" for label in labels))


def test_a_later_run_of_a_task_is_followed_too(terminal: Terminal, tmp_path: Path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f"echo hello; read line < {gate}; rm {gate}; exit 1"
    task = {"reruns": 1, "task": {"payload": {"command": ["sh", "-c", f"test -e {gate} || exec echo again; {script}"]}}}
    job = terminal.ok("job", "submit", "-", given=json.dumps({"name": "again", "tasks": {"a": task}})).strip()
    with terminal.start("job", "log", "-f", job) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "a | hello\n"
        gate.write_text("go\n")
        out, _ = following.communicate(timeout=HANG_S)
    assert (following.returncode, out) == (0, "a | again\n")


def test_lines_are_cut_at_line_breaks_and_returns():
    lines = WholeLines()
    assert lines.feed(b"one\ntw") == [b"one"]
    assert lines.feed(b"o\r") == []
    assert lines.feed(b"\nthree\rfour") == [b"two", b"three"]
    assert lines.rest() == [b"four"]
    assert lines.rest() == []
    assert lines.feed(b"x" * 20_000) == [b"x" * 20_000]


# ---------------------------------------------------------------- notes


def test_texts_of_a_job_are_set_read_and_deleted(terminal: Terminal):
    job = submit(terminal, a="true")
    assert terminal.ok("job", "meta", "set", job, "version", "1.2") == "version is set.\n"
    assert terminal.json("job", "meta", "set", job, "url", "http://x") == {"url": "http://x", "version": "1.2"}
    assert terminal.ok("job", "meta", "get", job, "version") == "1.2\n"
    assert terminal.json("job", "meta", "get", job, "version") == {"version": "1.2"}
    assert [line.split() for line in terminal.ok("job", "meta", "get", job).splitlines()[1:]] == [
        ["url", "http://x"],
        ["version", "1.2"],
    ]
    terminal.ok("job", "meta", "delete", job, "version")
    missing = terminal.run("job", "meta", "get", job, "version")
    assert (missing.returncode, "no text named 'version'" in missing.stderr) == (66, True)
    assert terminal.json("job", "meta", "get", job) == {"url": "http://x"}


def test_a_task_of_a_job_is_annotated_from_a_file_or_stdin(terminal: Terminal, tmp_path: Path):
    job = submit(terminal, a="true")
    terminal.ok("job", "annotate", f"{job}/a", "-", given="# All fine\n")
    assert "# All fine" in terminal.ok("task", "show", f"{job}/a")
    file = tmp_path / "summary.md"
    file.write_text("other")
    assert terminal.json("job", "annotate", f"{job}/a", str(file)) == {"ok": True}
    shown: dict[str, Any] = terminal.json("task", "show", f"{job}/a")
    assert shown["annotation"]["content"] == "other"
    file.write_bytes(b"\xff")
    wrong = terminal.run("job", "annotate", f"{job}/a", str(file))
    assert (wrong.returncode, "not UTF-8" in wrong.stderr) == (2, True)
