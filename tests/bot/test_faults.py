"""What can go wrong around a bot: the network, the server, the bot itself, its machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.bot.bots import BotProcess, a_bot, alive, freeze, source_with, thaw, wait_for, zip_files
from tests.bot.stub import Stub
from tests.deadline import HANG_S, POLL_S

SHELL = "/bin/sh"


@pytest.mark.parametrize("kind", ["lost", "cut", "refused", "503", "500", "twice", "409", "401"])
def test_every_task_runs_once_and_is_reported_whatever_happens_to_exchanges(
    stub: Stub, tmp_path: Path, notes: Path, kind: str
):
    ledger = notes / "ledger"
    with a_bot(stub.url, tmp_path / "b1"):
        stub.fault("/bot/v1/exchange", kind, kind)
        runs = [stub.submit(SHELL, "-c", f"echo {number} >> {ledger}; echo {number}") for number in range(5)]
        assert [stub.result(run)["exit_code"] for run in runs] == [0] * 5
        assert [stub.log(run) for run in runs] == [b"%d\n" % number for number in range(5)]
    assert sorted(ledger.read_text().split()) == ["0", "1", "2", "3", "4"]


def test_a_letter_that_the_server_will_never_read_does_not_end_the_talk(stub: Stub, tmp_path: Path):
    impatient = zip_files(
        stub.url, failed_calls=source_with("failed_calls", "MAX_REJECTIONS = 5", "MAX_REJECTIONS = 1")
    )
    with a_bot(stub.url, tmp_path / "b1", files=impatient):
        assert stub.run("/bin/true")["exit_code"] == 0
        stub.fault("/bot/v1/exchange", "400")
        stub.submit("/bin/true")
        stub.until(lambda: stub.says("bot_error"), "a complaint")
        assert stub.run("/bin/true")["exit_code"] == 0


@pytest.mark.parametrize("kind", ["lost", "503"])
def test_a_handshake_is_tried_until_it_is_answered(stub: Stub, tmp_path: Path, kind: str):
    stub.fault("/bot/v1/handshake", kind, kind)
    with a_bot(stub.url, tmp_path / "b1"):
        assert stub.run("/bin/true")["exit_code"] == 0


def test_pieces_of_a_large_log_arrive_in_spite_of_a_bad_network(stub: Stub, tmp_path: Path):
    stub.fault("/bot/v1/log", "lost", "cut", "503")
    with a_bot(stub.url, tmp_path / "b1"):
        script = "import os\nfor i in range(3000): os.write(1, b'%08d' % i * 128)"
        run = stub.submit(sys.executable, "-c", script)
        assert stub.result(run)["stdout_size"] == 3000 * 1024
        assert stub.log(run) == b"".join(b"%08d" % number * 128 for number in range(3000))
        wait_for(lambda: not list((tmp_path / "b1" / "spool").iterdir()), "the end of the spool")


WRITE_3_MB = "import os\nfor i in range(3000): os.write(1, b'%08d' % i * 128)"
REFUSED = re.compile(rb"\n\[myrmidon: the server refused (\d+) bytes of output here: HTTP (\d+)\]\n")


@pytest.mark.parametrize("status", ["400", "413", "422"])
def test_pieces_of_a_log_that_the_server_refuses_are_dropped_and_lines_say_so(stub: Stub, tmp_path: Path, status: str):
    """One piece, or all of them because they are too large although they cannot be divided any more."""
    if status == "413":
        stub.log_limit = 1000
    else:
        stub.fault("/bot/v1/log", status)
    with a_bot(stub.url, tmp_path / "b1"):
        run = stub.submit(sys.executable, "-c", WRITE_3_MB)
        assert stub.result(run)["stdout_size"] == 3000 * 1024
        expected = bytearray(b"".join(b"%08d" % number * 128 for number in range(3000)))
        lines = list(REFUSED.finditer(stub.log(run)))
        assert len(lines) > 1 if status == "413" else len(lines) == 1
        for line in lines:
            assert line[2] == status.encode()
            size = int(line[1])
            expected[line.end() - size : line.end()] = line[0].rjust(size, b"\0")
        assert stub.log(run) == expected
        stub.until(lambda: [m for m in stub.says("bot_error") if f"refused output of {run}: {status}" in m], "an error")
        assert stub.run("/bin/true")["exit_code"] == 0


def test_a_log_goes_in_smaller_pieces_to_a_server_that_takes_no_large_ones(stub: Stub, tmp_path: Path):
    stub.log_limit = 100_000
    with a_bot(stub.url, tmp_path / "b1"):
        run = stub.submit(sys.executable, "-c", WRITE_3_MB)
        assert stub.result(run)["stdout_size"] == 3000 * 1024
        assert stub.log(run) == b"".join(b"%08d" % number * 128 for number in range(3000))
        assert stub.says("bot_error") == []


def test_output_that_the_server_refuses_in_an_exchange_is_uploaded_by_itself(stub: Stub, tmp_path: Path):
    stub.log_refusal = 413
    go = tmp_path / "go"
    with a_bot(stub.url, tmp_path / "b1"):
        slow = stub.submit(SHELL, "-c", f"echo one; while [ ! -e {go} ]; do sleep 0.02; done; echo two")
        stub.until(lambda: stub.log(slow) == b"one\n", "the output of a command that runs")
        go.touch()
        assert stub.result(slow)["stdout_size"] == 8
        assert stub.log(slow) == b"one\ntwo\n"


def test_a_result_whose_output_the_server_refuses_in_an_exchange_follows_its_log(stub: Stub, tmp_path: Path):
    stub.log_refusal = 413
    stub.poll_s = POLL_S
    with a_bot(stub.url, tmp_path / "b1"):
        quick = stub.submit(SHELL, "-c", "echo out; echo err >&2; exit 3")
        assert stub.result(quick)["exit_code"] == 3
        assert [stub.log(quick, stream) for stream in (0, 1)] == [b"out\n", b"err\n"]


def test_a_command_goes_on_while_the_server_is_away_and_its_log_catches_up(stub: Stub, tmp_path: Path, notes: Path):
    go, done = notes / "go", notes / "done"
    with a_bot(stub.url, tmp_path / "b1"):
        script = f"echo before; while [ ! -e {go} ]; do sleep 0.02; done; echo after; touch {done}"
        run = stub.submit(SHELL, "-c", script)
        stub.until(lambda: stub.log(run) == b"before\n", "the first line")
        stub.down = True
        go.touch()
        wait_for(done.exists, "the command's end")
        wait_for(lambda: b'"finish"' in (tmp_path / "b1" / "journal").read_bytes(), "the journal")
        assert run not in stub.results
        stub.down = False
        assert stub.result(run)["exit_code"] == 0
        assert stub.log(run) == b"before\nafter\n"


def test_a_bot_killed_in_the_middle_leaves_no_process_and_comes_back_without_the_run(
    stub: Stub, tmp_path: Path, notes: Path
):
    pids = notes / "pids"
    with a_bot(stub.url, tmp_path / "b1") as bot:
        script = f"(setsid sleep 600 & echo $! >> {pids}); echo hello; echo $$ >> {pids}; sleep 600"
        run = stub.submit(SHELL, "-c", script)
        stub.until(lambda: stub.log(run) == b"hello\n", "the command's start")
        os.kill(bot.worker(), signal.SIGKILL)
        stub.until(lambda: len(stub.hellos) == 2, "the second handshake")
        assert stub.hellos[1]["holds"] == []
        assert stub.hellos[1]["session"] > stub.hellos[0]["session"]
        assert [pid for pid in pids.read_text().split() if alive(int(pid))] == []
        assert stub.run("/bin/true")["exit_code"] == 0


def test_the_log_of_a_run_whose_bot_was_killed_still_arrives(stub: Stub, tmp_path: Path, notes: Path):
    with a_bot(stub.url, tmp_path / "b1") as bot:
        said = notes / "said"
        run = stub.submit(SHELL, "-c", f"sleep 0.3; echo last words; touch {said}; sleep 600")
        wait_for(lambda: said.exists() and (_spooled(bot) or stub.log(run)), "the words in the spool")
        os.kill(bot.worker(), signal.SIGKILL)
        stub.until(lambda: stub.log(run) == b"last words\n", "the last words")


def _spooled(bot: BotProcess) -> bool:
    """Whether output is in a file of the spool; one that has only been created is empty."""
    with suppress(FileNotFoundError):  # delivered meanwhile
        return any(part.stat().st_size for part in (bot.folder / "spool").glob("*/0.*"))
    return False


def test_a_result_is_delivered_after_a_restart(stub: Stub, tmp_path: Path, notes: Path):
    with a_bot(stub.url, tmp_path / "b1") as bot:
        stub.until(lambda: stub.hellos, "a handshake")
        run = stub.submit(SHELL, "-c", f"until [ -e {notes}/go ]; do sleep 0.02; done; echo out; exit 7")
        stub.until(lambda: not stub.waiting, "the claim")
        stub.down = True
        (notes / "go").touch()  # not before: its result could arrive
        wait_for(lambda: b'"exit_code":7' in (tmp_path / "b1" / "journal").read_bytes(), "the journal")
        os.kill(bot.worker(), signal.SIGKILL)
        bot.kill()
        stub.down = False
    with a_bot(stub.url, tmp_path / "b1"):
        assert stub.result(run)["exit_code"] == 7
        # Or of one that the supervisor has still started. The result may also come from a call that was under way.
        stub.until(lambda: any(hello["holds"] == [run] for hello in stub.hellos), "a handshake with the run")
        assert stub.log(run) == b"out\n"
        stub.submit("/bin/true")  # the answer to the report comes with the next task
        wait_for(lambda: b'"exit_code":7' not in (tmp_path / "b1" / "journal").read_bytes(), "the journal's end")


def test_killing_the_keeper_kills_the_bot_and_its_command(stub: Stub, tmp_path: Path, notes: Path):
    pids = notes / "pids"
    with a_bot(stub.url, tmp_path / "b1") as bot:
        stub.submit(SHELL, "-c", f"(setsid sleep 600 & echo $! >> {pids}); echo $$ >> {pids}; sleep 600")
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2, "the command's start")
        worker = bot.worker()
        bot.kill()
        wait_for(lambda: not alive(worker), "the end of the bot")
        wait_for(lambda: not [pid for pid in pids.read_text().split() if alive(int(pid))], "the end of the command")


def test_what_outlived_bot_and_keeper_dies_when_the_bot_comes_back(stub: Stub, tmp_path: Path, notes: Path):
    pid = notes / "pid"
    with a_bot(stub.url, tmp_path / "b1") as bot:
        unmarked = f"env -i setsid sh -c 'echo $$ >> {pid}; sleep 600'"
        stub.submit(SHELL, "-c", f"echo $$ >> {pid}; {unmarked} & sleep 600")
        wait_for(lambda: pid.exists() and len(pid.read_text().split()) == 2, "the command's start")
        worker = bot.worker()
        freeze(worker)  # so that it cannot see the supervisor die
        bot.kill()
        os.kill(worker, signal.SIGKILL)
        pids = [int(one) for one in pid.read_text().split()]
        assert all(map(alive, pids))
    with a_bot(stub.url, tmp_path / "b1"):
        wait_for(lambda: not any(map(alive, pids)), "the end of the command")


def test_a_task_that_makes_no_sense_costs_one_run_and_not_the_bot(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1"):
        result = stub.run("/bin/true", execution_timeout_s=None)
        assert (result["type"], result["kind"]) == ("fault", "bot_error")
        assert stub.run("/bin/true")["exit_code"] == 0
        assert len(stub.hellos) == 1


def test_a_bot_frozen_past_its_lease_kills_its_command_and_starts_clean(stub: Stub, tmp_path: Path, notes: Path):
    pid = notes / "pid"
    stub.heartbeat_s = 0.2
    with a_bot(stub.url, tmp_path / "b1") as bot:
        script = f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"
        run = stub.submit(SHELL, "-c", script, lease_s=0.1, grace_period_s=1000)
        stub.until(lambda: [r for r in stub.reports if r["type"] == "start"], "the start")
        wait_for(lambda: pid.exists() and pid.read_text().strip(), "the command's pid")
        freeze(bot.worker())
        beats = len(stub.calls)
        with stub.change:
            stub.lost.add(run)
        time.sleep(0.4)  # at least this much time passes for everybody but the bot: more than the lease
        thaw(bot.worker())
        stub.until(lambda: len(stub.calls) > beats, "a sign of life")
        wait_for(lambda: not alive(int(pid.read_text())), "the end of the command")
        assert stub.run("/bin/true")["exit_code"] == 0
        assert run not in stub.results


def test_a_session_that_has_ended_is_begun_again_and_what_is_lost_is_killed(stub: Stub, tmp_path: Path, notes: Path):
    pid = notes / "pid"
    stub.heartbeat_s = 0.2
    with a_bot(stub.url, tmp_path / "b1"):
        run = stub.submit(SHELL, "-c", f"echo $$ > {pid}; sleep 600", grace_period_s=60)
        stub.until(lambda: [r for r in stub.reports if r["type"] == "start"], "the start")
        wait_for(lambda: pid.exists() and pid.read_text().strip(), "the command's pid")
        with stub.change:
            stub.lost.add(run)
            stub.sessions_ended.add(stub.hellos[0]["session"])
        stub.until(lambda: len(stub.hellos) == 2, "another handshake")
        assert stub.hellos[1]["holds"] == [run]
        wait_for(lambda: not alive(int(pid.read_text())), "the end of the command")


def test_a_black_hole_costs_no_task(stub: Stub, tmp_path: Path):
    """The connection swallows an exchange; what the bot waits for is one poll and the margin, made short here."""
    short = zip_files(stub.url, http_client=source_with("http_client", "MARGIN_S = 15.0", "MARGIN_S = 0.5"))
    stub.poll_s = 0.5
    with a_bot(stub.url, tmp_path / "b1", files=short):
        stub.until(lambda: stub.hellos, "a handshake")
        stub.fault("/bot/v1/exchange", "hole")
        assert stub.run("/bin/true")["exit_code"] == 0


def test_a_busy_machine_does_not_silence_the_bot(stub: Stub, tmp_path: Path, notes: Path):
    stub.heartbeat_s = 0.3
    stop = notes / "stop"
    with a_bot(stub.url, tmp_path / "b1"):
        script = f"for i in 1 2 3 4 5 6; do (while :; do :; done) & done; while [ ! -e {stop} ]; do sleep 0.1; done"
        run = stub.submit(SHELL, "-c", script)
        held = [[run, f"token-of-{run}"]]
        beats = lambda: [at for at, _, body in stub.calls if body.get("holds") == held]  # noqa: E731
        stub.until(lambda: len(beats()) >= 8, "eight signs of life")
        stop.touch()
        stub.result(run)


def test_a_signal_lets_the_command_finish_and_gives_back_the_rest(stub: Stub, tmp_path: Path, notes: Path):
    go = notes / "go"
    stub.heartbeat_s = POLL_S
    with a_bot(stub.url, tmp_path / "b1") as bot:
        run = stub.submit(SHELL, "-c", f"while [ ! -e {go} ]; do sleep 0.02; done; exit 5")
        stub.until(lambda: [body for _, _, body in stub.calls if body.get("wait_s") and body["holds"]], "it to listen")
        calls = len(stub.calls)
        bot.process.terminate()
        stub.until(lambda: len(stub.calls) > calls, "the signal to be handled, which makes the bot ask again")
        stub.submit("/bin/true")
        go.touch()
        assert bot.process.wait(HANG_S) == 0
    assert stub.results[run]["exit_code"] == 5
    assert len(stub.waiting) == 1
    assert stub.says("bot_shutdown") == ["stopped by a signal"]


def test_an_idle_bot_ends_at_once_when_it_gets_a_signal(stub: Stub, tmp_path: Path):
    stub.poll_s = POLL_S
    with a_bot(stub.url, tmp_path / "b1") as bot:
        stub.until(lambda: [1 for _, path, _ in stub.calls if path.endswith("exchange")], "a poll")
        assert bot.end() == 0


def test_a_second_signal_kills_the_command_and_blames_the_machine(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1") as bot:
        run = stub.submit(SHELL, "-c", "trap '' TERM; while :; do sleep 0.1; done", grace_period_s=60)
        stub.until(lambda: [r for r in stub.reports if r["type"] == "start"], "the start")
        wait_for(lambda: run in stub.results or _again(bot.process), "the end of the command")
        assert bot.process.wait(HANG_S) == 0
    assert (stub.results[run]["type"], stub.results[run]["kind"]) == ("fault", "shutdown")


def test_a_second_signal_cuts_short_the_grace_of_a_command_that_took_too_long(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1") as bot:
        script = "trap 'echo asked' TERM; while :; do sleep 0.1; done"
        for limit_s in (0.5, 5.0, 50.0):  # longer, where the shell has not even set its trap in time
            run = stub.submit(SHELL, "-c", script, execution_timeout_s=limit_s, grace_period_s=600)
            stub.until(partial(lambda run: stub.log(run) or run in stub.results, run), "the command to be asked")
            if run not in stub.results:
                break
        wait_for(lambda: run in stub.results or _again(bot.process), "the end of the command")
        assert bot.process.wait(HANG_S) == 0
    assert (stub.results[run]["type"], stub.results[run]["hard_timeout"]) == ("finish", True)


def _again(process: subprocess.Popen[bytes]) -> bool:
    process.terminate()
    return False


def test_a_bot_without_its_server_still_ends_when_told_to(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1") as bot:
        stub.until(lambda: stub.hellos, "a handshake")
        stub.down = True
        assert bot.end() == 0


@pytest.mark.parametrize(("order", "hellos"), [("terminate", 1), ("restart", 2)])
def test_orders_to_end_and_to_restart_are_obeyed(stub: Stub, tmp_path: Path, order: str, hellos: int):
    with a_bot(stub.url, tmp_path / "b1") as bot:
        run = stub.submit("/bin/true")
        stub.result(run)
        with stub.change:
            stub.order = {"order": order}
            stub.change.notify_all()
        if order == "terminate":
            assert bot.process.wait(HANG_S) == 0
        stub.until(lambda: len(stub.hellos) == hellos, "what the order says")
        assert stub.says("bot_shutdown")


def test_two_bots_of_one_folder_are_one_too_many(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1"):
        stub.until(lambda: stub.hellos, "a handshake")
        code = (
            "import sys; from myrmidon.bot import supervisor; supervisor.LOCK_TIMEOUT_S = 0.2; "
            "sys.exit(supervisor.Supervisor(sys.argv[1]).run())"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "b1")]
        done = subprocess.run(command, capture_output=True, check=False)
        assert (done.returncode, b"in use" in done.stderr) == (3, True)


def test_several_bots_share_a_machine(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1"), a_bot(stub.url, tmp_path / "b2"):
        stub.until(lambda: {hello["bot_id"] for hello in stub.hellos} == {"b1", "b2"}, "both bots")
        runs = [stub.submit("/bin/true") for _ in range(20)]
        assert {stub.result(run)["exit_code"] for run in runs} == {0}


def test_a_task_that_kills_its_bot_is_not_run_again_by_it(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1", "--isolation", "off"):
        poison = stub.submit(SHELL, "-c", "kill -9 $PPID; sleep 600")
        stub.until(lambda: len(stub.hellos) == 2, "the bot's return")
        assert (stub.hellos[1]["holds"], stub.hellos[1]["begun"]) == ([], [f"{poison[:-2]}00"])
        assert stub.run("/bin/true")["exit_code"] == 0
        assert poison not in stub.results


def test_a_bot_that_is_outdated_ends(stub: Stub, tmp_path: Path):
    stub.fault("/bot/v1/handshake", "409")
    with a_bot(stub.url, tmp_path / "b1") as bot:
        assert bot.process.wait(HANG_S) == 4


def test_a_full_disk_is_the_machines_fault_and_makes_the_bot_ill(stub: Stub, tmp_path: Path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(small)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    stub.poll_s = 0.2
    try:
        with a_bot(stub.url, small / "b1", env={"MYRMIDON_BOT_REFRESH_S": "0.2"}):
            result = stub.run(SHELL, "-c", "dd if=/dev/zero of=big bs=1M")
            assert (result["type"], result.get("kind")) == ("fault", "disk_full")
            stub.until(lambda: stub.hellos, "a handshake")
            assert stub.run("/bin/true")["exit_code"] == 0  # everything of the task is gone, and so is the trouble
            filler = small / "filler"
            filler.write_bytes(b"x" * (shutil.disk_usage(small).free - 500_000))
            stub.submit("/bin/true")
            stub.until(lambda: [h for h in stub.hellos if h.get("quarantined")], "the bot to say that it is ill")
            filler.unlink()
            stub.until(lambda: not stub.hellos[-1].get("quarantined"), "the bot to be well again")
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
