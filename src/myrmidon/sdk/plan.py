"""What would happen to a job if it were submitted now: what earlier results answer, what runs, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from myrmidon.wire.jobs import JobCheck, NodeCheck

_REASONS: Final = {
    "not_idempotent": "not marked as idempotent, or cached",
    "installed_code": "its code is that of the bots and not a part of the job, so it runs again",
    "new": "the earlier job did not have it",
    "not_succeeded": "it did not succeed in the earlier job",
    "code": "its code has changed",
    "definition": "its command, its options or its signature have changed",
    "inputs": "its inputs have changed",
    "no_result": "there is no earlier result",
    "in_progress": "it waits or runs already",
}
_SHOWN_LABELS: Final = 20


def why_it_runs(node: NodeCheck) -> str:
    """Why a node runs, in a few words."""
    if node.why == "input_unknown":
        return f"it reads the result of {node.parent}, which runs"
    return _REASONS.get(node.why, node.why)


class JobPlan:
    """The plan of a job. ``answered``: the earlier task for each label; ``runs``: why each other label runs."""

    def __init__(self, check: JobCheck) -> None:
        self.check = check
        self.answered = {node.label: node.deduped_from for node in check.nodes if node.deduped_from is not None}
        self.runs = {node.label: why_it_runs(node) for node in check.nodes if node.deduped_from is None}

    def __repr__(self) -> str:
        return f"<plan of {self.check.name!r}: {len(self.answered)} answered, {len(self.runs)} run>"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        total = len(self.check.nodes)
        if self.check.attached_to is not None:
            yield f"the same job as before: {self.check.attached_to}"
        yield f"{len(self.answered)} of {total} tasks are answered by earlier results, {len(self.runs)} run"
        for label, why in list(self.runs.items())[:_SHOWN_LABELS]:
            yield f"  {label}: {why}"
        if len(self.runs) > _SHOWN_LABELS:
            yield f"  ... and {len(self.runs) - _SHOWN_LABELS} more"
