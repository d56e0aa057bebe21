"""`task reproduce` of functions in shared libraries: the library and the inputs of a task run on this machine."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from myrmidon import Client
from tests.deadline import HANG_S
from tests.functions.test_programs import environment
from tests.functions.test_reproduce import reproduce
from tests.live import LiveServer
from tests.native import building, python_tasks
from tests.native import declared as native
from tests.native.declared import A_RECORD

pytestmark = pytest.mark.full


def submitted(client: Client, function: Any, *args: Any) -> str:
    """The id of the task of a call that has ended."""
    with client.new_job() as job:
        function(*args)
    job.wait()
    [task] = client.job(job.id).tasks()
    return task.task_id


@pytest.mark.short
def test_a_native_function_runs_here_with_its_library_and_its_inputs(server: LiveServer, client: Client, tmp_path):
    with client.new_job(id="natively") as job:
        summed = native.cpp_integers([native.add(1, 2), 10, native.rust_integer(-1)])
        native.cpp_both((7, "x" * 5_000))
        native.rust_record(A_RECORD)
        native.prints("a line")
    assert job.result(summed) == [3, 10, -1]
    job.wait()
    shown = {label: reproduce(server, tmp_path, f"natively/{label}") for label in ("cpp_integers", "cpp_both")}
    assert shown["cpp_integers"].stdout == "[3, 10, -1]\n", shown["cpp_integers"].stderr
    assert shown["cpp_both"].stdout == f"{(7, 'x' * 5_000)!r}\n", shown["cpp_both"].stderr
    assert "'first_name': 'né'" in reproduce(server, tmp_path, "natively/rust_record").stdout
    printed = reproduce(server, tmp_path, "natively/prints")
    assert (printed.returncode, printed.stdout) == (0, "printf a line, coutNone\n")


def test_the_folder_of_a_reproduced_function_can_be_run_again_without_the_server(
    server: LiveServer, client: Client, tmp_path: Path
):
    task_id = submitted(client, native.add.options(env={"COLOUR": "red"}), 2, 3)
    assert reproduce(server, tmp_path, task_id, "--folder", "kept").stdout == "5\n"
    words = [sys.executable, "-m", "myrmidon.executor.reproduce", str(tmp_path / "kept")]
    again = subprocess.run(
        words, cwd=tmp_path, env=environment(server), capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (again.returncode, again.stdout) == (0, "5\n"), again.stderr


def test_a_crash_is_reported_as_a_bot_reports_it(server: LiveServer, client: Client, tmp_path: Path):
    done = reproduce(server, tmp_path, submitted(client, native.segfault))
    reason = "killed by signal 11 (SIGSEGV, segmentation fault), in segfault of libfaults.so"
    assert done.stderr.splitlines()[-1] == reason
    assert (done.returncode, done.stdout) == (128 + signal.SIGSEGV, "before the crash\n")


@pytest.mark.parametrize(("status", "code"), [(3, 3), (0, 1)])
def test_a_function_that_ends_its_process_is_not_taken_for_one_that_has_returned(
    server: LiveServer, client: Client, tmp_path: Path, status: int, code: int
):
    done = reproduce(server, tmp_path, submitted(client, native.exits, status))
    reason = f"the function has ended its process with exit code {status}, in exits of libfaults.so"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, reason)


def test_errors_of_libraries_are_shown_as_sentences_without_a_traceback(
    server: LiveServer, client: Client, tmp_path: Path
):
    for function, given, message in (
        (native.at, 9, "std::out_of_range: basic_string::substr"),
        (native.panics, 9, "panic: index out of bounds"),
        (native.wrongly_declared, "x", "the function is another one: it was declared as wrongly_declared"),
    ):
        done = reproduce(server, tmp_path, submitted(client, function, given))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1].startswith(message)
        assert "Traceback" not in done.stderr


def test_a_library_that_is_installed_on_bots_is_found_in_a_folder_of_this_machine(
    server: LiveServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task_id = submitted(client, python_tasks.installed_add, 2, 3)
    refused = reproduce(server, tmp_path, task_id)
    assert refused.returncode == 2
    assert "libsums.so is installed on the bots and was not sent with the job" in refused.stderr
    assert f"MYRMIDON_LIBRARY_PATH=DIR myrmidon task reproduce {task_id}" in refused.stderr
    monkeypatch.setenv("MYRMIDON_LIBRARY_PATH", str(building.DECLARED))
    assert reproduce(server, tmp_path, task_id).stdout == "5\n"


def test_without_gdb_pdb_of_a_native_function_says_what_to_do(
    server: LiveServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task_id = submitted(client, native.segfault)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = reproduce(server, tmp_path, task_id, "--pdb")
    assert done.returncode == 2
    assert "gdb is not installed here. Install it, or use another debugger" in done.stderr
    assert f"`myrmidon task reproduce {task_id} --folder DIR` keeps" in done.stderr
    assert f"`{sys.executable} -m myrmidon.executor.reproduce DIR` is the program to debug" in done.stderr


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
@pytest.mark.parametrize(
    ("function", "args", "stop"),
    [(native.segfault, (), "SIGSEGV"), (native.at, (9,), "exception thrown")],
    ids=["crash", "exception"],
)
def test_gdb_stops_where_a_native_function_crashes_or_throws(
    server: LiveServer, client: Client, tmp_path: Path, function: Any, args: tuple[int, ...], stop: str
):
    done = subprocess.run(
        [sys.executable, "-m", "myrmidon", "task", "reproduce", submitted(client, function, *args), "--pdb"],
        cwd=tmp_path,
        env={**environment(server), "DEBUGINFOD_URLS": ""},
        input="backtrace 9\nkill\nquit\n",
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert stop in done.stdout, done.stderr
    assert f" in {function.__name__}" in done.stdout
    assert done.returncode == 0
