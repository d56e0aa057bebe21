"""Functions on real bots: in warm processes, beside each other and beside commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bot.bots import BotProcess, source_with
from tests.bot.slots.functions import a_bot_with_slots, call, outputs, run
from tests.bot.stub import Stub
from tests.deadline import POLL_S


@pytest.fixture(scope="module")
def shared_functions(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stub, BotProcess]]:
    folder = tmp_path_factory.mktemp("functions") / "b1"
    with Stub() as server, a_bot_with_slots(server, folder, python=interpreter) as bot:
        yield server, bot


@pytest.fixture
def server(shared_functions: tuple[Stub, BotProcess]) -> Stub:
    return shared_functions[0]


def test_a_function_gets_its_inputs_and_its_outputs_are_reported(server: Stub):
    assert outputs(run(server, "echo", 1, "two", [3.0, None])) == [1, "two", [3.0, None]]


def test_a_function_that_raises_fails_with_its_error(server: Stub):
    report = run(server, "fail", "bad thing")
    assert (report["exit_code"], report["message"]) == (1, "RuntimeError: bad thing")
    assert (report["error"]["type"], report["error"]["traceback"]) == ("builtins.RuntimeError", "here")


def test_a_function_that_fails_while_the_disk_is_full_is_retried_elsewhere(tmp_path: Path):
    full = {"filesystem": source_with("filesystem", "return min(total // 20, 1 << 30)", "return total")}
    with Stub() as server, a_bot_with_slots(server, tmp_path / "b1", changed=full):
        assert outputs(run(server, "echo", 1)) == [1]
        report = run(server, "fail", "No space left on device")
    assert (report["type"], report["kind"]) == ("fault", "disk_full")
    assert "RuntimeError: No space left on device" in report["message"]


def test_processes_are_warm(tmp_path: Path):
    """Without Landlock: with it, a process is replaced when somebody creates a folder beside that of the tests."""
    with Stub() as server, a_bot_with_slots(server, tmp_path / "b1", 2, "--isolation", "off"):
        runs = [call(server, "calls") for _ in range(40)]
        found = [outputs(server.result(each)) for each in runs]
        assert len({pid for _, pid in found}) <= 2
        assert max(count for count, _ in found) > 10


def test_a_process_has_a_working_directory_and_the_environment_of_commands(server: Stub):
    cwd, environment = outputs(run(server, "environment"))
    assert cwd.endswith("/cwd")
    assert environment["TMPDIR"] == cwd[:-3] + "tmp"
    assert (environment["MYRMIDON_BOT_ID"], environment["MYRMIDON_TASK_ID"]) == ("b1", None)


def test_functions_run_at_the_same_time_in_their_slots_and_beside_a_command(server: Stub, notes: Path):
    go = notes / "go"
    script = f"while ! [ -e {go} ]; do sleep 0.01; done"
    begun = [notes / name for name in ("first", "second")]
    with server.change:
        first, second = (call(server, "touch_and_wait", str(path), str(go)) for path in begun)
        command = server.submit("/bin/sh", "-c", f"touch {notes}/command; {script}")
    server.until(lambda: all(path.exists() for path in (*begun, notes / "command")))
    go.touch()
    assert [server.result(each)["exit_code"] for each in (first, second, command)] == [0, 0, 0]


def test_what_a_function_prints_is_its_log_and_no_others(server: Stub):
    said = {word: call(server, "say", f"{word}\n", f"oh {word}\n") for word in ("one", "two", "three")}
    silent = call(server, "none")
    for word, each in said.items():
        report = server.result(each)
        assert (report["stdout_size"], report["stderr_size"]) == (len(word) + 1, len(word) + 4)
        assert (server.log(each), server.log(each, 1)) == (f"{word}\n".encode(), f"oh {word}\n".encode())
    assert server.result(silent)["stdout_size"] == 0


def test_the_log_of_a_long_function_is_live(server: Stub, notes: Path):
    each = call(server, "say_and_wait", "working\n", str(notes / "go"))
    server.until(lambda: server.log(each) == b"working\n")
    assert each not in server.results
    (notes / "go").touch()
    assert server.result(each)["stdout_size"] == len("working\n")


def test_the_start_and_the_progress_of_a_long_function_are_reported(server: Stub, notes: Path):
    each = call(server, "progress", 0.5, str(notes / "go"))
    server.until(lambda: any(said.get("progress") == {each: 0.5} for _, _, said in server.calls))
    server.until(lambda: ("start", each) in [(report["type"], report["run"]) for report in server.reports])
    (notes / "go").touch()
    assert server.result(each)["exit_code"] == 0


def test_many_short_functions_are_queued_in_the_pipes_and_reported_together(server: Stub):
    before = len(server.calls)
    runs = [call(server, "none") for _ in range(500)]
    for each in runs:
        assert server.result(each)["exit_code"] == 0
    assert len(server.calls) - before < 100


def test_short_functions_do_not_wait_behind_a_long_one_in_its_pipe(server: Stub, notes: Path):
    for each in [call(server, "none") for _ in range(20)]:
        server.result(each)
    mixed = [call(server, "wait" if at == 5 else "none", *([str(notes / "go")] if at == 5 else [])) for at in range(60)]
    for at, each in enumerate(mixed):
        if at != 5:
            server.result(each)
    assert mixed[5] not in server.results
    (notes / "go").touch()
    assert server.result(mixed[5])["exit_code"] == 0


def test_functions_that_wait_behind_long_ones_in_all_slots_go_to_other_bots(server: Stub, notes: Path):
    long = [call(server, "wait", str(notes / "go")) for _ in range(2)]
    server.until(lambda: {r["run"] for r in server.reports if r["type"] == "start"} >= set(long))
    # The next one is not claimed at all, or was claimed together with the long ones and is given back.
    (notes / "go").touch()
    for each in long:
        assert server.result(each)["exit_code"] == 0


def held_poll(server: Stub, accepts: str) -> bool:
    """Whether the last call is a poll for tasks of this kind that waits at the server."""
    path, body = server.calls[-1][1:] if server.calls else ("", {})
    return path.endswith("/exchange") and body["wait_s"] > 1 and body["n"] > 0 and body.get("accepts") == accepts


def test_a_poll_for_functions_waits_at_the_server_while_a_command_runs(notes: Path, tmp_path: Path):
    """No call but the waiting one can bring the functions: the next one that time brings would come too late."""
    with Stub() as server:
        server.heartbeat_s = server.poll_s = POLL_S
        with a_bot_with_slots(server, tmp_path / "b1"):
            command = server.submit("/bin/sh", "-c", f"while ! [ -e {notes}/go ]; do sleep 0.01; done")
            server.until(lambda: held_poll(server, "functions"), "a poll for functions")
            behind = server.submit("/bin/sh", "-c", "exit 4")
            for number in range(3):
                assert outputs(run(server, "echo", number)) == [number]
                server.until(lambda: held_poll(server, "functions"), "a poll for more functions")
            assert [task["run"] for task in server.waiting] == [behind]
            (notes / "go").touch()
            assert (server.result(command)["exit_code"], server.result(behind)["exit_code"]) == (0, 4)


def test_a_poll_for_commands_waits_at_the_server_while_functions_fill_all_slots(notes: Path, tmp_path: Path):
    with Stub() as server:
        server.heartbeat_s = server.poll_s = POLL_S
        with a_bot_with_slots(server, tmp_path / "b1"):
            functions = [call(server, "wait", str(notes / "go")) for _ in range(2)]
            server.until(lambda: held_poll(server, "commands"), "a poll for commands")
            behind = call(server, "echo", 7)
            for code in (3, 4):
                assert server.run("/bin/sh", "-c", f"exit {code}")["exit_code"] == code
                server.until(lambda: held_poll(server, "commands"), "a poll for more commands")
            assert [task["run"] for task in server.waiting] == [behind]
            (notes / "go").touch()
            assert {server.result(each)["exit_code"] for each in (*functions, behind)} == {0}


def test_a_bot_without_slots_leaves_functions_to_others(tmp_path: Path):
    with Stub() as server:
        function = call(server, "echo", 7)
        with a_bot_with_slots(server, tmp_path / "b1", 0):
            assert [server.run("/bin/sh", "-c", f"exit {code}")["exit_code"] for code in (3, 4)] == [3, 4]
            assert [task["run"] for task in server.waiting] == [function]


def test_functions_are_claimed_while_a_command_runs_and_commands_are_not(notes: Path, tmp_path: Path):
    with Stub() as server:
        server.heartbeat_s = 0.5
        with a_bot_with_slots(server, tmp_path / "b1"):
            script = f"touch {notes}/begun; while ! [ -e {notes}/go ]; do sleep 0.01; done"
            command = server.submit("/bin/sh", "-c", script)
            server.until(lambda: ("start", command) in [(report["type"], report["run"]) for report in server.reports])
            behind = server.submit("/bin/sh", "-c", "exit 4")
            assert [outputs(run(server, "echo", number)) for number in range(3)] == [[0], [1], [2]]
            assert [task["run"] for task in server.waiting] == [behind]
            (notes / "go").touch()
            assert (server.result(command)["exit_code"], server.result(behind)["exit_code"]) == (0, 4)
