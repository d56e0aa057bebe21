"""Whole programs: new code for a job, Ctrl-C, a submit as the last statement, the progress line of a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from myrmidon import Client
from tests.bot.bots import wait_for
from tests.deadline import HANG_S
from tests.live import LiveServer

pytestmark = pytest.mark.full

SOURCE = Path(__file__).parents[2] / "src"


def environment(server: LiveServer) -> dict[str, str]:
    return {
        **os.environ,
        "MYRMIDON_SERVER": server.url,
        "MYRMIDON_TOKEN": server.token,
        "PYTHONPATH": str(SOURCE),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def run(server: LiveServer, folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    write(folder, "program.py", program)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.mark.short
def test_a_job_keeps_its_code_until_the_new_one_is_asked_for(server: LiveServer, client: Client, tmp_path: Path):
    write(tmp_path, "library.py", "def value() -> int:\n    raise OSError('old')\n")
    program = """
        from pathlib import Path
        from myrmidon import Client, task
        import library

        @task
        def f(x: int) -> int:
            return library.value() + x

        if __name__ == "__main__":
            with Client() as client:
                with client.new_job("pinned") as job:
                    last = f(f(1))
                for code in ("pinned", "new"):
                    try:
                        print(job.result(last))
                    except OSError as error:
                        print("failed:", error.args)
                    job.wait()
                    Path("library.py").write_text("def value() -> int:\\n    return 5\\n")
                    job.rerun(code=code)
                print(job.result(last))
    """
    done = run(server, tmp_path, program)
    assert done.stdout.splitlines() == ["failed: ('old',)", "failed: ('old',)", "11"], done.stderr


def test_functions_that_extend_their_job_run_again_with_new_code(server: LiveServer, client: Client, tmp_path: Path):
    write(tmp_path, "library.py", "def value() -> int:\n    return 1\n")
    program = """
        from pathlib import Path
        from myrmidon import Client, context, task
        import library

        @task
        def inner(x: int) -> int:
            return library.value() + x

        @task
        def outer(x: int) -> int:
            return context().submit(inner, context().submit(inner, x))

        @task
        def up_to(n: int) -> list[int]:
            return list(range(n))

        if __name__ == "__main__":
            with Client() as client:
                with client.new_job("extended") as job:
                    results = outer(1), job.map(inner, up_to(3))
                print(job.result(results))
                for value in (10, 20):
                    job.wait()
                    Path("library.py").write_text(f"def value() -> int:\\n    return {value}\\n")
                    job.rerun(failed=False, code="new")
                    print(job.result(results), len(list(client.job(job.id).tasks())))
    """
    done = run(server, tmp_path, program)
    assert done.stdout.splitlines() == ["(3, [1, 2, 3])", "(21, [10, 11, 12]) 9", "(41, [20, 21, 22]) 9"], done.stderr


def test_another_signature_on_the_bot_fails_before_the_call(server: LiveServer, client: Client, tmp_path: Path):
    write(tmp_path, "library.py", "from myrmidon import task\n@task\ndef f(x: int) -> int:\n    raise OSError('old')\n")
    program = """
        from pathlib import Path
        from myrmidon import Client, TaskFailed
        import library

        if __name__ == "__main__":
            with Client() as client:
                with client.new_job() as job:
                    last = library.f(1)
                job.wait()
                new = "from myrmidon import task\\n@task\\ndef f(x: str) -> int:\\n    return 1\\n"
                Path("library.py").write_text(new)
                job.rerun(code="new")
                try:
                    job.result(last)
                except TaskFailed as failure:
                    print(failure.error_type)
    """
    done = run(server, tmp_path, program)
    assert done.stdout.strip() == "myrmidon.SignatureMismatch", done.stderr


def num_looks(server: LiveServer) -> float:
    """How often a job was asked for. A program that waits for a result asks for its job."""
    counts = 'myrmidon_request_seconds_count{method="GET",path="/api/v1/jobs/{id}",'
    lines = server.get("/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(counts))


def test_ctrl_c_leaves_the_job_running(server: LiveServer, client: Client, tmp_path: Path):
    program = """
        import sys
        from pathlib import Path
        from myrmidon import Client, task

        @task
        def waits(path: str) -> str:
            import time
            Path(path + ".started").touch()
            while not Path(path).exists():
                time.sleep(0.01)
            return "done"

        if __name__ == "__main__":
            with Client() as client, client.new_job("long") as job:
                last = waits(sys.argv[1])
            print(job.id, flush=True)
            job.result(last)
    """
    file, looks = tmp_path / "file", num_looks(server)
    process = subprocess.Popen(
        [sys.executable, str(write(tmp_path, "program.py", program)), str(file)],
        env=environment(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        job_id = process.stdout.readline().strip()
        wait_for(lambda: Path(f"{file}.started").exists(), "the function")
        wait_for(lambda: num_looks(server) > looks, "the program to wait for it")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        file.touch()
    assert f"myrmidon job watch {job_id}" in errors
    assert process.returncode != 0
    assert client.job(job_id).wait().state == "SUCCEEDED"


@pytest.mark.short
def test_calls_of_the_last_statement_are_sent(server: LiveServer, client: Client, tmp_path: Path):
    file = tmp_path / "file"
    program = f"""
        from pathlib import Path
        from myrmidon import Client, task

        @task
        def touches(path: str) -> None:
            Path(path).touch()

        if __name__ == "__main__":
            Client().submit(touches, {str(file)!r})
    """
    done = run(server, tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    wait_for(file.exists, "the function")


def test_a_terminal_shows_the_progress(server: LiveServer, client: Client, tmp_path: Path):
    file = tmp_path / "file"
    program = """
        import sys
        from pathlib import Path
        from myrmidon import Client, task

        @task
        def waits(path: str) -> None:
            import time
            while not Path(path).exists():
                time.sleep(0.01)

        if __name__ == "__main__":
            with Client() as client:
                with client.new_job("patience") as job:
                    last = waits(sys.argv[1])
                job.result(last)
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(write(tmp_path, "program.py", program)), str(file)], env=environment(server), stderr=theirs
    )
    os.close(theirs)
    try:
        shown = b""
        while b"0 of 1" not in shown:
            shown += os.read(ours, 4_096)
        file.touch()
        assert process.wait(HANG_S) == 0
        assert b"patience" in shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
