"""Branch coverage of every package, measured while the tests run with MYRMIDON_COVERAGE=1 (see the Makefile).

Each worker of pytest traces itself. A traced test takes about twice its time, so tests that repeat others are left out:
those marked `untraced`, and those on PostgreSQL and MariaDB, except for the tests of the store's engine. Servers, bots
and commands that run as processes of their own are traced in a few modules only (``PROCESSES``): each of them loads
the tracer first, which takes longer than most commands.

`python -m tests.tracing` prints the coverage of each package.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers

ROOT = Path(__file__).parents[1]
PROCESSES = (
    "bot/run/test_commands.py",
    "bot/test_live_fleet.py",
    "cli/test_look.py",
    "cli/test_up.py",
    "server/swarming_v1",
)


def start() -> Any:
    """The tracer of this worker of pytest; None when coverage is not asked for."""
    if os.environ.get("MYRMIDON_COVERAGE") != "1" or "PYTEST_XDIST_WORKER" not in os.environ:
        return None
    import coverage

    (ROOT / ".coverage").mkdir(exist_ok=True)
    tracer = coverage.Coverage(config_file="pyproject.toml")
    tracer.start()
    return tracer


@contextlib.contextmanager
def during(item: pytest.Item, tracer: Any) -> Iterator[None]:
    """Trace a test if it is to be traced."""
    if tracer is None:
        yield
    elif _is_traced(item):
        with _processes_of(item):
            yield
    else:
        tracer.stop()
        try:
            yield
        finally:
            tracer.start()


def _is_traced(item: pytest.Item) -> bool:
    on_a_server = any(f"{mark}{kind}" in item.name for kind in servers.KINDS for mark in "[-")
    return not item.get_closest_marker("untraced") and (not on_a_server or "engine" in item.path.parts)


@contextlib.contextmanager
def _processes_of(item: pytest.Item) -> Iterator[None]:
    """Every Python of this environment that is started meanwhile traces itself: coverage has a .pth file for that."""
    if not item.path.relative_to(ROOT / "tests").as_posix().startswith(PROCESSES):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COVERAGE_PROCESS_START", str(ROOT / "pyproject.toml"))
        patch.setenv("COVERAGE_FILE", str(ROOT / ".coverage" / "data"))
        yield


def variables() -> dict[str, str]:
    """What lets a process trace itself, for one that does not get all of the environment; nothing if it shall not."""
    return {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}


def by_package() -> dict[str, float]:
    """The percentage of lines and branches of each package that the tests have reached."""
    import coverage

    measured = coverage.Coverage(config_file="pyproject.toml")
    measured.load()
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        measured.json_report(outfile=report.name, ignore_errors=True)
        files = json.load(report)["files"]
    total: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for name, file in files.items():
        package = ".".join(Path(name).parts[2:-1]) or "myrmidon"
        found = file["summary"]
        total[package] += found["num_statements"] + found["num_branches"]
        reached[package] += found["covered_lines"] + found["covered_branches"]
    return {package: 100 * reached[package] / total[package] for package in sorted(total) if total[package]}


def main() -> None:
    for package, percent in by_package().items():
        sys.stdout.write(f"coverage of {package:<20} {percent:5.1f} %\n")


if __name__ == "__main__":
    main()
