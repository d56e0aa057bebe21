"""The real server and real bots when things go wrong: bad networks, freezes, poison, sick machines, full disks.

Time is short by settings, and by a release whose bots wait a second where others wait fifteen.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bots import BotProcess, a_bot, alive, freeze, thaw, wait_for
from tests.bot.stub import Stub
from tests.bot.test_live import ended, log, state, submit
from tests.chaos.proxy import FAULTS, Chaos, chaos
from tests.live import LiveServer, a_source, live_server

SHELL = "/bin/sh"
QUICK: dict[str, Any] = {"sweep_s": 0.1, "shortest_lease_s": 1, "heartbeat_s": 0.3, "poll_s": 1.0}
IMPATIENT = (
    ("bot/link/http_client.py", "MARGIN_S = 15.0", "MARGIN_S = 1.0"),
    ("bot/link/http_client.py", "MAX_DELAY_S = 30.0", "MAX_DELAY_S = 0.5"),
    ("bot/run/watch.py", "UNKILLABLE_AFTER_S = 60.0", "UNKILLABLE_AFTER_S = 0.5"),
    ("bot/system/processes.py", "timeout_s: float = 10.0", "timeout_s: float = 0.5"),
    ("model/errors.py", 'retry_after_s = 5\n    advice = "See', 'retry_after_s = 1\n    advice = "See'),
)
LONG_S = 3600
"""A lease that does not end while a test lasts."""
SHORT_S = 10
"""One that does, and that no bot misses because its machine is slow."""
FREEZER = Path("/sys/fs/cgroup/freezer")

pytestmark = [pytest.mark.full, pytest.mark.untraced]


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_source(tmp_path_factory.mktemp("impatient"), *IMPATIENT)


@pytest.fixture(scope="module")
def server(impatient: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(folder=tmp_path_factory.mktemp("chaos"), source=impatient, **QUICK) as started:
        yield started


@contextmanager
def bot_of(server: LiveServer, folder: Path, pool: str, *flags: str) -> Iterator[BotProcess]:
    """A bot from the server's own zip."""
    token = server.new_token("bot-bootstrap")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bot.zip").write_bytes(server.call("GET", "/bot/v1/zip", token=token).data)
    with a_bot(server.url, folder, "--pool", pool, *flags, token=token) as bot:
        wait_for(lambda: server.get(f"/api/v1/bots/{folder.name}")[0] == 200, f"{folder.name}'s handshake")
        yield bot


# ---------------------------------------------------------------- a bad network

SCRIPT = """
import hashlib, os, random, sys
number, size, ledger = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
said = random.Random(number).randbytes(size)
for at in range(0, size, 8192):
    sys.stdout.buffer.write(said[at : at + 8192])
sys.stdout.flush()
line = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(line, f"{number} {hashlib.sha256(said).hexdigest()}\\n".encode())
"""


@pytest.mark.short
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 30))])
def test_a_stream_of_tasks_through_a_bad_network_runs_once_each_with_every_byte(
    server: LiveServer, tmp_path: Path, notes: Path, seed: int
):
    """Two bots, each behind a proxy that harms a quarter of their calls in every way it knows."""
    ledger, pool = notes / "ledger", f"bad{seed}"
    with ExitStack() as stack:
        bad: list[Chaos] = []
        for number in (1, 2):
            bad.append(stack.enter_context(chaos(server.url, seed=10 * seed + number, rate=0.25)))
            stack.enter_context(bot_of(server, tmp_path / f"bad{seed}-{number}", pool, "--server", bad[-1].url))
        bad[seed % 2].plan = [*FAULTS]  # one of each at least
        sizes = [(number * 7919) % 3000 * (100 if number % 5 == 0 else 1) for number in range(25)]
        made = [
            submit(server, pool, sys.executable, "-c", SCRIPT, str(number), str(size), str(ledger), lease_s=LONG_S)
            for number, size in enumerate(sizes)
        ]
        told = [ended(server, task_id) for task_id in made]
        harm = bad[0].count() + bad[1].count()
        assert {one["result"]["state"] for one in told} == {"SUCCEEDED"}, (bad[0].done, bad[1].done)
        ran = [[run for run in one["runs"] if run["reason"] != "given_back"] for one in told]
        assert {len(runs) for runs in ran} == {1}, ([runs for runs in ran if len(runs) > 1], bad[0].done, bad[1].done)
        written = dict(line.split() for line in ledger.read_text().splitlines())
        assert sorted(map(int, (line.split()[0] for line in ledger.read_text().splitlines()))) == list(range(25))
        for number, task_id in enumerate(made):
            assert hashlib.sha256(log(server, task_id)).hexdigest() == written[str(number)], (bad[0].done, bad[1].done)
    assert set(harm) == set(FAULTS)


