"""Functions are kept away from their bot as commands are, and still get their code and their values."""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.system import landlock
from myrmidon.functions import values
from tests.bot.bots import alive
from tests.bot.run.test_isolation import HAS_LANDLOCK, KINDS, a_bot_of_kind, open_folder
from tests.bot.slots.test_files import a_zip
from tests.bot.stub import Stub

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start bots as different users")

SOURCE = b"""
import os
from typing import Dict, List

def attempt(paths: List[str]) -> Dict[str, str]:
    found = {"user": str(os.getuid())}
    for path in paths:
        try:
            open(path, "rb").close()
            found[path] = "open"
        except OSError:
            found[path] = "denied"
    for name, path in (("own", "file"), ("code", os.path.join(os.path.dirname(__file__), "file"))):
        try:
            open(path, "w").close()
            found[name] = "written"
        except OSError:
            found[name] = "denied"
    return found

def large(text: str) -> str:
    return text * 2
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_cannot_open_the_files_of_its_bot_nor_change_its_code(stub: Stub, kind: str):
    zipped = a_zip({"probe.py": SOURCE})
    code = hashlib.sha256(zipped).hexdigest()
    stub.files[code] = zipped

    def call(name: str, value: Any, annotation: Any, returned: Any) -> Any:
        data = values.encode(value, annotation)
        given: dict[str, Any] = {"type": "", "size": len(data)}
        if len(data) > 1024:
            given["digest"] = hashlib.sha256(data).hexdigest()
            stub.files[given["digest"]] = data
        else:
            given["payload"] = b64encode(data).decode()
        function = {"package_name": "probe", "func_name": name, "language": "PYTHON", "code": code}
        report = stub.run(function=function, inputs=[given])
        assert report.get("exit_code") == 0, report
        payload = report["outputs"][0]["payload"]
        content = b64decode(payload["inline"]) if "inline" in payload else stub.files[payload["digest"]]
        return values.decode(content, returned)

    with open_folder() as folder:
        (folder / "bots").mkdir()
        with a_bot_of_kind(kind, stub.url, folder / "bots" / "b1", "--slots", "1") as bot:
            secrets = [str(bot.folder / name) for name in ("credential", "journal", "bot.json", "bot.zip")]
            found = call("attempt", secrets, list[str], dict[str, str])
            assert [found[path] for path in secrets] == ["denied"] * len(secrets)
            assert found["own"] == "written"
            assert (found["user"] != "0") == (kind != "landlock")
            assert found["code"] == "denied"
            assert call("large", "x" * 5000, str, str) == "x" * 10_000


SPY = b"""
import ctypes, os
from typing import Dict, List

SECRET = bytearray()

def remember(secret: str) -> List[int]:
    SECRET.extend(secret.encode())
    with open(os.path.join(os.environ["TMPDIR"], "secret"), "w") as file:
        file.write(secret)
    print(secret)
    address = ctypes.addressof(ctypes.c_char.from_buffer(SECRET))
    return [os.getpid(), address]

def spy(pid: int, address: int) -> Dict[str, str]:
    found = {}
    def attempt(name, function):
        try:
            found[name] = repr(function())
        except OSError as error:
            found[name] = "denied"
    def memory():
        with open(f"/proc/{pid}/mem", "rb", 0) as file:
            return os.pread(file.fileno(), 6, address)
    def environment():
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    def attach():
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(16, pid, None, None):
            raise OSError(ctypes.get_errno(), "ptrace")
        return "attached"
    attempt("memory", memory)
    attempt("environment", environment)
    attempt("ptrace", attach)
    attempt("signal", lambda: os.kill(pid, 0))
    own = os.path.dirname(os.environ["TMPDIR"])
    others = os.path.dirname(own)
    shared = os.path.join(os.path.dirname(others), "shared")
    for root in [shared, *(os.path.join(others, name) for name in os.listdir(others) if name != os.path.basename(own))]:
        for folder, _, names in os.walk(root):
            for name in names:
                def read(path=os.path.join(folder, name)):
                    with open(path, "rb") as file:
                        return b"secret" in file.read()
                attempt(os.path.relpath(os.path.join(folder, name), os.path.dirname(others)), read)
    return found
"""


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
@pytest.mark.parametrize("kind", ["landlock", "landlock of nobody"])
def test_a_function_gets_nothing_of_an_idle_process_of_another_group(stub: Stub, kind: str):
    zips = [a_zip({"spy.py": SPY, "which.py": group}) for group in (b"secret", b"mine")]

    def call(group: int, name: str, given: list[tuple[Any, Any]], returned: Any) -> Any:
        code = hashlib.sha256(zips[group]).hexdigest()
        stub.files[code] = zips[group]
        inputs = []
        for value, annotation in given:
            data = values.encode(value, annotation)
            one: dict[str, Any] = {"type": "", "size": len(data)}
            if len(data) > 1024:
                one["digest"] = hashlib.sha256(data).hexdigest()
                stub.files[one["digest"]] = data
            else:
                one["payload"] = b64encode(data).decode()
            inputs.append(one)
        function = {"package_name": "spy", "func_name": name, "language": "PYTHON", "code": code}
        report = stub.run(function=function, inputs=inputs, resource_group=f"group{group}")
        assert report.get("exit_code") == 0, report
        payload = report["outputs"][0]["payload"]
        content = b64decode(payload["inline"]) if "inline" in payload else stub.files[payload["digest"]]
        return values.decode(content, returned)

    with open_folder() as folder:
        (folder / "bots").mkdir()
        with a_bot_of_kind(kind, stub.url, folder / "bots" / "b1", "--slots", "1"):
            pid, address = call(0, "remember", [("secret" * 1000, str)], list[int])
            found = call(1, "spy", [(pid, int), (address, int)], dict[str, str])
            assert alive(pid), "the process of the other group must have been there all the time"
    assert found.pop("memory") == found.pop("ptrace") == "denied"
    environment = found.pop("environment")  # the kernel shows it to root, and it has nothing of a function
    assert environment == "denied" or (kind == "landlock" and "secret" not in environment)
    assert found.pop("signal") == ("denied" if landlock.scopes_signals() else "None")
    opened = sorted(path for path, result in found.items() if result != "denied")
    others = sorted(path for path, result in found.items() if result == "denied")
    code = hashlib.sha256(zips[1]).hexdigest()
    assert opened == sorted(["shared/bot.zip", f"shared/code/{code}/spy.py", f"shared/code/{code}/which.py"])
    assert [path for path in others if path.startswith("shared/values/")], "there was something to be read"
    assert [path for path in others if path.endswith(("/tmp/secret", "/stdout"))], "there was something to be read"


def test_code_on_disk_is_readable_by_the_user_of_functions_whatever_the_umask_is(tmp_path: Path):
    from myrmidon.bot.slots.code_store import CodeStore
    from myrmidon.bot.slots.value_cache import digest_of

    zipped = a_zip({"a/b/c.py": b"x"})
    before = os.umask(0o077)
    try:
        CodeStore(str(tmp_path)).add(digest_of(zipped), zipped)
    finally:
        os.umask(before)
    root = tmp_path / digest_of(zipped)
    modes = [oct(path.stat().st_mode & 0o777) for path in (root, root / "a", root / "a" / "b", root / "a/b/c.py")]
    assert modes == ["0o755", "0o755", "0o755", "0o644"]
