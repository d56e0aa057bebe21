"""Tables that name tests, such as ``functions/test_types.py::test_an_output_fits``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]


def missing_tests(table: Mapping[str, Sequence[str]]) -> list[str]:
    """The tests of a table that do not exist."""
    missing = []
    for name in sorted({name for names in table.values() for name in names}):
        file, _, test = name.partition("::")
        path = TESTS / file
        if not path.exists() or not re.search(rf"^(async )?def {test}\(", path.read_text(), re.MULTILINE):
            missing.append(name)
    return missing
