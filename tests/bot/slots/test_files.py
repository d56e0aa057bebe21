"""Files of functions: large inputs and outputs, and code. On real bots, with the stand-in and the real processes."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from myrmidon.bot.protocol import Function
from myrmidon.bot.run import reports
from myrmidon.bot.run.run import Run
from myrmidon.bot.slots import code_store
from myrmidon.bot.slots.code_store import CodeStore
from myrmidon.bot.slots.run_files import RunFiles
from myrmidon.bot.slots.value_cache import ValueCache, digest_of, name_of
from myrmidon.executor.code_archive import BadCode
from myrmidon.functions import msgpack, values
from tests.bot.bots import BotProcess, a_bot
from tests.bot.runs import a_run
from tests.bot.slots.functions import a_bot_with_slots, call, outputs, run
from tests.bot.stub import Stub

if TYPE_CHECKING:
    from myrmidon.bot.slots.environments import Environments

# ---------------------------------------------------------------- values


@pytest.fixture(scope="module")
def shared_files(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stub, BotProcess]]:
    folder = tmp_path_factory.mktemp("files") / "b1"
    with Stub() as server, a_bot_with_slots(server, folder, python=interpreter) as bot:
        yield server, bot


@pytest.fixture
def server(shared_files: tuple[Stub, BotProcess]) -> Stub:
    return shared_files[0]


def a_large(server: Stub, value: Any) -> dict[str, Any]:
    """An input that is not in the message."""
    data = msgpack.pack(value)
    digest = hashlib.sha256(data).hexdigest()
    server.files[digest] = data
    return {"type": "any", "digest": digest, "size": len(data)}


def test_a_large_input_is_fetched_once_and_then_kept(server: Stub):
    given = a_large(server, ["x" * 5000])
    for _ in range(2):
        report = run(server, "length", inputs=[given])
        assert outputs(report) == [1]
    assert [call[0] for call in server.file_calls if call[2] == given["digest"]] == ["GET"]


def test_a_large_output_is_stored_before_it_is_reported_and_is_not_fetched_by_the_next_function(server: Stub):
    report = run(server, "echo", "y" * 100_000)
    [output] = report["outputs"]
    digest = output["payload"]["digest"]
    assert msgpack.unpack(server.files[digest]) == "y" * 100_000
    assert output["payload"]["size"] == len(server.files[digest])
    again = {"type": "any", "digest": digest, "size": output["payload"]["size"]}
    assert outputs(run(server, "length", inputs=[again])) == [100_000]
    assert [call[0] for call in server.file_calls if call[2] == digest] == ["PUT"]


def test_a_result_that_the_server_refuses_for_good_fails_the_run_with_the_reason(server: Stub):
    server.file_refusal = "its quota is 100 bytes"
    report = run(server, "echo", "refused" * 10_000)
    server.file_refusal = ""
    assert (report["type"], report["exit_code"]) == ("finish", 1)
    assert "could not be stored" in report["message"]
    assert "its quota is 100 bytes" in report["message"]


def test_a_gathered_input_has_its_parts_in_order_large_and_small(server: Stub):
    small = [{"type": "any", "payload": _inline(number), "size": 1} for number in range(2000)]
    parts = [a_large(server, "first" * 1000), *small, a_large(server, "last" * 1000)]
    report = run(server, "shape", inputs=[{"type": "any", "parts": parts}])
    assert outputs(report) == [2002, 5000, list(range(5)), 4000]


def _inline(value: Any) -> str:
    return b64encode(msgpack.pack(value)).decode()


def test_a_message_that_is_too_large_for_a_pipe_is_sent_as_a_file(server: Stub):
    assert outputs(run(server, "length", "z" * 300_000)) == [300_000]


def test_an_input_that_the_server_has_lost_is_an_error_of_the_task(server: Stub):
    report = run(server, "length", inputs=[{"type": "any", "digest": "0" * 64, "size": 10}])
    assert (report["type"], report["kind"]) == ("fault", "client_error")
    assert "damaged" in report["message"]


def test_a_server_that_fails_for_a_while_costs_no_run(server: Stub):
    given = a_large(server, "w" * 7777)
    server.fault("/bot/v1/runs/", "503", "cut", "lost")
    assert outputs(run(server, "length", inputs=[given])) == [7777]
    server.fault("/bot/v1/runs/", "503", "refused")
    assert run(server, "echo", "v" * 9999)["outputs"][0]["payload"]["size"] == 10_002


def test_a_function_that_is_cancelled_while_its_input_is_fetched_ends(server: Stub):
    given = a_large(server, "u" * 6666)
    server.fault("/bot/v1/runs/", "hole")
    each = call(server, "length", inputs=[given])
    server.until(lambda: ("start", each) in [(report["type"], report["run"]) for report in server.reports])
    with server.change:
        server.stops.add(each)
        server.change.notify_all()
    assert server.result(each)["killed"]
    server.holes.set()
    assert outputs(run(server, "echo", 1)) == [1]


def test_a_process_cannot_make_the_bot_report_another_file(server: Stub, notes: Path):
    (notes / "secret").write_text("s" * 2000)
    report = run(server, "point_to", str(notes / "secret"))
    assert report["exit_code"] == 1
    assert not [data for data in server.files.values() if b"ssss" in data]


def test_a_function_whose_result_is_being_stored_can_be_killed(server: Stub):
    server.holes.clear()
    server.fault("/bot/v1/runs/", "hole")
    each = call(server, "echo", "t" * 5555)
    server.until(lambda: ("start", each) in [(report["type"], report["run"]) for report in server.reports])
    with server.change:
        server.stops.add(each)
        server.change.notify_all()
    assert server.result(each)["killed"]
    server.holes.set()
    assert outputs(run(server, "echo", 1)) == [1]


class BrokenTransfers:
    """Transfers that fail in a way that nobody has foreseen, in the calling thread."""

    def submit(self, job: Callable[[], None]) -> None:
        job()

    def fetch(self, *_: object) -> bytes:
        raise ZeroDivisionError("nobody has foreseen this")

    def store(self, *_: object) -> None:
        raise ZeroDivisionError("nobody has foreseen this")


@pytest.fixture
def broken_files(tmp_path: Path) -> tuple[RunFiles, Run]:
    files = RunFiles(str(tmp_path), BrokenTransfers(), cast("Environments", None))
    run = a_run("a1", function=Function("shop", "total", code="0" * 64))
    run.number = 1
    return files, run


def test_any_error_while_files_are_fetched_is_the_end_of_their_run(broken_files: tuple[RunFiles, Run]):
    files, each = broken_files
    assert not files.prepare(each, ())
    [(fetched, problem, _)] = files.done
    assert fetched is each
    assert problem is not None
    assert (problem.kind, "nobody has foreseen this" in str(problem)) == ("bot_error", True)


def test_any_error_while_results_are_stored_is_the_end_of_their_run(broken_files: tuple[RunFiles, Run], tmp_path: Path):
    files, each = broken_files
    (tmp_path / "1-0").write_bytes(b"result")
    before = os.listdir("/proc/self/fd")
    outputs = files.open_outputs({"outputs": [{"type": "any"}]}, each, str(tmp_path))
    files.store(each, reports.finish(each, 0.0, 0), outputs)
    [(stored, problem, _)] = files.done
    assert stored is each
    assert problem is not None
    assert (problem.kind, "nobody has foreseen this" in str(problem)) == ("bot_error", True)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_outputs_that_cannot_be_opened_leave_no_file_open(broken_files: tuple[RunFiles, Run], tmp_path: Path):
    files, each = broken_files
    (tmp_path / "1-0").write_bytes(b"result")
    os.mkfifo(tmp_path / "1-1")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ValueError, match="not a file"):
        files.open_outputs({"outputs": [{"type": "any"}, {"type": "any"}]}, each, str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_least_recently_used_values_are_removed_but_not_those_of_runs(tmp_path: Path):
    cache = ValueCache(str(tmp_path), max_bytes=3000)
    digests = [digest_of(bytes([number])) for number in range(4)]
    names = [name_of("group", digest) for digest in digests]
    cache.pin(names[:1])
    for digest in digests[:3]:
        cache.add("group", digest, b"x" * 1000)
    assert cache.missing(names[1:2]) == []
    cache.add("group", digests[3], b"x" * 1000)
    assert cache.missing(names) == [names[2]]
    assert cache.missing([name_of("other", digests[0])]), "another group has its own"
    assert sorted(path.name for path in tmp_path.glob("*/*")) == sorted([digests[0], digests[1], digests[3]])


# ---------------------------------------------------------------- code


def a_zip(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def damaged(method: int) -> bytes:
    """A small zip whose content cannot be decompressed."""
    zipped = bytearray(a_zip({"shop/prices.py": b"x = 1\n" * 1000}, method))
    start = zipped.index(b"shop/prices.py") + len("shop/prices.py")
    zipped[start : start + 20] = b"\xff" * 20
    return bytes(zipped)


@pytest.fixture(scope="module")
def real(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    folder = tmp_path_factory.mktemp("code") / "b1"
    with Stub() as stub, a_bot(stub.url, folder, "--slots", "1", python=interpreter):
        yield stub


def call_code(stub: Stub, zipped: bytes) -> str:
    digest = hashlib.sha256(zipped).hexdigest()
    stub.files[digest] = zipped
    function = {"package_name": "shop.prices", "func_name": "total", "language": "PYTHON", "code": digest}
    payload = values.encode([1, 2], list[int])
    given = {"type": "List<int64>", "payload": b64encode(payload).decode(), "size": len(payload)}
    return stub.submit(function=function, inputs=[given])


def module(factor: int) -> dict[str, bytes]:
    text = f"from typing import List\ndef total(parts: List[int]) -> int:\n    return sum(parts) * {factor}\n"
    return {"shop/__init__.py": b"", "shop/prices.py": text.encode()}


def test_code_is_fetched_once_and_two_versions_of_a_module_do_not_mix(real: Stub):
    zips = {factor: a_zip(module(factor)) for factor in (10, 100)}
    for factor in (10, 100, 10, 100):
        report = real.result(call_code(real, zips[factor]))
        assert report["exit_code"] == 0, report
        assert values.decode(b64decode(report["outputs"][0]["payload"]["inline"]), int) == 3 * factor
    digests = {hashlib.sha256(zipped).hexdigest() for zipped in zips.values()}
    fetched = [digest for method, _, digest in real.file_calls if method == "GET" and digest in digests]
    assert sorted(fetched) == sorted(digests)


@pytest.mark.parametrize(
    ("zipped", "message"),
    [
        (b"no zip", "it is not a valid zip"),
        (a_zip({"../outside.py": b""}), "'../outside.py' is not a path inside of it"),
        (a_zip({"/etc/outside.py": b""}), "'/etc/outside.py' is not a path inside of it"),
        (a_zip({"a.py": bytes(100 << 20)}), "times as large"),
        (a_zip({"shop/prices.py": b""}, zipfile.ZIP_LZMA), "'shop/prices.py' is neither stored nor deflated"),
        (damaged(zipfile.ZIP_DEFLATED), "it is not a valid zip"),
    ],
)
def test_code_that_would_leave_its_folder_or_fill_the_disk_is_refused(real: Stub, zipped: bytes, message: str):
    report = real.result(call_code(real, zipped))
    assert report["exit_code"] == 1
    assert report["message"].startswith("the code of the function cannot be used: ")
    assert message in report["message"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_whatever_is_wrong_with_a_zip_is_an_error_of_the_user_and_leaves_nothing(tmp_path: Path, method: int):
    zipped = damaged(method)
    with pytest.raises(BadCode):
        CodeStore(str(tmp_path)).add(digest_of(zipped), zipped)
    assert not list(tmp_path.iterdir())


def test_old_code_that_no_process_uses_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(code_store, "MAX_TOTAL_BYTES", 2500)
    store = CodeStore(str(tmp_path))
    zips = [a_zip({"a.py": bytes([number]) * 1000}) for number in range(4)]
    digests = [digest_of(zipped) for zipped in zips]
    for digest, zipped in zip(digests, zips, strict=True):
        store.add(digest, zipped, used=digests[:1])
    assert [store.has(digest) for digest in digests] == [True, False, False, True]
    with pytest.raises(BadCode, match="digest"):
        store.add(digests[1], zips[2])
