"""Two jobs side by side: the query and the answer of /api/v1/jobs/{id}/compare."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from myrmidon.wire.fields import Limit
from myrmidon.wire.jobs import JobSummary


class JobDifference(Struct, frozen=True, kw_only=True):
    """A label that differs between two jobs: in one only, or in what it is, what it reads, or how it ended.

    ``code``: the function, or something that it reaches in its code. ``definition``: anything else that was submitted,
    but for the inputs. ``result``: both have succeeded with different outputs.
    """

    label: str
    what: list[
        Literal[
            "only_in_first",
            "only_in_second",
            "code",
            "definition",
            "inputs",
            "state",
            "exit_code",
            "result",
            "duration",
        ]
    ]
    states: tuple[str | None, str | None]
    exit_codes: tuple[int | None, int | None]
    durations_s: tuple[float | None, float | None]
    function: str | None = None
    codes: tuple[str | None, str | None] = (None, None)
    """The digests of the code, if the task calls a function."""


class CompareQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``other``: the id of the second job."""

    other: str
    limit: Limit = 1000
    cursor: str | None = None


class JobComparison(Struct, frozen=True, kw_only=True):
    """Labels that differ, by label; durations differ if one is at least 1.5 times the other and 1 s longer."""

    first: JobSummary
    second: JobSummary
    differences: list[JobDifference]
    num_equal: int
    cursor: str | None
