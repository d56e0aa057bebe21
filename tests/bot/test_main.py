"""The zip's command line, on this interpreter and on Python 3.8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from myrmidon.bot import admin_commands
from myrmidon.bot.hooks.loader import ZIP_PATH
from myrmidon.bot.install import exit_codes
from myrmidon.bot.system import host
from tests.bot.bots import a_bot, pack, source_of, source_with, zip_files
from tests.bot.stub import Stub
from tests.servers import port_of, reserve_port


def _zip(tmp_path: Path, **changed: str) -> tuple[Path, str]:
    zipped, version = pack(zip_files("http://127.0.0.1:1", **changed))
    path = tmp_path / "bot.zip"
    path.write_bytes(zipped)
    return path, version


def _call(python: str, *argv: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *map(str, argv)], env=env, capture_output=True, text=True, check=False)


def test_a_zip_tells_its_version(interpreter: str, tmp_path: Path):
    path, version = _zip(tmp_path)
    assert _call(interpreter, path, "version").stdout.strip() == version


def test_a_zip_is_fine_or_says_why_not(interpreter: str, tmp_path: Path):
    assert _call(interpreter, _zip(tmp_path)[0], "self-test").returncode == 0
    broken = _call(interpreter, _zip(tmp_path, log_spool="import nothing_like_this\n")[0], "self-test")
    assert broken.returncode != 0
    assert "nothing_like_this" in broken.stderr


def test_a_zip_is_not_fine_when_it_cannot_reach_the_server(stub: Stub, tmp_path: Path):
    path, _ = _zip(tmp_path, self_test=source_with("self_test", "ATTEMPTS = 3", "ATTEMPTS = 1"))
    stub.fault("/healthz", "503")  # an answer is an answer
    assert _call(sys.executable, path, "self-test", "--server", stub.url).returncode == 0
    unheard = _call(sys.executable, path, "self-test", "--server", "http://127.0.0.1:1")
    assert (unheard.returncode, "refused" in unheard.stderr) == (exit_codes.SELF_TEST_SERVER_UNREACHABLE, True)


def test_a_zip_tells_what_is_in_it_and_whom_it_would_call(interpreter: str, tmp_path: Path):
    path, _ = _zip(tmp_path)
    assert json.loads(_call(interpreter, path, "config").stdout) == {"server": "http://127.0.0.1:1"}
    assert _call(interpreter, path, "server").stdout == "http://127.0.0.1:1\n"
    assert _call(interpreter, path, "server", "--server", "http://s").stdout == "http://s\n"


def test_a_machine_can_be_set_up_before_its_bot_starts(tmp_path: Path):
    text = "def setup_bot(bot): return bot.id != 'no'\n"
    path = tmp_path / "bot.zip"
    path.write_bytes(pack({**zip_files("http://127.0.0.1:1"), ZIP_PATH: text.encode()})[0])
    given = ["setup", "--dir", tmp_path / "b", "--bot-id"]
    env = {**os.environ, "SWARMING_EXTERNAL_BOT_SETUP": "1", "MYRMIDON_BOT_HOST_DIR": str(tmp_path / "host")}
    assert _call(sys.executable, path, *given, "yes", env=env).returncode == 0
    told = _call(sys.executable, path, *given, "no", env=env)
    assert (told.returncode, "requested by setup_bot" in told.stderr) == (1, True)


def test_a_machine_is_rebooted_by_hand_only_when_no_bot_lives_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MYRMIDON_BOT_HOST_DIR", str(tmp_path / "host"))
    monkeypatch.setenv("MYRMIDON_BOT_REBOOT", f"touch {tmp_path}/rebooted")
    lodged = host.register_bot(str(tmp_path))
    assert lodged is not None
    assert admin_commands.reboot([]) == 1
    assert not (tmp_path / "rebooted").exists()
    os.close(lodged)
    assert admin_commands.reboot([]) == 0
    assert (tmp_path / "rebooted").exists()


def test_one_bad_file_does_not_take_away_the_other_commands(interpreter: str, tmp_path: Path):
    path, version = _zip(tmp_path, worker="def broken(:\n")
    assert _call(interpreter, path, "version").stdout.strip() == version


def test_a_zip_tells_the_dimensions_of_the_machine(interpreter: str, tmp_path: Path):
    told = _call(
        interpreter, _zip(tmp_path)[0], "attributes", "--bot-id", "me", "--dimension", "a=1", "--dimension", "a=2"
    )
    found = json.loads(told.stdout)
    assert (found["id"], found["a"], found["pool"]) == (["me"], ["1", "2"], ["default"])


@pytest.mark.parametrize("argv", [["nonsense"], ["start", "--nonsense"]])
def test_a_wrong_command_line_is_answered_with_help(interpreter: str, tmp_path: Path, argv: list[str]):
    told = _call(interpreter, _zip(tmp_path)[0], *argv)
    assert told.returncode == 2
    assert told.stderr


def test_no_file_needs_a_newer_python(interpreter: str, tmp_path: Path):
    names = [name for name in zip_files("x") if name.endswith(".py")]
    for name in names:
        (tmp_path / Path(name).name).write_text(source_of(Path(name).stem) if "/bot/" in name else "")
    told = _call(interpreter, "-W", "error", "-m", "compileall", "-q", tmp_path)
    assert (told.returncode, told.stdout) == (0, "")


def test_a_bot_uses_the_address_that_answers_and_a_refusal_is_said_once(stub: Stub, tmp_path: Path):
    stub.fault("/bot/v1/handshake", "403", "403", "403")
    with reserve_port() as reserved:
        closed = f"http://127.0.0.1:{port_of(reserved)}"
        with a_bot(stub.url, tmp_path / "b1", "--server", closed, "--server", stub.url):
            assert stub.run("/bin/sh", "-c", "echo $MYRMIDON_SERVER $SWARMING_SERVER")["exit_code"] == 0
    [run] = stub.results
    assert stub.log(run).decode().split() == [f"{closed},{stub.url}", closed]
    said = (tmp_path / "b1.out").read_text()
    assert (said.count("the server answered: 403"), said.count("does not accept this bot")) == (1, 1)
