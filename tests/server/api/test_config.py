"""Changing files of the fleet's configuration by the API: checked as a whole, kept with its history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.inside import Inside, inside

PATH = "/api/v1/config"


@pytest.fixture
def app(tmp_path: Path, db_url: str) -> Iterator[Inside]:
    with inside(tmp_path, db_url) as server:
        yield server


def files_of(app: Inside) -> list[str]:
    return sorted(app.get(PATH).json["files"])


def test_a_file_is_put_and_the_others_stay(app):
    first = app.post(PATH, {"files": {"bot_config.py": "A = 1\n", "pools.toml": ""}})
    assert first.status == 200, first.json
    second = app.post(PATH, {"files": {"bot_config.py": "A = 2\n"}, "base": first.json["version"]})
    assert second.status == 200, second.json
    active = app.get(PATH).json
    assert (active["version"], active["in_force"], files_of(app)) == (
        second.json["version"], True, ["bot_config.py", "pools.toml"],
    )  # fmt: skip
    history = app.get(f"{PATH}/history?file=bot_config.py").json["versions"]
    assert [version["content"] for version in history] == ["A = 2\n", "A = 1\n"]
    assert app.post(PATH, {"files": {"pools.toml": None}}).status == 200
    assert files_of(app) == ["bot_config.py"]


def test_a_dry_run_checks_and_changes_nothing(app):
    told = app.post(PATH, {"files": {"bot_config.py": "A = 1\n"}, "dry_run": True})
    assert (told.status, told.json["dry_run"], files_of(app)) == (200, True, [])


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("bot_config.py", "def (", "syntax error"),
        ("bots.toml", "[[", "TOML"),
        ("typo.py", "", "an unknown file"),
        ("scripts/../bot_config.py", "", "an unknown file"),
        ("bot_config.py", "#" * (1 << 20) + "#", "bytes"),
        ("bot_config.py", "\0", "NUL"),
    ],
)
def test_an_invalid_file_is_refused_and_nothing_changes(app, name, text, why):
    refused = app.post(PATH, {"files": {"pools.toml": "", name: text}})
    assert refused.status == 400
    assert why in refused.json["error"]["message"]
    assert files_of(app) == []


def test_a_change_of_an_older_version_is_a_conflict(app):
    assert app.post(PATH, {"files": {"pools.toml": ""}}).status == 200
    late = app.post(PATH, {"files": {"bot_config.py": "A = 1\n"}, "base": ""})
    assert (late.status, late.json["error"]["code"]) == (409, "request.conflict")
    assert files_of(app) == ["pools.toml"]


def test_only_administrators_change_it(app):
    assert app.post(PATH, {"files": {"pools.toml": ""}}, token=app.token("user")).status == 403
