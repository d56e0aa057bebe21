"""The order in which labels of tasks are listed: numbers in them count, so that work[2] comes before work[10]."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"([0-9]+)")


def natural_order(label: str) -> tuple[list[str | int], str]:
    """The key to sort labels by."""
    parts = _NUMBER.split(label)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], label
