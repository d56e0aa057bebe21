"""Bots with the real processes for functions: a module that is installed on the bot, its values, prints and errors."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from myrmidon.functions import values
from tests.bot.bots import a_bot
from tests.bot.stub import Stub

MODULE = """
from __future__ import annotations
import logging
import os
import signal
from typing import Dict, List


def count(text: str, top: int) -> Dict[str, int]:
    print("counting", flush=False)
    logging.getLogger("words").warning("%d letters", len(text))
    words = text.split()
    return {word: words.count(word) for word in sorted(set(words))[:top]}


def fail(reason: str) -> None:
    raise ValueError(reason)


def crash(code: int) -> None:
    os._exit(code)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def pid() -> int:
    return os.getpid()
"""


@pytest.fixture(scope="module")
def server(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    folder = tmp_path_factory.mktemp("real")
    (folder / "modules").mkdir()
    (folder / "modules" / "words.py").write_text(MODULE)
    env = {"PYTHONPATH": str(folder / "modules")}
    flags = ("--slots", "1", "--pass-env", "PYTHONPATH")
    with Stub() as stub, a_bot(stub.url, folder / "b1", *flags, python=interpreter, env=env):
        yield stub


def call(stub: Stub, name: str, *arguments: tuple[Any, Any]) -> str:
    inputs = []
    for value, annotation in arguments:
        data = values.encode(value, annotation)
        inputs.append({"type": "", "payload": b64encode(data).decode(), "size": len(data)})
    function = {"package_name": "words", "func_name": name, "language": "PYTHON"}
    return stub.submit(function=function, inputs=inputs)


def test_a_function_of_an_installed_module_runs_and_its_prints_and_logging_are_its_log(server: Stub):
    run = call(server, "count", ("a b a", str), (1, int))
    report = server.result(run)
    assert report["exit_code"] == 0, report
    [output] = report["outputs"]
    assert output["type"] == "Map<string,int64>"
    assert values.decode(b64decode(output["payload"]["inline"]), dict[str, int]) == {"a": 2}
    assert server.log(run) == b"counting\n"
    assert b"5 letters" in server.log(run, 1)


def test_an_exception_is_reported_with_its_class_and_traceback(server: Stub):
    report = server.result(call(server, "fail", ("bad thing", str)))
    assert (report["exit_code"], report["message"]) == (1, "ValueError: bad thing")
    assert report["error"]["type"] == "builtins.ValueError"
    assert "bad thing" in report["error"]["traceback"]


def test_a_wrong_type_and_a_missing_function_are_reported_in_words(server: Stub):
    wrong = server.result(call(server, "count", (1, int), (1, int)))
    assert "text" in wrong["message"]
    assert "string" in wrong["message"] or "str" in wrong["message"]
    missing = server.result(call(server, "absent"))
    assert "absent" in missing["message"]


def test_a_crash_costs_only_its_run_and_the_next_one_gets_a_fresh_process(server: Stub):
    [before] = server.result(call(server, "pid"))["outputs"]
    with server.change:
        crashed, after = call(server, "crash", (7, int)), call(server, "pid")
    assert server.result(crashed)["message"] == "the function has ended its process with exit code 7"
    [output] = server.result(after)["outputs"]
    assert output["payload"] != before["payload"]


def test_the_log_of_a_function_that_was_ended_has_its_stack_from_the_users_code_on(server: Stub):
    run = call(server, "terminate")
    assert server.result(run)["exit_code"] == -15
    lines = server.log(run, 1).decode().splitlines()
    assert [line.rpartition(" in ")[2] for line in lines if line.startswith("  File ")] == ["terminate"]
