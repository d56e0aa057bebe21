"""Folders that nobody should give a bot: it refuses with a reason, or it works; and what is not its own stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from myrmidon.bot.install import startup_config
from myrmidon.bot.system import dimensions
from tests.bot.bots import a_bot, pack, zip_files
from tests.bot.stub import Stub
from tests.deadline import HANG_S

NOBODY = 65534


@contextmanager
def small_disk(tmp_path: Path, size: str = "4m", *options: str) -> Iterator[Path]:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield small
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def fill(small: Path, leave: int = 0) -> Path:
    filler = small / "filler"
    filler.write_bytes(b"x" * max(shutil.disk_usage(small).free - leave, 0))
    return filler


def everything(root: Path) -> dict[str, str]:
    """All paths below root with their kind and content, to see that nothing has changed."""
    found = {}
    for path in sorted(root.rglob("*")):
        shown = str(path.relative_to(root))
        if path.is_symlink():
            found[shown] = f"link to {os.readlink(path)}"
        else:
            found[shown] = "folder" if path.is_dir() else path.read_bytes().decode("latin-1")
    return found


# ---------------------------------------------------------------- refused


def _marked(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bot.json").write_text(json.dumps({"server": "http://s", "bot_id": "b1", "pool": "p", "extra": {}}))
    return folder


def _foreign_files(root: Path) -> Path:
    (root / "b").mkdir()
    (root / "b" / "thesis.txt").write_text("precious")
    return root / "b"


def _a_file(root: Path) -> Path:
    (root / "b").write_text("precious")
    return root / "b"


def _below_a_file(root: Path) -> Path:
    (root / "file").write_text("precious")
    return root / "file" / "b"


def _a_link_to_a_file(root: Path) -> Path:
    (root / "b").symlink_to(root / "file")
    (root / "file").write_text("precious")
    return root / "b"


def _a_circle_of_links(root: Path) -> Path:
    (root / "b").symlink_to(root / "c")
    (root / "c").symlink_to(root / "b")
    return root / "b"


def _with(name: str, make: Callable[[Path, Path], None]) -> Callable[[Path], Path]:
    """A bot's folder with something in the way."""

    def prepare(root: Path) -> Path:
        (root / "elsewhere").mkdir()
        (root / "elsewhere" / "precious").write_text("precious")
        folder = root / "b"
        if name != "bot.json":
            _marked(folder)
        folder.mkdir(exist_ok=True)
        make(folder / name, root / "elsewhere")
        return folder

    return prepare


def _file(path: Path, _: Path) -> None:
    path.write_text("precious")


def _folder(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("precious")


def _link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def _link_to_file(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "precious")


REFUSED = [
    ("foreign files", _foreign_files),
    ("a file", _a_file),
    ("below a file", _below_a_file),
    ("a link to a file", _a_link_to_a_file),
    ("a circle of links", _a_circle_of_links),
    ("a file for the work", _with("work", _file)),
    ("a link for the work", _with("work", _link)),
    ("a link for the logs", _with("spool", _link)),
    ("a file for the caches", _with("c", _file)),
    ("a link for the caches", _with("c", _link)),
    ("a folder for the journal", _with("journal", _folder)),
    ("a link for the journal", _with("journal", _link_to_file)),
    ("a link for the credential", _with("credential", _link_to_file)),
    ("a link for the token", _with("token", _link_to_file)),
    ("a file for the context", _with("context", _file)),
    ("a link for the lock", _with("lock", _link_to_file)),
    ("a folder for the zip", _with("bot.zip", _folder)),
    ("a link for a new zip", _with("bot.1.zip", _link_to_file)),
    ("a folder for the next zip", _with("next.json", _folder)),
    ("a folder for the orders", _with("bot.json", _folder)),
    ("damaged orders", _with("bot.json", lambda path, _: _write(path, "{broken"))),
    ("orders that are none", _with("bot.json", lambda path, _: _write(path, "5"))),
]


def _write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize("make", [make for _, make in REFUSED], ids=[name for name, _ in REFUSED])
def test_a_hostile_folder_is_refused_with_a_reason_and_left_as_it_is(tmp_path: Path, make: Callable[[Path], Path]):
    folder = make(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(startup_config.StartupError) as told:
        startup_config.prepare(["--dir", str(folder), "--server", "http://s"])
    assert str(told.value)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("given", ["~", "~/.", "/", "/etc/.."])
def test_a_home_or_the_root_is_no_folder_for_a_bot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(startup_config.StartupError, match="cannot be the folder of a bot"):
        startup_config.prepare(["--dir", given, "--server", "http://s"])
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(startup_config.StartupError, match="cannot be the folder of a bot"):
        startup_config.prepare(["--dir", str(tmp_path / "link"), "--server", "http://s"])
    assert os.listdir(tmp_path) == ["link"]


@pytest.mark.parametrize("given", ["a/b", "..", "a\nb", "x" * 257])
def test_an_id_that_the_server_would_refuse_is_refused_at_once_unless_it_is_known(tmp_path: Path, given: str):
    words = ["--dir", str(tmp_path / "b"), "--server", "http://s"]
    with pytest.raises(startup_config.StartupError, match="not a valid bot id"):
        startup_config.prepare([*words, "--bot-id", given])
    startup_config.prepare([*words, "--bot-id", "host--1"])
    mark = tmp_path / "b" / startup_config.CONFIG_FILE
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "bot_id": given}))
    startup_config.prepare([*words, "--bot-id", given])
    assert dimensions.is_id(dimensions.default_id())


