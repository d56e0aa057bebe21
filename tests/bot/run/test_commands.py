"""One command on a real bot, from its zip, on this interpreter and on Python 3.8."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from base64 import b64encode
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.hooks.loader import ZIP_PATH
from tests.bot.bots import BotProcess, a_bot, alive, cpu_seconds, source_with, wait_for, zip_files
from tests.bot.stub import Stub
from tests.cases import some
from tests.deadline import POLL_S

SHELL = "/bin/sh"


def test_an_exit_code_comes_back(fleet: Stub):
    assert [fleet.run(SHELL, "-c", f"exit {code}")["exit_code"] for code in (0, 1, 3, 255)] == [0, 1, 3, 255]


def test_a_command_killed_by_a_signal_has_a_negative_exit_code(fleet: Stub):
    assert fleet.run(SHELL, "-c", "kill -9 $$")["exit_code"] == -9


def test_stdout_and_stderr_come_back_apart(fleet: Stub):
    run = fleet.submit(SHELL, "-c", "echo out; echo err >&2; printf more; printf even >&2")
    result = fleet.result(run)
    assert (fleet.log(run, 0), fleet.log(run, 1)) == (b"out\nmore", b"err\neven")
    assert (result["stdout_size"], result["stderr_size"]) == (8, 8)


@pytest.mark.parametrize("seconds", [0, 0.2], ids=["quick", "watched"])
def test_stdout_and_stderr_are_one_stream_where_the_task_asks_for_it(fleet: Stub, seconds: float):
    script = f"for i in 1 2 3; do echo out $i; sleep {seconds}; echo err $i >&2; done"
    run = fleet.submit(SHELL, "-c", script, merge_output=True)
    result = fleet.result(run)
    assert fleet.log(run, 0) == b"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n"
    assert (fleet.log(run, 1), result["stdout_size"], result["stderr_size"]) == (b"", 36, 0)


def test_a_silent_command_costs_no_log_request(fleet: Stub):
    before = len(fleet.log_posts)
    run = fleet.submit("/bin/true")
    fleet.result(run)
    assert len(fleet.log_posts) == before
    assert (run, 0) not in fleet.logs


def test_a_shell_may_open_its_own_stderr_without_losing_what_it_said_before(fleet: Stub):
    run = fleet.submit(SHELL, "-c", "echo one >&2; echo two > /dev/stderr; echo three >&2")
    fleet.result(run)
    assert fleet.log(run, 1) == b"one\ntwo\nthree\n"


def test_a_command_that_changes_its_pipes_changes_them_for_itself_alone(fleet: Stub):
    script = "import fcntl; fcntl.fcntl(1, fcntl.F_SETFL, 2049); fcntl.fcntl(2, 1031, 4096)"  # no blocking; one page
    assert fleet.run(sys.executable, "-c", script)["exit_code"] == 0
    run = fleet.submit(SHELL, "-c", "head -c 3000000 /dev/zero | cat; head -c 3000000 /dev/zero | cat >&2")
    assert fleet.result(run)["exit_code"] == 0
    assert [len(fleet.log(run, stream)) for stream in (0, 1)] == [3_000_000, 3_000_000]


def _written(script: str) -> list[str]:
    return [sys.executable, "-c", script]


@pytest.mark.parametrize(
    ("script", "sizes"),
    [
        ("import os; os.write(1, os.urandom(3000)); os.write(2, bytes(range(256)))", (3000, 256)),
        ("import sys; sys.stdout.buffer.write(b'x' * 10_000_000)", (10_000_000, 0)),
        ("import os\nfor i in range(20000): os.write(1 + i % 2, b'%d\\n' % i)", (54445, 54445)),
        ("import sys; sys.stdout.write('no end of line')", (14, 0)),
    ],
    ids=["binary", "ten megabytes without a line end", "interleaved", "no newline"],
)
def test_log_bytes_are_equal_by_their_digest(fleet: Stub, tmp_path: Path, script: str, sizes: tuple[int, int]):
    copy = (
        "import os, hashlib, json\nreal = os.write\ndigests = {1: hashlib.sha256(), 2: hashlib.sha256()}\n"
        "def write(fd, data):\n  done = 0\n  while done < len(data): done += real(fd, data[done:])\n"
        "  digests[fd].update(data)\nos.write = write\n"
        "import sys\nclass Out:\n  def write(self, data): write(1, data.encode() if isinstance(data, str) else data)\n"
        "  def flush(self): pass\nOut.buffer = Out()\nsys.stdout = Out()\n"
    )
    note = f"\nopen({str(tmp_path / 'sums')!r}, 'w').write(json.dumps([d.hexdigest() for d in digests.values()]))"
    run = fleet.submit(*_written(copy + script + note))
    result = fleet.result(run)
    got = [hashlib.sha256(fleet.log(run, stream)).hexdigest() for stream in (0, 1)]
    assert got == json.loads((tmp_path / "sums").read_text())
    assert (result["stdout_size"], result["stderr_size"]) == sizes


def test_output_is_seen_while_the_command_still_runs(fleet: Stub, tmp_path: Path):
    go = tmp_path / "go"
    run = fleet.submit(SHELL, "-c", f"echo early; while [ ! -e {go} ]; do sleep 0.05; done")
    fleet.until(lambda: fleet.log(run) == b"early\n", "the early line")
    assert run not in fleet.results
    go.touch()
    assert fleet.result(run)["exit_code"] == 0


def test_a_flood_waits_on_its_own_pipe_when_the_server_asks_for_pauses(fleet: Stub):
    before, fleet.log_pause_s = len(fleet.log_posts), 0.05
    run = fleet.submit("/usr/bin/head", "-c", str(20 << 20), "/dev/zero")
    fleet.result(run)
    fleet.log_pause_s = 0.0
    times = fleet.log_posts[before:][:8]  # of the first 8 MiB at least: the last ones go up when it has ended
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.05
    assert fleet.log(run) == bytes(20 << 20)


def test_a_long_command_is_said_to_have_begun(fleet: Stub, tmp_path: Path):
    go = tmp_path / "go"
    run = fleet.submit(SHELL, "-c", f"while [ ! -e {go} ]; do sleep 0.05; done")
    fleet.until(lambda: [r for r in fleet.reports if r["run"] == run and r["type"] == "start"], "a start")
    go.touch()
    fleet.result(run)


def test_the_environment_is_set_changed_and_deleted(fleet: Stub):
    env = {"ADDED": "yes", "HOME": "", "MYRMIDON_BOT_ID": "other"}
    run = fleet.submit("/usr/bin/env", env=env)
    fleet.result(run)
    seen = dict(line.split("=", 1) for line in fleet.log(run).decode().splitlines())
    assert (seen["ADDED"], seen.get("HOME"), seen["MYRMIDON_BOT_ID"]) == ("yes", None, "other")
    assert seen["MYRMIDON_TASK_ID"] == run
    assert seen["TMPDIR"].endswith("/work/tmp")


def test_a_task_does_not_see_the_tokens_of_its_bot(fleet: Stub):
    run = fleet.submit(SHELL, "-c", "env; cat /proc/$PPID/environ; tr '\\0' ' ' < /proc/$PPID/cmdline")
    fleet.result(run)
    seen = fleet.log(run)
    assert b"bootstrap-token" not in seen
    assert b"myb_" not in seen


def test_prefixes_are_put_before_a_path(fleet: Stub, folder: Path):
    run = fleet.submit(SHELL, "-c", "echo $PATH; echo $NEW", env_prefixes={"PATH": ["a", "b/c"], "NEW": ["d"]})
    fleet.result(run)
    path, new = fleet.log(run).decode().splitlines()
    root = folder / "work" / "run"
    assert path.startswith(f"{root}/a:{root}/b/c:")
    assert new == f"{root}/d"


def test_a_program_is_found_by_the_path_of_the_task(fleet: Stub, tmp_path: Path):
    tool = tmp_path / "my-tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    run = fleet.submit("my-tool", env={"PATH": f"{tmp_path}:/bin"})
    assert fleet.result(run)["exit_code"] == 0
    assert fleet.log(run) == b"found\n"


def test_the_working_folder_is_made_and_its_content_is_gone_afterwards(fleet: Stub, folder: Path):
    run = fleet.submit(SHELL, "-c", "pwd; mkdir -p x/y; echo z > x/y/z; chmod 0 x", relative_cwd="sub/dir")
    fleet.result(run)
    assert fleet.log(run).decode().strip() == str(folder / "work" / "run" / "sub" / "dir")
    assert sorted(path.name for path in (folder / "work").rglob("*")) == ["run", "tmp"]


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize(
    "harm",
    ["echo x > file", "echo x > $TMPDIR/file", "mkdir -p a/b; chmod 0 a", "rm -r $PWD", "rm -r $TMPDIR", "chmod 777 .",
     "mv $PWD $PWD.x", "mv $PWD $PWD.x; mkdir $PWD; echo x > $PWD/file", "cd /; mv ${TMPDIR%/tmp} ${TMPDIR%/tmp}.x",
     "rm -r ${TMPDIR%/tmp}", "echo x > ../file", "mkdir -p ../a/b; chmod 0 ../a", "chmod 777 ..",
     "mv ../tmp ../run/tmp"],
)  # fmt: skip
def test_whatever_a_command_does_to_its_folders_the_next_one_finds_them_empty(
    shared: tuple[Stub, BotProcess], exposed: tuple[Stub, BotProcess], harm: str, *, isolated: bool
):
    fleet, bot = shared if isolated else exposed
    folder = bot.folder
    look = "pwd; echo $TMPDIR; ls -A . $TMPDIR ..; stat -c %a . $TMPDIR .."
    fleet.result(fleet.submit(SHELL, "-c", "true"))
    fleet.result(fleet.submit(SHELL, "-c", harm))
    run = fleet.submit(SHELL, "-c", look)
    result = fleet.result(run)
    work = folder / "work"
    assert (result["exit_code"], fleet.log(run).decode().split()[:2]) == (0, [str(work / "run"), str(work / "tmp")])
    assert fleet.log(run).decode().split()[2:] == [".:", "..:", "run", "tmp", f"{work / 'tmp'}:", "700", "700", "700"]
    for moved in folder.glob("**/*.x"):
        shutil.rmtree(moved)


def test_a_command_may_have_as_many_arguments_as_the_kernel_takes(fleet: Stub):
    run = fleet.submit("/bin/sh", "-c", "echo $#", *["x"] * 30_000)
    assert (fleet.result(run)["exit_code"], fleet.log(run)) == (0, b"29999\n")
    report = fleet.run("/bin/true", *["x" * 1000] * 30_000)
    assert (report["exit_code"], report["message"]) == (126, "/bin/true could not be started: Argument list too long")


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["echo hi | wc"], "sh -c 'echo hi | wc'"),
        (["cd", "src", "&&", "make"], "sh -c 'cd src && make'"),
        (["no-such-program"], None),
        (["no-such-program", "a b"], None),
        (["/bin/no such program", "x" * 300, "|", "y"], "sh -c '...'"),
    ],
)
def test_a_command_that_was_written_for_a_shell_is_told_how_to_get_one(fleet: Stub, argv: list[str], meant: str | None):
    message = fleet.run(*argv)["message"]
    assert message.partition(" for a shell write: ")[2] == (meant or "")
    assert "could not be started: No such file or directory" in message


def test_a_program_of_the_submitters_folder_is_told_where_commands_start(fleet: Stub):
    said = "./train could not be started: No such file or directory. A command starts in a new folder of its own; write"
    assert fleet.run("./train", "x")["message"] == f"{said} an absolute path"


def test_a_link_in_place_of_the_bots_folder_leads_it_nowhere(exposed: tuple[Stub, BotProcess], tmp_path: Path):
    fleet, folder = exposed[0], exposed[1].folder
    work, mine = folder / "work", tmp_path / "mine"
    for name in ("run", "tmp", "out", "cached"):
        (mine / name).mkdir(parents=True)
        (mine / name / "file").write_text("precious")
    swap = f"cd /; mv {work} {work}.x; ln -s {mine} {work}"
    caches = [{"name": "led", "path": "cached"}]
    assert fleet.run(SHELL, "-c", swap, caches=caches, secret_bytes=b64encode(b"x").decode())["exit_code"] == 0
    assert fleet.run(SHELL, "-c", "touch file $TMPDIR/file")["exit_code"] == 0
    assert sorted(path.name for path in mine.iterdir()) == ["cached", "out", "run", "tmp"]
    assert {path.read_text() for path in mine.glob("*/*")} == {"precious"}
    assert not work.is_symlink()
    shutil.rmtree(folder / "work.x")


def test_what_a_command_has_mounted_is_unmounted_and_not_emptied(exposed: tuple[Stub, BotProcess], tmp_path: Path):
    fleet, folder = exposed[0], exposed[1].folder
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("precious")
    if fleet.run(SHELL, "-c", f"mkdir m && mount --bind {mine} m")["exit_code"] != 0:
        pytest.skip("nothing can be mounted here")
    assert fleet.run(SHELL, "-c", f"cd / && mount --bind {mine} {folder / 'work'}")["exit_code"] == 0
    assert fleet.run(SHELL, "-c", "touch file && ls")["exit_code"] == 0
    assert (mine / "file").read_text() == "precious"
    assert sorted(path.name for path in (folder / "work").rglob("*")) == ["run", "tmp"]


def test_a_context_that_a_command_has_closed_is_open_to_the_next(fleet: Stub):
    fleet.run(SHELL, "-c", "chmod 000 $LUCI_CONTEXT")
    run = fleet.submit(SHELL, "-c", "stat -c %a $LUCI_CONTEXT")
    fleet.result(run)
    assert fleet.log(run) == b"600\n"


def test_a_command_may_remove_its_secret(fleet: Stub):
    result = fleet.run(SHELL, "-c", "rm $MYRMIDON_SECRET_FILE", secret_bytes=b64encode(b"x").decode())
    assert (result["type"], result["exit_code"]) == ("finish", 0)


@pytest.mark.parametrize("path", ["../out", "/etc", "a/../../b", "a\0b"])
def test_a_working_folder_outside_is_a_failure_of_the_task(fleet: Stub, path: str):
    run = fleet.submit("/bin/true", relative_cwd=path)
    result = fleet.result(run)
    assert (result["type"], result["exit_code"]) == ("finish", 1)
    assert b"not a path below" in fleet.log(run, 1)


@pytest.mark.parametrize(
    ("program", "said", "code"),
    [
        ("/no/such/program", b"No such file", 127),
        ("no-such-program", b"No such file", 127),
        ("/etc/passwd/program", b"Not a directory", 127),
        ("/etc/passwd", b"ermission", 126),
    ],
)
@pytest.mark.parametrize("stream", [0, 1], ids=["merged", "apart"])
def test_a_program_that_cannot_be_started_is_a_failure_of_the_task_with_the_code_of_a_shell(
    fleet: Stub, program: str, said: bytes, code: int, stream: int
):
    run = fleet.submit(program, merge_output=stream == 0)
    result = fleet.result(run)
    assert (result["type"], result["exit_code"], result["start_failed"]) == ("finish", code, True)
    assert said in fleet.log(run, stream)
    assert result["duration"] > 0
    assert result[("stdout_size", "stderr_size")[stream]] == len(fleet.log(run, stream))


def test_an_impossible_name_of_a_variable_is_a_failure_of_the_task(fleet: Stub):
    run = fleet.submit("/bin/true", env={"A=B": "c"})
    assert fleet.result(run)["exit_code"] == 1
    assert b"'A=B' cannot be the name of a variable" in fleet.log(run, 1)


def test_exit_code_255_is_one_like_others_also_after_a_command_that_never_ran(fleet: Stub):
    fleet.run("/no/such/program")
    assert fleet.run(SHELL, "-c", "exit 255")["exit_code"] == 255


def test_secret_bytes_are_in_a_private_file_and_gone_afterwards(fleet: Stub, folder: Path):
    script = "cat $MYRMIDON_SECRET_FILE; stat -c %a $MYRMIDON_SECRET_FILE; echo $MYRMIDON_SECRET_FILE"
    run = fleet.submit(SHELL, "-c", script, secret_bytes=b64encode(b"\x00secret\n").decode())
    fleet.result(run)
    secret, mode, path = fleet.log(run).split(b"\n")[0:3]
    assert (secret, mode) == (b"\x00secret", b"600")
    assert not os.path.exists(path)
    assert fleet.run(SHELL, "-c", 'test -z "$MYRMIDON_SECRET_FILE"')["exit_code"] == 0


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_a_command_reads_the_stdin_of_its_task(fleet: Stub, folder: Path, size: int):
    content = bytes(range(256)) * (size // 256) or b"x" * size
    run = fleet.submit(SHELL, "-c", "cat; cat /dev/stdin", stdin=b64encode(content).decode())
    assert fleet.result(run)["exit_code"] == 0
    assert hashlib.sha256(fleet.log(run)).digest() == hashlib.sha256(content * 2).digest()
    script = 'ls -A "$TMPDIR" ..; readlink /proc/self/fd/0; cat'
    run = fleet.submit(SHELL, "-c", script)
    assert fleet.result(run)["exit_code"] == 0
    assert fleet.log(run).split()[-1:] == [b"/dev/null"], "the next command reads nothing"
    assert b"stdin" not in fleet.log(run)


def test_a_command_need_not_read_its_stdin(fleet: Stub):
    assert fleet.run("/bin/true", stdin=b64encode(b"x" * (1 << 20)).decode())["exit_code"] == 0


def test_a_named_cache_outlives_its_run(fleet: Stub, folder: Path):
    caches = [{"name": "ccache", "path": "deep/cache"}]
    fleet.run(SHELL, "-c", "echo kept > deep/cache/file", caches=caches)
    run = fleet.submit(SHELL, "-c", "cat deep/cache/file", caches=caches)
    fleet.result(run)
    assert fleet.log(run) == b"kept\n"
    assert (folder / "c" / "named" / "--ccache" / "file").read_text() == "kept\n"
    assert sorted(path.name for path in (folder / "work").iterdir()) == ["run", "tmp"]


def test_a_cache_swapped_for_a_link_takes_nothing_from_outside(fleet: Stub, tmp_path: Path, folder: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    script = f"rmdir a/b a; ln -s {tmp_path} a; ls a/mine"
    assert fleet.run(SHELL, "-c", script, caches=[{"name": "trick", "path": "a/mine"}])["exit_code"] != 99
    assert fleet.run(SHELL, "-c", f"rm -rf a; ln -s {tmp_path} a", caches=[{"name": "trick", "path": "a/mine"}])
    assert (tmp_path / "mine" / "file").read_text() == "precious"
    assert not (folder / "c" / "named" / "trick").exists()


def test_a_link_inside_a_cache_does_not_lead_the_command_out(fleet: Stub):
    caches = [{"name": "links", "path": "c"}]
    fleet.run(SHELL, "-c", "ln -s / c/root; echo x > c/x", caches=caches)
    run = fleet.submit("/bin/true", caches=caches, relative_cwd="c/root/etc")
    assert fleet.result(run)["exit_code"] == 1
    assert b"leads out" in fleet.log(run, 1)


def test_two_caches_that_cover_each_other_are_a_failure_of_the_task(fleet: Stub):
    run = fleet.submit("/bin/true", caches=[{"name": "a", "path": "c"}, {"name": "b", "path": "c/d"}])
    assert fleet.result(run)["exit_code"] == 1
    assert b"overlaps another" in fleet.log(run, 1)


def _over_time(fleet: Stub, begin: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The run of a command that takes longer than it may, and has at least begun as told; its result."""
    for limit_s in (0.3, 3.0, 30.0):
        script = f"{begin}; echo ready; while :; do sleep 0.05; done"
        run = fleet.submit(SHELL, "-c", script, execution_timeout_s=limit_s, **fields)
        result = fleet.result(run)
        if fleet.log(run).startswith(b"ready\n"):
            return run, result
    raise AssertionError("the shell did not begin in time")


