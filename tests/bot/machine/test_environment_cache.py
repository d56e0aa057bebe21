"""Environments on disk: complete or not there, never removed while used, and what goes when there is too much."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.machine import settings
from myrmidon.bot.machine.environment_cache import EnvironmentCache, HeldLock
from myrmidon.bot.system import filesystem

NOW = 1_800_000_000.0
DAY = 86400.0
PYTHON = "venv/bin/python"


def key_of(number: int) -> str:
    return f"{number:064x}-3.11.2-0123abcd"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A disk whose free bytes a test decides."""
    found = {"free": 1 << 40, "total": 1 << 41}
    monkeypatch.setattr(filesystem, "free_disk", lambda _: (found["free"], found["total"]))
    return found


@pytest.fixture
def cache(tmp_path: Path, disk: dict[str, int]) -> EnvironmentCache:
    made = EnvironmentCache(str(tmp_path / "environments"))
    made.create()
    made.rules = dict(settings.DEFAULTS["caches"]["environments"])
    return made


def held(cache: EnvironmentCache, key: str, *, exclusive: bool = True) -> HeldLock:
    lock = cache.lock(key, exclusive=exclusive)
    assert lock is not None
    return lock


def build(cache: EnvironmentCache, number: int, *, size: int = 100, used: float = NOW) -> str:
    """As a build would; the folder."""
    lock = held(cache, key_of(number))
    folder = cache.new_folder(key_of(number))
    python = Path(folder) / PYTHON
    python.parent.mkdir(parents=True)
    python.write_bytes(b"x" * size)
    cache.publish(key_of(number), folder, PYTHON)
    lock.touch(used)
    lock.release()
    return folder


def test_an_environment_is_found_when_it_is_complete_and_not_before(cache: EnvironmentCache):
    lock = held(cache, key_of(1))
    folder = cache.new_folder(key_of(1))
    os.makedirs(os.path.join(folder, "venv", "bin"))
    assert cache.find(key_of(1)) is None
    Path(folder, PYTHON).touch()
    assert cache.find(key_of(1)) is None
    cache.publish(key_of(1), folder, PYTHON)
    assert cache.find(key_of(1)) == folder
    lock.release()


def test_an_environment_whose_interpreter_has_gone_is_built_again(cache: EnvironmentCache):
    folder = build(cache, 1)
    os.unlink(os.path.join(folder, PYTHON))
    assert cache.find(key_of(1)) is None
    assert build(cache, 1) != folder
    assert not os.path.exists(folder)


def test_a_damaged_file_is_no_environment(cache: EnvironmentCache):
    build(cache, 1)
    for text in ("", "{", "[]", '{"folder": 1}'):
        Path(cache.path(key_of(1), ".json")).write_text(text)
        assert cache.find(key_of(1)) is None
    assert cache.sizes() == {}


def test_what_a_killed_build_has_left_is_removed_and_one_that_runs_is_not(cache: EnvironmentCache):
    killed = held(cache, key_of(1))
    left = cache.new_folder(key_of(1))
    killed.release()
    running = held(cache, key_of(2))
    busy = cache.new_folder(key_of(2))
    cache.trim(NOW)
    assert not os.path.exists(left)
    assert os.path.exists(busy)
    assert not os.path.exists(cache.path(key_of(1), ".lock"))
    running.release()


def test_the_least_recently_used_go_when_there_are_too_many_or_they_are_too_large(cache: EnvironmentCache):
    for number in range(4):
        build(cache, number, used=NOW + number)
    cache.rules["items"] = 3
    assert cache.trim(NOW + 10) == [key_of(0)]
    cache.rules["size"] = 150
    assert cache.trim(NOW + 10) == [key_of(1), key_of(2)]
    assert [entry.key for entry in cache.entries()] == [key_of(3)]


def test_old_environments_go_only_when_the_time_is_known(cache: EnvironmentCache):
    build(cache, 1, used=NOW - 30 * DAY)
    build(cache, 2, used=NOW - DAY)
    assert cache.trim() == []
    assert cache.trim(NOW) == [key_of(1)]


def test_environments_go_until_enough_space_is_free(cache: EnvironmentCache, disk: dict[str, int]):
    build(cache, 1, used=NOW)
    build(cache, 2, used=NOW + 1)
    disk["free"] = 1 << 20
    assert cache.trim(NOW) == [key_of(1), key_of(2)]


@pytest.mark.parametrize("limit", ["items", "size", "age_s"])
def test_an_environment_that_is_used_stays(cache: EnvironmentCache, limit: str):
    folder = build(cache, 1)
    lock = held(cache, key_of(1), exclusive=False)
    cache.rules[limit] = 0
    assert cache.trim(NOW + DAY) == []
    assert cache.find(key_of(1)) == folder
    lock.release()
    assert cache.trim(NOW + DAY) == [key_of(1)]


def test_a_lock_of_another_process_holds_until_it_is_killed(cache: EnvironmentCache):
    build(cache, 1)
    cache.rules["items"] = 0
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print(1, flush=True); input()"
    path = cache.path(key_of(1), ".lock")
    command = [sys.executable, "-c", code, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        assert cache.trim(NOW) == []
        user.kill()
    assert cache.trim(NOW) == [key_of(1)]


def test_a_lock_that_was_removed_excludes_nobody_and_is_not_taken(cache: EnvironmentCache, monkeypatch: Any):
    build(cache, 1)
    real, removed = os.open, False

    def opened(path: str, flags: int, *mode: int) -> int:
        nonlocal removed
        handle = real(path, flags, *mode)
        if path.endswith(".lock") and not removed:
            removed = True
            os.unlink(path)  # another bot removes the environment just now
        return handle

    monkeypatch.setattr(os, "open", opened)
    lock = held(cache, key_of(1))
    assert os.fstat(lock.handle).st_ino == os.stat(lock.path).st_ino
    lock.release()


def test_a_folder_of_another_kind_is_refused(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    for name in ("link", "open", "file"):
        with pytest.raises(PermissionError):
            EnvironmentCache(str(tmp_path / name)).create()
