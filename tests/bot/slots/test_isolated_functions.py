"""Functions are kept away from their bot as commands are, and still get their code and their values."""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from myrmidon.functions import values
from tests.bot.run.test_isolation import KINDS, a_bot_of_kind, open_folder
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
