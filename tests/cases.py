"""Cases of `parametrize`, of which the short suite has some only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *, short: int) -> list[Any]:
    """All cases with `--all`; the short suite has the first ones."""
    return [case if n < short else pytest.param(case, marks=pytest.mark.full) for n, case in enumerate(cases)]
