"""How bots end: by signals, by the task that says so, with and without their server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bot.bots import SOURCE, a_bot, alive, source_with, wait_for, zip_files
from tests.bot.stub import Stub
from tests.deadline import HANG_S

SHELL = "/bin/sh"


def test_a_task_that_says_end_ends_the_bot(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1") as bot:
        assert stub.run("/bin/true")["exit_code"] == 0
        run = stub.submit(terminate=True)
        result = stub.result(run)
        assert (result["type"], result["exit_code"], result["duration"]) == ("finish", 0, 0.0)
        assert bot.process.wait(HANG_S) == 0
    assert stub.says("bot_shutdown") == ["ended: requested by the server"]


def test_what_comes_along_with_the_task_that_says_end_is_given_back(stub: Stub, tmp_path: Path):
    with stub.change:
        run = stub.submit(terminate=True)
        other = stub.submit("/bin/true")
    with a_bot(stub.url, tmp_path / "b1") as bot:
        assert stub.result(run)["exit_code"] == 0
        assert bot.process.wait(HANG_S) == 0
    assert (stub.outcomes.get(other), other in stub.results) == ("given_back", False)


def test_a_run_that_has_waited_for_too_long_is_given_back_and_not_begun(stub: Stub, tmp_path: Path):
    stub.gives = {"start_within_s": 0.0}  # the server says how long, because it gives the task to another bot then
    with a_bot(stub.url, tmp_path / "b1"):
        run = stub.submit("/bin/true")
        stub.until(lambda: stub.outcomes.get(run) == "given_back", "the run to be given back")
    assert {report["type"] for report in stub.reports} == {"give_back"}


def test_a_machine_that_goes_down_is_no_fault_of_the_task(stub: Stub, tmp_path: Path, notes: Path):
    """The system asks everybody to end at once: the bot, and the command."""
    with a_bot(stub.url, tmp_path / "b1") as bot:
        pid_file = notes / "pid"
        run = stub.submit(SHELL, "-c", f"echo $$ > {pid_file}; exec sleep 1000")
        pid = int(wait_for(lambda: pid_file.exists() and pid_file.read_text().strip(), "the command"))
        os.kill(bot.worker(), signal.SIGTERM)
        stub.until(lambda: [r for r in stub.reports if r["run"] == run], "its start")
        os.kill(pid, signal.SIGTERM)
        result = stub.result(run)
        assert (result["type"], result["kind"]) == ("fault", "shutdown")
        assert bot.process.wait(HANG_S) == 0


def test_a_command_that_ends_itself_by_that_signal_has_failed_by_itself(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1"):
        result = stub.run(SHELL, "-c", "kill -TERM $$")
        assert (result["type"], result["exit_code"]) == ("finish", -15)


@pytest.mark.parametrize("whom", ["supervisor", "worker"])
def test_a_signal_shows_where_every_thread_is_and_the_bot_goes_on(stub: Stub, tmp_path: Path, whom: str):
    with a_bot(stub.url, tmp_path / "b1") as bot:
        assert stub.run("/bin/true")["exit_code"] == 0
        os.kill(bot.process.pid if whom == "supervisor" else bot.worker(), signal.SIGUSR1)
        stacks = tmp_path / "b1" / "stacks.log"
        wait_for(lambda: "next_command" in stacks.read_text() and "session_loop.py" in stacks.read_text(), "the stacks")
        assert stub.run("/bin/true")["exit_code"] == 0
        assert bot.process.poll() is None


def test_a_signal_opens_a_prompt_inside_the_bot_for_one_visitor(stub: Stub, tmp_path: Path):
    folder = tmp_path / "b1"
    with a_bot(stub.url, folder) as bot:
        assert stub.run("/bin/true")["exit_code"] == 0
        os.kill(bot.process.pid, signal.SIGUSR2)  # the supervisor passes it on
        wait_for((folder / "console").is_socket, "the prompt")
        said = _visit(folder, "print('at', bot.id, session_loop.session)\n1/0\nexit()\n")
        assert (said.returncode, f"at b1 {stub.hellos[0]['session']}" in said.stdout) == (0, True)
        assert "ZeroDivisionError" in said.stdout
        assert not (folder / "console").exists()
        (folder / "console").write_text("precious")
        os.kill(bot.worker(), signal.SIGUSR2)
        wait_for(lambda: "console exists and is not a socket" in (folder / "bot.log").read_text(), "a refusal")
        assert (folder / "console").read_text() == "precious"
        assert stub.run("/bin/true")["exit_code"] == 0
        assert len(stub.hellos) == 1
    assert "no bot runs" in _visit(folder, "").stderr


def _visit(folder: Path, typed: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(folder / "bot.zip"), "shell", "--dir", str(folder)]
    return subprocess.run(words, input=typed, capture_output=True, text=True, timeout=HANG_S, check=False)


STOLEN = """
import os, signal, sys, threading
from myrmidon.bot.signals import SignalThread
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
answered = threading.Event()
SignalThread({signal.SIGUSR2: answered.set}).install()
def steal():
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
    os.write(1, b"answered" if answered.wait(100) else b"missed")
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=steal, daemon=True).start()
threading.Event().wait()
"""


def test_a_signal_that_another_thread_gets_is_heard_all_the_same(interpreter: str):
    env = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    told = subprocess.run([interpreter, "-c", STOLEN], env=env, capture_output=True, timeout=HANG_S, check=False)
    assert (told.returncode, told.stdout) == (7, b"answered")


def test_a_bot_started_by_somebody_deaf_hears_signals_and_so_do_its_commands(
    stub: Stub, tmp_path: Path, interpreter: str
):
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        with a_bot(stub.url, tmp_path / "b1", python=interpreter) as bot:
            run = stub.submit("/bin/grep", "SigBlk", "/proc/self/status")
            assert stub.result(run)["exit_code"] == 0
            assert stub.log(run).split() == [b"SigBlk:", b"0" * 16]
            assert bot.end() == 0
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))


def test_a_bot_whose_server_is_gone_waits_for_nothing(stub: Stub, tmp_path: Path):
    stub.poll_s = 0.3
    with a_bot(stub.url, tmp_path / "b1", files=zip_files(stub.url, next_action=patient())) as bot:
        assert stub.run("/bin/true")["exit_code"] == 0
        wait_for(lambda: not (tmp_path / "b1" / "journal").read_bytes(), "the result to be answered for")
        stub.down = True
        assert bot.end() == 0
    assert not alive(bot.process.pid)


def patient() -> str:
    """The text of next_action.py of a bot that tries for longer than a test to deliver its last result."""
    return source_with("next_action", "SHUTDOWN_S = 10.0", f"SHUTDOWN_S = {10 * HANG_S}")


def test_a_bot_whose_server_never_answers_does_not_wait_for_it(tmp_path: Path):
    hasty = source_with("session_loop", "SHUTDOWN_MARGIN_S = 3.0", "SHUTDOWN_MARGIN_S = 0.3")
    with socket.socket() as hole:  # takes connections, and says nothing
        hole.bind(("127.0.0.1", 0))
        hole.listen(16)
        url = f"http://127.0.0.1:{hole.getsockname()[1]}"
        quick = source_with("http_client", "MARGIN_S = 15.0", "MARGIN_S = 1.0")
        files = zip_files(url, next_action=patient(), session_loop=hasty, http_client=quick)
        with a_bot(url, tmp_path / "b1", files=files) as bot, hole.accept()[0] as line:
            line.recv(1)
            assert bot.end() == 0


def test_a_result_that_cannot_be_said_is_waited_for_a_little_and_kept(stub: Stub, tmp_path: Path):
    short = zip_files(stub.url, next_action=source_with("next_action", "SHUTDOWN_S = 10.0", "SHUTDOWN_S = 1.0"))
    go = tmp_path / "go"
    with a_bot(stub.url, tmp_path / "b1", files=short) as bot:
        run = stub.submit(SHELL, "-c", f"while [ ! -e {go} ]; do sleep 0.02; done")
        stub.until(lambda: [r for r in stub.reports if r["run"] == run], "its start")
        stub.down = True
        bot.process.terminate()
        go.touch()
        assert bot.process.wait(HANG_S) == 0
    assert run in (tmp_path / "b1" / "journal").read_text()


def test_bots_of_one_machine_have_ids_with_a_suffix(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "host", "--suffix", "2", "--dimension", "device_type=phone"):
        stub.until(lambda: stub.hellos, "a handshake")
        hello = stub.hellos[0]
        assert (hello["bot_id"], hello["dimensions"]["id"]) == ("host--2", ["host--2"])
        assert hello["dimensions"]["device_type"] == ["phone"]
        assert "cores" not in hello["dimensions"]
        assert "cores" in hello["state"]["host_dimensions"]