@pytest.mark.short
def test_a_partition_shorter_than_the_lease_costs_nothing(server: LiveServer, tmp_path: Path, notes: Path):
    """Nothing gets through in either direction; the command goes on, and its words come when the way is free."""
    go, done = notes / "go", notes / "done"
    with chaos(server.url, rate=0.0) as way, bot_of(server, tmp_path / "parted", "parted", "--server", way.url):
        script = f"echo before; while [ ! -e {go} ]; do sleep 0.02; done; echo after; touch {done}"
        task_id = submit(server, "parted", SHELL, "-c", script, lease_s=LONG_S)
        wait_for(lambda: log(server, task_id) == b"before\n", "the first line")
        way.rate, way.faults = 1.0, ("refused",)
        go.touch()
        wait_for(done.exists, "the command's end")
        way.calm()
        told = ended(server, task_id)
        assert (told["result"]["state"], len(told["runs"])) == ("SUCCEEDED", 1)
        assert log(server, task_id) == b"before\nafter\n"


def test_a_result_waits_for_its_log_also_when_it_comes_while_another_log_goes_up(stub: Stub, tmp_path: Path):
    take = stub.append_log
    with a_bot(stub.url, tmp_path / "b1") as bot:
        stub.until(lambda: stub.hellos, "a handshake")
        with stub.change:
            runs = [stub.submit(SHELL, "-c", f"echo {number}; sleep 0.1") for number in range(2)]

        def slowly(path: str, query: dict[str, list[str]], data: bytes) -> dict[str, Any]:
            # Unless it was given back because the first command was slow: then it comes later.
            wait_for(lambda: runs[1] in stub.outcomes or _noted(bot.folder, runs[1]), "the end of the second command")
            return take(path, query, data)

        stub.append_log = slowly  # type: ignore[method-assign]
        assert [stub.result(run)["exit_code"] for run in runs] == [0, 0]
        assert [stub.log(run) for run in runs] == [b"0\n", b"1\n"]


def _noted(folder: Path, run: str) -> bool:
    return run.encode() in (folder / "journal").read_bytes()


# ---------------------------------------------------------------- a bot that was away for too long


@pytest.mark.parametrize("how", ["frozen", "cut off"])
def test_a_bot_that_was_away_longer_than_its_lease_has_lost_its_run(
    server: LiveServer, tmp_path: Path, notes: Path, how: str
):
    """Another bot gets the task and wins. The first comes back, is told to stop, kills its command and works on."""
    pool, pid = f"away-{how[:3]}", notes / "pid"
    script = f"[ -e {pid} ] && {{ echo second; exit 0; }}; echo $$ > {pid}; echo first; exec sleep 600"
    with ExitStack() as stack:
        way = stack.enter_context(chaos(server.url, rate=0.0))
        first = stack.enter_context(bot_of(server, tmp_path / f"{pool}-1", pool, "--server", way.url))
        task_id = submit(server, pool, SHELL, "-c", script, lease_s=SHORT_S)
        wait_for(lambda: log(server, task_id) == b"first\n", "the first run")
        assert state(server, task_id) == "RUNNING"
        stack.enter_context(bot_of(server, tmp_path / f"{pool}-2", pool))
        if how == "frozen":
            freeze(first.worker())
        else:
            way.rate, way.faults = 1.0, ("refused",)
        told = ended(server, task_id)
        assert [(run["state"], run["bot_id"]) for run in told["runs"]] == [
            ("BOT_DIED", f"{pool}-1"),
            ("SUCCEEDED", f"{pool}-2"),
        ]
        assert told["runs"][0]["evidence"]["last_heartbeat"]
        assert alive(int(pid.read_text())), "the first command knows of nothing"
        if how == "frozen":
            thaw(first.worker())
        else:
            way.calm()
        wait_for(lambda: not alive(int(pid.read_text())), "the end of the first command")
        assert ended(server, task_id) == told, "what the zombie had to say changed nothing"
        assert log(server, task_id) == b"second\n"
        again = submit(server, pool, "/bin/true", dimensions={"pool": [pool], "id": [f"{pool}-1"]})
        assert ended(server, again)["result"]["state"] == "SUCCEEDED"


