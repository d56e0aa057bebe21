"""Two jobs side by side, label by label: what was submitted, what it read, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from msgspec import Struct, structs

from myrmidon.scheduler.dedupe import work_hash
from myrmidon.server.calls import READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_request
from myrmidon.store.tables import value as values
from myrmidon.store.tables.task_request import RequestRow, SliceRow
from myrmidon.store.views import job_details, job_values
from myrmidon.store.views.job_details import JobTaskLine
from myrmidon.wire import job_compare as wire

ROUTES = Routes()

SLOWER_BY = 1.5
SLOWER_BY_S = 1.0
_PAIRS = 500
"""The number of labels that are compared with the same statements."""
_NOT_COMPARED = frozenset(
    {"id", "resource_group_id", "job_id", "task_graph_insertion_id", "created_at", "authenticated", "user_name",
     "deadline_at", "code", "identity", "resume_scope", "parent_task_id", "parent_run", "root_task_id",
     "definition_hash", "added_by", "queue", "idempotent", "properties_hash", "properties", "expiration",
     "wait_for_capacity"}
)  # fmt: skip
"""What differs between two submits of the same work, and the code and the slices, which are compared on their own."""

Pair: TypeAlias = tuple[JobTaskLine | None, JobTaskLine | None]


@ROUTES.add("GET", "/api/v1/jobs/{id}/compare", READERS, "Compare two jobs", query=wire.CompareQuery)
async def compare_jobs(context: ServerContext, call: Call) -> wire.JobComparison:
    """The labels of two jobs that differ: missing in one, or with other code, inputs, results or durations."""
    query: wire.CompareQuery = call.query
    first = await get_job(context, call, call.params["id"])
    second = await get_job(context, call, query.other)
    kind = f"difference of {first.id} and {second.id}"
    after = read_cursor(context.keys.cursor, kind, query.cursor) if query.cursor else ""

    def read(tx: Tx) -> wire.JobComparison:
        differences: list[wire.JobDifference] = []
        num_equal, more = 0, ""
        pairs = _side_by_side(job_details.all_tasks(tx, first.id), job_details.all_tasks(tx, second.id))
        for difference in _compared(tx, pairs):
            num_equal += difference is None
            if difference is None or difference.label <= after:
                continue
            if len(differences) == query.limit:
                more = differences[-1].label
                continue
            differences.append(difference)
        jobs = job_details.summaries(tx, [first.id, second.id])
        return wire.JobComparison(
            first=jobs[first.id],
            second=jobs[second.id],
            differences=differences,
            num_equal=num_equal,
            cursor=show_cursor(context.keys.cursor, kind, more) if more else None,
        )

    return await context.db.read(read)


def _side_by_side(first: Iterator[JobTaskLine], second: Iterator[JobTaskLine]) -> Iterator[Pair]:
    """Tasks with equal labels together; both are sorted by label."""
    a, b = next(first, None), next(second, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a.label < b.label):
            yield a, None
            a = next(first, None)
        elif a is None or b.label < a.label:
            yield None, b
            b = next(second, None)
        else:
            yield a, b
            a, b = next(first, None), next(second, None)


def _compared(tx: Tx, pairs: Iterator[Pair]) -> Iterator[wire.JobDifference | None]:
    while chunk := list(islice(pairs, _PAIRS)):
        facts = _read_facts(tx, [task.id for pair in chunk for task in pair if task is not None])
        for a, b in chunk:
            yield _difference(a, b, facts)


class _Facts(Struct, frozen=True):
    """What tasks were submitted with, what they read and what they returned."""

    requests: dict[int, RequestRow]
    slices: dict[int, list[SliceRow]]
    inputs: dict[int, str]
    outputs: dict[int, Sequence[object]]


def _read_facts(tx: Tx, ids: Sequence[int]) -> _Facts:
    requests = task_request.read(tx, ids)
    readers = [i for i, request in requests.items() if request.num_inputs]
    writers = [i for i, request in requests.items() if request.num_outputs]
    inputs = values.inputs(tx, readers) if readers else {}
    outputs = job_values.outputs(tx, writers) if writers else {}
    return _Facts(
        requests,
        task_request.slices(tx, ids),
        {i: work_hash("", several) for i, several in inputs.items()},
        {i: [(one.type, one.payload, one.digest) for one in several] for i, several in outputs.items()},
    )


def _difference(a: JobTaskLine | None, b: JobTaskLine | None, facts: _Facts) -> wire.JobDifference | None:
    what: list[str] = []
    if a is None or b is None:
        what.append("only_in_second" if a is None else "only_in_first")
    else:
        what += _what_was_submitted(a, b, facts)
        what += ["state"] if a.state != b.state else []
        what += ["exit_code"] if _ran(a) and _ran(b) and a.exit_code != b.exit_code else []
        both = a.state == b.state == "SUCCEEDED"
        what += ["result"] if both and facts.outputs.get(a.id) != facts.outputs.get(b.id) else []
        what += ["duration"] if _durations_differ(a.duration, b.duration) else []
    if not what:
        return None
    requests = [facts.requests.get(task.id) if task is not None else None for task in (a, b)]
    known = next(request for request in reversed(requests) if request is not None)
    return wire.JobDifference(
        label=(a or b).label,  # type: ignore[union-attr]
        what=what,  # type: ignore[arg-type]
        states=(a.state if a else None, b.state if b else None),
        exit_codes=(a.exit_code if a else None, b.exit_code if b else None),
        durations_s=(a.duration if a else None, b.duration if b else None),
        function=f"{known.package_name}:{known.func_name}" if known.func_name is not None else None,
        codes=(requests[0].code if requests[0] else None, requests[1].code if requests[1] else None),
    )


def _ran(task: JobTaskLine) -> bool:
    return task.deduped_from is None


def _what_was_submitted(a: JobTaskLine, b: JobTaskLine, facts: _Facts) -> Iterator[str]:
    one, two = facts.requests[a.id], facts.requests[b.id]
    code = (one.identity or one.code) != (two.identity or two.code)
    if code:
        yield "code"
    others = [[_others(request), _properties(facts.slices[request.id])] for request in (one, two)]
    same_code = one.code == two.code
    if others[0] != others[1] or (same_code and a.definition_hash != b.definition_hash and not _inputs(a, b, facts)):
        yield "definition"
    if _inputs(a, b, facts):
        yield "inputs"


def _inputs(a: JobTaskLine, b: JobTaskLine, facts: _Facts) -> bool:
    return facts.inputs.get(a.id) != facts.inputs.get(b.id)


def _others(request: RequestRow) -> dict[str, object]:
    return {name: value for name, value in structs.asdict(request).items() if name not in _NOT_COMPARED}


def _properties(slices: Sequence[SliceRow]) -> list[object]:
    return [(one.properties, one.expiration, one.wait_for_capacity) for one in slices]


def _durations_differ(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return False
    return max(a, b) >= SLOWER_BY * min(a, b) and abs(a - b) >= SLOWER_BY_S
