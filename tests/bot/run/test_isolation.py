"""A task must not become its bot: every attack is tried by a real task of a real bot, and denied.

Each kind of isolation is tried: Landlock with a bot of root and of another user, and root with a user for tasks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from myrmidon.bot.run.sandbox import Sandbox, hidden_by, is_bot_folder
from myrmidon.bot.system import landlock
from tests.bot.bots import BotProcess, a_bot, wait_for
from tests.bot.stub import Stub
from tests.deadline import HANG_S

NOBODY = 65534
PYTHON = os.path.realpath(sys.executable)
BECOME_NOBODY = (
    "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); os.execv(sys.argv[1], sys.argv[1:])"
)
ATTACK = Path(__file__).with_name("attack.py")
HAS_LANDLOCK = landlock.abi() >= landlock.MINIMUM_ABI

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start bots as different users")


class Host(NamedTuple):
    """A machine with two bots beside each other, and the folder of a server."""

    folder: Path
    stub: Stub
    bot: BotProcess
    other_stub: Stub
    other: BotProcess

    def attack(self, **targets: object) -> dict[str, Any]:
        """Run the attacks in a task of the first bot: how each ended, "denied" or what it got."""
        run = self.stub.submit(PYTHON, "-I", str(self.folder / "tools" / "attack.py"), json.dumps(targets))
        assert self.stub.result(run)["exit_code"] == 0, self.stub.log(run, 1)
        found: dict[str, Any] = json.loads(self.stub.log(run))
        return found


KINDS = [
    pytest.param("landlock", marks=pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")),
    pytest.param(
        "landlock of nobody", marks=pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
    ),
    "user",
]


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter; that of pytest is private."""
    folder = Path(tempfile.mkdtemp(prefix="isolation-"))
    try:
        folder.chmod(0o755)
        (folder / "host").mkdir()
        (folder / "host").chmod(0o1777)
        (folder / "tools").mkdir()
        shutil.copy(ATTACK, folder / "tools" / "attack.py")
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def a_bot_of_kind(kind: str, server: str, folder: Path, *flags: str) -> Iterator[BotProcess]:
    """A bot that isolates its tasks in one way."""
    folder.mkdir(mode=0o700)
    options: dict[str, Any] = {"python": PYTHON, "env": {"MYRMIDON_BOT_HOST_DIR": str(folder.parent.parent / "host")}}
    if kind == "user":
        flags = ("--isolation", "off", "--task-user", "nobody", *flags)
    if kind == "landlock of nobody":
        os.chown(folder, NOBODY, NOBODY)
        options["around"] = [PYTHON, "-c", BECOME_NOBODY]
    with a_bot(server, folder, *flags, **options) as bot:
        yield bot


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def host(kind: str) -> Iterator[Host]:
    with ExitStack() as stack:
        folder = stack.enter_context(open_folder())
        (folder / "bots").mkdir()
        (folder / "data").mkdir(mode=0o700)
        (folder / "data" / "admin.token").write_text("the administrator's token")
        (folder / "data" / "admin.token").chmod(0o600)
        if kind == "landlock of nobody":
            for path in (folder / "data", folder / "data" / "admin.token"):
                os.chown(path, NOBODY, NOBODY)
        stubs = [stack.enter_context(Stub()) for _ in range(2)]
        bots = [
            stack.enter_context(a_bot_of_kind(kind, stub.url, folder / "bots" / name, "--hide", str(folder / "data")))
            for stub, name in zip(stubs, ("b1", "b2"), strict=True)
        ]
        yield Host(folder, stubs[0], bots[0], stubs[1], bots[1])


# ---------------------------------------------------------------- what a bot says


def test_a_bot_says_how_it_isolates_its_tasks(host: Host, kind: str):
    expected = ["user"] if kind == "user" else ["landlock"]
    hello = host.stub.until(lambda: host.stub.hellos)[-1]
    assert hello["dimensions"]["isolation"] == expected
    assert hello["state"]["isolation"] == expected[0]


