"""Actions on jobs: the bodies and answers of the calls that change a job or wait for its end."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from myrmidon.wire.jobs import JobInfo, JobStateName

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Label = Annotated[str, Meta(min_length=1, max_length=255)]


class ExtendJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """More tasks, in the form of a graph document; at most 1,000 in one call."""

    job: Raw
    parameters: dict[str, Any] = {}


class JobExtended(Struct, frozen=True, kw_only=True):
    """``num_new``: how many tasks this call has added; 0 if an earlier one has added them all."""

    job_id: str
    state: JobStateName
    task_ids: dict[str, str]
    num_new: int


class RerunJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``full``: all tasks again, not only those that did not succeed.

    ``task``: only this label, and with ``cascade`` all that depend on it; ``force``: also if it has succeeded.
    ``dry_run``: change nothing, but say what would run again. ``code``: from now on the functions of the job that have
    the code with the first digest run that with the second one.
    """

    task: Label | None = None
    cascade: bool = False
    force: bool = False
    full: bool = False
    dry_run: bool = False
    code: Annotated[dict[Digest, Digest], Meta(max_length=1_000)] = {}


class JobRerun(Struct, frozen=True, kw_only=True):
    """The state after the call. For a dry run: how many tasks would run again, and the first 1,000 of their labels."""

    job_id: str
    state: JobStateName
    num_tasks: int | None = None
    labels: list[str] | None = None


class SelectTasks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``task``: only the task with this label; null for the whole job."""

    task: Label | None = None


class SetPriority(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new priority of one task, or of all tasks of the job that have not ended."""

    priority: Annotated[int, Meta(ge=0, le=255)]
    task: Label | None = None


class JobChanged(Struct, frozen=True, kw_only=True):
    """The job after the call. ``busy``: the change is on disk and is being carried out task by task."""

    job_id: str
    state: JobStateName
    view: Literal["running", "blocked", "finished"]
    busy: bool


class WaitForJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Wait until the job has ended, at most ``wait_s`` seconds; the server limits that to 120.

    ``seq``: return also when the job has changed since it had this number.
    """

    wait_s: Annotated[float, Meta(ge=0, le=1e9)] = 30.0
    seq: int | None = None


class JobWaited(Struct, frozen=True, kw_only=True):
    """``done``: the job has ended."""

    done: bool
    seq: int
    job: JobInfo
