"""Releases good, bad and taken back: what a bot switches to, what it leaves, and what it tells the server of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from myrmidon.bot import supervisor
from myrmidon.bot.hooks.loader import ZIP_PATH
from myrmidon.bot.install import exit_codes, updater
from tests.bot.bots import a_bot, pack, source_with, wait_for, zip_files
from tests.bot.stub import Stub
from tests.cases import some

IMPATIENT = {"MYRMIDON_BOT_PROVE_S": "60"}
HANGS = "import time\ntime.sleep(1000)\n"


def dies_at(file: Path) -> str:
    """The text of session_loop.py of a bot that does its work until there is this file."""
    begin = "    def run(self) -> None:\n"
    watch = f"""
        import threading, time
        def watch():
            while not os.path.exists({str(file)!r}):
                time.sleep(0.02)
            os._exit(9)
        threading.Thread(target=watch, daemon=True).start()
"""
    return source_with("session_loop", begin, begin + watch)


def _release(stub: Stub, text: str = '"""Another."""\n', **changed: str) -> tuple[bytes, str]:
    return pack(zip_files(stub.url, __init__=text, **changed))


def _give(stub: Stub, name: str, release: tuple[bytes, str]) -> str:
    """Order one bot to update, when the one before it has taken its order."""
    stub.until(lambda: stub.order is None, "the last order to be taken")
    hello = next(hello for hello in reversed(stub.hellos) if hello["bot_id"] == name)
    stub.hellos.append(hello)
    stub.give_out(*release)
    stub.hellos.pop()
    return release[1]


def _version(stub: Stub, name: str) -> str:
    return str(next(hello["version"] for hello in reversed(stub.hellos) if hello["bot_id"] == name))


def _bad(stub: Stub) -> list[str]:
    return [said["bad_release"] for said in stub.said if "bad_release" in said]


def test_three_bots_go_through_good_bad_and_reverted_releases(stub: Stub, tmp_path: Path):
    names = ("b1", "b2", "b3")
    # Only the zip that hangs is given up soon: a good one may be as slow as this machine is.
    hasty = source_with(
        "updater", "child.wait(timeout_s)", "child.wait(1.0 if b'it-hangs' in _read(path) else timeout_s)"
    )
    first = zip_files(stub.url, updater=hasty)
    good = _release(stub, updater=hasty)
    syntax = _release(stub, command_runner="def broken(:\n")
    hang = pack({**zip_files(stub.url, result_journal=HANGS), "it-hangs": b""})
    later = _release(stub, session_loop=dies_at(tmp_path / "die"))
    with ExitStack() as bots:
        for name in names:
            bots.enter_context(a_bot(stub.url, tmp_path / name, files=first))
            stub.until(lambda name=name: [h for h in stub.hellos if h["bot_id"] == name], f"{name}'s handshake")
        for name in names:
            version = _give(stub, name, good)
            stub.until(lambda name=name, version=version: _version(stub, name) == version, f"{name} to update")
        proved = [tmp_path / name / "bot.zip" for name in names]
        wait_for(lambda: stub.run("/bin/true") and all(p.read_bytes() == good[0] for p in proved), "a task on each")
        for name, release in zip(names, (syntax, hang, later), strict=True):
            _give(stub, name, release)
        stub.until(lambda: _version(stub, "b3") == later[1], "the last one to be at work")
        (tmp_path / "die").touch()  # before it has run a task well
        for release in (syntax, hang, later):
            stub.until(lambda release=release: release[1] in _bad(stub), "a complaint with the digest")
        stub.until(lambda: {_version(stub, name) for name in names} == {good[1]}, "all to be back")
        runs = [stub.submit("/bin/true") for _ in range(9)]
        assert {stub.result(run)["exit_code"] for run in runs} == {0}
        best = _release(stub, '"""The best."""\n')
        for name in names:
            _give(stub, name, best)
        stub.until(lambda: {_version(stub, name) for name in names} == {best[1]}, "all to have the next good one")
    assert sorted(set(_bad(stub))) == sorted({syntax[1], hang[1], later[1]})


def test_a_release_that_dies_after_a_while_is_left_although_it_has_run_tasks(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1", env=IMPATIENT):
        stub.until(lambda: stub.hellos, "a handshake")
        old = _version(stub, "b1")
        version = _give(stub, "b1", _release(stub, session_loop=dies_at(tmp_path / "die")))
        stub.until(lambda: _version(stub, "b1") == version, "the update")
        assert stub.run("/bin/true")["exit_code"] == 0
        (tmp_path / "die").touch()
        stub.until(lambda: _version(stub, "b1") == old, "the return")
        stub.until(lambda: _bad(stub) == [version], "a complaint")
        assert stub.run("/bin/true")["exit_code"] == 0
        _give(stub, "b1", (stub.zips[version], version))
        stub.until(lambda: [m for m in stub.says("bot_error") if "postponed" in m], "a refusal to try it again")
        assert stub.run("/bin/true")["exit_code"] == 0
        assert _version(stub, "b1") == old


@pytest.mark.parametrize(("config", "try_s"), [("import no_such_module", 60.0), (HANGS, 0.5)], ids=["import", "hang"])
def test_a_release_with_broken_hooks_is_not_switched_to(stub: Stub, tmp_path: Path, config: str, try_s: float):
    short = zip_files(stub.url, updater=source_with("updater", "SELF_TEST_S = 60.0", f"SELF_TEST_S = {try_s}"))
    with a_bot(stub.url, tmp_path / "b1", files=short):
        stub.until(lambda: stub.hellos, "a handshake")
        release = pack({**zip_files(stub.url), ZIP_PATH: config.encode()})
        _give(stub, "b1", release)
        stub.until(lambda: _bad(stub) == [release[1]], "a complaint")
        assert stub.run("/bin/true")["exit_code"] == 0
        assert len(stub.hellos) == 1


def test_a_release_that_restarts_again_and_again_is_left(stub: Stub, tmp_path: Path):
    restless = f"class Worker: pass\ndef main(argv): return {exit_codes.RESTART}\n"
    watchful = zip_files(
        stub.url, supervisor=source_with("supervisor", "RESTART_WINDOW_S = 30.0", "RESTART_WINDOW_S = 3000.0")
    )
    with a_bot(stub.url, tmp_path / "b1", files=watchful):
        stub.until(lambda: stub.hellos, "a handshake")
        version = _give(stub, "b1", _release(stub, worker=restless))
        stub.until(lambda: len(stub.hellos) == 2, "the return")
        stub.until(lambda: _bad(stub) == [version], "a complaint")
        assert "restarted more than 5 times" in stub.says("bot_error")[-1]
        assert stub.run("/bin/true")["exit_code"] == 0


def test_a_good_zip_that_restarts_again_and_again_has_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    watch = supervisor.Supervisor(str(tmp_path))
    rests: list[float] = []
    monkeypatch.setattr(watch, "_sleep", rests.append)
    good = str(tmp_path / updater.GOOD_ZIP)
    for _ in range(supervisor.MAX_RESTARTS):
        assert watch._choose_next(good, exit_codes.RESTART, came_up=True) == good
    assert rests == []
    assert watch._choose_next(good, exit_codes.RESTART, came_up=True) == good
    assert (len(rests), watch.crash_count) == (1, 1)


def test_a_good_zip_that_crashes_again_and_again_has_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    watch = supervisor.Supervisor(str(tmp_path))
    rests: list[float] = []
    monkeypatch.setattr(watch, "_sleep", rests.append)
    for _ in range(supervisor.MAX_RESTARTS):
        watch._choose_next(None, 1, came_up=True)
    assert (set(rests), watch.crash_count) == ({0.1}, 0)
    watch._choose_next(None, 1, came_up=True)
    watch._choose_next(None, 1, came_up=True)
    assert watch.crash_count == 2


def test_a_keeper_that_can_start_no_process_tries_again_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    watch = supervisor.Supervisor(str(tmp_path))
    tried: list[object] = []

    def start(words: list[str], **_: object) -> str:
        tried.append(words)
        if len(tried) == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return "a process"

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(watch, "_sleep", tried.append)
    started: object = watch._start(None, 0)
    assert started == "a process"
    assert tried[1] == supervisor.START_RETRY_S
    watch.stopping = True
    assert watch._start(None, 0) is None


def test_a_release_that_cannot_reach_the_server_is_not_switched_to(stub: Stub, tmp_path: Path):
    once = source_with("self_test", "ATTEMPTS = 3", "ATTEMPTS = 1")
    deaf = source_with(
        "http_client", "create_connection((address.host, address.port)", "create_connection((address.host, 1)"
    )
    with a_bot(stub.url, tmp_path / "b1"):
        stub.until(lambda: stub.hellos, "a handshake")
        version = _give(stub, "b1", _release(stub, self_test=once, http_client=deaf))
        stub.until(lambda: _bad(stub) == [version], "a complaint")
        assert "cannot reach the server" in stub.says("bot_error")[0]
        stub.fault("/healthz", "refused", "refused", "refused")  # now it is the server that is silent
        release = _release(stub, self_test=once)
        _give(stub, "b1", release)
        stub.until(lambda: len(stub.says("bot_error")) == 2, "another complaint")
        assert _bad(stub) == [version]
        _give(stub, "b1", release)
        stub.until(lambda: _version(stub, "b1") == release[1], "the update")
        assert stub.run("/bin/true")["exit_code"] == 0


def test_a_server_that_was_away_for_a_moment_makes_no_release_bad(stub: Stub, tmp_path: Path):
    """The first self-test does not reach it, the bot itself does: by then it is back."""
    once = source_with("self_test", "ATTEMPTS = 3", "ATTEMPTS = 1")
    with a_bot(stub.url, tmp_path / "b1"):
        stub.until(lambda: stub.hellos, "a handshake")
        stub.fault("/healthz", "refused")
        version = _give(stub, "b1", _release(stub, self_test=once))
        stub.until(lambda: _version(stub, "b1") == version, "the update")
        assert stub.run("/bin/true")["exit_code"] == 0
    assert (stub.faults, _bad(stub)) == ([], [])


@pytest.mark.parametrize("status", some(["503", "500"], short=1))
def test_a_server_without_its_database_makes_no_release_bad(stub: Stub, tmp_path: Path, status: str):
    """It answers every call by an error from the update on: the download, the test, the first calls of the new zip."""
    with a_bot(stub.url, tmp_path / "b1", env=IMPATIENT) as bot:
        stub.until(lambda: stub.hellos, "a handshake")
        for path, count in (("zip", 2), ("handshake", 4), ("event", 2), ("exchange", 3), ("heartbeat", 1)):
            stub.fault(f"/bot/v1/{path}", *[status] * count)
        stub.fault("/healthz", status)
        version = _give(stub, "b1", _release(stub))
        stub.until(lambda: _version(stub, "b1") == version, "the update")
        run = stub.submit("/bin/sh", "-c", "sleep 0.5; exit 3")
        assert stub.result(run)["exit_code"] == 3
        os.kill(bot.worker(), signal.SIGKILL)
        stub.until(lambda: [h["version"] for h in stub.hellos].count(version) == 2, "its second chance")
    assert _bad(stub) == []


def test_an_update_waits_for_the_task_that_runs(stub: Stub, tmp_path: Path):
    go = tmp_path / "go"
    stub.heartbeat_s = 0.2
    with a_bot(stub.url, tmp_path / "b1"):
        run = stub.submit("/bin/sh", "-c", f"while [ ! -e {go} ]; do sleep 0.02; done; exit 7")
        stub.until(lambda: [r for r in stub.reports if r["run"] == run], "the task to begin")
        version = _give(stub, "b1", _release(stub))
        stub.until(lambda: stub.order is None, "the order to be taken")
        calls, began = len(stub.calls), time.monotonic()
        stub.until(lambda: len(stub.calls) > calls + 2, "some more talk")
        assert time.monotonic() - began > stub.heartbeat_s, "it waits, and does not ask again and again"
        assert len(stub.hellos) == 1
        stub.fault("/bot/v1/zip", "503", "lost")  # which is no reason to forget it
        go.touch()
        assert stub.result(run)["exit_code"] == 7
        stub.until(lambda: _version(stub, "b1") == version, "the update")


def test_an_update_with_a_full_disk_is_survived_and_made_up_for(stub: Stub, tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        with a_bot(stub.url, small / "b1"):
            assert stub.run("/bin/true")["exit_code"] == 0
            (small / "filler").write_bytes(b"x" * (shutil.disk_usage(small).free - 20_000))
            release = _release(stub)
            _give(stub, "b1", release)
            stub.until(lambda: [m for m in stub.says("bot_error") if "No space left" in m], "a complaint")
            assert _bad(stub) == []
            (small / "filler").unlink()
            assert stub.run("/bin/true")["exit_code"] == 0
            _give(stub, "b1", release)
            stub.until(lambda: _version(stub, "b1") == release[1], "the update")
            assert stub.run("/bin/true")["exit_code"] == 0
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_zip_is_proved_by_a_task_and_some_time_or_by_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(updater, "PROVE_S", 60.0)
    folder = str(tmp_path)
    assert updater.is_proved(folder, 0.0, succeeded=False)  # there is none to return to
    good = tmp_path / "bot.zip"
    good.touch()
    assert not updater.is_proved(folder, 59.0, succeeded=True)
    assert updater.is_proved(folder, 60.0, succeeded=True)
    assert not updater.is_proved(folder, 1e6, succeeded=False)
    os.utime(good, (time.time() - 8 * 86400,) * 2)
    assert updater.is_proved(folder, 60.0, succeeded=False)
    assert not updater.is_proved(folder, 59.0, succeeded=False)


def test_a_bad_version_is_tried_again_after_an_hour(tmp_path: Path):
    folder = str(tmp_path)
    assert not updater.is_bad(folder, "v1", now=1000.0)
    updater.record_bad(folder, "v1", now=1000.0)
    updater.record_bad(folder, "v2", now=2000.0)
    assert updater.is_bad(folder, "v1", now=4599.0)
    assert not updater.is_bad(folder, "v1", now=4600.0)
    assert not updater.is_bad(folder, "v1", now=999.0)  # a clock that was set back is no reason to wait for years
    updater.record_bad(folder, "v3", now=5000.0)
    assert updater.is_bad(folder, "v2", now=5000.0)
    (tmp_path / "bad.json").write_text("[rubbish")
    assert not updater.is_bad(folder, "v3", now=5000.0)


def test_a_new_zip_whose_bot_is_killed_again_and_again_is_not_blamed_for_that(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1", env=IMPATIENT) as bot:
        stub.until(lambda: stub.hellos, "a handshake")
        version = _give(stub, "b1", _release(stub))
        for count in (2, 3, 4):
            stub.until(lambda count=count: len(stub.hellos) == count, f"handshake {count}")
            assert _version(stub, "b1") == version
            os.kill(bot.worker(), signal.SIGKILL)
        stub.until(lambda: len(stub.hellos) == 5, "the fifth handshake")
        assert stub.run("/bin/true")["exit_code"] == 0
        assert (_version(stub, "b1"), _bad(stub)) == (version, [])
