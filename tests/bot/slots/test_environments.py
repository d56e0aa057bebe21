"""Environments on real bots: isolated builds, bots that share and race, crashes, limits, and what a log shows."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from myrmidon.functions import requirements, values
from tests.bot.bots import BotProcess, a_bot, alive, wait_for
from tests.bot.run.test_isolation import KINDS, NOBODY, a_bot_of_kind, open_folder
from tests.bot.slots.packages import a_wheel, an_sdist, installers
from tests.bot.slots.test_files import a_zip
from tests.bot.stub import Stub

pytestmark = pytest.mark.full

SOURCE = b"""
import os, sys

def value(module: str) -> str:
    return str(__import__(module).value)

def ping(text: str) -> str:
    return text

def damage(module: str) -> str:
    try:
        with open(__import__(module).__file__, "a") as file:
            file.write("damaged = True")
    except OSError:
        return "denied"
    return "written"
"""
ZIPPED = a_zip({"probe.py": SOURCE})
CODE = hashlib.sha256(ZIPPED).hexdigest()


@contextmanager
def a_builder(
    stub: Stub, folder: Path, packages: Path, *flags: str, uv: bool = True, env: dict[str, str] | None = None
) -> Iterator[BotProcess]:
    with a_bot(stub.url, folder, *flags, env={**installers(packages, uv=uv), **(env or {})}) as bot:
        yield bot


def call(stub: Stub, name: str, argument: str, *lines: str, **fields: Any) -> str:
    """Submit a function with requirements; its run."""
    function = {"package_name": "probe", "func_name": name, "language": "PYTHON", "code": CODE}
    stub.files[CODE] = ZIPPED
    if lines:
        digest, data = requirements.document(requirements.check_lines(lines))
        stub.files[digest] = data
        function["environment"] = digest
    data = values.encode(argument, str)
    given = {"type": "string", "payload": b64encode(data).decode(), "size": len(data)}
    return stub.submit(function=function, inputs=[given], output_types=["string"], **fields)


def returned(report: dict[str, Any]) -> Any:
    assert report.get("exit_code") == 0, report
    return values.decode(b64decode(report["outputs"][0]["payload"]["inline"]), str)


def waits_for(path: Path, *, begun: Path) -> str:
    """Code of a build that says that it runs, and waits for a file."""
    return f"""
import time
with open({str(begun)!r}, "a") as file:
    file.write(str(os.getpid()) + "\\n")
print("waiting for the test", flush=True)
while not os.path.exists({str(path)!r}):
    time.sleep(0.01)
"""


def runs(begun: Path) -> bool:
    """Whether a build has written its process id."""
    return begun.exists() and begun.read_text().endswith("\n")


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Packages, and files that builds and tests share: outside of the folders above the bots, where nothing is new."""
    notes = tmp_path / "notes"
    notes.mkdir()
    return tmp_path / "packages", notes


@pytest.mark.short
@pytest.mark.parametrize("uv", [True, False], ids=["uv", "pip"])
def test_uv_or_pip_installs_the_requirements(stub: Stub, tmp_path: Path, uv: bool):
    a_wheel(tmp_path / "p", "mpack", "1.0", {"mpack.py": "value = 'one'"}, requires=("mdeep",))
    a_wheel(tmp_path / "p", "mdeep", "1.0", {"mdeep.py": "value = 'two'"})
    with a_builder(stub, tmp_path / "bots" / "b1", tmp_path / "p", uv=uv):
        run = call(stub, "value", "mdeep", "mpack==1.*")
        assert returned(stub.result(run)) == "two"
        assert (b"uv pip install" in stub.log(run, 1)) == uv


@pytest.mark.parametrize("uv", [True, False], ids=["uv", "pip"])
def test_the_first_line_of_a_failed_build_has_the_reason_of_the_installer(stub: Stub, tmp_path: Path, uv: bool):
    """Lists of tasks show the first line; it ended before the reason."""
    (tmp_path / "p").mkdir()
    with a_builder(stub, tmp_path / "bots" / "b1", tmp_path / "p", uv=uv):
        first, _, more = stub.result(call(stub, "value", "x", "mnowhere==9"))["message"].partition("\n")
        assert "the requirements cannot be installed: " in first
        assert "mnowhere" in first
        assert "mnowhere" in more


def test_other_functions_and_commands_run_while_an_environment_is_built(stub: Stub, tmp_path: Path, places: Any):
    packages, notes = places
    an_sdist(packages, "mslow", waits_for(notes / "go", begun=notes / "begun"))
    with a_builder(stub, tmp_path / "bots" / "b1", packages, "--slots", "1"):
        slow = [call(stub, "value", "mslow", "mslow") for _ in range(2)]
        wait_for(lambda: runs(notes / "begun"), "the build")
        others = [call(stub, "ping", str(number)) for number in range(20)]
        assert [returned(stub.result(run)) for run in others] == [str(number) for number in range(20)]
        assert stub.run("/bin/true")["exit_code"] == 0
        assert not stub.results.keys() & set(slow)
        stub.until(lambda: {("start", run) for run in slow} <= {(r["type"], r["run"]) for r in stub.reports})
        (notes / "go").touch()
        assert [returned(stub.result(run)) for run in slow] == ["built", "built"]
        assert len((notes / "begun").read_text().split()) == 1


