"""What lies in contrib says things that a bot understands."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from myrmidon.bot.hooks import loader
from myrmidon.bot.install import startup_config
from myrmidon.bot.run import isolation

ROOT = Path(__file__).parents[2]
DEVICE = ROOT / "contrib" / "device"


def _flags(text: str) -> list[str]:
    words = shlex.split(text.replace("\\\n", " ").split(" start ", 1)[1].splitlines()[0])
    return [re.sub(r"\$\{?\w+(:-\w+)?\}?|%i", "x", word) for word in words]


def test_the_scripts_start_bots_with_flags_that_exist(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MYRMIDON_BOT_ID", "host")
    unit = (ROOT / "contrib" / "systemd" / "myrmidon-bot@.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert startup_config.parse(_flags(line))["bot_id"] == "host--x"
    given = startup_config.parse(_flags((DEVICE / "start-device-bot").read_text()))
    assert (given["bot_id"], given["pool"], set(given["extra"])) == ("host--x", "x", {"device_type", "device_serial"})


def test_the_script_is_a_script():
    assert subprocess.run(["/bin/sh", "-n", DEVICE / "start-device-bot"], check=False).returncode == 0
    assert (DEVICE / "start-device-bot").stat().st_mode & 0o111


def test_a_new_device_gets_the_token_of_its_host_in_a_file_and_a_known_one_none(tmp_path: Path):
    """With programs in place of `docker` and `install` that note what they get."""
    text = (DEVICE / "start-device-bot").read_text()
    script = tmp_path / "start-device-bot"
    script.write_text(text.replace("/etc/myrmidon", str(tmp_path)).replace("/var/lib", str(tmp_path)))
    (tmp_path / "bot.token").write_text("myr_secret")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text('#!/bin/sh\necho "$@"; env\n')
    (tmp_path / "bin" / "docker").chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "MYRMIDON_SERVER": "https://s"}
    folder = tmp_path / "myrmidon-devices" / "123"
    for is_known in (False, True):
        done = subprocess.run(["/bin/sh", script, "123"], env=env, capture_output=True, text=True, check=True)
        assert ("--suffix 123" in done.stdout, "myr_secret" in done.stdout) == (True, False)
        assert (folder / "token").exists() is not is_known
        if not is_known:
            assert ((folder / "token").read_text(), (folder / "token").stat().st_mode & 0o777) == ("myr_secret", 0o600)
            (folder / "token").unlink()
            (folder / "credential").write_text("myb_")


def test_the_rule_and_the_unit_speak_of_the_same_things():
    rule = (DEVICE / "60-myrmidon-device.rules").read_text()
    unit = (DEVICE / "myrmidon-device@.service").read_text()
    assert "myrmidon-device@$env{ID_SERIAL_SHORT}.service" in rule
    assert 'SYMLINK+="myrmidon/$env{ID_SERIAL_SHORT}"' in rule
    assert "BindsTo=dev-myrmidon-%i.device" in unit
    assert "/usr/local/lib/myrmidon/start-device-bot %i" in unit


def test_the_manual_names_every_hook_and_every_flag():
    text = (ROOT / "docs" / "bot.md").read_text()
    assert [name for name in loader.HOOKS if f"`{name}(" not in text] == []
    assert [
        flag for flag in ("--dir", "--server", "--token-file", "--bot-id", "--suffix", "--pool") if flag not in text
    ] == []
    further = ("--isolation", "--task-user", "--hide", "--pass-env")
    assert [flag for flag in further if f"`{flag}" not in text] == []
    assert [name for name in isolation.PASSED if f"`{name}`" not in text] == []
