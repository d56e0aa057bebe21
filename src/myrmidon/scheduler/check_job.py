"""What would happen to a job if it were submitted now: matching bots, earlier results, expected duration.

Reads without locks and changes nothing.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from myrmidon.model import dimensions
from myrmidon.model.dag import Dag
from myrmidon.model.ids import Micros
from myrmidon.model.task_request import TaskRequest
from myrmidon.scheduler.job_draft import JobDraft
from myrmidon.scheduler.policy import DEFAULT_RULES, Rules
from myrmidon.scheduler.predict import Plan, Prediction, predict
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.views import job_details

HISTORY = 100_000
"""How many of the newest tasks are searched for tasks with equal names."""


class CheckedNode(Struct, frozen=True, kw_only=True):
    """``live`` and ``other``: bots that match the node, able to work or not, in the slice that most able ones match."""

    label: str
    live: int
    other: int
    predicted: Prediction
    expected_s: float | None

    @property
    def deduped_from(self) -> int | None:
        return self.predicted.source


class CheckedJob(Struct, frozen=True, kw_only=True):
    plan: Plan
    nodes: list[CheckedNode]
    depth: int
    expected_s: float | None
    critical_path: list[str]


def check_job(tx: Tx, group_id: int, draft: JobDraft, *, now: Micros, rules: Rules = DEFAULT_RULES) -> CheckedJob:
    """Match every node of a valid graph with the fleet, with earlier results and with earlier durations."""
    nodes = draft.graph.nodes
    requests = [node.request for node in nodes]
    matching = _matching_bots(tx, {canonical for request in requests for canonical in _dimensions(request)})
    plan = predict(tx, group_id, draft, now=now, rules=rules)
    names = sorted({request.name for request in requests})
    durations = job_details.mean_durations(tx, group_id, names, sample=HISTORY)
    checked = []
    for node, predicted in zip(nodes, plan.nodes, strict=True):
        live, other = max(matching[canonical] for canonical in _dimensions(node.request))
        expected = 0.0 if predicted.source is not None else durations.get(node.request.name)
        checked.append(CheckedNode(label=node.label, live=live, other=other, predicted=predicted, expected_s=expected))
    path, seconds = critical_path(draft.dag, [node.expected_s for node in checked])
    known = any(node.expected_s is not None for node in checked)
    return CheckedJob(
        plan=plan,
        nodes=checked,
        depth=max(depths(draft.dag.parents, draft.dag.order), default=-1) + 1,
        expected_s=seconds if known else None,
        critical_path=[nodes[i].label for i in path] if known else [],
    )


def _dimensions(request: TaskRequest) -> list[str]:
    """What each slice requires of a bot."""
    return [dimensions.canonical(task_slice.properties.dimensions) for task_slice in request.slices]


def _matching_bots(tx: Tx, required: set[str]) -> Mapping[str, tuple[int, int]]:
    """For each set of dimensions how many bots match it: live ones that take work, and others."""
    by_pool: dict[str, list[tuple[dict[str, frozenset[str]], bool]]] = {}
    found: dict[str, tuple[int, int]] = {}
    for canonical in required:
        pool = dimensions.pool_of(canonical)
        if pool not in by_pool:
            rows = bots.bots_with(tx, f"pool:{pool}")
            by_pool[pool] = [(dimensions.bot_sets(bot.dimensions), bool(bot.serving)) for bot in rows]
        matches = [serving for has, serving in by_pool[pool] if dimensions.matches(canonical, has)]
        found[canonical] = (sum(matches), len(matches) - sum(matches))
    return found


def depths(parents: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """The length of the longest path to each node, in edges."""
    found = [0] * len(parents)
    for node in order:
        found[node] = max((found[parent] + 1 for parent in parents[node]), default=0)
    return found


def critical_path(dag: Dag, seconds: Sequence[float | None]) -> tuple[list[int], float]:
    """The path that takes longest, and its duration; an unknown duration counts as zero."""
    ends = [0.0] * len(seconds)
    before: list[int | None] = [None] * len(seconds)
    for node in dag.order:
        if dag.parents[node]:
            latest = max(dag.parents[node], key=ends.__getitem__)
            before[node], ends[node] = latest, ends[latest]
        ends[node] += seconds[node] or 0.0
    # Of equally late ends the last in order: it is below the others, or independent of them.
    last: int | None = max(reversed(dag.order), key=ends.__getitem__, default=None)
    total = ends[last] if last is not None else 0.0
    path: list[int] = []
    while last is not None:
        path.append(last)
        last = before[last]
    return path[::-1], total
