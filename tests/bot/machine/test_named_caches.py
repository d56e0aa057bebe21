"""Named caches: in and out by renames, a state that survives, and what goes when there is too much."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from myrmidon.bot.machine import settings
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.system import clock, filesystem
from tests.bot.hooks.test_hooks import a_standing

NOW = 1_800_000_000.0
OWNER = "team"
SAME_FOLDER = [f'{{"owner": "o", "name": "{name}", "dir": "aa", "size": 1, "used": 1}}' for name in "ab"]
DAY = 86400.0


def _fill(caches: NamedCaches, tmp_path: Path, name: str, *, size: int = 10, now: float | None = NOW) -> int | None:
    """As a run would: ask for the cache, write into it, and give it back."""
    mapped = tmp_path / "mapped"
    caches.install(OWNER, name, str(mapped))
    (mapped / "file").write_bytes(b"x" * size)
    return caches.put_back(OWNER, name, str(mapped), now=now)


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A disk whose free bytes a test decides."""
    disk = {"free": 1 << 40, "total": 1 << 41}
    monkeypatch.setattr(filesystem, "free_disk", lambda _: (disk["free"], disk["total"]))
    return disk


def test_a_cache_comes_back_as_it_was_left_and_is_found_under_its_name(tmp_path: Path):
    caches = NamedCaches(str(tmp_path / "c"))
    assert _fill(caches, tmp_path, "ccache", size=10) == 10
    assert (tmp_path / "c" / "named" / f"{OWNER}--ccache" / "file").read_bytes() == b"x" * 10
    caches.install(OWNER, "ccache", str(tmp_path / "again"))
    assert (tmp_path / "again" / "file").read_bytes() == b"x" * 10
    assert (caches.names(), os.listdir(tmp_path / "c" / "named")) == ([], [])


def test_the_state_survives_a_restart(tmp_path: Path, roomy: dict[str, int]):
    caches = NamedCaches(str(tmp_path / "c"))
    _fill(caches, tmp_path, "a", size=3)
    _fill(caches, tmp_path, "b", size=5, now=NOW + 1)
    caches.trim(NOW)
    again = NamedCaches(str(tmp_path / "c"))
    assert (again.sizes(), again.recent(1), again.problem) == ({"a": 3, "b": 5}, ["b"], "")
    told = json.loads((tmp_path / "c" / "state.json").read_text())
    assert {(entry["owner"], entry["name"]): entry["used"] for entry in told["caches"]}[OWNER, "a"] == NOW