def _as_nobody(work: Callable[[], object]) -> str:
    """Do something in a child process without rights; what it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.seteuid(NOBODY)
            work()
            os.write(writer, b"nothing")
        except startup_config.StartupError as error:
            os.write(writer, f"Unusable: {error}".encode())
        except Exception:  # noqa: BLE001 - told to the parent
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("kind", ["no entry", "no writing", "somebody else's"])
def test_a_folder_without_permission_is_refused(kind: str):
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        folder = _marked(root / "b")
        if kind == "somebody else's":
            folder.chmod(0o777)
            (folder / "work").mkdir()
        else:
            folder.chmod(0o700 if kind == "no entry" else 0o755)
        before = sorted(os.listdir(folder))
        said = _as_nobody(lambda: startup_config.prepare(["--dir", str(folder), "--server", "http://x"]))
        assert said.startswith("Unusable"), said
        assert sorted(os.listdir(folder)) == before


def test_a_read_only_disk_is_refused(tmp_path: Path):
    with small_disk(tmp_path, "1m", "ro") as small, pytest.raises(startup_config.StartupError, match="cannot be used"):
        startup_config.prepare(["--dir", str(small / "b"), "--server", "http://s"])


def test_a_full_disk_is_refused_at_the_first_start(tmp_path: Path):
    with small_disk(tmp_path) as small:
        (small / "b").mkdir()
        fill(small)
        with pytest.raises(startup_config.StartupError, match="No space left"):
            startup_config.prepare(["--dir", str(small / "b"), "--server", "http://s"])


def test_the_zip_says_why_it_does_not_start(interpreter: str, tmp_path: Path):
    zipped = tmp_path / "bot.zip"
    zipped.write_bytes(pack(zip_files("http://127.0.0.1:1"))[0])
    argv = [interpreter, str(zipped), "start", "--dir", str(_foreign_files(tmp_path))]
    told = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (told.returncode, "do not belong to a bot" in told.stderr) == (2, True)


def test_a_zip_from_elsewhere_says_that_there_is_no_room_for_it(tmp_path: Path):
    zipped = tmp_path / "bot.zip"
    zipped.write_bytes(pack(zip_files("http://s"))[0])
    with small_disk(tmp_path) as small:
        folder = _marked(small / "b")
        (folder / "token").write_text("t")
        fill(small)
        argv = [sys.executable, str(zipped), "start", "--dir", str(folder)]
        told = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (told.returncode, "No space left" in told.stderr, "Traceback" in told.stderr) == (2, True, False)


# ---------------------------------------------------------------- lived with


def _foreign_things(folder: Path) -> None:
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.txt").write_text("precious")
    (folder / "notes.txt").write_text("precious")
    (folder / "c" / "named").mkdir(parents=True)
    (folder / "c" / "README").write_text("precious")
    (folder / "c" / "named" / "mine").mkdir()


def _locked_leftovers(folder: Path) -> None:
    (folder / "work" / "run" / "deep").mkdir(parents=True)
    (folder / "work" / "run" / "deep" / "file").write_text("left by a task")
    (folder / "work" / "run" / "out").symlink_to(folder.parent)
    (folder / "work" / "run" / "deep").chmod(0)


def _rubbish_everywhere(folder: Path) -> None:
    (folder / "journal").write_bytes(b'\xff\xfe{"report": 5}\n[]\n{}\nnull\n\0')
    (folder / "session").write_text("many")
    (folder / "next.json").write_text("[]")
    (folder / "failed.json").write_text("{")
    (folder / "bad.json").write_text("7")
    (folder / "spool" / "r1").mkdir(parents=True)
    (folder / "spool" / "r1" / "what.is.this").write_text("x")
    (folder / "c").mkdir()
    (folder / "c" / "state.json").write_text("{rubbish")


def _leftover_links(folder: Path) -> None:
    (folder / "c" / "named").mkdir(parents=True)
    (folder / "c" / "named" / "ccache").symlink_to("/etc")
    (folder / "c" / "ab").symlink_to(folder.parent)
    (folder / "bot.json.part").symlink_to("/etc/passwd")


@pytest.mark.parametrize("spoil", [_foreign_things, _locked_leftovers, _rubbish_everywhere, _leftover_links])
def test_a_bot_lives_with_what_it_finds_and_removes_only_its_own(
    stub: Stub, tmp_path: Path, spoil: Callable[[Path], None]
):
    folder = _marked(tmp_path / "b1")
    spoil(folder)
    precious = {path: text for path, text in everything(tmp_path).items() if text == "precious"}
    with a_bot(stub.url, folder, "--server", stub.url) as bot:
        caches = [{"name": "ccache", "path": "c"}]
        assert stub.run("/bin/sh", "-c", "echo x > c/x", caches=caches)["exit_code"] == 0
        assert bot.end() == 0
    assert {path: text for path, text in everything(tmp_path).items() if text == "precious"} == precious
    if spoil is _rubbish_everywhere:
        assert [m for m in stub.says("bot_error") if "named caches cannot be read" in m]


def test_odd_names_are_names(stub: Stub, tmp_path: Path):
    folder = tmp_path / "a b'c\"d\\e" / "ümläut\n$HOME" / os.fsdecode(b"no\xffutf") / "b1"
    with a_bot(stub.url, folder):
        run = stub.submit("/bin/sh", "-c", 'printf "%s" "$PWD"; cat "$LUCI_CONTEXT" > /dev/null')
        assert stub.result(run)["exit_code"] == 0
        assert stub.log(run) == os.fsencode(folder / "work" / "run")


def test_a_command_that_has_ended_well_stays_so_when_nothing_can_be_cleaned_after_it(stub: Stub, tmp_path: Path):
    with small_disk(tmp_path, "20m", "nr_inodes=200") as small, a_bot(stub.url, small / "b1"):
        (small / "full").mkdir()
        fill_up = (
            f'i=0; while touch {small}/full/$i 2>&-; do i=$((i+1)); done; cd /; rm -r "$OLDPWD"; touch {small}/full/x'
        )
        assert stub.run("/bin/sh", "-c", fill_up)["exit_code"] == 0
        stub.until(lambda: [m for m in stub.says("bot_error") if "could not be cleaned" in m], "a complaint")
        shutil.rmtree(small / "full")
        assert stub.run("/bin/true")["exit_code"] == 0


def test_a_bot_started_with_its_streams_closed_works(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1", around=["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]):
        run = stub.submit("/bin/sh", "-c", "echo hello")
        assert stub.result(run)["exit_code"] == 0
        assert stub.log(run) == b"hello\n"


def test_a_bot_starts_again_on_a_full_disk_and_says_that_it_is_ill(stub: Stub, tmp_path: Path):
    with small_disk(tmp_path, "20m") as small:
        with a_bot(stub.url, small / "b1") as bot:
            assert stub.run("/bin/true")["exit_code"] == 0
            assert bot.end() == 0
        filler = fill(small)
        stub.poll_s = 0.2
        with a_bot(stub.url, small / "b1", env={"MYRMIDON_BOT_REFRESH_S": "0.2"}):
            stub.until(lambda: "full" in (stub.hellos[-1].get("quarantined") or ""), "the bot to say that it is ill")
            filler.unlink()
            assert stub.run("/bin/true")["exit_code"] == 0
            stub.until(lambda: not stub.hellos[-1].get("quarantined"), "the bot to be well again")


def test_a_temporary_folder_with_too_much_in_it_makes_the_bot_ill_until_it_is_cleared(stub: Stub, tmp_path: Path):
    temp = tmp_path / "temp"
    temp.mkdir()
    for number in range(1025):
        (temp / str(number)).touch()
    env = {"TMPDIR": str(temp), "MYRMIDON_BOT_REFRESH_S": "0.2"}
    stub.poll_s = 0.2
    with a_bot(stub.url, tmp_path / "b1", env=env):
        stub.until(lambda: stub.hellos and "1024" in (stub.hellos[-1].get("quarantined") or ""), "illness")
        (temp / "0").unlink()
        stub.until(lambda: not stub.hellos[-1].get("quarantined"), "health")
    assert len(list(temp.iterdir())) == 1024
