"""Where a bot keeps environments of functions: beside its folder if that is safe, else inside."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.install import startup_config
from myrmidon.bot.machine import settings
from myrmidon.bot.run.sandbox import hidden_by


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MYRMIDON_BOT_ENVIRONMENTS", "MYRMIDON_BOT_ID", "MYRMIDON_BOT_DIR"):
        monkeypatch.delenv(name, raising=False)


def prepared(folder: Path, *flags: str) -> str:
    """The folder for environments of a bot that was started so."""
    startup_config.prepare(["--dir", str(folder), "--server", "http://127.0.0.1:1", *flags])
    return startup_config.StartupConfig(str(folder)).environments


def test_bots_with_the_same_parent_share_a_folder(tmp_path: Path):
    shared = str(tmp_path / "myrmidon-environments")
    assert prepared(tmp_path / "b1") == shared
    assert prepared(tmp_path / "b2") == shared
    assert not os.path.exists(shared)


def test_a_chosen_folder_is_kept_and_closed_to_the_tasks_of_other_bots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert prepared(tmp_path / "b1", "--environments", str(tmp_path / "x")) == str(tmp_path / "x")
    assert prepared(tmp_path / "b1") == str(tmp_path / "x")
    assert hidden_by(str(tmp_path / "b1")) == [str(tmp_path / "x")]
    monkeypatch.setenv("MYRMIDON_BOT_ENVIRONMENTS", str(tmp_path / "y"))
    assert prepared(tmp_path / "b2") == str(tmp_path / "y")


@pytest.mark.parametrize("kind", ["link", "open"])
def test_a_folder_that_others_can_change_is_not_used(tmp_path: Path, kind: str):
    shared = tmp_path / "myrmidon-environments"
    if kind == "link":
        shared.symlink_to(tmp_path)
    else:
        shared.mkdir()
        shared.chmod(0o777)
    assert prepared(tmp_path / "b1") == str(tmp_path / "b1" / "environments")


def test_a_bot_of_an_older_release_has_the_default(tmp_path: Path):
    prepared(tmp_path / "b1")
    config = tmp_path / "b1" / "bot.json"
    stored = json.loads(config.read_text())
    del stored["environments"]
    config.write_text(json.dumps(stored))
    found = startup_config.StartupConfig(str(tmp_path / "b1")).environments
    assert found == str(tmp_path / "myrmidon-environments")


def test_settings_with_paths_are_checked_one_by_one():
    problems: list[str] = []
    given = {
        "environments": {"gpu": "/opt/gpu", "relative": "opt", "requirements": "/x", "a b": "/y", "number": 1},
        "pythons": ["/usr/bin/python3"],
        "environment_build_s": 60,
        "caches": {"environments": {"size": 1}},
    }
    merged = settings.merge(settings.DEFAULTS, given, problems)
    assert merged["environments"] == {"gpu": "/opt/gpu"}
    assert (merged["pythons"], merged["environment_build_s"]) == (["/usr/bin/python3"], 60)
    assert merged["caches"]["environments"]["size"] == 1
    assert len(problems) == 4
    all_wrong: list[Any] = [{"environments": []}, {"pythons": "x"}, {"pythons": ["x"]}, {"environment_build_s": "long"}]
    for wrong in all_wrong:
        problems.clear()
        assert settings.merge(merged, wrong, problems, "get_settings") == merged
        assert len(problems) == 1