@pytest.mark.parametrize(
    "state",
    [
        "{broken", "[]", "{}", '{"version": 2, "caches": 3}', '{"version": 2, "caches": ["a"]}', "\0\0",
        '{"version": 2, "caches": [{"owner": "o", "name": "a", "dir": "../x", "size": 1, "used": 1}]}',
        '{"version": 2, "caches": [{"owner": "o", "name": "A B", "dir": "aa", "size": 1, "used": 1}]}',
        '{"version": 2, "caches": [{"owner": "o", "name": "a", "dir": "aa"}]}',
        '{"version": 2, "caches": [{"name": "a", "dir": "aa", "size": 1, "used": 1}]}',
        f'{{"version": 2, "caches": [{", ".join(SAME_FOLDER)}]}}',
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_read_takes_all_caches_with_it_and_is_told(tmp_path: Path, state: str):
    caches = NamedCaches(str(tmp_path / "c"))
    _fill(caches, tmp_path, "a")
    caches.trim()
    (tmp_path / "c" / "foreign file").write_text("precious")
    (tmp_path / "c" / "named" / "mine").mkdir()
    (tmp_path / "c" / "state.json").write_text(state)
    again = NamedCaches(str(tmp_path / "c"))
    assert again.names() == []
    assert "cannot be read" in again.problem
    assert sorted(os.listdir(tmp_path / "c")) == ["foreign file", "named", "state.json"]
    assert os.listdir(tmp_path / "c" / "named") == ["mine"]
    assert _fill(again, tmp_path, "a") == 10


def test_what_a_crash_has_left_between_two_steps_is_cleared_away(tmp_path: Path):
    caches = NamedCaches(str(tmp_path / "c"))
    _fill(caches, tmp_path, "kept")
    _fill(caches, tmp_path, "taken", now=NOW + 1)
    caches.trim()
    caches.install(OWNER, "taken", str(tmp_path / "lost with its run"))
    (tmp_path / "c" / "zz").mkdir(exist_ok=True)  # put back, and not yet written down
    again = NamedCaches(str(tmp_path / "c"))
    assert again.names() == ["kept"]
    assert len([name for name in os.listdir(tmp_path / "c") if len(name) == 2]) == 1


def test_the_least_recently_used_caches_go_first_by_number_by_size_and_by_age(tmp_path: Path, roomy: dict[str, int]):
    caches = NamedCaches(str(tmp_path / "c"))
    for at, name in enumerate(["a", "b", "c", "d", "e"]):
        _fill(caches, tmp_path, name, size=100, now=NOW + at)
    caches.rules = {"size": 10_000, "items": 4, "age_s": 21 * DAY}
    assert caches.trim(NOW + 10) == [(OWNER, "a")]
    caches.rules = {"size": 250, "items": 4, "age_s": 21 * DAY}
    assert caches.trim(NOW + 10) == [(OWNER, "b"), (OWNER, "c")]
    assert caches.trim(NOW + 3 + 21 * DAY + 0.5) == [(OWNER, "d")]
    assert caches.names() == ["e"]


@pytest.fixture
def server_time(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time by the server is NOW."""
    monkeypatch.setattr(clock, "_server_offset", None)
    clock.set_server_time(round(NOW * 1e6))
    return NOW


def test_a_cache_that_nobody_uses_any_more_goes_while_the_bot_is_idle(
    tmp_path: Path, roomy: dict[str, int], server_time: float
):
    made = a_standing(tmp_path)
    _fill(made.caches, tmp_path, "old", now=server_time - 22 * DAY)
    _fill(made.caches, tmp_path, "new", now=None)
    made.refresh()
    assert (made.caches.names(), made.dimensions["caches"]) == (["new"], ["new"])
    assert made.caches.entries[OWNER, "new"]["used"] >= server_time


def test_no_cache_is_too_old_by_the_clock_of_the_machine(
    tmp_path: Path, roomy: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(clock, "_server_offset", None)
    caches = NamedCaches(str(tmp_path / "c"))
    _fill(caches, tmp_path, "a")
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert caches.trim() == []
    clock.set_server_time(round(NOW * 1e6))
    assert (caches.trim(), caches.names()) == ([], ["a"])


def test_the_oldest_go_until_enough_is_free_but_never_what_a_run_asks_for(
    tmp_path: Path, roomy: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    caches = NamedCaches(str(tmp_path / "c"))
    for at, name in enumerate(["a", "b", "c"]):
        _fill(caches, tmp_path, name, now=NOW + at)
    required = settings.required_free(roomy["total"], caches.free_space_rule) + caches.free_space_rule["wiggle"]
    roomy["free"] = int(required) - 1

    def free_a_little(path: str, remove=filesystem.remove_tree) -> bool:
        roomy["free"] += 1
        return remove(path)

    monkeypatch.setattr(filesystem, "remove_tree", free_a_little)
    assert caches.trim(NOW, needed=[(OWNER, "a")]) == [(OWNER, "b")]
    assert caches.make_room(OWNER, ["a", "new"], {"a": 50, "new": 1}, NOW) == [(OWNER, "c")]
    assert caches.make_room(OWNER, ["a", "new"], {"new": 1 << 30}, NOW) == []
    assert caches.names() == ["a"]


@pytest.mark.parametrize("hint", [-1, None, "large", [1]])
def test_a_hint_that_says_nothing_asks_for_no_room(tmp_path: Path, roomy: dict[str, int], hint: object):
    caches = NamedCaches(str(tmp_path / "c"))
    _fill(caches, tmp_path, "a")
    roomy["free"] = settings.required_free(roomy["total"], caches.free_space_rule) + int(
        caches.free_space_rule["wiggle"]
    )
    assert caches.make_room(OWNER, ["new"], {"new": hint}, NOW) == []


@pytest.mark.parametrize("broken", ["empty", "gone", "file", "link"])
def test_what_is_no_cache_any_more_is_not_put_back_and_harms_nobody(tmp_path: Path, broken: str):
    caches = NamedCaches(str(tmp_path / "c"))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("precious")
    mapped = tmp_path / "mapped"
    caches.install(OWNER, "a", str(mapped))
    if broken != "empty":
        mapped.rmdir()
    if broken == "file":
        mapped.write_text("x")
    if broken == "link":
        mapped.symlink_to(tmp_path / "outside")
    assert caches.put_back(OWNER, "a", str(mapped)) is None
    assert caches.names() == []
    assert (tmp_path / "outside" / "file").read_text() == "precious"


def test_a_cache_that_cannot_be_renamed_back_is_lost_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    caches = NamedCaches(str(tmp_path / "c"))
    _fill(caches, tmp_path, "other")
    caches.install(OWNER, "a", str(tmp_path / "mapped"))
    (tmp_path / "mapped" / "file").write_text("x")

    def refuse(*_: object) -> None:
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr(os, "rename", refuse)
    assert caches.put_back(OWNER, "a", str(tmp_path / "mapped")) is None
    assert caches.names() == ["other"]


def test_caches_without_an_owner_are_removed_at_the_first_start_of_a_newer_bot(tmp_path: Path):
    caches = NamedCaches(str(tmp_path / "c"))
    _fill(caches, tmp_path, "a")
    caches.trim()
    state = tmp_path / "c" / "state.json"
    [entry] = json.loads(state.read_text())["caches"]
    state.write_text(json.dumps({"version": 1, "caches": {"a": entry}}))
    again = NamedCaches(str(tmp_path / "c"))
    assert (again.names(), again.problem) == ([], "")
    assert sorted(os.listdir(tmp_path / "c")) == ["named", "state.json"]


def test_a_cache_of_another_resource_group_is_another_one(tmp_path: Path, roomy: dict[str, int]):
    caches = NamedCaches(str(tmp_path / "c"))
    _fill(caches, tmp_path, "git", size=3)
    caches.install("team/b", "git", str(tmp_path / "theirs"))
    assert os.listdir(tmp_path / "theirs") == []
    (tmp_path / "theirs" / "file").write_bytes(b"12345")
    caches.put_back("team/b", "git", str(tmp_path / "theirs"), now=NOW + 1)
    assert (caches.names(), caches.recent(5), caches.sizes()) == (["git"], ["git"], {"git": 5})
    assert sorted(os.listdir(tmp_path / "c" / "named")) == ["team%2Fb--git", f"{OWNER}--git"]
    caches.trim(NOW)
    again = NamedCaches(str(tmp_path / "c"))
    again.install(OWNER, "git", str(tmp_path / "ours"))
    assert (tmp_path / "ours" / "file").read_bytes() == b"xxx"
    assert again.make_room("team/b", ["git"], {}, NOW) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "x" * 129])
def test_a_name_that_is_no_name_makes_no_cache(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="not a valid name"):
        NamedCaches(str(tmp_path)).install(OWNER, name, str(tmp_path / "x"))


def test_a_size_counts_files_and_follows_no_links(tmp_path: Path):
    caches = NamedCaches(str(tmp_path / "c"))
    mapped = tmp_path / "mapped"
    caches.install(OWNER, "a", str(mapped))
    (mapped / "deep" / "er").mkdir(parents=True)
    (mapped / "deep" / "er" / "file").write_bytes(b"x" * 1000)
    (mapped / "root").symlink_to("/")
    size = caches.put_back(OWNER, "a", str(mapped))
    assert size is not None
    assert 1000 <= size < 1100
