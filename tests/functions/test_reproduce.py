"""`task reproduce` of functions: the code and the inputs of a task run on this machine."""

from __future__ import annotations

import hashlib
import io
import os
import pty
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from myrmidon import Client
from tests.bot.slots.packages import a_wheel, installers
from tests.deadline import HANG_S
from tests.functions.test_programs import environment, run, write
from tests.live import LiveServer

pytestmark = pytest.mark.usefixtures("client")

PROGRAM = """
    from myrmidon import Client, task
    import helpers

    @task
    def numbers(n: int) -> list[int]:
        print("on", n)
        return list(range(n))

    @task
    def divide(parts: list[list[int]], by: int = 0) -> float:
        total = helpers.add(parts)
        return total / by

    if __name__ == "__main__":
        with Client() as client:
            with client.new_job("to reproduce", id="{id}") as job:
                last = divide([numbers(3), numbers(400)], {by})
            job.wait()
            print(job.id)
"""
HELPERS = "def add(parts: list[list[int]]) -> int:\n    return sum(map(sum, parts))\n"


def submitted(server: LiveServer, folder: Path, job_id: str, by: int) -> None:
    write(folder, "helpers.py", HELPERS)
    done = run(server, folder, PROGRAM.format(id=job_id, by=by))
    assert done.returncode == 0, done.stderr
    write(folder, "helpers.py", "raise OSError('the files have changed since')")


def reproduce(server: LiveServer, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command(server, folder, "task", "reproduce", *words)


def command(server: LiveServer, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "myrmidon", *words],
        cwd=folder,
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_a_function_runs_here_with_its_code_and_its_inputs(server: LiveServer, tmp_path: Path):
    submitted(server, tmp_path, "reproduced", 2)
    done = reproduce(server, tmp_path, "reproduced/divide")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "39901.5"), done.stderr
    first = reproduce(server, tmp_path, "reproduced/numbers")
    assert first.stdout.splitlines() == ["on 3", "[0, 1, 2]"], first.stderr


def a_job_with_code(server: LiveServer, name: str, files: dict[str, bytes]) -> None:
    """A job with a function that nobody runs, and with code that the SDK would not pack."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    code = hashlib.sha256(packed.getvalue()).hexdigest()
    assert server.call("PUT", f"/api/v1/files/{code}", packed.getvalue()).status == 200
    function = {"package_name": "p", "func_name": "p.f", "code": code}
    task = {
        "name": "f",
        "function": function,
        "outputs": [{"type": "string"}],
        "dimensions": {"pool": ["default"], "x": ["y"]},
    }
    status, made = server.post(
        "/api/v1/jobs", {"job": {"external_id": name, "name": name, "tasks": {"f": {"task": task}}}}
    )
    assert status == 200, made


def test_code_of_others_that_no_bot_would_unpack_is_refused_here_too(server: LiveServer, tmp_path: Path):
    """A zip of 2 MB could make 380,000 folders, or fill the memory."""
    a_job_with_code(server, "deep", {"p.py": b"", **{f"{number}/{'d/' * 150}f": b"" for number in range(150)}})
    a_job_with_code(server, "plain", {"p.py": b"x = 1\n", "long.py": bytes(3 << 20)})
    a_job_with_code(server, "changed", {"p.py": b"x = 2\n", "long.py": b"\n" * (3 << 20)})
    for words in (("task", "reproduce", "deep/f", "--folder", "here"), ("job", "diff", "deep", "plain")):
        refused = command(server, tmp_path, *words)
        assert refused.returncode != 0
        assert "cannot be used: it has more than 20000 files and folders" in refused.stderr, refused
        assert "Traceback" not in refused.stderr
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == []
    compared = command(server, tmp_path, "job", "diff", "plain", "changed")
    assert "+x = 2" in compared.stdout.splitlines(), compared
    assert "too many to compare" in compared.stdout


def test_a_function_that_has_failed_shows_its_traceback_from_its_first_line_on(server: LiveServer, tmp_path: Path):
    submitted(server, tmp_path, "broken", 0)
    done = reproduce(server, tmp_path, "broken/divide")
    assert done.returncode == 1
    trace = done.stderr[done.stderr.index("Traceback") :]
    assert trace.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "return total / by" in trace
    assert "myrmidon/executor" not in trace


def test_the_debugger_stops_where_the_function_has_raised(server: LiveServer, tmp_path: Path):
    submitted(server, tmp_path, "debugged", 0)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "myrmidon", "task", "reproduce", "debugged/divide", "--pdb"],
        cwd=tmp_path,
        env={**environment(server), "NO_COLOR": "1"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    shown = b""
    try:
        for wanted, answer in ((b"(Pdb)", b"p (total, by)\n"), (b"(79803, 0)", b"quit\n")):
            while wanted not in shown:
                shown += os.read(master, 65_536)
            os.write(master, answer)
        while True:
            try:
                os.read(master, 65_536)
            except OSError:
                break
        assert process.wait(HANG_S) == 1
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.mark.full
def test_a_function_whose_inputs_do_not_exist_cannot_be_reproduced(server: LiveServer, tmp_path: Path, client: Client):
    source = """
        from myrmidon import Client, task

        @task
        def broken(n: int) -> int:
            raise OSError(n)

        @task
        def below(n: int) -> int:
            return n

        if __name__ == "__main__":
            with Client() as client:
                with client.new_job("no inputs", id="no-inputs") as job:
                    below(broken(1))
                job.wait()
    """
    assert run(server, tmp_path, source).returncode == 0
    done = reproduce(server, tmp_path, "no-inputs/below")
    assert (done.returncode, "has not succeeded" in done.stderr) == (2, True), done.stderr


@pytest.mark.full
def test_the_requirements_of_a_function_are_installed_first(server: LiveServer, tmp_path: Path):
    """No bot has run the function: its pool has none."""
    packages = tmp_path / "packages"
    a_wheel(packages, "mgreeting", "1.2", {"mgreeting.py": "def hello(name): return f'Good day, {name}'"})
    source = """
        from myrmidon import Client, task

        @task(requirements=["mgreeting==1.*"], dimensions={"pool": "empty"})
        def greet(name: str) -> str:
            import mgreeting
            return mgreeting.hello(name)

        if __name__ == "__main__":
            with Client() as client:
                with client.new_job("greet", id="greet") as job:
                    greet("Ada")
    """
    done = run(server, tmp_path, source)
    assert done.returncode == 0, done.stderr
    words = [sys.executable, "-m", "myrmidon", "task", "reproduce", "greet/greet"]
    env = {**environment(server), **installers(packages, uv=False)}
    shown = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert shown.stdout.splitlines() == ["'Good day, Ada'"], shown.stderr