def test_a_command_over_its_hard_time_limit_is_asked_and_then_killed(fleet: Stub):
    _, result = _over_time(fleet, "trap '' TERM", grace_period_s=0.3)
    assert (result["exit_code"], result.get("hard_timeout")) == (-9, True)


def test_a_command_that_ends_when_asked_keeps_its_own_exit_code(fleet: Stub):
    run, result = _over_time(fleet, "trap 'echo bye; exit 42' TERM", grace_period_s=1000)
    assert (result["exit_code"], result.get("hard_timeout"), fleet.log(run)) == (42, True, b"ready\nbye\n")


def test_a_command_that_says_nothing_for_too_long_is_ended(fleet: Stub):
    result = fleet.run(SHELL, "-c", "echo once; sleep 600", io_timeout_s=0.4)
    assert (result.get("io_timeout"), result.get("hard_timeout"), result["exit_code"]) == (True, False, -15)


def _daemon(tmp_path: Path) -> str:
    """A process that has left its parent, its session, its group and its environment behind, and notes its pid."""
    note = tmp_path / "daemon"
    inner = (
        "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); "
        f"open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    return f'env -i {sys.executable} -S -c "{inner}" > /dev/null 2>&1; while [ ! -s {note} ]; do sleep 0.02; done'


def test_a_daemon_of_a_command_dies_with_it(fleet: Stub, tmp_path: Path):
    result = fleet.run(SHELL, "-c", _daemon(tmp_path))
    assert result["exit_code"] == 0
    assert not alive(int((tmp_path / "daemon").read_text()))


def test_a_daemon_dies_when_its_command_is_killed(fleet: Stub, tmp_path: Path):
    _, result = _over_time(fleet, f"{_daemon(tmp_path)}; trap '' TERM", grace_period_s=0)
    assert result.get("hard_timeout")
    assert not alive(int((tmp_path / "daemon").read_text()))


def test_a_command_may_close_its_streams_and_run_on(shared: tuple[Stub, BotProcess], tmp_path: Path):
    fleet, bot = shared
    go = tmp_path / "go"
    run = fleet.submit(SHELL, "-c", f"echo last; exec >&- 2>&-; while [ ! -e {go} ]; do sleep 0.05; done; exit 3")
    fleet.until(lambda: fleet.log(run) == b"last\n", "its last word")
    before = cpu_seconds(bot.worker())
    time.sleep(1)
    assert cpu_seconds(bot.worker()) - before < 0.5, "the bot must not be busy with streams that have ended"
    go.touch()
    assert fleet.result(run)["exit_code"] == 3


def test_no_pipe_of_a_command_stays_open(shared: tuple[Stub, BotProcess]):
    fleet, bot = shared
    fleet.run("/bin/true")
    before = _pipes_of(bot.worker())
    for command in (["/bin/echo", "x"], ["/no/such/program"], [SHELL, "-c", "sleep 0.1; echo x"]):
        fleet.run(*command)
    assert _pipes_of(bot.worker()) == before


def _pipes_of(pid: int) -> list[str]:
    found = []
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a connection that was closed meanwhile
            found.append(str(handle.readlink()))
    return sorted(name for name in found if name.startswith("pipe:"))


WRITER = """
import os, sys, time
note, refused = sys.argv[1:]
os.fork() and os._exit(0)
os.setsid()
os.fork() and os._exit(0)
with open(note, "w") as file:
    file.write(str(os.getpid()))
while True:
    for stream in (1, 2):
        try:
            os.write(stream, b"late\\n")
        except BrokenPipeError:
            open(refused, "w").close()
    time.sleep(0.001)
"""


@pytest.mark.parametrize("survives", [False, True], ids=["killed", "alive"])
def test_a_daemon_that_goes_on_writing_is_not_in_the_next_log(
    stub: Stub, tmp_path: Path, notes: Path, interpreter: str, *, survives: bool
):
    """A bot that is no reaper, as on macOS, does not find a daemon that has left its group: that one writes on."""
    script, note, refused = (notes / name for name in ("writer.py", "pid", "refused"))
    script.write_text(WRITER)
    reaper = "_is_reaper = _prctl(_PR_SET_CHILD_SUBREAPER, 1)"
    files = zip_files(stub.url, processes=source_with("processes", reaper, "_is_reaper = False") if survives else None)
    leave = f"{sys.executable} -S {script} {note} {refused}; while [ ! -s {note} ]; do sleep 0.02; done"
    wait = f"rm -f {refused}; while [ ! -e {refused} ]; do sleep 0.02; done; " if survives else ""
    with a_bot(stub.url, tmp_path / "b1", python=interpreter, files=files):
        first = stub.submit(SHELL, "-c", leave)
        assert stub.result(first)["exit_code"] == 0
        daemon = int(note.read_text())
        assert survives == alive(daemon)
        try:
            second = stub.submit(SHELL, "-c", f"{wait}echo own; echo more >&2", execution_timeout_s=20)
            assert stub.result(second)["exit_code"] == 0
        finally:
            if alive(daemon):
                os.kill(daemon, signal.SIGKILL)
    assert [stub.log(second, stream) for stream in (0, 1)] == [b"own\n", b"more\n"]
    assert {*stub.log(first, 0).splitlines(), *stub.log(first, 1).splitlines()} <= {b"late"}


def test_a_command_leads_a_group_of_its_own_and_has_no_terminal(fleet: Stub):
    """It does not lead a session: opening a serial line would make that its terminal."""
    script = (
        "import os\nprint(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getppid())\n"
        "try: os.open('/dev/tty', os.O_RDWR)\nexcept OSError: print('no terminal')"
    )
    run = fleet.submit(*_written(script))
    fleet.result(run)
    assert fleet.log(run) == b"True True\nno terminal\n"


def test_a_bot_that_was_told_that_there_is_no_more_asks_again_only_when_it_has_nothing_left(fleet: Stub):
    begun = len(fleet.calls)
    for run in [fleet.submit("/bin/true") for _ in range(300)]:
        fleet.result(run)
    asked = [body for _, path, body in fleet.calls[begun:] if path.endswith("/exchange") and body["n"]]
    # The report that a slow command has started asks for functions, which may run beside it.
    asked = [body for body in asked if body.get("accepts") != "functions"]
    assert asked
    assert [ask for ask in asked if not ask["wait_s"] and not fleet.claims[ask["session"], ask["nonce"]]] == []


def test_a_background_process_does_not_keep_a_command_from_ending(fleet: Stub):
    run = fleet.submit(SHELL, "-c", "sleep 600 & echo $!")
    fleet.result(run)
    assert not alive(int(fleet.log(run)))


def test_a_run_that_is_told_to_stop_is_killed(fleet: Stub, tmp_path: Path):
    started = tmp_path / "started"
    run = fleet.submit(SHELL, "-c", f"touch {started}; while :; do echo tick; sleep 0.2; done")
    wait_for(started.exists, "the command's start")
    with fleet.change:
        fleet.stops.add(run)
    result = fleet.result(run)
    assert (result.get("killed"), result["exit_code"]) == (True, -15)


@pytest.mark.parametrize("repeats", some([False, True], short=1), ids=["server", "old server"])
def test_a_command_that_ignores_its_end_costs_one_call_and_then_the_ordinary_pace(
    stub: Stub, tmp_path: Path, notes: Path, *, repeats: bool
):
    """The next call that time brings would come after the test has given up; the next one that comes has its output."""
    stub.heartbeat_s = stub.poll_s = POLL_S
    stub.repeats_stops = repeats
    begun, asked, go = notes / "begun", notes / "asked", notes / "go"
    wait = f"touch {begun}; while [ ! -e {go} ]; do sleep 0.02; done"
    script = f"trap 'touch {asked}' TERM; {wait}; echo word; sleep 600"
    with a_bot(stub.url, tmp_path / "b1"):
        run = stub.submit(SHELL, "-c", script, grace_period_s=1000)
        stub.until(lambda: [b for _, _, b in stub.calls if b.get("wait_s") and b.get("holds")], "the bot to listen")
        wait_for(begun.exists, "the command's trap")
        calls = len(stub.calls)
        with stub.change:
            stub.stops.add(run)
            stub.change.notify_all()
        wait_for(asked.exists, "the command to be asked")
        stub.until(lambda: len(stub.calls) > calls, "the call that says so")
        go.touch()
        stub.until(lambda: stub.log(run) == b"word\n", "its output")
        told = [body for _, _, body in stub.calls[calls:]]
        assert [(body.get("stopping"), bool(body["logs"])) for body in told[:2]] == [([run], False), ([run], True)]
        stub.lost.add(run)  # no grace any more


def test_a_stop_that_comes_before_the_process_is_carried_out_when_it_is_there(stub: Stub, tmp_path: Path):
    """The command is still being prepared by a hook when the server wants it stopped."""
    stub.heartbeat_s = stub.poll_s = POLL_S
    here, go = tmp_path / "here", tmp_path / "go"
    hook = (
        "import os, time\n"
        "def on_before_task(bot, bot_file=None, command=None, environment=None):\n"
        f"    open({str(here)!r}, 'w').close()\n"
        f"    while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    )
    files = {**zip_files(stub.url), ZIP_PATH: hook.encode()}
    with a_bot(stub.url, tmp_path / "b1", files=files):
        run = stub.submit(SHELL, "-c", "sleep 600")
        wait_for(here.exists, "the hook")
        with stub.change:
            stub.stops.add(run)
        stub.until(lambda: [r for r in stub.reports if r["type"] == "start"], "the report that is answered by a stop")
        go.touch()
        assert stub.result(run)["killed"]


def test_a_silent_command_is_stopped_at_once_and_its_end_is_told_at_once(stub: Stub, tmp_path: Path, interpreter: str):
    """Its bot waits at the server meanwhile; the next sign of life would come after the test has given up."""
    stub.heartbeat_s = stub.poll_s = POLL_S
    listens = lambda run: [b for _, _, b in stub.calls if b.get("wait_s") and b["holds"] and b["holds"][0][0] == run]  # noqa: E731
    with a_bot(stub.url, tmp_path / "b1", python=interpreter):
        stopped = stub.submit(SHELL, "-c", "sleep 600")
        stub.until(lambda: listens(stopped), "the bot to listen")
        with stub.change:
            stub.stops.add(stopped)
        assert stub.result(stopped)["killed"]
        go = tmp_path / "go"
        ended = stub.submit(SHELL, "-c", f"while [ ! -e {go} ]; do sleep 0.02; done; echo word; exit 4")
        stub.until(lambda: listens(ended), "the bot to listen")
        go.touch()
        assert stub.result(ended)["exit_code"] == 4
        assert stub.log(ended) == b"word\n"


def test_quick_tasks_are_claimed_and_reported_many_at_a_time(stub: Stub, tmp_path: Path, interpreter: str):
    """The bot takes work for a long time at once: on a busy machine, each command may take a tenth of a second."""
    files = zip_files(stub.url, run_queue=source_with("run_queue", "AHEAD_S = 0.1", "AHEAD_S = 30.0"))
    runs = [stub.submit("/bin/true") for _ in range(100)]
    with a_bot(stub.url, tmp_path / "b1", python=interpreter, files=files):
        assert {stub.result(run)["exit_code"] for run in runs} == {0}
    exchanges = [body for _, path, body in stub.calls if path.endswith("exchange")]
    assert max(len(stub.claims[body["session"], body["nonce"]]) for body in exchanges) > 1
    assert max(len(body["reports"]) for body in exchanges) > 1


def test_tasks_behind_a_long_one_are_given_back(fleet: Stub, tmp_path: Path):
    go = tmp_path / "go"
    with fleet.change:
        long = fleet.submit(SHELL, "-c", f"while [ ! -e {go} ]; do sleep 0.02; done")
        behind = fleet.submit("/bin/true")
    fleet.until(lambda: fleet.outcomes.get(behind) == "given_back" or behind in fleet.results, "the second one's fate")
    assert long not in fleet.results
    go.touch()
    fleet.result(long)


def test_a_function_is_nothing_for_this_bot(fleet: Stub):
    run = fleet.submit("/bin/true", function={"package_name": "p", "func_name": "f", "language": "PYTHON"})
    assert fleet.result(run)["exit_code"] == 1


def test_the_bot_opens_no_port(shared: tuple[Stub, BotProcess]):
    _, bot = shared
    inodes = set()
    for entry in Path(f"/proc/{bot.worker()}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the folder was listed
            inodes.add(os.readlink(entry))
    listening = [
        line.split()[9]
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert not inodes & {f"socket:[{inode}]" for inode in listening}
