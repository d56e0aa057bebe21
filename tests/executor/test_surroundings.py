"""What a function prints and breaks, and that the next run notices nothing of it."""

from __future__ import annotations

import signal

import pytest

from tests.executor.processes import Died

SOURCE = """
    from __future__ import annotations

    import ctypes
    import logging
    import os
    import signal
    import subprocess
    import sys
    import threading
    import time
    import warnings
    from typing import List, Optional

    os.environ["SET_BY_IMPORT"] = "yes"
    log = logging.getLogger("sample")

    def check() -> str:
        print("still here")
        print("and here", file=sys.stderr)
        return os.getcwd()

    def say(text: str) -> None:
        print(text)
        print("to err", file=sys.stderr)
        os.write(1, b"by os.write\\n")
        subprocess.check_call(["echo", "by a child"])
        log.info("by logging")
        log.debug("not shown")
        print("no newline", end="")

    def say_in_c(text: str) -> None:
        ctypes.CDLL(None).printf(b"%s", text.encode())

    def fail_in_c(text: str) -> None:
        say_in_c(text)
        raise ValueError(text)

    def live(path: str) -> None:
        print("first line")
        while not os.path.exists(path):
            time.sleep(0.01)

    def close_fds() -> None:
        print("before")
        os.close(1)
        os.close(2)

    def close_streams() -> None:
        print("before")
        sys.stdout.close()
        sys.stderr.close()

    def replace_streams() -> None:
        sys.stdout = open("other.txt", "w")
        sys.stderr = None
        print("lost")

    def redirect_fds() -> None:
        other = os.open("other.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(other, 1)
        os.dup2(other, 2)
        print("lost")

    def surrogate() -> None:
        print("\\ud800")

    def read_stdin() -> str:
        return sys.stdin.read()

    def files() -> List[str]:
        before = os.listdir(".")
        with open("left.txt", "w") as file:
            file.write("left")
        os.mkdir("folder")
        return before

    def remove_folder() -> None:
        os.rmdir(os.getcwd())

    def go_away() -> None:
        os.chdir("/")

    def environment() -> List[Optional[str]]:
        found = [os.environ.get(name) for name in ("SET_BY_IMPORT", "SET_BY_RUN", "HOME", "OF_THE_TASK")]
        os.environ["SET_BY_RUN"] = "yes"
        os.environ["SET_BY_IMPORT"] = "changed"
        del os.environ["HOME"]
        return found

    def exits(code: int) -> None:
        sys.exit(code)

    def exits_at_once(code: int) -> None:
        os._exit(code)

    class Own(BaseException):
        pass

    def raises_base() -> None:
        raise Own("own")

    def interrupts() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1000)

    def changes_signals() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 1000)

    def timer() -> float:
        return signal.getitimer(signal.ITIMER_REAL)[0]

    def hangs(path: str) -> None:
        open(path, "w").close()
        time.sleep(1000)

    async def hangs_in_a_loop(path: str) -> None:
        open(path, "w").close()
        time.sleep(1000)

    def segfault() -> None:
        ctypes.string_at(0)

    def segfault_in_a_fork() -> int:
        pid = os.fork()
        if not pid:
            segfault()
        return os.waitpid(pid, 0)[1]

    def thread(path: str) -> None:
        def wait():
            while not os.path.exists(path):
                time.sleep(0.01)
            print("from the thread")
        threading.Thread(target=wait, name="left").start()

    def wait_for_threads() -> int:
        for one in threading.enumerate():
            if one.name == "left":
                one.join()
        return threading.active_count()

    def prints_from_threads() -> None:
        threads = [threading.Thread(target=print, args=(f"thread {n}",)) for n in range(5)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    def child() -> None:
        subprocess.Popen(["sleep", "1000"])

    def fork() -> int:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        return pid

    def allocate(megabytes: int) -> int:
        return len(b"x" * (megabytes << 20))

    def recurse(n: int) -> int:
        return recurse(n + 1)

    def warns() -> None:
        warnings.warn("careful")
"""


def test_what_a_function_prints_is_its_log(start_on):
    executor = start_on(SOURCE)
    answer = executor.run("say", "hello")
    assert answer["stdout"] == "hello\nby os.write\nby a child\nno newline"
    lines = answer["stderr"].splitlines()
    assert lines[0] == "to err"
    assert lines[1].endswith("INFO sample: by logging")
    assert len(lines) == 2
    answer = executor.run("say", "again")
    assert answer["stdout"].startswith("again\n")


