"""What commands show of the exception that has ended a function."""

from __future__ import annotations

import subprocess
import sys

import pytest

from myrmidon.cli import function_errors
from myrmidon.wire.functions import FunctionError
from tests.cli.conftest import Up
from tests.cli.terminal import Terminal
from tests.deadline import HANG_S

PROGRAM = """
import json
from myrmidon import Client, task

@task
def parse(n: int) -> int:
    print("parses", n)
    return json.loads("{bad %d" % n)

if __name__ == "__main__":
    with Client() as client:
        with client.new_job("parsing", fail_fast=False) as job:
            job.map(parse, [1, 2])
        job.wait()
        print(job.id)
"""
PLACE = "main_report.py:8 in parse"
ENDS_WITH = "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes"


@pytest.fixture(scope="module")
def job(up: Up, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("program") / "report.py"
    file.write_text(PROGRAM)
    command = [sys.executable, str(file)]
    done = subprocess.run(
        command, env=up.terminal.env, capture_output=True, text=True, timeout=HANG_S, check=False, cwd=file.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "words",
    [
        "task show {job}/parse[0]",
        "task why {job}/parse[0]",
        "task log {job}/parse[0]",
        "job why {job}",
        "job log --failed {job}",
        "job watch {job}",
    ],
)
def test_every_command_that_shows_a_failed_function_prints_the_users_line_and_the_traceback(
    terminal: Terminal, job: str, words: str
):
    done = terminal.run(*words.format(job=job).split())
    shown = done.stdout + done.stderr
    assert PLACE in shown
    assert "Traceback (most recent call last):" in shown
    assert ENDS_WITH in shown
    assert shown.index(PLACE) < shown.index("Traceback") < shown.rindex(ENDS_WITH)


def test_failures_at_one_place_are_one_group_whatever_their_messages_say(terminal: Terminal, job: str):
    shown = terminal.ok("job", "why", job)
    assert "2 tasks ended FAILED: json.decoder.JSONDecodeError" in shown
    assert "  parse[0], parse[1]" in shown


def test_a_watch_shows_alike_failures_once_and_counts_the_others(terminal: Terminal, job: str):
    shown = terminal.run("job", "watch", job).stderr
    assert shown.count("Traceback (most recent call last):") == 1
    assert f"1 more task failed: myrmidon job why {job}" in shown


def an_error(*lines: str, place: str = "report.py:8 in parse") -> FunctionError:
    return FunctionError(type="builtins.ValueError", message="no", traceback="\n".join(lines), place=place)


def test_the_short_form_leaves_out_the_frames_of_libraries_below_the_users_code():
    users = ['  File "/code/report.py", line 8, in parse', "    return json.loads(text)"]
    library = ['  File "/lib/json.py", line 1, in loads', "    raise ValueError", '  File "/lib/json.py", line 2, in x']
    error = an_error("Traceback (most recent call last):", *users, *library, "ValueError: no")
    shown = function_errors.error_lines(error, short=True)[1:]
    assert shown == ["Traceback (most recent call last):", *users, "  ... in libraries: 2 more", "ValueError: no"]
    assert function_errors.error_lines(error)[1:] == error.traceback.splitlines()


def test_the_short_form_of_a_long_traceback_keeps_its_beginning_and_its_end():
    frames = [f'  File "/code/report.py", line 8, in parse{n}' for n in range(100)]
    shown = function_errors.error_lines(an_error("Traceback", *frames, "RecursionError: deep"), short=True)
    assert len(shown) < 20
    assert (shown[1], shown[-1]) == ("Traceback", "RecursionError: deep")


def test_an_error_without_a_traceback_is_shown_by_its_class_and_message():
    assert function_errors.error_lines(an_error(place="")) == ["builtins.ValueError: no"]
    assert function_errors.error_lines(None) == []
