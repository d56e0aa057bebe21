"""`myrmidon up` starts, stops and leaves nothing behind; its data can be copied and put back."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from myrmidon.bot.system import landlock
from tests.bot.bots import wait_for
from tests.cli.conftest import Up, processes_of, start_up, stop_up
from tests.cli.terminal import Terminal
from tests.deadline import HANG_S


def test_up_starts_runs_and_stops_with_no_process_left(tmp_path: Path):
    up = start_up(tmp_path, "--bots", "1")
    assert "myrmidon run -- " in up.said
    assert "/auth/link" not in up.said, "a pipe may end in a log"
    assert len(processes_of(up.data)) >= 3
    up.terminal.ok("trigger", "--", "sleep", "600")
    code, rest = stop_up(up)
    assert code == 0
    assert "Stopped. The data is kept in" in rest
    assert processes_of(up.data) == []
    assert list((tmp_path / "config" / "myrmidon").iterdir()) == []


@pytest.mark.full
def test_other_users_can_read_nothing_that_up_writes_and_logs_have_no_login_link(tmp_path: Path):
    data = tmp_path / "legion"
    data.mkdir(mode=0o755)
    terminal, log = Terminal(tmp_path), tmp_path / "up.log"
    with log.open("w") as out:
        words = [sys.executable, "-m", "myrmidon", "up", "--port", "0", "--bots", "1", "--data-dir", str(data)]
        child = subprocess.Popen(words, env=terminal.env, stdin=subprocess.DEVNULL, stdout=out, umask=0o022)
    try:
        wait_for(lambda: "Ctrl-C to stop" in log.read_text(), "up")
    finally:
        child.terminate()
        child.wait(HANG_S)
    open_to_others = [path for path in data.iterdir() if path.stat().st_mode & 0o077]
    assert not open_to_others
    assert "#" not in (data / "server.log").read_text()
    assert "/auth/link" not in log.read_text()
    assert "myrmidon open" in log.read_text()


def test_up_that_is_killed_takes_everything_with_it(tmp_path: Path):
    up = start_up(tmp_path, "--bots", "1")
    watched = [os.pidfd_open(pid) for pid in children_of(up.process.pid)]
    up.process.kill()
    up.process.communicate()
    for child in watched:
        assert ended(child), "a child outlived `myrmidon up`"
        os.close(child)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def server_of(up: Up) -> int:
    [pid] = [pid for pid in children_of(up.process.pid) if b"\0server\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


def ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], HANG_S)[0])


def test_up_once_runs_a_command_and_exits_with_its_code(tmp_path: Path):
    words = ["up", "--port", "0", "--bots", "1", "--data-dir", str(tmp_path / "legion"), "--once", "--"]
    done = Terminal(tmp_path).run(*words, "sh", "-c", "echo hello; exit 3")
    assert done.returncode == 3
    assert "\nhello\n" in done.stdout
    assert processes_of(tmp_path / "legion") == []


@pytest.mark.skipif(landlock.abi() < landlock.MINIMUM_ABI, reason="this kernel has no Landlock")
def test_tasks_read_neither_the_data_of_the_server_nor_the_tokens_of_its_user(tmp_path: Path):
    login = tmp_path / "config" / "myrmidon" / "config.toml"
    login.parent.mkdir(parents=True)
    login.write_text('token = "mine"')
    data = tmp_path / "legion"
    secrets = [data / "admin.token", data / "myrmidon.db", data / "bots" / "1" / "credential", login]
    words = ["up", "--port", "0", "--bots", "1", "--data-dir", str(data), "--once", "--", "sh", "-c"]
    script = "; ".join(f"test -f {path} && ! head -c 1 {path} && echo closed" for path in secrets)
    done = Terminal(tmp_path).run(*words, f"{script}; env | grep -c MAKELEVEL", MAKELEVEL="1")
    assert done.stdout.count("\nclosed") == len(secrets), done.stdout
    assert "\n0\n" in done.stdout, "nor do they get the variables of the shell"


@pytest.mark.full
def test_up_once_that_is_interrupted_says_so(tmp_path: Path):
    words = ["up", "--port", "0", "--bots", "1", "--data-dir", str(tmp_path / "legion"), "--once", "--"]
    with Terminal(tmp_path).start(*words, "sh", "-c", "echo begun; sleep 600") as running:
        assert running.stdout is not None
        assert any(line == "begun\n" for line in running.stdout)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=HANG_S)
    assert running.returncode == 130


def test_up_says_why_it_cannot_start(tmp_path: Path):
    words = ["up", "--data-dir", str(tmp_path / "legion"), "--host", "203.0.113.1", "--plain-http"]
    done = Terminal(tmp_path).run(*words)
    assert done.returncode == 1
    assert "The server did not start" in done.stderr
    assert "Cannot listen on 203.0.113.1" in done.stderr


@pytest.mark.full
def test_a_second_up_on_the_same_folder_is_refused_and_a_terminated_bot_stays_away(tmp_path: Path):
    up = start_up(tmp_path, "--bots", "1")
    second = up.terminal.run("up", "--data-dir", str(up.data), "--port", "0")
    assert second.returncode == 1
    assert f"already running on this folder, at {up.url}" in second.stderr
    [bot] = up.terminal.json("bots")["bots"]
    up.terminal.ok("bot", "terminate", bot["bot_id"])
    assert up.process.stdout is not None
    assert any("was terminated" in line for line in up.process.stdout)
    code, rest = stop_up(up)
    assert (code, rest.count("restarting it")) == (0, 0)


@pytest.mark.full
def test_a_server_that_dies_is_started_again_at_the_same_address(tmp_path: Path):
    up = start_up(tmp_path, "--bots", "1")
    assert up.process.stdout is not None
    os.kill(server_of(up), signal.SIGKILL)
    assert up.process.stdout.readline() == "The server was killed by signal 9; restarting it.\n"
    wait_for(
        lambda: up.terminal.run("servers", "--server", up.url).returncode == 0, "the server that was started again"
    )
    done = up.terminal.run("run", "--server", up.url, "--", "echo", "after")
    assert (done.returncode, done.stdout) == (0, "after\n")
    os.kill(server_of(up), signal.SIGTERM)
    assert up.process.stdout.readline() == "The server was stopped.\n"
    up.process.communicate(timeout=HANG_S)
    assert up.process.returncode == 0
    assert processes_of(up.data) == []


def test_a_backup_says_whose_data_it_copies_and_obeys_the_named_server(tmp_path: Path):
    first, second = start_up(tmp_path / "a", "--bots", "0"), start_up(tmp_path / "b", "--bots", "0")
    terminal = first.terminal
    for file in (second.terminal.home / "config" / "myrmidon").iterdir():
        shutil.copy(file, terminal.home / "config" / "myrmidon")  # one user has started both
    said = terminal.ok("backup", str(tmp_path / "one"), "--server", first.url)
    assert said.startswith(f"Backed up {first.data} (server {first.url}) to {tmp_path / 'one'}: ")
    by_name = terminal.run("backup", str(tmp_path / "two"), MYRMIDON_SERVER=second.url)
    assert f"Backed up {second.data} (server {second.url}) to" in by_name.stdout
    elsewhere = terminal.run("backup", str(tmp_path / "three"), "--server", "https://build.example")
    assert elsewhere.returncode == 2
    assert "The data folder of https://build.example (from --server) is not known here." in elsewhere.stderr
    assert not (tmp_path / "three").exists()
    both = terminal.run("backup", str(tmp_path / "three"), "--server", first.url, "--data-dir", str(first.data))
    assert (both.returncode, "--server cannot be used with --data-dir" in both.stderr) == (2, True)
    for up in (second, first):
        stop_up(up)
    wanting = terminal.run("restore", str(tmp_path / "one"), "--data-dir", str(first.data))
    assert wanting.returncode == 78
    assert "Use --replace to replace it" in wanting.stderr
    assert "--data-dir" in wanting.stderr
    assert "setting" not in wanting.stderr


@pytest.mark.full
def test_a_backup_of_a_running_server_is_restored_elsewhere_with_its_tokens(tmp_path: Path):
    up = start_up(tmp_path, "--bots", "0")
    task_id = json.loads(up.terminal.ok("trigger", "--json", "--name", "kept", "--", "true"))["tasks"][0]["task_id"]
    up.terminal.ok("backup", str(tmp_path / "copy"))
    assert up.terminal.run("backup", str(tmp_path / "copy")).returncode == 78
    in_use = up.terminal.run("restore", str(tmp_path / "copy"), "--replace")
    assert in_use.returncode == 78
    stop_up(up)

    elsewhere = tmp_path / "elsewhere" / "legion"
    terminal = Terminal(elsewhere.parent)
    terminal.ok("restore", str(tmp_path / "copy"), "--data-dir", str(elsewhere))
    again = start_up(elsewhere.parent, "--bots", "1")
    try:
        assert again.terminal.run("collect", task_id).returncode == 0
    finally:
        stop_up(again)


@pytest.mark.full
def test_copy_db_moves_an_installation(tmp_path: Path):
    up = start_up(tmp_path, "--bots", "0")
    up.terminal.ok("trigger", "--name", "moved", "--", "true")
    source, target = f"sqlite:///{up.data}/myrmidon.db", f"sqlite:///{tmp_path}/moved.db"
    assert up.terminal.run("copy-db", source, target).returncode == 78
    stop_up(up)
    assert up.terminal.run("copy-db", f"{source}x", target).returncode == 78
    copied = up.terminal.json("copy-db", source, target, "--from-logs", f"{source}-logs")
    assert copied["task_requests"]["rows"] == 1


def test_a_backup_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path):
    terminal = Terminal(tmp_path)
    nowhere = terminal.run("backup", str(tmp_path / "copy"), "--data-dir", str(tmp_path / "none"))
    (tmp_path / "file").touch()
    data = tmp_path / "data"
    data.mkdir()
    for name in ("myrmidon.db", "myrmidon.db-logs"):
        (data / name).touch()
    no_folder = terminal.run("backup", str(tmp_path / "file" / "copy"), "--data-dir", str(data))
    for ended, said in ((nowhere, "There is no database"), (no_folder, "Check the folders")):
        assert (ended.returncode, ended.stderr.count("Traceback")) == (78, 0)
        assert said in ended.stderr


def test_sigterm_stops_up_too(tmp_path: Path):
    up = start_up(tmp_path, "--bots", "0")
    up.process.send_signal(signal.SIGTERM)
    up.process.communicate(timeout=HANG_S)
    assert up.process.returncode == 0