@pytest.mark.parametrize("function", ["say_in_c", "fail_in_c"])
def test_what_the_code_of_a_c_extension_prints_is_in_the_log_of_its_run(start, function):
    executor = start(SOURCE)
    assert executor.run(function, "by C")["stdout"] == "by C"
    assert executor.run("check")["stdout"] == "still here\n"


def test_lines_are_in_the_file_before_the_function_ends(start, tmp_path):
    executor = start(SOURCE)
    executor.begin("live", str(tmp_path / "go"))
    while (executor.folder / "out").read_text() != "first line\n":
        assert executor.process.poll() is None
    (tmp_path / "go").touch()
    assert executor.answer()["op"] == "done"


def test_a_module_that_configures_logging_keeps_its_configuration(start):
    executor = start("""
        import logging
        logging.basicConfig(level=logging.ERROR, format="own %(message)s")

        def f() -> None:
            logging.warning("hidden")
            logging.error("shown")
    """)
    assert executor.run("f")["stderr"] == "own shown\n"


def test_warnings_are_part_of_the_log(start):
    assert "UserWarning: careful" in start(SOURCE).run("warns")["stderr"]


@pytest.mark.parametrize("function", ["close_fds", "close_streams", "replace_streams", "redirect_fds", "surrogate"])
def test_a_function_that_breaks_its_output_breaks_nothing_else(start_on, function):
    executor = start_on(SOURCE)
    for _ in range(2):
        assert executor.run(function)["op"] == "done"
        answer = executor.run("check")
        assert (answer["stdout"], answer["stderr"]) == ("still here\n", "and here\n")


def test_what_was_printed_before_the_output_was_closed_is_kept(start):
    executor = start(SOURCE)
    assert executor.run("close_fds")["stdout"] == "before\n"
    assert executor.run("close_streams")["stdout"] == "before\n"
    assert executor.run("surrogate")["stdout"] == "\\ud800\n"


def test_standard_input_is_empty(start):
    assert start(SOURCE).result("read_stdin") == ""


def test_every_run_begins_in_an_empty_folder_of_its_own(start_on):
    executor = start_on(SOURCE)
    for _ in range(3):
        assert executor.result("files") == []
    assert executor.run("remove_folder")["op"] == "done"
    assert executor.result("files") == []
    assert executor.run("go_away")["op"] == "done"
    assert executor.result("check").startswith(str(executor.work))
    assert [name for folder in executor.work.iterdir() for name in folder.iterdir()] == []


def test_an_untouched_folder_is_used_again(start):
    executor = start(SOURCE)
    first = executor.result("check")
    assert executor.result("check") == first
    executor.run("files")
    assert executor.result("check") != first


def test_changes_of_the_environment_end_with_the_run(start_on):
    executor = start_on(SOURCE)
    home = executor.result("environment")[2]
    assert home
    assert executor.result("environment") == ["yes", None, home, None]
    assert executor.result("environment", env={"OF_THE_TASK": "1"}) == ["yes", None, home, "1"]
    assert executor.result("environment") == ["yes", None, home, None]


@pytest.mark.parametrize("code", [0, 3])
def test_sys_exit_is_an_error_of_the_run(start, code):
    executor = start(SOURCE)
    error = executor.error("exits", code)
    assert (error["kind"], error["type"]) == ("exception", "builtins.SystemExit")
    assert error["message"] == f"the function called sys.exit({code})"
    assert executor.run("check")["op"] == "done"


def test_exceptions_that_are_no_errors_end_the_run_only(start):
    executor = start(SOURCE)
    error = executor.error("raises_base")
    assert (error["type"], error["bases"]) == ("sample.Own", ["builtins.BaseException"])
    assert executor.error("interrupts")["type"] == "builtins.KeyboardInterrupt"
    assert executor.run("check")["op"] == "done"


def test_an_interrupt_between_runs_is_ignored(start):
    executor = start(SOURCE)
    executor.run("check")
    executor.process.send_signal(signal.SIGINT)
    assert executor.run("check")["op"] == "done"


