"""The process that runs native functions: values, output, errors, and what is wrong with a library."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from myrmidon.functions import elf, msgpack
from tests.executor.processes import Died, Executor, Raw
from tests.native import building
from tests.native.building import SOURCES

pytestmark = pytest.mark.full

Load = Callable[[Path], Executor]


@pytest.fixture
def faults(load: Load) -> Executor:
    return load(building.cpp(SOURCES / "faults.cpp"))


@pytest.fixture
def rust_faults(load: Load) -> Executor:
    return load(building.rust(SOURCES / "faults_rust.rs"))


def test_inputs_come_inline_from_files_and_gathered_from_parts(faults: Executor, tmp_path: Path):
    whole = {"a": [1, 2], "b": [3]}
    assert faults.result("total", whole) == 6
    (tmp_path / "value").write_bytes(msgpack.pack(whole))
    assert faults.result("total", Raw(path=str(tmp_path / "value"))) == 6
    shape = msgpack.pack({"a": [10, msgpack.Ext(1, b"\0\0\0\1")], "b": msgpack.Ext(1, b"\0\0\0\0")})
    parts = [{"data": msgpack.pack([1, 2])}, {"data": msgpack.pack(300)}]
    assert faults.result("total", Raw(data=shape, parts=parts)) == 313
    assert len(faults.result("large", 5_000)) == 5_000


def test_a_list_of_parts_without_a_shape_is_one_input(load: Load):
    executor = load(building.cpp(SOURCES / "types.cpp", "-O0"))
    parts = [{"data": msgpack.pack(number)} for number in range(20)]
    assert executor.result("echo_integers", Raw(parts=parts)) == list(range(20))


def test_the_environment_of_a_run_is_seen_and_undone(faults: Executor):
    assert faults.result("variable", "COLOUR", env={"COLOUR": "red"}) == "red"
    assert faults.result("variable", "COLOUR") == ""


@pytest.mark.short
def test_everything_that_a_run_prints_is_in_its_log_and_in_no_other(faults: Executor, rust_faults: Executor):
    for text in ("one", "two"):
        answer = faults.run("prints", text)
        assert (answer["stdout"], answer["stderr"]) == (f"printf {text}, cout", f"cerr {text}")
        answer = rust_faults.run("prints", text, language="RUST")
        assert (answer["stdout"], answer["stderr"]) == (f"print {text}", f"eprint {text}")


@pytest.mark.short
@pytest.mark.parametrize(
    ("function", "given", "type_", "message", "base"),
    [
        ("at", 5, "std::out_of_range", "basic_string::substr", "builtins.IndexError"),
        ("throws", "invalid", "std::invalid_argument", "not valid", "builtins.ValueError"),
        ("throws", "text", "const char*", "only a text", "builtins.Exception"),
        ("throws", "class", "Refused", "not a std::exception", "builtins.Exception"),
        ("throws", "number", "int", "not a std::exception", "builtins.Exception"),
    ],
)
def test_an_exception_is_the_error_of_its_run(faults: Executor, function, given, type_, message, base):
    error = faults.error(function, given)
    assert (error["kind"], error["type"], error["bases"][0]) == ("exception", type_, base)
    assert message in error["message"]
    assert error["summary"].startswith(f"{type_}: ")
    assert faults.result("pid") == faults.process.pid


@pytest.mark.short
def test_an_err_and_a_panic_are_errors_of_their_runs(rust_faults: Executor):
    parsed = rust_faults.error("fails", "x", language="RUST")
    assert (parsed["type"], parsed["message"]) == ("core::num::error::ParseIntError", "invalid digit found in string")
    assert rust_faults.error("fails_with_text", "bad")["summary"] == "Error: bad"
    panicked = rust_faults.error("panics", 7)
    assert (panicked["type"], panicked["kind"]) == ("panic", "exception")
    assert "index is 7" in panicked["message"]
    assert "faults_rust.rs" in panicked["stderr"]
    assert rust_faults.result("panics", 1) == 2


@pytest.mark.short
def test_a_value_of_a_wrong_type_names_the_argument_and_both_types(faults: Executor, rust_faults: Executor):
    error = faults.error("total", {"a": [1, "two"]})
    assert (error["kind"], error["type"]) == ("type", "myrmidon.TypeProblem")
    assert error["message"] == "argument parts['a'][1]: expected int64, given a text"
    assert faults.error("at", 2**63)["message"].startswith("argument index: expected int64 (-9223372036854775808..")
    assert faults.error("at")["message"] == "takes 1 inputs, given 0"
    assert rust_faults.error("panics", "x")["message"] == "argument index: expected int64, given a text"
    assert "argument index: " in faults.error("at", Raw(data=b"\xd9"))["message"]
    assert faults.error("at", Raw(data=b"\x01\x01"))["message"] == "1 bytes follow the value"


def test_a_text_that_is_not_utf8_is_refused_where_it_is_made(faults: Executor):
    error = faults.error("not_utf8")
    assert (error["kind"], error["message"]) == ("type", "result[1]: the text is not UTF-8; use bytes")


def test_a_run_that_needs_more_memory_than_its_limit_fails_alone(faults: Executor):
    error = faults.error("allocates", 512 << 20, memory_mb=64)
    assert (error["kind"], error["summary"]) == ("memory", "out of memory: more than 64 MB")
    assert faults.result("allocates", 1 << 20, memory_mb=64) == 1 << 20


def died(executor: Executor, function: str, *inputs: object) -> int:
    executor.begin(function, *inputs)
    with pytest.raises(Died) as ended:
        executor.answer()
    return int(ended.value.args[0])


@pytest.mark.short
def test_a_crash_ends_the_process_by_its_signal_and_keeps_what_was_printed(load: Load):
    executor = load(building.cpp(SOURCES / "faults.cpp"))
    assert died(executor, "segfault") == -signal.SIGSEGV
    assert (executor.folder / "out").read_text() == "before the crash\n"
    assert (executor.folder / "err").read_text() == ""


@pytest.mark.parametrize(("function", "given", "status"), [("aborts", [], -signal.SIGABRT), ("exits", [3], 3)])
def test_abort_and_exit_end_the_process(load: Load, function: str, given: list[int], status: int):
    assert died(load(building.cpp(SOURCES / "faults.cpp")), function, *given) == status
    assert died(load(building.rust(SOURCES / "faults_rust.rs")), function, *given) == status


def test_an_exception_that_leaves_a_library_ends_the_process_and_says_what_it_was(load: Load):
    executor = load(building.cpp(SOURCES / "throwing.cpp"))
    assert died(executor, "leak") == -signal.SIGABRT
    assert "not caught" in (executor.folder / "err").read_text()


# -------------------------------------------------------------------------------------------------- what is refused


def test_another_signature_fails_before_the_call(faults: Executor):
    right = {"signature": "f(parts:Map<string,List<int64>>)->int64", "output_types": ["int64"]}
    assert faults.result("total", {"a": [1]}, **right) == 1
    for wrong in (
        {"signature": "f(parts:Map<string,List<double>>)->int64", "output_types": ["int64"]},
        {"signature": "f(other:Map<string,List<int64>>)->int64", "output_types": ["int64"]},
        {"signature": "f(parts:Map<string,List<int64>>,more:int64)->int64", "output_types": ["int64"]},
        {"output_types": ["string"]},
        {"output_types": ["int64", "int64"]},
        {"signature": "nonsense"},
    ):
        error = faults.error("total", {"a": [1]}, **wrong)
        assert (error["kind"], error["type"]) == ("signature", "myrmidon.SignatureMismatch")
        assert "libfaults.so has total(parts:Map<string,List<int64>>)->int64" in error["message"]


def header(machine: int, *, kind: int = 3, bits: int = 2) -> bytes:
    """The header of an ELF file, and nothing that could be loaded."""
    return b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9) + kind.to_bytes(2, "little") + machine.to_bytes(2, "little")


OWN = Path("/proc/self/exe").read_bytes()[:20]
SHARED = OWN[:16] + b"\x03\0" + OWN[18:]


@pytest.mark.parametrize(
    ("content", "type_", "message"),
    [
        (b"", "NotALibrary", "libbad.so is not a shared library"),
        (b"#!/bin/sh\n" * 10, "NotALibrary", "libbad.so is not a shared library"),
        (OWN[:16] + b"\x01\0" + OWN[18:], "NotALibrary", "libbad.so is not a shared library"),
        (header(243), "WrongArchitecture", f"libbad.so is a library for riscv-64, this machine has {elf.own()}"),
        (header(3, bits=1), "WrongArchitecture", f"libbad.so is a library for x86-32, this machine has {elf.own()}"),
        (SHARED + bytes(100), "LibraryNotLoadable", "libbad.so cannot be loaded: "),
    ],
    ids=["empty", "script", "object file", "other processor", "32 bits", "damaged"],
)
def test_a_file_that_cannot_be_loaded_is_named_with_the_reason(load: Load, tmp_path: Path, content, type_, message):
    (tmp_path / "libbad.so").write_bytes(content)
    executor = load(tmp_path / "libbad.so")
    for _ in range(2):  # nothing is kept of the first attempt
        error = executor.error("f")
        assert (error["kind"], error["type"]) == ("import", f"myrmidon.{type_}")
        assert error["message"].startswith(message)
        assert error["summary"] == error["message"]


@pytest.mark.parametrize(
    ("flags", "type_", "message"),
    [
        (["-DVERSION=2"], "WrongAbiVersion", "version 2 of the interface, this is version 1"),
        (["-DNOTHING=1"], "NoEntry", "its myrmidon_entry returns nothing"),
        (["-DTWICE"], "NoEntry", "two functions with the name echo"),
        (['-DSIGNATURE="int64"'], "NoEntry", "is not a signature"),
        (["-DSIGNATURE=0"], "NoEntry", "describes its functions wrongly"),
    ],
    ids=["version", "nothing", "twice", "not a signature", "no signature"],
)
def test_a_library_that_describes_itself_wrongly_is_refused(load: Load, flags: list[str], type_: str, message: str):
    error = load(building.c(SOURCES / "plain.c", *flags)).error("echo", 1)
    assert error["type"] == f"myrmidon.{type_}"
    assert message in error["message"]


def test_a_library_without_the_entry_or_the_function_is_refused(load: Load):
    error = load(building.c(SOURCES / "empty.c")).error("f")
    assert (error["type"], error["kind"]) == ("myrmidon.NoEntry", "import")
    assert "has no symbol myrmidon_entry" in error["message"]
    plain = load(building.c(SOURCES / "plain.c"))
    error = plain.error("absent")
    assert error["type"] == "myrmidon.NoFunction"
    assert error["message"] == "libplain.so has no function absent; it has echo, unknown"
    for name in ("liblost.so", "../libplain.so", ".hidden", ""):
        assert plain.error("echo", 1, package=name)["type"] == "myrmidon.LibraryNotFound"


def test_outputs_that_no_compiler_has_checked_are_compared_with_the_signature(load: Load):
    plain = load(building.c(SOURCES / "plain.c"))
    assert plain.result("echo", 5) == 5
    assert plain.error("echo", "five")["message"] == "result: expected int64, given str"
    assert plain.error("echo", 2**63)["kind"] == "type"
    assert "it is not MessagePack" in plain.error("echo", Raw(data=b"\xc1"))["message"]
    assert plain.error("echo", 1, 2)["message"] == "echo of libplain.so has 1 outputs, given 2"
    assert plain.error("unknown")["summary"] == "Error: odd (the unknown status 99)"