def test_where_the_kernel_has_landlock_a_bot_uses_it_without_being_told(stub: Stub, tmp_path: Path):
    listed = Path("/sys/kernel/security/lsm")
    if not (HAS_LANDLOCK or (listed.exists() and "landlock" in listed.read_text())):
        pytest.skip("this kernel has no Landlock")
    with a_bot(stub.url, tmp_path / "b1", "--dimension", "isolation=none"):
        assert stub.until(lambda: stub.hellos)[-1]["dimensions"]["isolation"] == ["landlock"]


def test_a_bot_without_isolation_says_so(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1", "--dimension", "isolation=landlock", "--isolation", "off"):
        assert stub.until(lambda: stub.hellos)[-1]["dimensions"]["isolation"] == ["none"]


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_landlock_and_a_user_for_tasks_add_up(stub: Stub):
    with open_folder() as folder:
        (folder / "bots").mkdir()
        with a_bot(
            stub.url, folder / "bots" / "b1", "--task-user", "nobody", python=PYTHON,
            env={"MYRMIDON_BOT_HOST_DIR": str(folder / "host")},
        ):  # fmt: skip
            assert stub.until(lambda: stub.hellos)[-1]["dimensions"]["isolation"] == ["landlock", "user"]
            run = stub.submit("/bin/sh", "-c", "id -un; echo $HOME; echo x > file && cat $LUCI_CONTEXT > /dev/null")
            assert stub.result(run)["exit_code"] == 0, stub.log(run, 1)
            assert stub.log(run).split() == [b"nobody", b"/nonexistent"]


# ---------------------------------------------------------------- attacks


def test_no_task_reads_the_secrets_of_its_bot(host: Host):
    folder = host.bot.folder
    wait_for((folder / "credential").exists, "the credential")
    names = ["credential", "bot.json", "journal", "session", "bot.log", "bot.zip", "lock"]
    (folder / "token").touch(mode=0o600)  # one that a person has stored there
    found = host.attack(read=[str(folder / name) for name in [*names, "token"]])
    assert set(found["read"].values()) == {"denied"}


def test_no_task_changes_the_files_of_its_bot(host: Host):
    folder = host.bot.folder
    before = sorted(path.name for path in folder.iterdir())
    found = host.attack(
        write=[str(folder / name) for name in ("bot.json", "next.json", "bot.1.zip", "spool/x")],
        link=[str(folder / name) for name in ("next.json", "bad.json")],
        move=[[str(folder / "bot.zip"), str(folder / "x")], [str(folder), str(folder) + ".x"]],
        remove=[str(folder / "bot.json"), str(folder / "credential")],
    )
    assert {how for attack in found.values() for how in attack.values()} == {"denied"}
    assert sorted(path.name for path in folder.iterdir()) == before


def test_no_task_reads_the_files_of_another_bot_or_of_the_server(host: Host):
    folder = host.other.folder
    wait_for((folder / "credential").exists, "the credential")
    targets = [str(folder / name) for name in ("credential", "bot.json", "journal", "bot.zip")]
    found = host.attack(read=[*targets, str(host.folder / "data" / "admin.token")])
    assert set(found["read"].values()) == {"denied"}


def test_a_secret_is_in_files_that_only_its_own_task_opens_and_that_are_gone_afterwards(host: Host, kind: str):
    show = "cat $MYRMIDON_SECRET_FILE; stat -c %a $MYRMIDON_SECRET_FILE $LUCI_CONTEXT"
    script = f"{show}; while [ ! -e end ]; do sleep 0.02; done"
    secret = b64encode(b"the other secret\n").decode()
    run = host.other_stub.submit("/bin/sh", "-c", script, secret_bytes=secret)
    work = host.other.folder / "work"
    wait_for(lambda: (work / "secret").exists() and (work / "context.json").exists(), "the other task's secret")
    owner = (work / "secret").stat().st_uid
    targets = [str(work / "secret"), str(work / "context.json")]
    found = host.attack(read=targets) if kind != "user" else {"read": {}}
    (work / "run" / "end").touch()
    assert host.other_stub.result(run)["exit_code"] == 0
    assert host.other_stub.log(run).split(b"\n")[:3] == [b"the other secret", b"600", b"600"]
    assert owner == (0 if kind == "landlock" else NOBODY)
    assert set(found["read"].values()) <= {"denied"}
    wait_for(lambda: not (work / "secret").exists() and not (work / "context.json").exists(), "no secret any more")


def test_no_task_looks_into_the_processes_of_its_bot(host: Host, kind: str):
    supervisor, worker = host.bot.process.pid, host.bot.worker()
    for pid in (supervisor, worker):
        found = host.attack(
            read=[f"/proc/{pid}/{name}" for name in ("environ", "mem", "maps")],
            readlink=[f"/proc/{pid}/fd/0", f"/proc/{pid}/cwd"],
        )
        environ = found["read"].pop(f"/proc/{pid}/environ")
        # The kernel shows the environment of any process to root; there is no secret in it.
        assert environ == "denied" or kind == "landlock"
        assert "bootstrap-token" not in environ
        if kind != "landlock":  # the same goes for the map of its memory
            assert found["read"].pop(f"/proc/{pid}/maps") == "denied"
        assert found["read"][f"/proc/{pid}/mem"] == "denied"
        assert set(found["readlink"].values()) == {"denied"}


def test_no_task_opens_the_console_of_its_bot(host: Host, kind: str):
    worker, folder = host.bot.worker(), host.bot.folder
    if kind == "user" or landlock.scopes_signals():
        found = host.attack(signal=[[worker, int(signal.SIGUSR2)], [host.bot.process.pid, int(signal.SIGUSR2)]])
        assert set(found["signal"].values()) == {"denied"}
        assert not (folder / "console").exists()
    os.kill(worker, signal.SIGUSR2)  # by a person
    wait_for((folder / "console").is_socket, "the prompt")
    found = host.attack(console=[str(folder / "console")], read=[str(folder / "console.key")])
    assert {*found["console"].values(), *found["read"].values()} == {"denied"}
    assert (folder / "console").is_socket(), "it still waits for the person"


def test_no_task_reads_a_cache_of_another_resource_group(host: Host):
    caches = [{"name": "git", "path": "git"}]
    ours = {"caches": caches, "resource_group": "ours"}
    assert host.stub.run("/bin/sh", "-c", "echo ours > git/file", **ours)["exit_code"] == 0
    [stored] = (host.bot.folder / "c").glob("??/file")
    assert host.attack(read=[str(stored)])["read"] == {str(stored): "denied"}
    run = host.stub.submit("/bin/sh", "-c", "ls git; echo theirs > git/file", caches=caches, resource_group="theirs")
    assert host.stub.result(run)["exit_code"] == 0
    assert host.stub.log(run) == b""
    run = host.stub.submit("/bin/cat", "git/file", **ours)
    assert host.stub.result(run)["exit_code"] == 0
    assert host.stub.log(run) == b"ours\n"


# ---------------------------------------------------------------- what tasks may do


def test_a_task_uses_its_own_folders_and_whatever_is_beside_those_of_bots(host: Host):
    script = (
        "set -e; mkdir -p sub; echo x > sub/file; mv sub/file $TMPDIR/file; ln $TMPDIR/file again;"
        "cat again cache/../again; echo y > cache/y;"
        "cat $LUCI_CONTEXT > /dev/null; ls / > /dev/null; ls .. > /dev/null;"
        f"cat {host.folder}/tools/attack.py > /dev/null; kill -0 $$; sleep 30 & kill $!; echo $PWD > deep/er/x"
    )
    run = host.stub.submit(
        "/bin/sh", "-c", script, relative_cwd="here",
        caches=[{"name": "own", "path": "here/cache"}, {"name": "two", "path": "here/deep/er"}],
    )  # fmt: skip
    assert host.stub.result(run)["exit_code"] == 0, host.stub.log(run, 1)
    assert host.stub.log(run) == b"x\nx\n"


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_what_was_created_after_the_last_task_is_there_for_the_next(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1"):
        for number in range(3):
            new = tmp_path / f"new{number}"
            new.mkdir()
            (new / "file").write_text("x")
            assert stub.run("/bin/sh", "-c", f"cat {new}/file && echo y > {new}/other")["exit_code"] == 0
            (tmp_path / f"single{number}").write_text("x")
            assert stub.run("/bin/cat", str(tmp_path / f"single{number}"))["exit_code"] == 0


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_a_file_system_that_was_mounted_after_the_last_task_is_there_for_the_next(stub: Stub, tmp_path: Path):
    (tmp_path / "mounted").mkdir()
    with a_bot(stub.url, tmp_path / "b1"):
        assert stub.run("/bin/true")["exit_code"] == 0
        if os.system(f"mount -t tmpfs none {tmp_path}/mounted") != 0:
            pytest.skip("nothing can be mounted here")
        try:
            assert stub.run("/bin/sh", "-c", f"echo x > {tmp_path}/mounted/file")["exit_code"] == 0
        finally:
            os.system(f"umount {tmp_path}/mounted")


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_a_bot_that_is_started_later_elsewhere_is_closed_too(stub: Stub, tmp_path: Path):
    shared = {"MYRMIDON_BOT_HOST_DIR": str(tmp_path / "host")}
    later = tmp_path / "elsewhere" / "b2"
    later.mkdir(parents=True)
    with Stub() as other_stub, a_bot(stub.url, tmp_path / "bots" / "b1", env=shared):
        assert stub.run("/bin/sh", "-c", f"echo x > {later}/.. 2> /dev/null; ls {later}")["exit_code"] == 0
        with a_bot(other_stub.url, later, env=shared):
            wait_for((later / "credential").exists, "the credential")
            assert stub.run("/bin/cat", str(later / "credential"))["exit_code"] == 1
        assert stub.run("/bin/cat", str(later / "credential"))["exit_code"] == 1, "also when that bot has ended"


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_a_file_that_is_deleted_frees_its_disk_space_while_the_bot_is_idle(stub: Stub, tmp_path: Path):
    stub.poll_s = 0.1
    if os.system(f"mount -t tmpfs -o size=20m none {tmp_path}") != 0:
        pytest.skip("nothing can be mounted here")
    try:
        (tmp_path / "large").write_bytes(b"x" * (4 << 20))
        with a_bot(stub.url, tmp_path / "b1", env={"MYRMIDON_BOT_REFRESH_S": "0.1"}):
            assert stub.run("/bin/cat", str(tmp_path / "large"))["exit_code"] == 0
            before = shutil.disk_usage(tmp_path).free
            (tmp_path / "large").unlink()
            wait_for(lambda: shutil.disk_usage(tmp_path).free - before > 3 << 20, "the space of the file")
    finally:
        os.system(f"umount -l {tmp_path}")


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_what_a_bot_that_is_started_later_hides_is_closed_too(stub: Stub, tmp_path: Path):
    shared = {"MYRMIDON_BOT_HOST_DIR": str(tmp_path / "host")}
    data = tmp_path / "elsewhere"
    data.mkdir()
    (data / "admin.token").write_text("the token of a server that was started later")
    with Stub() as other_stub, a_bot(stub.url, tmp_path / "bots" / "b1", env=shared):
        assert stub.run("/bin/cat", str(data / "admin.token"))["exit_code"] == 0
        with a_bot(other_stub.url, data / "bots" / "b2", "--hide", str(data), env=shared):
            assert other_stub.run("/bin/true")["exit_code"] == 0
            assert stub.run("/bin/cat", str(data / "admin.token"))["exit_code"] == 1


def test_folders_that_another_user_wants_hidden_are_not_closed(tmp_path: Path):
    config = tmp_path / "bot.json"
    config.write_text(json.dumps({"hidden": ["/somewhere", "/"]}))
    assert hidden_by(str(tmp_path)) == ["/somewhere"]
    os.chown(config, NOBODY, NOBODY)
    assert hidden_by(str(tmp_path)) == []


@pytest.mark.parametrize("content", ["", "[]", '{"hidden": 1}', '{"hidden": [1]}', "\0"])
def test_a_damaged_configuration_of_another_bot_hides_nothing(tmp_path: Path, content: str):
    (tmp_path / "bot.json").write_text(content)
    assert hidden_by(str(tmp_path)) == []


def test_a_folder_that_a_user_declares_to_be_a_bots_is_closed_only_if_it_is_theirs(tmp_path: Path):
    assert not is_bot_folder(str(tmp_path))
    (tmp_path / "bot.json").write_text("{}")
    assert is_bot_folder(str(tmp_path))
    os.chown(tmp_path / "bot.json", NOBODY, NOBODY)
    assert not is_bot_folder(str(tmp_path))


def keeps_its_thread(sandbox: Sandbox, above: Path) -> bool:
    """Whether the rules stay as they are when a file has come and gone in a folder above."""
    thread = sandbox.thread
    (above / "short-lived").touch()
    (above / "short-lived").unlink()
    assert sandbox.call(lambda: "result") == "result"
    return sandbox.thread is thread


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_the_rules_are_made_anew_only_when_they_would_grant_something_else(tmp_path: Path):
    folder = tmp_path / "b1"
    for name in ("work", "context"):
        (folder / name).mkdir(parents=True)
    sandbox = Sandbox(str(folder), writable=str(folder / "work"), readable=[str(folder / "context")])
    (folder / "journal").touch()  # the bot's own files do not matter
    assert any(keeps_its_thread(sandbox, tmp_path) for _ in range(100)), "other tests change the folders above, too"
    thread = sandbox.thread
    (tmp_path / "new").touch()
    with pytest.raises(PermissionError):
        sandbox.call(lambda: (folder / "journal").read_text())
    assert sandbox.thread is not thread
    assert sandbox.call((tmp_path / "new").read_text) == ""
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert (folder / "journal").read_text() == "", "the thread that asks is not restricted"


def looks_away_from(sandbox: Sandbox, temporary: Path) -> bool:
    """Whether a new file in a temporary folder changes neither the rules nor their generation."""
    generation, thread = sandbox.current_generation(), sandbox.thread
    (temporary / f"new-{len(list(temporary.iterdir()))}").touch()
    return (sandbox.current_generation(), sandbox.thread) == (generation, thread)


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_only_what_lasts_makes_processes_with_functions_outdated(tmp_path: Path):
    temporary = tmp_path / "tmp"
    folder = temporary / "lasting" / "b1"
    (folder / "work").mkdir(parents=True)
    temporary.chmod(0o1777)
    sandbox = Sandbox(str(folder), writable=str(folder / "work"), readable=[])
    assert any(looks_away_from(sandbox, temporary) for _ in range(100)), "other tests change the folders above, too"
    generation = sandbox.current_generation()
    (temporary / "lasting" / "new").touch()
    assert sandbox.current_generation() > generation


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--isolation", "perhaps"], "use auto or off"),
        (["--task-user", "no-such-user"], "there is no user no-such-user"),
        (["--task-user", "root"], "is root"),
        (["--task-user", "nobody"], "nobody cannot enter"),
    ],
)
def test_an_isolation_that_is_impossible_is_refused_at_the_start(
    stub: Stub, tmp_path: Path, flags: list[str], reason: str
):
    tmp_path.chmod(0o700)
    with a_bot(stub.url, tmp_path / "b1", *flags) as bot:
        assert bot.process.wait(HANG_S) == 2
    assert reason in (tmp_path / "b1.out").read_text()


def test_a_bot_that_is_not_root_has_no_other_user_for_tasks(stub: Stub):
    with open_folder() as folder:
        (folder / "bots").mkdir()
        with a_bot_of_kind("landlock of nobody", stub.url, folder / "bots" / "b1", "--task-user", "daemon") as bot:
            assert bot.process.wait(HANG_S) == 2
        assert "only a bot that runs as root" in (folder / "bots" / "b1.out").read_text()