def test_signals_are_put_back_after_a_run(start):
    executor = start(SOURCE)
    executor.run("changes_signals")
    assert executor.result("timer") == 0.0
    assert executor.error("interrupts")["type"] == "builtins.KeyboardInterrupt"
    executor.run("changes_signals")
    executor.process.terminate()
    with pytest.raises(Died):
        executor.answer()
    assert executor.process.returncode == -signal.SIGTERM


def test_os_exit_ends_the_process_without_an_answer(start):
    executor = start(SOURCE)
    executor.begin("exits_at_once", 7)
    with pytest.raises(Died) as died:
        executor.answer()
    assert died.value.args == (7,)


def test_a_segmentation_fault_leaves_a_stack_in_the_log(start):
    executor = start(SOURCE)
    executor.begin("segfault")
    with pytest.raises(Died) as died:
        executor.answer()
    assert died.value.args == (-signal.SIGSEGV,)
    stack = executor.last_stack()
    assert "Segmentation fault" in stack
    assert "in segfault" in stack
    assert "myrmidon/executor" not in stack


def test_a_segmentation_fault_of_a_fork_leaves_a_stack_in_the_log_of_the_run(start):
    executor = start(SOURCE)
    answer = executor.run("segfault_in_a_fork")
    assert answer["op"] == "done"
    assert "Segmentation fault" in answer["stderr"]
    lines = [line for line in answer["stderr"].splitlines() if line.startswith("  File ")]
    assert lines[-1].endswith("in segfault_in_a_fork")
    assert "Segmentation" not in executor.run("check")["stderr"]


ENDED = [("check", "hangs"), ("changes_signals", "hangs"), ("check", "hangs_in_a_loop")]


@pytest.mark.parametrize(("before", "function"), ENDED)
def test_a_function_that_is_ended_leaves_its_stack_from_the_users_code_on(start_on, tmp_path, before, function):
    executor = start_on(SOURCE)
    executor.run(before)
    executor.begin(function, str(tmp_path / "begun"))
    while not (tmp_path / "begun").exists():
        assert executor.process.poll() is None
    executor.process.terminate()
    with pytest.raises(Died) as died:
        executor.answer()
    assert died.value.args == (-signal.SIGTERM,)
    lines = [line for line in executor.last_stack().splitlines() if line.startswith("  File ")]
    assert lines[-1].startswith(f'  File "{executor.code}/sample.py"')
    assert lines[-1].endswith(f"in {function}")


def test_threads_that_are_left_behind_do_not_stop_the_next_runs(start, tmp_path):
    executor = start(SOURCE)
    assert executor.run("thread", str(tmp_path / "go"))["op"] == "done"
    assert executor.run("check")["op"] == "done"
    (tmp_path / "go").touch()
    answer = executor.run("wait_for_threads")
    assert "from the thread" in (executor.folder / "out").read_text()
    assert answer["op"] == "done"


def test_prints_of_threads_are_whole_lines_of_the_log(start):
    answer = start(SOURCE).run("prints_from_threads")
    assert sorted(answer["stdout"].splitlines()) == [f"thread {n}" for n in range(5)]


def test_a_child_process_that_is_left_behind_does_not_hold_the_channel_open(start):
    executor = start(SOURCE)
    assert executor.run("child")["op"] == "done"
    executor.begin("exits_at_once", 0)
    with pytest.raises(Died):  # the end of the pipe: the child has not inherited it
        executor.answer()


def test_a_fork_that_returns_does_not_answer(start):
    executor = start(SOURCE)
    assert executor.result("fork") > 0
    assert executor.run("check")["op"] == "done"


def test_a_function_that_takes_more_memory_than_it_may_is_stopped(start_on):
    executor = start_on(SOURCE)
    error = executor.error("allocate", 1024, memory_mb=256)
    assert error["kind"] == "memory"
    assert error["summary"] == "out of memory: more than 256 MB"
    assert error["type"] == "builtins.MemoryError"
    assert executor.result("allocate", 128, memory_mb=256) == 128 << 20
    assert executor.result("allocate", 300) == 300 << 20


def test_endless_recursion_is_an_error_with_a_short_traceback(start_on):
    error = start_on(SOURCE).error("recurse", 0)
    assert error["type"] == "builtins.RecursionError"
    assert "more times" in error["traceback"]
    assert len(error["traceback"]) < 5_000
