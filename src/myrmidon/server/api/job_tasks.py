"""The tasks of a job: page by page, and as a graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import translate
from functools import partial

from msgspec import structs

from myrmidon.model.dag import topological_order
from myrmidon.model.ids import parse_id, show_task
from myrmidon.model.states import FINAL
from myrmidon.scheduler.check_job import depths
from myrmidon.server.calls import JOB_READERS, Call, Routes
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.jobs import get_job
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.server.usecases.run_errors import NO_END, ShownEnd, shown_ends
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import edge
from myrmidon.store.tables.job import Job
from myrmidon.store.views import job_details, task_values
from myrmidon.store.views.job_details import GraphNode, ListedTask
from myrmidon.wire import jobs as wire
from myrmidon.wire.labels import natural_order

ROUTES = Routes()

_NATURAL, _BYTES = "n", "b"
"""The order of a list, as its cursor begins."""
NATURAL_LIMIT = 1_000
"""Tasks of a job whose list is sorted with the numbers in labels as numbers, which the database cannot."""
SCAN_LIMIT = 10_000
"""Tasks that one page with a pattern reads, at most."""
_NUMBER_AT_END = re.compile(r"[-_./: ]?\d+$")


# ---------------------------------------------------------------- page by page


@ROUTES.add("GET", "/api/v1/jobs/{id}/tasks", JOB_READERS, "List the tasks of a job", query=wire.JobTasksQuery)
async def list_job_tasks(context: ServerContext, call: Call) -> wire.JobTasks:
    """The tasks of a job by label; the numbers in labels count as such, unless the job is large."""
    query: wire.JobTasksQuery = call.query
    job = await get_job(context, call, call.params["id"])
    kind = f"tasks of job {job.id}"
    order = _NATURAL if job.num_tasks <= NATURAL_LIMIT else _BYTES
    after = read_cursor(context.keys.cursor, kind, query.cursor) if query.cursor else order
    order, last = after[0], after[1:]  # a job that has grown since the first page is listed as before

    def read(tx: Tx) -> wire.JobTasks:
        page, more = (_natural_page if order == _NATURAL else _page)(tx, job, query, last)
        cursor = show_cursor(context.keys.cursor, kind, order + more) if more else None
        return wire.JobTasks(show_tasks(tx, page), cursor)

    return await context.db.read(read)


def _natural_page(tx: Tx, job: Job, query: wire.JobTasksQuery, after: str) -> tuple[list[ListedTask], str]:
    """As _page, of a job that is small enough to be sorted as a whole."""
    found, _ = _page(tx, job, structs.replace(query, limit=job.num_tasks), "")
    last = natural_order(after)
    left = sorted(
        (task for task in found if natural_order(task.shown.label) > last), key=lambda t: natural_order(t.shown.label)
    )
    page = left[: query.limit]
    return page, page[-1].shown.label if len(page) < len(left) else ""


def _page(tx: Tx, job: Job, query: wire.JobTasksQuery, after: str) -> tuple[list[ListedTask], str]:
    """The tasks that match, and the label to continue after; empty at the end."""
    pattern = re.compile(translate(query.label)) if query.label is not None else None
    prefix = re.split(r"[*?\[]", query.label, maxsplit=1)[0] if query.label is not None else ""
    found: list[ListedTask] = []
    scanned = 0
    while scanned < SCAN_LIMIT:
        page = job_details.tasks(
            tx, job.id, after=after, n=query.limit, states=query.state, since=query.since, prefix=prefix
        )
        scanned += len(page)
        for task in page:
            after = task.shown.label
            if prefix and not after.startswith(prefix):
                return found, ""  # labels are sorted: no further one can match
            if pattern is None or pattern.match(after):
                found.append(task)
                if len(found) == query.limit:
                    return found, after
        if len(page) < query.limit:
            return found, ""
    return found, after


def show_tasks(tx: Tx, page: Sequence[ListedTask]) -> list[wire.JobTask]:
    """Tasks with the labels of their parents."""
    ids = [task.id for task in page]
    parents = edge.parents(tx, ids) if ids else []
    left = job_details.unsatisfied_parents(tx, ids) if ids else []
    labels = job_details.labels_of(tx, sorted({parent for parent, _ in parents}))
    requires, requires_left = _by_child(parents, labels), _by_child(left, labels)
    ends = shown_ends(tx, {task.id: (task.evidence, task.error) for task in page if task.shown.state in FINAL})
    return [
        _complete(task.shown, requires.get(task.id, []), requires_left.get(task.id, []), ends.get(task.id, NO_END))
        for task in page
    ]


def _by_child(edges: Sequence[tuple[int, int]], labels: dict[int, str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for parent, child in edges:
        found.setdefault(child, []).append(labels.get(parent, show_task(parent)))
    return found


def _complete(task: wire.JobTask, requires: list[str], requires_left: list[str], end: ShownEnd) -> wire.JobTask:
    resolution = None
    if task.state in FINAL:
        url = f"/api/v1/tasks/{task.task_id}"
        resolution = wire.Resolution(url, f"{url}/log", task.state != "SUCCEEDED")
    return structs.replace(
        task,
        requires=requires,
        requires_left=requires_left,
        resolution=resolution,
        message=end.message,
        error=end.error,
    )


# ---------------------------------------------------------------- the graph


@ROUTES.add("GET", "/api/v1/jobs/{id}/graph", JOB_READERS, "Get the graph of a job", query=wire.GraphQuery)
async def get_graph(context: ServerContext, call: Call) -> wire.JobGraph:
    """The graph of a job: all nodes and edges, or, above ``max_nodes``, groups of nodes."""
    query: wire.GraphQuery = call.query
    job = await get_job(context, call, call.params["id"])
    nodes, edges = await context.db.read(partial(job_details.graph, job_id=job.id))
    graph = await context.db.run_in_thread(lambda: summarise(nodes, edges, query))
    if not query.values or not graph.edges:
        return graph
    return await context.db.read(lambda tx: structs.replace(graph, edge_values=_edge_values(tx, graph)))


def _edge_values(tx: Tx, graph: wire.JobGraph) -> list[wire.EdgeValue]:
    """The values on the edges that are shown."""
    ids = [parse_id(node.task_id)[0] for node in graph.nodes]
    edges = {(ids[parent], ids[child]): number for number, (parent, child) in enumerate(graph.edges)}
    found = task_values.on_edges(tx, sorted({child for _, child in edges}))
    return [
        wire.EdgeValue(edges[value.parent, value.child], value.type, value.size)
        for value in found
        if (value.parent, value.child) in edges
    ]


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
    num_nodes = len(chosen)
    if len(chosen) > query.max_nodes and len(chosen) == len(nodes):
        return _grouped(nodes, pairs, level)
    chosen = chosen[: query.max_nodes]
    position = {i: number for number, i in enumerate(chosen)}
    return wire.JobGraph(
        num_nodes=num_nodes,
        num_edges=len(pairs),
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


def _grouped(nodes: Sequence[GraphNode], pairs: Sequence[tuple[int, int]], level: Sequence[int]) -> wire.JobGraph:
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
        num_nodes=len(nodes),
        num_edges=len(pairs),
        nodes=[],
        edges=[],
        groups=groups,
        group_edges=[(a, b, n) for (a, b), n in sorted(between.items())],
    )
