"""A task that is about to be stored."""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.model.job import RequiresPolicy
from myrmidon.model.task_request import TaskRequest


class OutputSlot(Struct, frozen=True):
    """One output position of a task: its value, whether it is shared, and the shared value once it is written."""

    value_id: int
    shared: bool
    shared_value_id: int | None = None


class NewTask(Struct, kw_only=True, gc=False):
    """One task to be stored. ``parents`` are its distinct parents; ``satisfied`` are those whose edge is complete."""

    task_id: int
    request: TaskRequest
    authenticated: str
    deadline_at: Micros
    job_id: int | None = None
    insertion: int | None = None
    label: str | None = None
    definition_hash: str | None = None
    parents: Sequence[int] = ()
    satisfied: Sequence[tuple[int, int | None]] = ()
    policy: RequiresPolicy = RequiresPolicy.ALL_SUCCEEDED
    hold: bool = False
    user: str = ""
    root: int | None = None
    tags: Sequence[str] = ()
    added_by: int | None = None
    """The running task that adds it to its job."""
    resume_scope: str | None = None
    """Which calls of an earlier revision of the job may answer it (scheduler/resume.py)."""
    writes_for: Sequence[OutputSlot] | None = None
    """The outputs of the task whose delegate this one is."""