# ---------------------------------------------------------------- sudden deaths


@pytest.mark.short
def test_kill_of_the_server_and_of_bots_in_mid_flight(server: LiveServer, tmp_path: Path, notes: Path):
    """Every task succeeds and counts once. No command runs without need: one more for each that died with its bot."""
    ledger = notes / "ledger"
    script = 'echo "$0 start" >> "$1"; echo "said $0"; sleep 0.1; echo "$0 end" >> "$1"'
    with ExitStack() as stack:
        bots = [stack.enter_context(bot_of(server, tmp_path / f"mortal{number}", "mortal")) for number in (1, 2)]
        made = [
            submit(server, "mortal", SHELL, "-c", script, str(number), str(ledger), retries=3) for number in range(25)
        ]
        for enough, victim in ((5, bots[0]), (10, server), (15, bots[1])):
            wait_for(lambda enough=enough: _lines(ledger, "end") >= enough, f"{enough} ends")
            if isinstance(victim, LiveServer):
                victim.kill()
                victim.start()
            else:
                os.kill(victim.worker(), signal.SIGKILL)
        told = [ended(server, task_id) for task_id in made]
    assert {one["result"]["state"] for one in told} == {"SUCCEEDED"}
    starts = Counter(line.split()[0] for line in ledger.read_text().splitlines() if line.endswith("start"))
    assert all(1 <= starts[str(number)] <= len(one["runs"]) for number, one in enumerate(told))
    assert starts.total() <= 25 + 2, "one more for each bot that was killed, and none for the server"
    assert [log(server, task_id) for task_id in made] == [b"said %d\n" % number for number in range(25)]


def _lines(ledger: Path, end: str) -> int:
    return sum(line.endswith(end) for line in ledger.read_text().splitlines()) if ledger.exists() else 0


# ---------------------------------------------------------------- poison and sick machines


def test_poison_kills_two_bots_at_most_and_the_others_go_on(server: LiveServer, tmp_path: Path, notes: Path):
    """A task that takes its bot with it, supervisor and all: it is tried once more, elsewhere, and then no more."""
    wait = f"n=1; while ! mkdir {notes}/run$n; do n=$((n + 1)); done; while [ ! -e {notes}/go$n ]; do sleep 0.02; done"
    with ExitStack() as stack:
        names = [f"taster{number}" for number in (1, 2, 3)]
        exposed = ("--isolation", "off")
        bots = {name: stack.enter_context(bot_of(server, tmp_path / name, "taste", *exposed)) for name in names}
        deadly = f'{wait}; kill -9 $(cut -d" " -f4 /proc/$PPID/stat) $PPID; sleep 600'
        poison = submit(server, "taste", SHELL, "-c", deadly, lease_s=SHORT_S)
        for number in (1, 2):
            wait_for(lambda number=number: num_started(server, poison) == number, f"the start of run {number}")
            (notes / f"go{number}").touch()
        told = ended(server, poison)
        assert (told["result"]["state"], told["result"]["reason"]) == ("BOT_DIED", "bot_lost")
        killed = [run["bot_id"] for run in told["runs"]]
        assert len(set(killed)) == len(killed) == 2, "its runs name the bots that it has killed"
        assert [name for name in names if bots[name].process.poll() is not None] == sorted(killed)
        made = [submit(server, "taste", "/bin/true") for _ in range(5)]
        assert {ended(server, task_id)["result"]["state"] for task_id in made} == {"SUCCEEDED"}


