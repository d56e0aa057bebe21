"""Edit a program and run it again: on a real server with a real bot only what has changed runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from myrmidon import Client
from tests.deadline import HANG_S
from tests.functions.test_programs import environment, run, write
from tests.live import LiveServer

pytestmark = pytest.mark.usefixtures("client")

PROGRAM = """
    from myrmidon import Client, context, task
    from steps import load, count, total

    if __name__ == "__main__":
        with Client() as client:
            with client.new_job("word count", id="{id}") as job:
                parts = [count(load(name)) for name in {names}]
                last = total(parts)
                plan = job.plan()
            print("answered", sorted(plan.answered))
            print("runs", sorted(plan.runs))
            print("result", job.result(last))
            ran = {{t.label for t in client.job(job.id).tasks() if t.deduped_from is None}}
            print("ran", sorted(ran))
            print("job", job.id)
"""
STEPS = """
    from myrmidon import task

    STOP = {"the"}

    def words(text: str) -> list[str]:
        return [word for word in text.split() if word not in STOP]

    @task
    def load(name: str) -> str:
        return f"the text of {name}"

    @task
    def count(text: str) -> int:
        return len(words(text))

    @task
    def total(parts: list[int]) -> int:
        return sum(parts)
"""


def program(server: LiveServer, folder: Path, job_id: str, names: list[str]) -> dict[str, str]:
    """What the program has printed, by its first word."""
    done = run(server, folder, PROGRAM.format(id=job_id, names=names))
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_only_what_changed_runs_after_an_edit(server: LiveServer, tmp_path: Path):
    write(tmp_path, "steps.py", STEPS)
    first = program(server, tmp_path, "wc-edit", ["a", "b"])
    assert (first["result"], first["answered"]) == ("6", "[]")

    again = program(server, tmp_path, "wc-edit", ["a", "b"])
    assert (again["job"], again["result"]) == (first["job"], "6")

    write(tmp_path, "steps.py", STEPS.replace("sum(parts)", "sum(parts) * 10"))
    edited = program(server, tmp_path, "wc-edit", ["a", "b"])
    assert (edited["result"], edited["ran"], edited["runs"]) == ("60", "['total']", "['total']")
    assert edited["answered"] == "['count', 'count-2', 'load', 'load-2']"

    write(tmp_path, "steps.py", STEPS.replace('STOP = {"the"}', "STOP = set()"))
    changed = program(server, tmp_path, "wc-edit", ["a", "b"])
    assert (changed["result"], changed["ran"]) == ("8", "['count', 'count-2', 'total']")

    write(tmp_path, "steps.py", STEPS.replace("text of", "text  of"))  # other text, the same numbers
    cut_off = program(server, tmp_path, "wc-edit", ["a", "b"])
    assert (cut_off["result"], cut_off["ran"]) == ("6", "['count', 'count-2', 'load', 'load-2']")

    more = program(server, tmp_path, "wc-edit", ["new", "a", "b"])
    assert (more["result"], more["ran"]) == ("9", "['count', 'load', 'total']")


def test_a_failed_job_goes_on_where_it_has_failed(server: LiveServer, tmp_path: Path, client: Client):
    write(tmp_path, "steps.py", STEPS.replace("len(words(text))", "1 // 0"))
    done = run(server, tmp_path, PROGRAM.format(id="wc-failed", names=["a"]))
    assert "ZeroDivisionError" in done.stderr
    failed = client.job("wc-failed").wait()
    assert failed.state == "FAILED"
    write(tmp_path, "steps.py", STEPS)
    fixed = program(server, tmp_path, "wc-failed", ["a"])
    assert (fixed["result"], fixed["ran"]) == ("3", "['count', 'total']")
    assert client.job("wc-failed~1").info().job_id == failed.job_id


@pytest.mark.full
def test_a_job_that_has_failed_for_another_reason_runs_again_from_there(
    server: LiveServer, tmp_path: Path, client: Client
):
    """The same graph: the failed part of the same job runs again."""
    flag = tmp_path / "flag"
    body = f"open({str(flag)!r}).read() or len(words(text))"
    write(tmp_path, "steps.py", STEPS.replace("len(words(text))", body))
    assert run(server, tmp_path, PROGRAM.format(id="wc-again", names=["a"])).returncode != 0
    failed = client.job("wc-again").wait()
    flag.touch()
    done = program(server, tmp_path, "wc-again", ["a"])
    assert (done["result"], done["job"]) == ("3", failed.job_id)
    assert client.job(failed.job_id).task("load").run == client.job("wc-again").task("load").run  # type: ignore[union-attr]


def test_commands_and_functions_in_one_resumed_graph(server: LiveServer, tmp_path: Path):
    source = """
        from myrmidon import Client, task

        @task
        def double(x: int) -> int:
            return x * 2

        @task
        def show(a: int, b: int) -> str:
            return f"{a} and {b}"

        if __name__ == "__main__":
            with Client() as client:
                with client.new_job("mixed", id="mixed-1") as job:
                    made = job.command(["sh", "-c", "echo 20 > $MYRMIDON_OUTPUT_DIR/0"], returns=int, cache=True)
                    told = job.command(["sh", "-c", "echo 21 > $MYRMIDON_OUTPUT_DIR/0"], returns=int, name="told")
                    last = show(double(made), double(told))
                print(job.result(last))
                print(sorted(t.label for t in client.job(job.id).tasks() if t.deduped_from is None))
    """
    first = run(server, tmp_path, source)
    assert first.stdout.splitlines()[0] == "40 and 42", first.stderr
    again = run(server, tmp_path, source.replace("{a} and", "{a} or"))
    assert again.stdout.splitlines() == ["40 or 42", "['show', 'told']"], again.stderr


@pytest.mark.full
def test_two_revisions_are_compared_by_code_inputs_and_results(server: LiveServer, tmp_path: Path):
    write(tmp_path, "steps.py", STEPS)
    program(server, tmp_path, "wc-diff", ["a", "b"])
    write(tmp_path, "steps.py", STEPS.replace('STOP = {"the"}', "STOP = set()"))
    program(server, tmp_path, "wc-diff", ["a", "c"])
    words = [sys.executable, "-m", "myrmidon", "job", "diff", "wc-diff~1", "wc-diff"]
    done = subprocess.run(words, env=environment(server), capture_output=True, text=True, timeout=HANG_S, check=False)
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert done.returncode == 1, done.stderr
    assert "code" in lines["count"]
    assert "result" in lines["count"]
    assert "code, inputs" in lines["count-2"]
    assert ("inputs" in lines["load-2"], "code" in lines["load-2"]) == (True, False)
    assert "load" not in lines
    assert "changed: steps:count" in done.stderr
    assert '-STOP = {"the"}' in done.stdout.splitlines()
    assert "+STOP = set()" in done.stdout.splitlines()
    told = subprocess.run([*words, "--json"], env=environment(server), capture_output=True, timeout=HANG_S, check=False)
    answer = json.loads(told.stdout)
    assert {d["label"] for d in answer["differences"]} == {"count", "count-2", "load-2", "total"}
    assert {d["function"] for d in answer["differences"] if "code" in d["what"]} == {"steps:count"}
