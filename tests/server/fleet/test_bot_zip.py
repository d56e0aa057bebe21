"""The bot zip: the same everywhere, checked by those who get it, and the script that brings it to a new machine."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from myrmidon.bot.install import updater
from myrmidon.server.fleet.bot_zip import bootstrap_script, bot_files, build_zip, digest_of
from tests.deadline import HANG_S

OLD_PYTHONS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python"))


def test_the_same_contents_make_the_same_bytes():
    files = bot_files("https://myrmidon.example")
    one, two = build_zip(files), build_zip(dict(reversed(files.items())))
    assert one == two
    assert build_zip(bot_files("https://other.example")).digest != one.digest
    assert build_zip({**files, "more.py": b""}).digest != one.digest


def test_names_and_contents_cannot_be_shifted_into_each_other():
    assert digest_of({"a": b"bc"}) != digest_of({"ab": b"c"})
    assert digest_of({"a": b"", "b": b""}) != digest_of({"a": b"1:b0:"})


def test_the_bot_and_the_server_reckon_the_same_version():
    zipped = build_zip(bot_files("https://myrmidon.example"))
    assert updater.content_digest(zipped.content) == zipped.digest


def test_the_zip_holds_a_bot_and_nothing_else():
    files = bot_files("https://myrmidon.example")
    with zipfile.ZipFile(io.BytesIO(build_zip(files).content)) as archive:
        names = archive.namelist()
        assert archive.read("config.json") == b'{"server":"https://myrmidon.example"}'
    assert {"__main__.py", "config.json", "myrmidon/__init__.py", "myrmidon/bot/__main__.py"} <= set(names)
    assert all(name.endswith(".py") or name == "config.json" for name in names)
    packages = {name.split("/")[1] for name in names if name.startswith("myrmidon/")}
    assert packages == {"__init__.py", "spider.py", "bot", "executor", "functions"}


@pytest.mark.skipif(not OLD_PYTHONS, reason="there is no Python 3.8 here")
def test_the_zip_starts_on_python_3_8(tmp_path):
    path = tmp_path / "bot.zip"
    zipped = build_zip(bot_files("https://myrmidon.example"))
    path.write_bytes(zipped.content)
    said = subprocess.run(
        [OLD_PYTHONS[-1], path, "version"], capture_output=True, text=True, timeout=HANG_S, check=True, cwd=tmp_path
    )
    assert zipped.digest in said.stdout


def test_nothing_that_a_caller_sends_becomes_code():
    evil = "'); import os; os._exit(9) #\n$server ${token} \\"
    script = bootstrap_script(server=evil, token=evil, digest="d", pool=evil, bot_id='"""' + evil, now=0)
    tree = ast.parse(script, feature_version=(3, 8))
    given = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert given["SERVER"] == given["TOKEN"] == given["POOL"] == evil
    assert given["BOT_ID"] == '"""' + evil


@pytest.mark.parametrize("python", [sys.executable, *map(str, OLD_PYTHONS[-1:])])
def test_the_script_says_what_is_wrong_when_the_server_is_away(python, tmp_path):
    script = bootstrap_script(server="http://127.0.0.1:9", token="t", digest="d", pool="", bot_id="", now=0)
    said = subprocess.run(
        [python, "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={"HOME": str(tmp_path), "MYRMIDON_BOT_DIR": str(tmp_path / "bot")},
    )
    assert said.returncode == 1
    assert "cannot download the bot from http://127.0.0.1:9" in said.stderr
    assert not (tmp_path / "bot").exists()