def test_a_bot_that_fails_everything_is_put_aside_and_costs_no_task(server: LiveServer, tmp_path: Path, notes: Path):
    """Its disk has become read-only, as disks do. It fails so fast that it would eat the whole queue."""
    with bot_of(server, tmp_path / "sick", "ward"):
        pass  # the folder is a bot's from now on
    with ExitStack() as stack:
        disk = stack.enter_context(a_small_disk(tmp_path / "sick" / "work", "rw"))
        for name in ("sick", "sound"):
            stack.enter_context(bot_of(server, tmp_path / name, "ward"))
        well = submit(server, "ward", "/bin/true", dimensions={"pool": ["ward"], "id": ["sick"]})
        assert ended(server, well)["result"]["state"] == "SUCCEEDED"
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        go = notes / "go"
        holding = {"dimensions": {"pool": ["ward"], "id": ["sound"]}}
        held = submit(server, "ward", SHELL, "-c", f"while [ ! -e {go} ]; do sleep 0.02; done", **holding)
        wait_for(lambda: state(server, held) == "RUNNING", "the sound bot to be busy")
        made = [submit(server, "ward", SHELL, "-c", "sleep 0.05", relative_cwd="sub") for _ in range(30)]
        wait_for(lambda: server.get("/api/v1/bots/sick")[1]["quarantined"], "the sick bot to be put aside")
        go.touch()
        told = [ended(server, task_id) for task_id in made]
        assert {one["result"]["state"] for one in told} == {"SUCCEEDED"}
        failed = [run for one in told for run in one["runs"] if run["state"] == "BOT_DIED"]
        assert {run["bot_id"] for run in failed} == {"sick"}
        assert 5 <= len(failed) <= 8, "five failures, and what it held when they were counted"
        assert "Read-only file system" in failed[0]["evidence"]["message"]
        assert "runs failed on this bot" in server.get("/api/v1/bots/sick")[1]["quarantined"]
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert server.post("/api/v1/bots/sick/quarantine", {"reason": None})[0] == 200
        again = submit(server, "ward", "/bin/true", dimensions={"pool": ["ward"], "id": ["sick"]})
        assert ended(server, again)["result"]["state"] == "SUCCEEDED", "mended, it is let in again"


def num_started(server: LiveServer, task_id: str) -> int:
    return sum(run["started_at"] is not None for run in server.get(f"/api/v1/tasks/{task_id}")[1]["runs"])


@contextmanager
def a_small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own at a folder; tests that need one are skipped where it may not be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_working_folder_that_somebody_has_deleted_is_not_the_tasks_fault(server: LiveServer, tmp_path: Path):
    with bot_of(server, tmp_path / "robbed", "robbed") as bot:
        assert ended(server, submit(server, "robbed", "/bin/true"))["result"]["state"] == "SUCCEEDED"
        shutil.rmtree(bot.folder / "work")
        told = ended(server, submit(server, "robbed", "/bin/true"))
        assert [run["state"] for run in told["runs"]] == ["BOT_DIED", "SUCCEEDED"]


# ---------------------------------------------------------------- full disks


def test_a_full_disk_of_a_bot_costs_a_run_and_no_task(server: LiveServer, tmp_path: Path, notes: Path):
    with ExitStack() as stack:
        disk = stack.enter_context(a_small_disk(tmp_path / "disk", "size=20m"))
        stack.enter_context(bot_of(server, disk / "narrow", "narrow"))
        stack.enter_context(bot_of(server, tmp_path / "wide", "narrow"))
        go = notes / "go"
        holding = {"dimensions": {"pool": ["narrow"], "id": ["wide"]}}
        held = submit(server, "narrow", SHELL, "-c", f"while [ ! -e {go} ]; do sleep 0.02; done", **holding)
        wait_for(lambda: state(server, held) == "RUNNING", "the other bot to be busy")
        task_id = submit(server, "narrow", SHELL, "-c", "dd if=/dev/zero of=big bs=1M count=40")
        wait_for(lambda: server.get(f"/api/v1/tasks/{task_id}")[1]["result"]["num_retries"] == 1, "the first run's end")
        go.touch()
        told = ended(server, task_id)
        assert [(run["state"], run["reason"], run["bot_id"]) for run in told["runs"]] == [
            ("BOT_DIED", "disk_full", "narrow"),
            ("SUCCEEDED", "", "wide"),
        ]
        on_it = {"dimensions": {"pool": ["narrow"], "id": ["narrow"]}}
        assert ended(server, submit(server, "narrow", "/bin/true", **on_it))["result"]["state"] == "SUCCEEDED"
        filler = disk / "filler"
        filler.write_bytes(b"x" * (shutil.disk_usage(disk).free - 500_000))
        wait_for(lambda: "disk" in str(server.get("/api/v1/bots/narrow")[1]["quarantined"]), "the bot's complaint")
        waits = submit(server, "narrow", "/bin/true", **on_it)
        assert state(server, waits) == "READY"
        filler.unlink()
        assert ended(server, waits)["result"]["state"] == "SUCCEEDED"
        assert server.get("/api/v1/bots/narrow")[1]["quarantined"] is None