def test_the_output_of_a_build_is_in_the_log_while_it_runs(stub: Stub, tmp_path: Path, places: Any):
    packages, notes = places
    an_sdist(packages, "mslow", waits_for(notes / "go", begun=notes / "begun"))
    with a_builder(stub, tmp_path / "bots" / "b1", packages, uv=False, env={"PIP_VERBOSE": "1"}):
        run = call(stub, "value", "mslow", "mslow")
        stub.until(lambda: b"waiting for the test" in stub.log(run, 1), "the line of the build")
        (notes / "go").touch()
        assert returned(stub.result(run)) == "built"


@pytest.mark.short
def test_two_bots_of_a_host_build_once(tmp_path: Path, places: Any):
    packages, notes = places
    an_sdist(packages, "mslow", waits_for(notes / "go", begun=notes / "begun"))
    with (
        Stub() as one,
        Stub() as two,
        a_builder(one, tmp_path / "bots" / "b1", packages),
        a_builder(two, tmp_path / "bots" / "b2", packages),
    ):
        runs = {stub: call(stub, "value", "mslow", "mslow") for stub in (one, two)}
        said = b"is being built or removed; waiting"
        wait_for(lambda: any(said in stub.log(run, 1) for stub, run in runs.items()), "one of them waits")
        (notes / "go").touch()
        assert [returned(stub.result(run)) for stub, run in runs.items()] == ["built", "built"]
    assert len((notes / "begun").read_text().split()) == 1


def test_a_bot_that_is_killed_while_it_builds_leaves_nothing_that_is_used(tmp_path: Path, places: Any):
    packages, notes = places
    an_sdist(packages, "mslow", waits_for(notes / "go", begun=notes / "begun"))
    shared = tmp_path / "bots" / "myrmidon-environments"
    with Stub() as one, a_builder(one, tmp_path / "bots" / "b1", packages) as bot:
        call(one, "value", "mslow", "mslow")
        wait_for(lambda: runs(notes / "begun"), "the build")
        [half] = shared.glob("*/*")
        for pid in (bot.process.pid, bot.worker()):
            os.kill(pid, signal.SIGKILL)
    assert not list(shared.glob("*.json"))
    (notes / "go").touch()
    with Stub() as two, a_builder(two, tmp_path / "bots" / "b2", packages):
        run = call(two, "value", "mslow", "mslow")
        assert returned(two.result(run)) == "built"
        assert not half.exists()
        assert len(list(shared.glob("*/*"))) == 1


def test_a_worker_that_is_killed_while_it_builds_builds_again(stub: Stub, tmp_path: Path, places: Any):
    packages, notes = places
    an_sdist(packages, "mslow", waits_for(notes / "go", begun=notes / "begun"))
    with a_builder(stub, tmp_path / "bots" / "b1", packages) as bot:
        call(stub, "value", "mslow", "mslow")
        wait_for(lambda: runs(notes / "begun"), "the build")
        os.kill(bot.worker(), signal.SIGKILL)
        build = int((notes / "begun").read_text().split()[0])
        wait_for(lambda: not alive(build), "the end of the first build")
        stub.until(lambda: len(stub.hellos) == 2, "a new worker")
        (notes / "go").touch()
        assert returned(stub.result(call(stub, "value", "mslow", "mslow"))) == "built"


def test_a_build_for_ever_ends_with_its_limit_and_is_killed(stub: Stub, tmp_path: Path, places: Any):
    packages, notes = places
    an_sdist(packages, "mslow", waits_for(notes / "never", begun=notes / "begun"))
    stub.gives["settings"] = {"environment_build_s": 5}
    with a_builder(stub, tmp_path / "bots" / "b1", packages):
        report = stub.result(call(stub, "value", "mslow", "mslow"))
        assert (report["type"], report["kind"]) == ("fault", "environment_failed")
        assert "was not built within 5 s" in report["message"]
        pid = int((notes / "begun").read_text().split()[0])
        wait_for(lambda: not alive(pid), "the end of the build")


def test_a_failed_build_is_not_repeated_for_every_run(stub: Stub, tmp_path: Path, places: Any):
    packages, notes = places
    code = f"open({str(notes / 'tries')!r}, 'a').write('x')\nraise SystemExit('this package is broken')"
    an_sdist(packages, "mbroken", code)
    with a_builder(stub, tmp_path / "bots" / "b1", packages):
        for number in range(3):
            report = stub.result(call(stub, "value", "mbroken", "mbroken"))
            assert report["kind"] == "environment_failed"
            assert "this package is broken" in report["message"]
            assert ("s ago on this bot; after 60 s a task builds it again" in report["message"]) == (number > 0)
    assert (notes / "tries").read_text() == "x"


