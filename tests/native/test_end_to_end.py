"""Functions of C++ and Rust libraries on a real server with a real bot."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from myrmidon import Client, GraphError, LibraryProblem, TaskFailed, WiringError, task
from myrmidon.functions import msgpack
from myrmidon.sdk.code_zip import zip_files
from tests.native import declared as native
from tests.native import python_tasks
from tests.native.declared import A_RECORD
from tests.native.shapes import Color, Tree


def test_a_call_of_a_cpp_function_runs_on_a_bot(client: Client):
    assert client.submit(native.add, 2, b=3).result() == 5
    assert list(client.map(native.add, range(20), b=1)) == list(range(1, 21))


def test_outside_of_a_job_the_library_is_called_here(built: None):
    assert native.add(2, 3) == 5
    assert native.rust_record(native.cpp_record(A_RECORD)) == A_RECORD
    assert native.cpp_both((1, "a")) == (1, "a")
    assert native.prints("x") is None
    with pytest.raises(LibraryProblem, match=r"libinstalled.so is installed on bots only; call installed in a job"):
        native.installed(1, 2)
    with pytest.raises(LibraryProblem, match=r"there is no file liblost.so"):
        native.lost(1)
    with pytest.raises(TypeError, match=r"libfaults.so has at\(index:int64\)->string"):
        native.wrongly_declared("x")
    with pytest.raises(TypeError, match="expected int"):
        native.add("1", 2)  # type: ignore[arg-type]


def test_cpp_rust_python_and_a_command_stand_in_one_typed_graph(client: Client):
    tree = Tree(1, [Tree(2, [], {"a": Color.RED})], {"b": Color.GREEN})
    three = (Color.GREEN, {"x": True}, (1.5, False))
    with client.new_job("mixed") as job:
        record = python_tasks.python_record(native.rust_record(native.cpp_record(python_tasks.python_record(A_RECORD))))
        both = native.rust_three(native.cpp_three(three))
        listed = native.cpp_integers([native.add(1, 2), 10, native.rust_integer(-1)])
        mapped = native.cpp_integers(job.map(native.rust_integer, python_tasks.numbers(4)))
        halves = native.cpp_real(native.add(3, 4))
        grown = native.cpp_tree(tree)
        array = native.doubled(native.doubled(np.ones((2, 200))))
        said = job.command(["sh", "-c", 'echo "$0" > $MYRMIDON_OUTPUT_DIR/0', native.add(40, 2)], returns=int)
        last = native.add(said, native.add(1, 1))
    assert job.result(record) == A_RECORD
    assert job.result(both) == three
    assert (job.result(listed), job.result(mapped)) == ([3, 10, -1], [0, 1, 2, 3])
    assert (job.result(halves), job.result(grown), job.result(last)) == (7.0, tree, 44)
    assert np.array_equal(job.result(array), 4 * np.ones((2, 200)))
    assert job.wait().state == "SUCCEEDED"


def test_an_error_has_its_type_and_is_of_a_class_of_python_where_there_is_one(client: Client):
    with pytest.raises(IndexError) as caught:
        client.submit(native.at, 9).result()
    assert isinstance(caught.value, TaskFailed)
    assert caught.value.what.startswith("std::out_of_range: ")
    with pytest.raises(TaskFailed, match="panic: index out of bounds") as failed:
        client.submit(native.panics, 9).result()
    assert "faults_rust.rs" in failed.value.log_tail


def test_a_crash_fails_its_task_with_the_signal_the_function_and_the_library(client: Client):
    with client.new_job(fail_fast=False) as job:
        crashed, good = native.segfault(), native.add(1, 2)
    assert job.result(good) == 3
    reason = r"killed by signal 11 \(SIGSEGV, segmentation fault\), in segfault of libfaults.so"
    with pytest.raises(TaskFailed, match=reason) as caught:
        job.result(crashed)
    assert caught.value.log_tail == "before the crash\n"


def test_a_declaration_with_another_signature_fails_before_the_call(client: Client):
    reason = r"it was declared as wrongly_declared\(index:string\)->string, libfaults.so has at\(index:int64\)"
    with pytest.raises(TaskFailed, match=reason):
        client.submit(native.wrongly_declared, "x").result()


def test_arguments_are_checked_when_the_graph_is_built(client: Client):
    with pytest.raises(WiringError, match=r"add\(\): argument b: expected int, given str"), client.new_job():
        native.add(1, "2")  # type: ignore[arg-type]
    with pytest.raises(WiringError, match="expected int64, given the result of at, string"), client.new_job():
        native.add(1, native.at(1))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="the library of lost cannot be read"), client.new_job():
        native.lost(1)


def test_a_task_says_which_machine_its_library_needs(built: None):
    def dimensions(function: Any) -> dict[str, list[str]]:
        return function.native.dimensions()

    assert dimensions(native.add) == {"os": ["Linux"], "cpu": ["x86-64"]} or "x86" not in str(dimensions(native.add))
    assert dimensions(native.installed) == {"library": ["libinstalled.so"]}
    assert dimensions(native.lost) == {}


def test_a_function_on_a_bot_submits_functions_of_libraries_that_are_installed_or_were_sent_with_its_job(
    client: Client,
):
    assert client.submit(python_tasks.submits_installed, 1).result() == 2
    assert client.submit(python_tasks.submits, 1).result() == 2
    with client.new_job() as job:
        values = python_tasks.submits_parts(5)
    assert job.result(values) == [10, 11, 12, 13, 14]
    added = {one.label: one for one in client.job(job.id).tasks()}
    assert "submits_parts/add[4]" in added
    assert "submits_parts/rust_integer[4]" in added


def test_what_a_function_submits_needs_the_machine_of_its_library(client: Client):
    with client.new_job() as job:
        python_tasks.submits(1)
    job.wait()
    [added] = [one for one in client.job(job.id).tasks() if one.label == "submits/add"]
    required = client.task(added.task_id).request.slices[0].properties["dimensions"]
    assert required == {"pool": ["default"], **native.add.native.dimensions()}  # type: ignore[union-attr]


def test_a_library_that_was_not_sent_with_the_job_is_named_with_what_to_do(client: Client):
    with pytest.raises(TaskFailed) as caught:
        client.submit(python_tasks.submits_never_built, 1).result()
    assert "never_built() is in libnever_built.so, which was not sent with this job" in str(caught.value)
    assert "import tests.native.python_tasks there. Or install the library on the bots" in str(caught.value)


def test_a_rerun_with_new_code_takes_the_library_as_it_is_now(client: Client, tmp_path):
    (tmp_path / "libsums.so").write_bytes(native.FAULTS.read_bytes())  # without the function

    @task(library=tmp_path / "libsums.so")
    def add(a: int, b: int) -> int:
        raise NotImplementedError

    with client.new_job() as job:
        total = add(1, 2)
    with pytest.raises(TaskFailed, match=r"libsums.so has no function add"):
        job.result(total)
    (tmp_path / "libsums.so").write_bytes(native.SUMS.read_bytes())
    job.rerun(code="new")
    assert job.result(total) == 3


def inline(value: Any) -> dict[str, Any]:
    return {"kind": "constant", "type": "int64", "payload": {"inline": base64.b64encode(msgpack.pack(value)).decode()}}


def a_node(package: str, code: str, **function: Any) -> dict[str, Any]:
    described = {"package_name": package, "func_name": "add", "language": "CPP", "code": code, **function}
    slices = [{"properties": {"dimensions": {"pool": ["default"]}}}]
    outputs = [{"type": "int64"}]
    return {"task": {"function": described, "inputs": [inline(1), inline(2)], "outputs": outputs, "slices": slices}}


def test_a_graph_document_names_a_library_and_its_function(client: Client):
    packed = zip_files({"libsums.so": native.SUMS.read_bytes()})
    client.missing_files({packed.digest: len(packed.data)})
    client.upload_file(packed.digest, packed.data)
    document = {"name": "document", "tasks": {"sum": a_node("libsums.so", packed.digest, language="cpp")}}
    job = client.submit_job(document)
    [outcome] = client.results([job.task_ids["sum"]], wait_s=60).results
    assert msgpack.unpack(outcome.outputs[0].inline or b"") == 3


def test_a_damaged_library_fails_its_task_and_nothing_else(client: Client):
    packed = zip_files({"libsums.so": b"not a library"})
    client.upload_file(packed.digest, packed.data)
    job = client.submit_job({"name": "bad", "tasks": {"sum": a_node("libsums.so", packed.digest)}})
    [outcome] = client.results([job.task_ids["sum"]], wait_s=60).results
    assert outcome.error is not None
    assert (outcome.state, outcome.error.type) == ("FAILED", "myrmidon.NotALibrary")
    assert client.submit(native.add, 1, 1).result() == 2
