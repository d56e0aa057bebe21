"""What users and programs get wrong, through the SDK, a server and a bot: a clear error, and nothing else is lost."""

from __future__ import annotations

import io
import json
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from myrmidon import Client, TaskFailed
from myrmidon.functions.graph_errors import WiringError
from myrmidon.sdk.errors import CallFailed, NotFound
from myrmidon.sdk.task_failed import task_failed
from myrmidon.sdk.transport import Transport
from tests.bot.bots import wait_for
from tests.functions import remote_tasks as tasks
from tests.live import LiveServer

DOUBLE = "double(a:int64)->int64"
MODULE = "def double(a: int) -> int:\n    return 2 * a\n"


@pytest.fixture(autouse=True)
def _others_go_on(client: Client) -> Iterator[None]:
    """After each of these tests the bot runs the next function."""
    yield
    assert client.submit(tasks.half, 3.0).result() == 1.5


def a_zip(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def upload(client: Client, data: bytes) -> str:
    digest = sha256(data).hexdigest()
    client.upload_file(digest, data)
    return digest


def constant(value: Any, kind: str = "int64") -> dict[str, Any]:
    return {
        "kind": "constant",
        "type": kind,
        "payload": {"inline": b64encode(msgspec.msgpack.encode(value)).decode()},
    }


def submit(
    client: Client, *inputs: Any, code: bytes = b"", code_digest: str = "", timeout_s: float = 60, **function: str
) -> str:
    """Submit a document with one function as another program would; the id of the task."""
    named = {"package_name": "sample", "func_name": "double", "language": "PYTHON", **function}
    if code or code_digest:
        named["code"] = code_digest or upload(client, code)
    task = {
        "function": named,
        "inputs": list(inputs),
        "outputs": [{"type": "int64"}],
        "slices": [{"properties": {"dimensions": {"pool": ["default"]}, "execution_timeout_s": timeout_s}}],
    }
    made = client.submit_job({"name": "document", "tasks": {"f": {"task": task}}})
    return made.task_ids["f"]


def failure(client: Client, task_id: str) -> tuple[str, str]:
    """The state of a task and what its last run says of its end."""
    while not (results := client.results([task_id], wait_s=20).results):
        pass
    (result,) = results
    return result.state, result.error.message if result.error else task_failed(result, "", client).message


# ---------------------------------------------------------------- values and types


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "argument x: expected float, given str ('text')"),
        (object(), "argument x: expected float, given object"),
        (lambda: 1, "argument x: expected float, given function"),
        ([1.0], "argument x: expected float, given list"),
        (None, "argument x: expected float, given None"),
        (Path("x"), "argument x: expected float, given"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_at_the_line_of_the_call_and_nothing_is_submitted(
    client: Client, value: Any, reason: str
):
    before = client.jobs(limit=1).jobs
    with pytest.raises(WiringError) as caught, client.new_job("wrong"):
        tasks.half(value)
    assert reason in str(caught.value)
    assert f"{Path(__file__).name}:" in str(caught.value)
    with pytest.raises(WiringError):
        client.submit(tasks.half, value)
    assert client.jobs(limit=1).jobs == before


def test_a_result_that_cannot_be_sent_fails_the_task_with_the_type(client: Client):
    with pytest.raises(TaskFailed, match="result: expected int, given str"):
        client.submit(tasks.wrong_type, 1).result()
    with client.executor() as executor, pytest.raises(TaskFailed, match="plain objects"):
        executor.submit(tasks.gives_an_object).result()


@pytest.mark.parametrize(
    ("inputs", "signature", "reason"),
    [
        ([], DOUBLE, "double() takes 1 inputs, given 0"),
        ([constant(1), constant(2)], DOUBLE, "double() takes 1 inputs, given 2"),
        ([constant("x", "string")], DOUBLE, "expected int, given str"),
        ([constant(1)], "double(a:string)->int64", "the function has changed"),
        ([{"kind": "constant", "type": "int64", "payload": {"inline": "wQ=="}}], DOUBLE, "MessagePack"),
    ],
)
def test_a_document_whose_inputs_do_not_fit_the_function_fails_before_the_call(
    client: Client, inputs: list[Any], signature: str, reason: str, tmp_path: Path
):
    called = tmp_path / "called"
    source = f"{MODULE.splitlines()[0]}\n    open({str(called)!r}, 'w')\n    return 2 * a\n"
    task_id = submit(client, *inputs, code=a_zip({"sample.py": source.encode()}), signature=signature)
    state, message = failure(client, task_id)
    assert (state, called.exists()) == ("FAILED", False)
    assert reason in message


# ---------------------------------------------------------------- code


@pytest.mark.parametrize(
    ("package", "function", "reason"),
    [
        ("no_such_package.at_all", "f", "no_such_package"),
        ("json", "no_such_function", "no_such_function"),
        ("json", "dumps", "annotation"),
    ],
)
def test_a_function_that_the_bot_does_not_have_is_named(client: Client, package: str, function: str, reason: str):
    state, message = failure(client, submit(client, constant(1), package_name=package, func_name=function))
    assert state == "FAILED"
    assert reason in message


@pytest.mark.parametrize(
    ("zipped", "reason"),
    [
        (b"no zip", "not a valid zip"),
        (a_zip({"../outside.py": b"", "sample.py": MODULE.encode()}), "'../outside.py' is not a path inside"),
        (a_zip({"/tmp/outside.py": b""}), "'/tmp/outside.py' is not a path inside"),
        (a_zip({"sample.py": MODULE.encode(), "bomb": bytes(200 << 20)}), "times as large"),
    ],
    ids=["no zip", "above the folder", "absolute", "bomb"],
)
def test_code_that_would_leave_its_folder_or_fill_the_disk_fails_the_task_with_the_reason(
    client: Client, zipped: bytes, reason: str
):
    state, message = failure(client, submit(client, constant(1), code=zipped))
    assert (state, message.startswith("the code of the function cannot be used: ")) == ("FAILED", True)
    assert reason in message


@pytest.mark.full
def test_a_module_that_hangs_on_import_is_ended_by_the_timeout_of_the_task(client: Client):
    code = a_zip({"sample.py": b"import time\nprint('importing', flush=True)\nwhile True: time.sleep(1)\n"})
    task_id = submit(client, constant(1), code=code, timeout_s=1)
    state, _ = failure(client, task_id)
    assert state == "TIMED_OUT"
    assert b"importing" in client.log_tail(task_id, num_bytes=10_000)


def test_a_module_that_ends_its_process_on_import_fails_the_task_with_the_reason(client: Client):
    code = a_zip({"sample.py": b"import os\nos._exit(3)\n"})
    state, message = failure(client, submit(client, constant(1), code=code))
    assert (state, message) == ("FAILED", "the function has ended its process with exit code 3")


def test_code_that_nobody_has_uploaded_is_refused_at_submit(client: Client):
    with pytest.raises(CallFailed) as caught:
        submit(client, constant(1), code_digest="0" * 64)
    assert caught.value.code == "unknown_file"


# ---------------------------------------------------------------- resource groups


@pytest.fixture(scope="module")
def stranger(server: LiveServer) -> Iterator[Client]:
    """A client of another resource group."""
    server.post("/api/v1/groups", {"name": "strangers"})
    with Client(Transport(server.url, server.new_token("user", "strangers"))) as made:
        yield made


def test_values_and_code_of_another_resource_group_are_out_of_reach(client: Client, stranger: Client):
    secret = b"secret " * 1_000
    with client.new_job("secret") as job:
        made = tasks.size_of(secret)
    assert job.result(made) == len(secret)
    values = client.job_values(job.id).values
    large = next(one for one in values if one.digest)
    for value in values:
        with pytest.raises(NotFound):
            stranger.value(value.value_id)
    with pytest.raises(NotFound):
        stranger.job_values(job.id)
    with pytest.raises(NotFound):
        stranger.results([job.info().job_id], wait_s=0)
    assert large.size is not None
    reference = {"kind": "constant", "type": "bytes", "payload": {"digest": large.digest, "size": large.size}}
    with pytest.raises(CallFailed) as caught:
        submit(stranger, reference)
    assert caught.value.code == "unknown_file"
    assert json.dumps(large.digest) not in str(stranger.jobs().jobs)


def test_a_client_of_another_group_runs_the_same_functions_with_its_own_copies(client: Client, stranger: Client):
    data = b"shared " * 1_000
    assert client.submit(tasks.size_of, data).result() == stranger.submit(tasks.size_of, data).result() == len(data)


# ---------------------------------------------------------------- cancel


@pytest.mark.full
def test_a_future_whose_function_has_begun_cannot_be_cancelled_but_its_job_can(client: Client, tmp_path: Path):
    gate, started = tmp_path / "gate", tmp_path / "started"
    with client.executor() as executor:
        future: Any = executor.submit(tasks.wait_for_file, str(gate), str(started))
        wait_for(started.exists, "the function")
        assert (future.cancel(), future.cancelled(), future.done()) == (False, False, False)
        client.job(future.job_id).cancel()
        with pytest.raises(TaskFailed, match=r"(KILLED|CANCELLED).*job_cancelled"):
            future.result()
    assert (future.cancel(), future.cancelled()) == (False, False)
