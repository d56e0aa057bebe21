"""A bot with native functions: libraries that are installed on it, and why a run has ended."""

from __future__ import annotations

import shutil
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from myrmidon.functions import msgpack
from tests.bot.bots import a_bot
from tests.bot.stub import Stub
from tests.native import building
from tests.native.building import SOURCES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    folder = tmp_path_factory.mktemp("installed")
    (folder / "libraries").mkdir()
    shutil.copy(building.cpp(SOURCES / "faults.cpp"), folder / "libraries")
    shutil.copy(building.rust(SOURCES / "faults_rust.rs"), folder / "libraries")
    (folder / "libraries" / "README").write_text("not a library")
    with Stub() as stub, a_bot(stub.url, folder / "b1", "--slots", "1", "--library-dir", str(folder / "libraries")):
        yield stub


def call(stub: Stub, name: str, *values: Any, library: str = "libfaults.so", **fields: Any) -> str:
    inputs = [{"type": "", "payload": b64encode(msgpack.pack(one)).decode(), "size": 0} for one in values]
    language = "RUST" if "rust" in library else "CPP"
    function = {"package_name": library, "func_name": name, "language": language}
    return stub.submit(function=function, inputs=inputs, **fields)


def value(report: dict[str, Any]) -> Any:
    assert report["exit_code"] == 0, report
    return msgpack.unpack(b64decode(report["outputs"][0]["payload"]["inline"]))


def test_an_installed_library_is_a_dimension_of_the_bot_and_can_be_called(server: Stub):
    run = call(server, "total", {"a": [1, 2]})
    assert value(server.result(run)) == 3
    assert server.hellos[-1]["dimensions"]["library"] == ["libfaults.so", "libfaults_rust.so"]


@pytest.mark.parametrize(
    ("function", "values", "library", "message"),
    [
        ("segfault", [], "libfaults.so", "killed by signal 11 (SIGSEGV, segmentation fault)"),
        ("aborts", [], "libfaults.so", "killed by signal 6 (SIGABRT, aborted)"),
        ("exits", [3], "libfaults.so", "the function has ended its process with exit code 3"),
        ("exits", [0], "libfaults.so", "the function has ended its process with exit code 0"),
        ("aborts", [], "libfaults_rust.so", "killed by signal 6 (SIGABRT, aborted)"),
    ],
    ids=["segfault", "abort", "exit", "exit without an error", "abort in Rust"],
)
def test_a_crash_ends_one_run_with_its_reason_and_the_next_gets_a_fresh_process(
    server: Stub, function: str, values: list[int], library: str, message: str
):
    before = value(server.result(call(server, "pid")))
    with server.change:
        crashed, after = call(server, function, *values, library=library), call(server, "pid")
    report = server.result(crashed)
    assert report["message"] == f"{message}, in {function} of {library}"
    assert report["exit_code"] != 0
    found = value(server.result(after))
    assert found != before or library == "libfaults_rust.so"  # languages have processes of their own


def test_what_was_printed_before_a_crash_is_in_the_log(server: Stub):
    run = call(server, "segfault")
    server.result(run)
    assert server.log(run) == b"before the crash\n"


@pytest.mark.parametrize("function", ["hangs", "hangs_on"])
def test_a_function_that_hangs_is_ended_at_its_time_limit(server: Stub, function: str):
    run = call(server, function, execution_timeout_s=0.3, grace_period_s=0.2)
    report = server.result(run)
    assert report["message"] == f"timed out after 0.3 s, in {function} of libfaults.so"
    assert report["hard_timeout"]
    assert value(server.result(call(server, "at", 1))) == "bc"


def test_a_library_that_the_bot_does_not_have_is_named(server: Stub):
    report = server.result(call(server, "f", library="libother.so"))
    assert report["error"]["type"] == "myrmidon.LibraryNotFound"
    assert report["message"].startswith("this bot has no library libother.so: in /")
