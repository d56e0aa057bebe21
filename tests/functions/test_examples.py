"""The examples run as they are: each is started as a program against a real server with a real bot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from myrmidon import Client
from tests.deadline import HANG_S
from tests.live import LiveServer

ROOT = Path(__file__).parents[2]
SESSION = """
import json, linecache, sys
main = sys.modules["__main__"]
vars(main).pop("__file__", None)  # as in a notebook's kernel
cells = [cell for cell in json.load(open(sys.argv[1]))["cells"] if cell["cell_type"] == "code"]
for number, cell in enumerate(cells):
    source, name = "".join(cell["source"]), f"<cell {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)  # as IPython does
    exec(compile(source, name, "exec"), vars(main))
"""


def run(server: LiveServer, folder: Path, *words: str, script: str | None = None) -> str:
    env = {
        **os.environ,
        "MYRMIDON_SERVER": server.url,
        "MYRMIDON_TOKEN": server.token,
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        input=script,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_word_count(server: LiveServer, client: Client, tmp_path: Path):
    (tmp_path / "text.md").write_text("the cat and the dog\n\n" * 3_000 + "a bird\n")
    out = run(server, tmp_path, str(ROOT / "examples" / "word_count.py"), "text.md")
    assert out.split()[:4] == ["6000", "the", "3000", "cat"]


@pytest.mark.full
def test_parameter_sweep(server: LiveServer, client: Client, tmp_path: Path):
    out = run(server, tmp_path, str(ROOT / "examples" / "parameter_sweep.py"), "plot.svg")
    assert out.startswith("96 simulations; the highest peak is ")
    plot = (tmp_path / "plot.svg").read_text()
    assert plot.count("<polyline") == 4
    assert run(server, tmp_path, str(ROOT / "examples" / "parameter_sweep.py"), "again.svg") == out
    assert (tmp_path / "again.svg").read_text() == plot


@pytest.mark.full
def test_notebook(server: LiveServer, client: Client, tmp_path: Path):
    out = run(server, tmp_path, "-", str(ROOT / "examples" / "notebook.ipynb"), script=SESSION)
    first, second = out.splitlines()
    assert abs(float(first) - 3.1416) < 0.05
    assert len(json.loads(second)) == 3


def test_the_first_program_of_the_tutorial(server: LiveServer, client: Client, tmp_path: Path):
    text = (ROOT / "docs" / "functions.md").read_text()
    program = text.split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "count.py").write_text(program)
    assert run(server, tmp_path, "count.py") == "[{'a': 2, 'b': 1}, {'b': 1, 'c': 1}]\n{'a': 2, 'b': 2, 'c': 1}\n"


def test_the_program_of_the_readme(server: LiveServer, client: Client, tmp_path: Path):
    section = (ROOT / "README.md").read_text().split("## Python functions\n")[1]
    (tmp_path / "program.py").write_text(section.split("```python\n", 1)[1].split("```", 1)[0])
    assert run(server, tmp_path, "program.py") == "[{'a': 2, 'b': 1}, {'b': 1, 'c': 1}]\n"


@pytest.mark.full
def test_the_commands_of_the_tutorial(server: LiveServer, client: Client, tmp_path: Path):
    text = (ROOT / "docs" / "functions.md").read_text()
    start = text.split("```python\n", 1)[1].split("if __name__", 1)[0]
    section = text.split("### Commands and functions in one graph\n")[1]
    block = section.split("```python\n", 1)[1].split("```", 1)[0]
    program = f'{start}\nif __name__ == "__main__":\n    client = Client()\n{indent(block, "    ")}'
    (tmp_path / "report.py").write_text(f"{program}    print(job.wait().state, job.id)\n")
    state, job_id = run(server, tmp_path, "report.py").split()
    assert state == "SUCCEEDED"
    last = next(task for task in client.job(job_id).tasks() if task.label.startswith("echo"))
    assert json.loads(b"".join(client.log(last.task_id))) == {"a": 2, "b": 2, "c": 1}
