"""The tasks of a job: page by page, as a graph, as results, and compared with those of another job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import translate
from functools import partial

from myrmidon.model.dag import topological_order
from myrmidon.model.ids import show_run, show_task
from myrmidon.model.states import FINAL, JobState
from myrmidon.scheduler.check_job import depths
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.api.common import show_optional_task
from myrmidon.server.api.jobs import summary_fields
from myrmidon.server.calls import JOB_READERS, READERS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.run_errors import NO_END, ShownEnd, shown_ends
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import edge, resource_group
from myrmidon.store.views import job_details, job_values
from myrmidon.store.views.job_details import GraphNode, JobTaskLine
from myrmidon.wire import jobs as wire
from myrmidon.wire.fields import PageQuery

SCAN_LIMIT = 10_000
"""Tasks that one page with a pattern reads, at most."""
_NUMBER_AT_END = re.compile(r"[-_./: ]?\d+$")
SLOWER_BY = 1.5
SLOWER_BY_S = 1.0


# ---------------------------------------------------------------- page by page


async def list_job_tasks(context: ServerContext, call: Call) -> wire.JobTasks:
    """The tasks of a job by label."""
    query: wire.JobTasksQuery = call.query
    job = await get_job(context, call, call.params["id"])
    kind = f"tasks of job {job.id}"
    after = read_cursor(context.keys.cursor, kind, query.cursor) if query.cursor else ""

    def read(tx: Tx) -> wire.JobTasks:
        page, more = _page(tx, job.id, query, after)
        cursor = show_cursor(context.keys.cursor, kind, more) if more else None
        return wire.JobTasks(show_tasks(tx, page), cursor)

    return await context.db.read(read)


def _page(tx: Tx, job_id: int, query: wire.JobTasksQuery, after: str) -> tuple[list[JobTaskLine], str]:
    """The tasks that match, and the label to continue after; empty at the end."""
    pattern = re.compile(translate(query.label)) if query.label is not None else None
    prefix = re.split(r"[*?\[]", query.label, maxsplit=1)[0] if query.label is not None else ""
    found: list[JobTaskLine] = []
    scanned = 0
    while scanned < SCAN_LIMIT:
        page = job_details.tasks(
            tx, job_id, after=after, n=query.limit, states=query.state, since=query.since, prefix=prefix
        )
        scanned += len(page)
        for task in page:
            if prefix and not task.label.startswith(prefix):
                return found, ""  # labels are sorted: no further one can match
            after = task.label
            if pattern is None or pattern.match(task.label):
                found.append(task)
                if len(found) == query.limit:
                    return found, after
        if len(page) < query.limit:
            return found, ""
    return found, after


def show_tasks(tx: Tx, page: Sequence[JobTaskLine]) -> list[wire.JobTask]:
    """Tasks with the labels of their parents."""
    ids = [task.id for task in page]
    parents = edge.parents(tx, ids) if ids else []
    left = job_details.unsatisfied_parents(tx, ids) if ids else []
    labels = job_details.labels_of(tx, sorted({parent for parent, _ in parents}))
    requires, requires_left = _by_child(parents, labels), _by_child(left, labels)
    ends = shown_ends(tx, {task.id: (task.evidence, task.error) for task in page if task.state in FINAL})
    return [
        _show_task(task, requires.get(task.id, []), requires_left.get(task.id, []), ends.get(task.id, NO_END))
        for task in page
    ]


def _by_child(edges: Sequence[tuple[int, int]], labels: dict[int, str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for parent, child in edges:
        found.setdefault(child, []).append(labels.get(parent, show_task(parent)))
    return found


def _show_task(task: JobTaskLine, requires: list[str], requires_left: list[str], end: ShownEnd) -> wire.JobTask:
    shown = show_task(task.id)
    final = task.state in FINAL
    url = f"/api/v1/tasks/{shown}"
    return wire.JobTask(
        label=task.label,
        task_id=shown,
        state=task.state,  # type: ignore[arg-type]
        reason=task.reason,
        requires=requires,
        requires_left=requires_left,
        reruns=task.reruns,
        reruns_left=max(task.reruns - task.num_reruns, 0),
        resolution=wire.Resolution(url, f"{url}/log", task.state != "SUCCEEDED") if final else None,
        held=bool(task.held),
        killing=bool(task.killing),
        priority=task.priority,
        bot_id=task.bot_id,
        run=show_run(task.id, task.run) if task.run else None,
        exit_code=task.exit_code if final else None,
        deduped_from=show_optional_task(task.deduped_from),
        ready_at=task.ready_at,
        started_at=task.started_at,
        completed_at=task.completed_at,
        modified_at=task.modified_at,
        waited_s=(task.started_at - task.ready_at) / SECOND if task.started_at and task.ready_at else None,
        duration_s=task.duration if final else None,
        progress=task.progress,
        message=end.message,
        error=end.error,
    )


# ---------------------------------------------------------------- the graph


async def get_graph(context: ServerContext, call: Call) -> wire.JobGraph:
    """The graph of a job: all nodes and edges, or, above ``max_nodes``, groups of nodes."""
    query: wire.GraphQuery = call.query
    job = await get_job(context, call, call.params["id"])
    nodes, edges = await context.db.read(partial(job_details.graph, job_id=job.id))
    return await context.db.run_in_thread(lambda: summarise(nodes, edges, query))


def summarise(nodes: Sequence[GraphNode], edges: Sequence[tuple[int, int]], query: wire.GraphQuery) -> wire.JobGraph:
    """The graph in at most ``max_nodes`` nodes, or in groups by depth and by the beginning of their labels."""
    index = {node.id: i for i, node in enumerate(nodes)}
    pairs = [(index[parent], index[child]) for parent, child in edges]
    parents: list[list[int]] = [[] for _ in nodes]
    for parent, child in pairs:
        parents[child].append(parent)
    level = depths(parents, topological_order(parents))
    if query.prefix is not None or query.depth is not None:
        chosen = [
            i for i, node in enumerate(nodes)
            if query.depth in (None, level[i]) and query.prefix in (None, label_prefix(node.label))
        ]  # fmt: skip
    else:
        chosen = list(range(len(nodes)))
    sizes = {"num_nodes": len(chosen), "num_edges": len(pairs)}
    if len(chosen) > query.max_nodes and len(chosen) == len(nodes):
        return _grouped(nodes, pairs, level, sizes)
    chosen = chosen[: query.max_nodes]
    position = {i: number for number, i in enumerate(chosen)}
    return wire.JobGraph(
        **sizes,
        nodes=[_graph_node(nodes[i], level[i]) for i in chosen],
        edges=[(position[a], position[b]) for a, b in pairs if a in position and b in position],
        groups=[],
        group_edges=[],
    )


def label_prefix(label: str) -> str:
    """A label without the number at its end, which tells apart tasks of the same kind: ``test-17`` and ``test-18``."""
    return _NUMBER_AT_END.sub("", label) or label


def _graph_node(node: GraphNode, depth: int) -> wire.GraphNode:
    return wire.GraphNode(
        label=node.label,
        task_id=show_task(node.id),
        state=node.state,  # type: ignore[arg-type]
        held=bool(node.held),
        depth=depth,
    )


def _grouped(
    nodes: Sequence[GraphNode], pairs: Sequence[tuple[int, int]], level: Sequence[int], sizes: dict[str, int]
) -> wire.JobGraph:
    """Groups by depth and prefix; where there are more than the limit of those, by depth alone."""
    keys: list[tuple[int, str]] = [(level[i], label_prefix(node.label)) for i, node in enumerate(nodes)]
    if len(set(keys)) > wire.MAX_NODES:
        keys = [(depth, "") for depth, _ in keys]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    counts: dict[tuple[int, str], Counter[str]] = {key: Counter() for key in numbers}
    for key, node in zip(keys, nodes, strict=True):
        counts[key][node.state] += 1
    between = Counter((numbers[keys[a]], numbers[keys[b]]) for a, b in pairs)
    groups = [
        wire.GraphGroup(id=number, prefix=prefix, depth=depth, num_nodes=counts[key].total(), counts=dict(counts[key]))
        for key, number in numbers.items()
        for depth, prefix in [key]
    ]
    return wire.JobGraph(
        **sizes, nodes=[], edges=[], groups=groups, group_edges=[(a, b, n) for (a, b), n in sorted(between.items())]
    )


# ---------------------------------------------------------------- results


async def get_outputs(context: ServerContext, call: Call) -> wire.JobOutputs:
    """The results of the tasks that have no children: their states, exit codes and values."""
    query = call.query
    job = await get_job(context, call, call.params["id"])
    kind = f"outputs of job {job.id}"
    after = int(read_cursor(context.keys.cursor, kind, query.cursor)) if query.cursor else 0

    def read(tx: Tx) -> wire.JobOutputs:
        ids = job_details.output_tasks(tx, job.id, after=after, n=query.limit)
        tasks = job_details.tasks_by_id(tx, ids)
        produced = job_values.outputs(tx, ids)
        return wire.JobOutputs(
            ready=job.state == JobState.SUCCEEDED,
            state=JobState(job.state).value,
            tasks=[
                wire.TaskOutputs(
                    label=tasks[task_id].label,
                    task_id=show_task(task_id),
                    state=tasks[task_id].state,  # type: ignore[arg-type]
                    exit_code=tasks[task_id].exit_code,
                    values=[
                        wire.OutputValue(
                            value_id=show_task(value.id),
                            type=value.type,
                            size=value.size,
                            data=value.payload,
                            digest=value.digest,
                        )
                        for value in produced.get(task_id, [])
                    ],
                )
                for task_id in ids
            ],
            error=job.error,
            cursor=show_cursor(context.keys.cursor, kind, str(ids[-1])) if len(ids) == query.limit else None,
        )

    return await context.db.read(read)


# ---------------------------------------------------------------- comparison


async def compare_jobs(context: ServerContext, call: Call) -> wire.JobComparison:
    """The labels of two jobs that differ: missing in one, or with another definition, result or duration."""
    query: wire.CompareQuery = call.query
    first = await get_job(context, call, call.params["id"])
    second = await get_job(context, call, query.other)
    kind = f"difference of {first.id} and {second.id}"
    after = read_cursor(context.keys.cursor, kind, query.cursor) if query.cursor else ""

    def read(tx: Tx) -> wire.JobComparison:
        differences: list[wire.JobDifference] = []
        num_equal, more = 0, ""
        for a, b in _side_by_side(job_details.all_tasks(tx, first.id), job_details.all_tasks(tx, second.id)):
            difference = _difference(a, b)
            num_equal += difference is None
            if difference is None or difference.label <= after:
                continue
            if len(differences) == query.limit:
                more = differences[-1].label
                continue
            differences.append(difference)
        names = resource_group.names(tx, sorted({first.resource_group_id, second.resource_group_id}))
        return wire.JobComparison(
            first=wire.JobSummary(**summary_fields(first, names)),
            second=wire.JobSummary(**summary_fields(second, names)),
            differences=differences,
            num_equal=num_equal,
            cursor=show_cursor(context.keys.cursor, kind, more) if more else None,
        )

    return await context.db.read(read)


def _side_by_side(
    first: Iterator[JobTaskLine], second: Iterator[JobTaskLine]
) -> Iterator[tuple[JobTaskLine | None, JobTaskLine | None]]:
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


def _difference(a: JobTaskLine | None, b: JobTaskLine | None) -> wire.JobDifference | None:
    what: list[str] = []
    if a is None or b is None:
        what.append("only_in_second" if a is None else "only_in_first")
    else:
        what += ["definition"] if a.definition_hash != b.definition_hash else []
        what += ["state"] if a.state != b.state else []
        what += ["exit_code"] if a.exit_code != b.exit_code else []
        what += ["duration"] if _durations_differ(a.duration, b.duration) else []
    if not what:
        return None
    return wire.JobDifference(
        label=(a or b).label,  # type: ignore[union-attr]
        what=what,  # type: ignore[arg-type]
        states=(a.state if a else None, b.state if b else None),
        exit_codes=(a.exit_code if a else None, b.exit_code if b else None),
        durations_s=(a.duration if a else None, b.duration if b else None),
    )


def _durations_differ(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return False
    return max(a, b) >= SLOWER_BY * min(a, b) and abs(a - b) >= SLOWER_BY_S


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/tasks",
        call=list_job_tasks,
        who=JOB_READERS,
        query=wire.JobTasksQuery,
        out=wire.JobTasks,
        summary="List the tasks of a job",
    ),
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/graph",
        call=get_graph,
        who=JOB_READERS,
        query=wire.GraphQuery,
        out=wire.JobGraph,
        summary="Get the graph of a job",
    ),
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/outputs",
        call=get_outputs,
        who=JOB_READERS,
        query=PageQuery,
        out=wire.JobOutputs,
        summary="Get the results of a job",
    ),
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/compare",
        call=compare_jobs,
        who=READERS,
        query=wire.CompareQuery,
        out=wire.JobComparison,
        summary="Compare two jobs",
    ),
)
