"""The jobs that the documents show, with a real server and real bots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.architecture import source
from tests.cli.terminal import Terminal

EXAMPLE = source.ROOT / "examples" / "build-and-test.yaml"
README = (source.ROOT / "README.md").read_text()
JOBS = re.findall(r"^```yaml\n(.*?)^```", (source.ROOT / "docs" / "jobs.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_first_task_of_the_example_extends_its_own_graph(terminal: Terminal):
    terminal.ok("job", "submit", str(EXAMPLE), "-p", "tests=4", "--watch")
    job = terminal.json("job", "show", "@latest")
    assert (job["state"], job["num_tasks"], job["num_succeeded"]) == ("SUCCEEDED", 6, 6)
    tasks = {task["label"]: task for task in terminal.json("job", "tree", "@latest")}
    assert sorted(tasks["report"]["requires"]) == ["build", "test-1", "test-2", "test-3", "test-4"]
    tests = [tasks[f"test-{number}"] for number in range(1, 5)]
    assert all(test["completed_at"] <= tasks["report"]["started_at"] for test in tests)
    report = tasks["report"]["task_id"]
    assert terminal.json("task", "show", report)["annotation"]["content"] == "**4 tests** passed.\n"
    assert "**4 tests** passed." in terminal.ok("task", "show", report)


def test_the_readme_shows_the_example_that_is_tested():
    section = README.split("\n## Jobs\n")[1].split("\n## ")[0]
    assert "    myrmidon job submit examples/build-and-test.yaml" in section


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        ("test", "testing what [0-9a-f]+ has built\n"),
        ("package", "packaging version 1.2\n"),
        ("report", "2 of 7 failed"),
    ],
)
def test_a_job_of_the_page_about_jobs_runs_as_it_stands(terminal: Terminal, tmp_path: Path, last: str, shown: str):
    document = next(job for job in JOBS if list(yaml.safe_load(job)["tasks"])[-1] == last)
    (tmp_path / "build.yaml").write_text(document)
    terminal.ok("job", "check", str(tmp_path / "build.yaml"))
    submitted = terminal.run("job", "submit", str(tmp_path / "build.yaml"), "--watch")
    assert submitted.returncode == (1 if last == "report" else 0)
    assert re.fullmatch(shown, terminal.ok("task", "log", f"@latest/{last}"))
