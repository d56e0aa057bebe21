"""A graph of C++, Rust, Python and a command is submitted again: only what changed runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from myrmidon import Client, task
from tests.native import building, python_tasks
from tests.native.building import SOURCES
from tests.native.declared import add, rust_integer


def use_factor(library: Path, factor: int) -> None:
    shutil.copy(building.cpp(SOURCES / "scale.cpp", f"-DFACTOR={factor}"), library)


def submit(client: Client, scale: Any) -> tuple[dict[str, int], set[str]]:
    """The results by label, and the labels of the tasks that have run."""
    with client.new_job("resumed") as job:
        first = python_tasks.plain.options(cache=True, label="python")(7)
        second = rust_integer.options(cache=True, label="rust")(first)
        third = scale.options(cache=True, label="cpp")(second)
        shown = job.command(
            ["sh", "-c", 'echo "$0" > $MYRMIDON_OUTPUT_DIR/0', third], returns=int, cache=True, label="command"
        )
        other = add.options(cache=True, label="other library")(first, 1)
    values = {"cpp": job.result(third), "command": job.result(shown), "other": job.result(other)}
    tasks = client.job(job.id).tasks()
    return values, {one.label for one in tasks if one.deduped_from is None}


def test_only_the_functions_of_a_changed_library_and_what_they_feed_run_again(client: Client, tmp_path: Path):
    library = tmp_path / "libscale.so"
    use_factor(library, 10)

    @task(library=library, language="cpp")
    def scale(value: int) -> int:
        raise NotImplementedError

    everything = {"python", "rust", "cpp", "command", "other library"}
    assert submit(client, scale) == ({"cpp": 70, "command": 70, "other": 8}, everything)
    assert submit(client, scale) == ({"cpp": 70, "command": 70, "other": 8}, set())
    use_factor(library, 20)
    assert submit(client, scale) == ({"cpp": 140, "command": 140, "other": 8}, {"cpp", "command"})
    use_factor(library, 10)
    assert submit(client, scale) == ({"cpp": 70, "command": 70, "other": 8}, set())
