"""Runs of functions in a real executor: inputs, outputs, signatures, and what is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from myrmidon.functions import msgpack
from tests.deadline import HANG_S
from tests.executor.processes import Raw

SOURCE = """
    from __future__ import annotations

    import asyncio
    import dataclasses
    import enum
    from typing import Dict, List, Optional, Tuple

    class Color(enum.Enum):
        RED = 1

    @dataclasses.dataclass
    class Point:
        x: float
        color: Color = Color.RED

    def add(a: int, b: int = 2) -> int:
        return a + b

    def nothing() -> None:
        pass

    def two(a: int) -> Tuple[int, str]:
        return a, str(a)

    def move(points: List[Point], by: float) -> Dict[str, Point]:
        return {str(n): Point(point.x + by, point.color) for n, point in enumerate(points)}

    async def later(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    def large(size: int) -> bytes:
        return b"x" * size

    def wrong(a: int) -> int:
        return "no number"

    def wrong_pair(a: int) -> Tuple[int, int]:
        return a, "no number"

    def one_of_two(a: int) -> Tuple[int, int]:
        return (a,)

    def something() -> None:
        return 1

    def same(value: List[Optional[int]]) -> List[Optional[int]]:
        return value

    def count_up(to: int) -> List[int]:
        return list(range(to))

    def of_list(items: List[int]) -> List[int]:
        return items

    def single(a: int) -> Tuple[int]:
        return (a,)

    def keyword(a: int, *, b: int) -> int:
        return a - b

    class Holder:
        @staticmethod
        def double(a: int) -> int:
            return 2 * a

    class Decorated:
        def __init__(self, function):
            self.function = function
            self.__wrapped__ = function

        def __call__(self, *args):
            raise AssertionError("the executor calls the plain function")

    decorated = Decorated(add)
    number = 5
"""


def test_a_function_gets_its_inputs_and_gives_its_outputs(start_on):
    executor = start_on(SOURCE)
    assert executor.result("add", 1, 2) == 3
    answer = executor.run("two", 5)
    assert answer["outputs"] == [{"type": "int64", "data": b"\x05"}, {"type": "string", "data": b"\xa15"}]
    assert answer["delegated"] is False
    assert executor.run("nothing")["outputs"] == []
    assert executor.result("move", [{"x": 1.0, "color": "RED"}], 2) == {"0": {"x": 3.0, "color": "RED"}}
    assert executor.result("later", 1) == 2
    assert executor.result("keyword", 5, 3) == 2
    assert executor.result("of_list", [1]) == [1]
    assert executor.result("count_up", 2) == [0, 1]  # an annotation that is equal to that of another function
    assert executor.result("single", 4) == 4
    assert executor.result("Holder.double", 4) == 8
    assert executor.result("decorated", 4, 1) == 5
    assert executor.result("same", [1, None]) == [1, None]


def test_several_runs_in_the_pipe_are_answered_in_order(start):
    executor = start(SOURCE)
    numbers = [executor.begin("add", n, 0) for n in range(50)]
    answers = [executor.answer() for _ in numbers]
    assert [answer["id"] for answer in answers] == numbers
    assert [msgpack.unpack(answer["outputs"][0]["data"]) for answer in answers] == list(range(50))
    assert all(answer["seconds"] >= 0 for answer in answers)


def test_inputs_come_from_files_and_in_parts(start):
    executor = start(SOURCE)
    path = executor.folder / "input"
    path.write_bytes(msgpack.pack(40))
    assert executor.result("add", Raw(path=str(path)), 2) == 42
    parts = [{"data": msgpack.pack(1)}, {"path": str(path)}]
    assert executor.result("same", Raw(parts=parts)) == [1, 40]
    shape = msgpack.pack([None, msgpack.Ext(1, b"\0\0\0\1"), msgpack.Ext(1, b"\0\0\0\0")])
    assert executor.result("same", Raw(data=shape, parts=parts)) == [None, 40, 1]
    assert executor.result("same", Raw(data=b"", parts=[])) == []


def test_a_run_with_more_inputs_than_the_channel_takes_comes_as_a_file(start):
    parts = [{"data": msgpack.pack(n)} for n in range(100_000)]
    assert start(SOURCE).result("same", Raw(parts=parts), as_file=True) == list(range(100_000))


def test_a_large_output_is_a_file(start):
    executor = start(SOURCE)
    small = executor.run("large", 1000)["outputs"]
    assert small == [{"type": "bytes", "data": msgpack.pack(b"x" * 1000)}]
    answer = executor.run("large", 5000)
    (output,) = answer["outputs"]
    assert (output["type"], output["size"]) == ("bytes", 5003)
    assert Path(output["path"]) == executor.outputs / f"{answer['id']}-0"
    assert Path(output["path"]).read_bytes() == msgpack.pack(b"x" * 5000)


def test_a_result_of_more_than_64_mib_fails_and_names_its_size(start):
    executor = start(SOURCE)
    error = executor.error("large", 70_000_000)
    assert error["kind"] == "size"
    assert error["summary"] == "the result has 66.8 MiB; at most 64 MiB"
    assert list(executor.outputs.iterdir()) == []
    assert executor.result("add", 1, 2) == 3


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        ("add", ("a", 1), "argument a: expected int, given str ('a')"),
        ("add", (1,), "add() takes 2 inputs, given 1"),
        ("move", ([{"x": "y"}], 1), "argument points[0].x: expected float, given str ('y')"),
        ("move", ([{"z": 1.0}], 1), "argument points[0]: sample.Point has no field 'z'"),
        ("wrong", (1,), "result: expected int, given str ('no number')"),
        ("wrong_pair", (1,), "result[1]: expected int, given str ('no number')"),
        ("one_of_two", (1,), "result: expected a tuple of 2 items, given 1 items"),
        ("something", (), "result: expected None, given int"),
    ],
)
def test_a_value_of_the_wrong_type_ends_the_run_with_its_place(start, function, inputs, reason):
    error = start(SOURCE).error(function, *inputs)
    assert error["kind"] == "type"
    assert error["message"] == reason
    assert error["type"] == "myrmidon.TypeProblem"


def test_damaged_inputs_are_refused(start):
    executor = start(SOURCE)
    assert "damaged" in executor.error("add", Raw(data=b"\xc1"), 1)["message"]
    gone = executor.error("add", Raw(path="/nowhere/at/all"), 1)
    assert gone["type"] == "builtins.FileNotFoundError"
    assert executor.result("add", 1, 2) == 3


def test_a_function_with_another_signature_is_not_called(start):
    executor = start(SOURCE)
    assert executor.result("add", 1, 2, signature="add(a:int64,b:int64)->int64") == 3
    error = executor.error("add", 1, 2, signature="add(a:int64)->int64")
    assert error["kind"] == "signature"
    assert "submitted with add(a:int64)->int64, the bot has add(a:int64,b:int64)->int64" in error["message"]
    assert error["summary"] == error["message"]
    assert executor.result("add", 1, 2, signature="add(a:int64,b:int64)->int64") == 3


def test_a_function_that_the_bot_does_not_have_is_named(start):
    executor = start(SOURCE)
    for name, reason in [
        ("missing", "module sample on the bot has no function missing"),
        ("Holder.missing", "module sample on the bot has no function Holder.missing"),
        ("number", "number of module sample on the bot is not a function"),
    ]:
        error = executor.error(name)
        assert (error["kind"], error["message"]) == ("import", reason)
    error = executor.error("f", package="absent")
    assert error["kind"] == "import"
    assert error["summary"] == "cannot import absent: ModuleNotFoundError: No module named 'absent'"
    assert executor.result("add", 1, 2) == 3


@pytest.mark.parametrize(
    ("source", "type_", "text"),
    [
        ("import sys\nsys.exit(3)", "builtins.SystemExit", "sys.exit(3)"),
        ("raise ValueError('at import')", "builtins.ValueError", "at import"),
        ("def f(:", "builtins.SyntaxError", "bad.py"),
        ("import absent", "builtins.ModuleNotFoundError", "absent"),
    ],
)
def test_a_module_that_fails_on_import_fails_its_runs_only(start, source, type_, text):
    executor = start(SOURCE)
    executor.write_module("bad", source)
    for _ in range(2):
        error = executor.error("f", package="bad")
        assert (error["kind"], error["type"]) == ("import", type_)
        assert text in error["traceback"]
        assert "myrmidon" not in error["traceback"].replace(str(executor.folder), "")
        assert "importlib" not in error["traceback"]
    assert executor.result("add", 1, 2) == 3


def test_a_function_whose_annotations_are_no_types_fails_with_the_reason(start):
    executor = start(SOURCE)
    executor.write_module("untyped", "def f(a):\n    return a")
    error = executor.error("f", 1, package="untyped")
    assert error["kind"] == "import"
    assert "parameter a of f has no annotation" in error["summary"]


def test_a_function_of_an_installed_package_is_found_beside_the_code(start):
    executor = start(SOURCE)
    error = executor.error("getcwd", package="os")
    assert "cannot import os" in error["summary"]  # found, but it has no types


def test_the_process_ends_when_the_bot_closes_the_channel(start):
    executor = start("import threading, time\nthreading.Thread(target=lambda: time.sleep(1000)).start()\nx = 1")
    executor.error("x")
    executor.control.close()
    assert executor.process.wait(HANG_S) == 0


def test_sigterm_ends_the_process(start):
    executor = start(SOURCE)
    os.kill(executor.process.pid, signal.SIGTERM)
    assert executor.process.wait(HANG_S) == -signal.SIGTERM


A_SCRIPT = """
    from __future__ import annotations

    from myrmidon import AsyncClient, Client, TaskFailed, task

    @task
    def double(n: int) -> int:
        try:
            return n * 2
        except TaskFailed:
            return 0

    @task
    def connect() -> None:
        Client()
"""


def test_a_script_that_imports_the_client_can_be_imported_on_a_bot(start_on):
    executor = start_on(A_SCRIPT)
    assert executor.result("double", 4) == 8
    assert "Client is a part of the client, which bots do not have" in executor.error("connect")["message"]


def test_a_script_without_a_guard_is_told_to_have_one(start_on):
    executor = start_on("from myrmidon import Client\nclient = Client()\ndef double(n: int) -> int: return 2 * n\n")
    assert 'belongs below `if __name__ == "__main__":`' in executor.error("double", 4)["message"]
