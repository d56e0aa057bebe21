"""A new zip for a bot that runs: it is checked, tried and switched to; a bad one is left for the last good one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.bot.bots import a_bot, pack, source_with, zip_files
from tests.bot.stub import Stub


def _newer(stub: Stub, **changed: str) -> tuple[bytes, str]:
    changed.setdefault("__init__", '"""A newer bot."""\n')
    return pack(zip_files(stub.url, **changed))


def test_updates_alternate_between_two_files(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1"):
        stub.until(lambda: stub.hellos, "a handshake")
        for number in (1, 2, 3):
            zipped, version = _newer(stub, __init__=f'"""Number {number}."""\n')
            stub.give_out(zipped, version)
            stub.until(lambda version=version: stub.hellos[-1]["version"] == version, f"update {number}")
            assert stub.run("/bin/true")["exit_code"] == 0
    assert sorted(path.name for path in (tmp_path / "b1").glob("*.zip")) == ["bot.1.zip", "bot.2.zip", "bot.zip"]


@pytest.mark.parametrize(
    ("changed", "try_s", "said"),
    [
        ({"command_runner": "def broken(:\n"}, 60.0, "SyntaxError"),
        ({"session_loop": "import no_such_module\n"}, 60.0, "no_such_module"),
        ({"result_journal": "while True: pass\n"}, 0.5, "did not finish within"),
    ],
    ids=["syntax error", "bad import", "hang at import"],
)
def test_a_zip_that_is_not_fine_is_not_switched_to(
    stub: Stub, tmp_path: Path, changed: dict[str, str], try_s: float, said: str
):
    trying = zip_files(stub.url, updater=source_with("updater", "SELF_TEST_S = 60.0", f"SELF_TEST_S = {try_s}"))
    with a_bot(stub.url, tmp_path / "b1", files=trying):
        stub.until(lambda: stub.hellos, "a handshake")
        stub.give_out(*_newer(stub, **changed))
        stub.until(lambda: stub.says("bot_error"), "a complaint")
        assert said in stub.says("bot_error")[0]
        assert stub.run("/bin/true")["exit_code"] == 0
        assert len(stub.hellos) == 1


@pytest.mark.parametrize(
    "crash",
    ['raise SystemExit("crash at start")', "os.kill(os.getpid(), 9)"],
    ids=["an error", "a sudden death"],
)
def test_a_zip_that_crashes_at_its_start_is_left_for_the_good_one(stub: Stub, tmp_path: Path, crash: str):
    worker = source_with(
        "worker", "    worker = Worker(StartupConfig", f"    {crash}\n    worker = Worker(StartupConfig"
    )
    with a_bot(stub.url, tmp_path / "b1"):
        stub.until(lambda: stub.hellos, "a handshake")
        good = stub.hellos[0]["version"]
        zipped, version = _newer(stub, worker=worker)
        stub.give_out(zipped, version)
        stub.until(lambda: len(stub.hellos) == 2, "the return")
        assert stub.hellos[1]["version"] == good
        assert stub.run("/bin/true")["exit_code"] == 0
        stub.until(lambda: [m for m in stub.says("bot_error") if version in m], "a complaint")
        killed = "kill" in crash  # by whom, nobody knows
        failures = [said for said in stub.said if f"update to {version} failed" in said["message"]]
        assert [said.get("bad_release") for said in failures] == [None if killed else version]


def test_a_zip_that_hangs_at_its_start_is_left_for_the_good_one(stub: Stub, tmp_path: Path):
    hang = source_with(
        "worker", "    worker = Worker(StartupConfig", "    signal.pause()\n    worker = Worker(StartupConfig"
    )
    # One that is good and too slow for this is started again until it is not.
    impatient = zip_files(stub.url, supervisor=source_with("supervisor", "STARTUP_S = 60.0", "STARTUP_S = 2.0"))
    with a_bot(stub.url, tmp_path / "b1", files=impatient):
        stub.until(lambda: stub.hellos, "a handshake")
        stub.give_out(*_newer(stub, worker=hang))
        stub.until(lambda: len(stub.hellos) == 2, "the return")
        assert stub.hellos[1]["version"] == stub.hellos[0]["version"]


def test_a_zip_that_dies_before_its_first_answer_is_left_for_the_good_one(stub: Stub, tmp_path: Path):
    dies = source_with(
        "session_loop",
        "    def _poll(self, action",
        "    def _poll(self, action): os._exit(9)\n    def _no_poll(self, action",
    )
    with a_bot(stub.url, tmp_path / "b1"):
        stub.until(lambda: stub.hellos, "a handshake")
        good = stub.hellos[0]["version"]
        _, version = newer = _newer(stub, session_loop=dies)
        stub.give_out(*newer)
        stub.until(lambda: len(stub.hellos) == 3, "the return")
        assert [hello["version"] for hello in stub.hellos] == [good, version, good]


def test_a_wrong_zip_under_the_right_name_is_not_started(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1"):
        stub.until(lambda: stub.hellos, "a handshake")
        other, _ = _newer(stub)
        stub.give_out(other, "ab" * 32)
        stub.until(lambda: stub.says("bot_error"), "a complaint")
        assert "digest" in stub.says("bot_error")[0]
        assert stub.run("/bin/true")["exit_code"] == 0


def test_a_version_that_the_server_has_not_signed_is_not_fetched_twice(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1"):
        stub.until(lambda: stub.hellos, "a handshake")
        zipped, version = _newer(stub)
        stub.zips[version] = zipped
        with stub.change:
            stub.order = {"order": "update", "version": version, "zip_hmac": "00" * 32}
            stub.change.notify_all()
        stub.until(lambda: stub.says("bot_error"), "a complaint")
        assert "signature" in stub.says("bot_error")[0]
        assert len(stub.hellos) == 1


def test_a_good_zip_that_crashes_is_started_again(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1") as bot:
        for count in (1, 2, 3):
            stub.until(lambda count=count: len(stub.hellos) == count, f"handshake {count}")
            assert stub.run("/bin/true")["exit_code"] == 0
            os.kill(bot.worker(), signal.SIGKILL)
        stub.until(lambda: len(stub.hellos) == 4, "the fourth handshake")