def test_a_flood_of_output_is_cut_and_its_end_is_in_the_message(stub: Stub, tmp_path: Path, places: Any):
    packages, _ = places
    code = "import sys\nfor _ in range(6 * 1024):\n    print('x' * 1023)\nsys.exit('at last')"
    an_sdist(packages, "mflood", code)
    with a_builder(stub, tmp_path / "bots" / "b1", packages, uv=False, env={"PIP_VERBOSE": "1"}):
        run = call(stub, "value", "mflood", "mflood")
        report = stub.result(run)
        assert report["kind"] == "environment_failed"
        assert "at last" in report["message"]
        stub.until(lambda: b"further output of the build is not kept" in stub.log(run, 1))
        assert len(stub.log(run, 1)) < 5 << 20


@pytest.mark.short
def test_a_cancelled_run_ends_the_build_that_nobody_else_waits_for(stub: Stub, tmp_path: Path, places: Any):
    packages, notes = places
    an_sdist(packages, "mslow", waits_for(notes / "never", begun=notes / "begun"))
    stub.heartbeat_s = 0.2
    with a_builder(stub, tmp_path / "bots" / "b1", packages):
        run = call(stub, "value", "mslow", "mslow")
        wait_for(lambda: runs(notes / "begun"), "the build")
        stub.stops.add(run)
        assert stub.result(run).get("killed")
        pid = int((notes / "begun").read_text().split()[0])
        wait_for(lambda: not alive(pid), "the end of the build")
        assert returned(stub.result(call(stub, "ping", "again"))) == "again"


def test_credentials_of_an_index_are_not_in_the_log(stub: Stub, tmp_path: Path, places: Any):
    packages, _ = places
    code = "import sys\nraise SystemExit('env ' + os.environ['PIP_INDEX_URL'] + ' ' + os.environ['UV_TEST_PASSWORD'])"
    an_sdist(packages, "mcurious", code)
    secrets = {"PIP_INDEX_URL": "https://user:topsecret@example.com/simple", "UV_TEST_PASSWORD": "anothersecret"}
    with a_builder(stub, tmp_path / "bots" / "b1", packages, env=secrets):
        run = call(stub, "value", "mcurious", "mcurious")
        report = stub.result(run)
        assert "https://****@example.com/simple ****" in report["message"]
        assert not any(word in stub.log(run, 1) for word in (b"topsecret", b"anothersecret"))


def test_a_document_that_is_no_list_of_requirements_is_refused(stub: Stub, tmp_path: Path):
    data = json.dumps({"requirements": ["-r /etc/passwd"]}).encode()
    digest = hashlib.sha256(data).hexdigest()
    stub.files[digest] = data
    with a_builder(stub, tmp_path / "bots" / "b1", tmp_path / "p"):
        function = {"package_name": "probe", "func_name": "ping", "language": "PYTHON", "environment": digest}
        report = stub.result(stub.submit(function=function, inputs=[], output_types=[]))
        assert report["kind"] == "environment_failed"
        assert "the option -r is not allowed" in report["message"]


# ---------------------------------------------------------------- isolation

SPY = """
import json
found = {{}}
for path in {paths!r}:
    try:
        open(path, "rb").close()
        found[path] = "open"
    except OSError:
        found[path] = "denied"
for path in {targets!r}:
    try:
        with open(os.path.join(path, "planted"), "w"):
            found[path] = "written"
    except OSError:
        found[path] = "denied"
found["home"] = os.environ["HOME"]
globals()["MODULE"] = "value = " + repr(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start bots as different users")
@pytest.mark.parametrize("kind", KINDS)
def test_code_that_runs_in_a_build_can_neither_read_the_bot_nor_change_other_environments(stub: Stub, kind: str):
    with open_folder() as folder:
        (folder / "bots").mkdir()
        if kind == "landlock of nobody":
            os.chown(folder / "bots", NOBODY, NOBODY)
        packages, bot_folder = folder / "packages", folder / "bots" / "b1"
        shared = folder / "bots" / "myrmidon-environments"
        a_wheel(packages, "mgood", "1.0", {"mgood.py": "value = 'good'"})
        with pytest.MonkeyPatch.context() as patch:
            for name, value in installers(packages, uv=kind != "landlock").items():
                patch.setenv(name, value)
            with a_bot_of_kind(kind, stub.url, bot_folder, "--slots", "1"):
                assert returned(stub.result(call(stub, "value", "mgood", "mgood"))) == "good"
                secrets = [str(bot_folder / name) for name in ("credential", "bot.json", "journal")]
                [good] = shared.glob("*/*")
                an_sdist(packages, "mspy", SPY.format(paths=secrets, targets=[str(shared), str(good), str(bot_folder)]))
                found = json.loads(returned(stub.result(call(stub, "value", "mspy", "mspy"))))
                assert found.pop("home").startswith(str(shared))
                assert set(found.values()) == {"denied"}
                assert returned(stub.result(call(stub, "damage", "mspy", "mspy"))) == "denied"
                script = f"echo x > {good}/planted"
                assert stub.run("/bin/sh", "-c", script)["exit_code"] != 0
