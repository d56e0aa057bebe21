"""What lies in contrib says things that a bot understands."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from myrmidon.bot.hooks import loader
from myrmidon.bot.install import startup_config

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
