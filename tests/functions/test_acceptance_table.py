"""The table of acceptance scenarios names tests that exist, and that run on three databases."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadline import HANG_S
from tests.functions.acceptance_table import ACCEPTANCE
from tests.functions.named_tests import TESTS, missing_tests

DATABASES = {"sqlite", "postgresql", "mariadb"}


@pytest.fixture(scope="module")
def databases_of() -> dict[str, set[str]]:
    """On which databases each named test runs, as pytest collects it."""
    files = sorted({name.partition("::")[0] for names in ACCEPTANCE.values() for name in names})
    words = [sys.executable, "-m", "pytest", "--all", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    root = Path(__file__).parents[2]
    words[-len(files) :] = [str((TESTS / file).relative_to(root)) for file in files]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=HANG_S, check=True)
    found: dict[str, set[str]] = {}
    for name, parameters in re.findall(r"^tests/(\S+?::\w+)(?:\[(.*)\])?$", done.stdout, re.MULTILINE):
        # A test without a database of its own starts a server, which uses SQLite.
        found.setdefault(name, set()).update(DATABASES & set(re.split(r"[-_]", parameters)) or {"sqlite"})
    return found


def test_the_tests_of_the_table_exist():
    assert missing_tests(ACCEPTANCE) == []


@pytest.mark.parametrize("scenario", ACCEPTANCE)
def test_a_scenario_is_shown_on_three_databases(scenario: str, databases_of: dict[str, set[str]]):
    assert set().union(*(databases_of[name] for name in ACCEPTANCE[scenario])) == DATABASES