def test_a_full_disk_of_the_server_loses_nothing(impatient: Path, tmp_path: Path, notes: Path):
    """What cannot be stored is refused, what is there can be read, and all goes on when there is room again."""
    with ExitStack() as stack:
        disk = stack.enter_context(a_small_disk(tmp_path / "disk", "size=24m"))
        server = stack.enter_context(live_server(folder=disk / "server", source=impatient, **QUICK))
        stack.enter_context(bot_of(server, tmp_path / "waits", "waits"))
        go, done = notes / "go", notes / "done"
        script = f"echo before; while [ ! -e {go} ]; do sleep 0.02; done; seq 100000; touch {done}"
        task_id = submit(server, "waits", SHELL, "-c", script, lease_s=LONG_S)
        wait_for(lambda: log(server, task_id) == b"before\n", "the first line")
        kept = [submit(server, "nobody", "/bin/true")]
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        refused = None
        for _ in range(2000):
            status, answer = server.post("/api/v1/tasks", {"tasks": [_large("nobody")]})
            if status != 200:
                refused = (status, answer["error"]["code"], answer["error"]["message"])
                break
            kept.append(answer["tasks"][0]["task_id"])
        assert refused is not None
        assert refused[:2] == (503, "store.full"), refused
        assert "full" in refused[2], refused
        assert server.call("POST", "/api/v1/tasks", {"tasks": [_large("nobody")]}).headers["retry-after"]
        go.touch()
        wait_for(done.exists, "the command's end")
        assert {server.get(f"/api/v1/tasks/{one}")[0] for one in kept} == {200}, "what was acknowledged can be read"
        assert server.get("/healthz")[0] == 200
        filler.unlink()
        told = ended(server, task_id)
        assert (told["result"]["state"], len(told["runs"])) == ("SUCCEEDED", 1)
        assert log(server, task_id) == b"before\n" + b"".join(b"%d\n" % number for number in range(1, 100_001))
        assert server.post("/api/v1/tasks", {"tasks": [_large("nobody")]})[0] == 200
        assert server.stop() == 0
        for name in ("myrmidon.db", "myrmidon.db-logs"):
            found = sqlite3.connect(disk / "server" / name).execute("PRAGMA integrity_check").fetchall()
            assert found == [("ok",)]
        server.start()
        assert {server.get(f"/api/v1/tasks/{one}")[0] for one in kept} == {200}


def _large(pool: str) -> dict[str, Any]:
    properties = {"command": ["/bin/true", "x" * 20_000], "dimensions": {"pool": [pool]}}
    return {"name": "large", "slices": [{"properties": properties}]}


# ---------------------------------------------------------------- the last ditch


def test_a_command_that_cannot_even_be_killed_is_left_behind(server: LiveServer, tmp_path: Path, notes: Path):
    """The last resort: the kernel freezes it, like one that waits for a dead disk. The bot starts again without it."""
    place = FREEZER / f"myrmidon-{os.getpid()}"
    try:
        place.mkdir()
    except OSError:
        pytest.skip("nothing can be frozen here")
    pid = notes / "pid"
    freeze_itself = f"echo $$ > {pid}; echo $$ > {place}/cgroup.procs; echo FROZEN > {place}/freezer.state; sleep 600"
    try:
        with bot_of(server, tmp_path / "ditch", "ditch") as bot:
            before = bot.worker()
            properties = {"execution_timeout_s": 5, "grace_period_s": 0}
            task_id = submit(server, "ditch", SHELL, "-c", freeze_itself, retries=0, lease_s=LONG_S, **properties)
            told = ended(server, task_id)
            assert (told["result"]["state"], told["result"]["reason"]) == ("BOT_DIED", "bot_error")
            assert told["runs"][0]["evidence"]["message"] == "the command could not be killed"
            assert alive(int(pid.read_text()))
            assert ended(server, submit(server, "ditch", "/bin/true"))["result"]["state"] == "SUCCEEDED"
            assert bot.worker() != before
            (place / "freezer.state").write_text("THAWED")
            wait_for(lambda: not alive(int(pid.read_text())), "the end of what was left behind")
    finally:
        (place / "freezer.state").write_text("THAWED")
        wait_for(lambda: not (place / "cgroup.procs").read_text(), "an empty freezer")
        place.rmdir()
