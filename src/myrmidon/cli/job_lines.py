"""Lines that show the tasks of a job: as a tree, in groups, and how a task ended.

The state and the duration of a task come first, at fixed columns: a line that is cut at the edge of a terminal loses
the end of a label, not these.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from myrmidon.cli import output
from myrmidon.sdk.exit_code import exit_code_text
from myrmidon.sdk.job_graph import FAILED, blockers, describe_end, short_message

if TYPE_CHECKING:
    from myrmidon.wire import jobs as wire

_ORDER: Final = (*FAILED, "RUNNING", "READY", "WAITING", "SUCCEEDED")
"""What a reader must see first, first."""
_STATE_COLUMNS: Final = 12
_TIME_COLUMNS: Final = 7
_MAX_INDENT: Final = 20
_GROUP_COLUMNS: Final = 30
_NAMED_PARENTS: Final = 3


def describe_end_on_bot(task: wire.Failure | wire.JobTask) -> str:
    """How a task ended, in words: its state, exit code, reason, bot and what the bot says."""
    return describe_end(task, where=f" on {task.bot_id}" if task.bot_id else "")


def counts_text(counts: Mapping[str, int]) -> str:
    """``2 FAILED, 8 RUNNING, 90 WAITING``: failures first."""
    known = [state for state in _ORDER if counts.get(state)]
    others = sorted(state for state, n in counts.items() if n and state not in _ORDER)
    return ", ".join(f"{counts[state]} {output.state(state)}" for state in [*known, *others])


def num_failed(counts: Mapping[str, int]) -> int:
    return sum(counts.get(state, 0) for state in FAILED)


def shortened(labels: Sequence[str], most: int = 8) -> list[str]:
    """The first and the last labels, with the number of those left out between them."""
    if len(labels) <= most:
        return list(labels)
    return [*labels[: most // 2], f"({len(labels) - most + 1} more)", *labels[-(most - most // 2 - 1) :]]


# ---------------------------------------------------------------- tree


def tree_lines(tasks: Collection[wire.JobTask]) -> list[str]:
    """One line per task, indented below its deepest parent; further parents and what blocks it are named."""
    by_label = {task.label: task for task in tasks}
    depth = _depths(by_label)
    blocked = blockers(tasks)
    children: dict[str | None, list[wire.JobTask]] = {}
    for task in tasks:
        above = max((label for label in task.requires if label in by_label), key=depth.__getitem__, default=None)
        children.setdefault(above, []).append(task)
    lines: list[str] = []
    stack: list[tuple[wire.JobTask, int, str | None]] = [(task, 0, None) for task in reversed(children.get(None, []))]
    while stack:
        task, level, above = stack.pop()
        others = [label for label in task.requires if label != above]
        lines.append(task_line(task, level=level, also_after=others, blocked_by=blocked.get(task.label)))
        stack += [(child, level + 1, task.label) for child in reversed(children.get(task.label, []))]
    return lines


def _depths(by_label: Mapping[str, wire.JobTask]) -> dict[str, int]:
    """The longest path to each task; without recursion, because a chain may be long."""
    depth: dict[str, int] = {}
    stack = list(by_label)
    while stack:
        label = stack[-1]
        missing = [parent for parent in by_label[label].requires if parent in by_label and parent not in depth]
        if missing:
            stack += missing
            continue
        parents = [depth[parent] for parent in by_label[label].requires if parent in by_label]
        depth[label] = 1 + max(parents, default=-1)
        stack.pop()
    return depth


def task_line(
    task: wire.JobTask, *, level: int = 0, also_after: Sequence[str] = (), blocked_by: str | None = None
) -> str:
    """The state of a task, how long its command took or has run, its label, and what is special about it."""
    state = output.state(task.state) + " " * (_STATE_COLUMNS - len(task.state))
    parts = ["  " * min(level, _MAX_INDENT) + task.label]
    if task.held:
        parts.append("(held)")
    if task.state == "RUNNING" and task.progress is not None:
        parts.append(f"{task.progress:.0%}")
    if task.state in FAILED and task.message:
        parts.append(short_message(task))
    elif task.exit_code:
        parts.append(exit_code_text(task.exit_code))
    elif task.state in FAILED and task.reason:
        parts.append(f"({task.reason})")
    if blocked_by is not None:
        parts.append(output.style(f"(cannot run: {blocked_by} did not succeed)", fg="red"))
    elif also_after:
        more = ", ..." if len(also_after) > _NAMED_PARENTS else ""
        parts.append(f"(also after {', '.join(also_after[:_NAMED_PARENTS])}{more})")
    return f"{state} {output.duration(_seconds(task)) or '':>{_TIME_COLUMNS}}  {'  '.join(parts)}"


def _seconds(task: wire.JobTask) -> float | None:
    """The time that the command took, or has run until now; the clocks of this machine and the server may differ."""
    if task.state == "RUNNING" and task.started_at is not None:
        return max(0.0, time.time() - task.started_at / 1e6)
    return task.duration_s


# ---------------------------------------------------------------- groups


def group_lines(groups: Iterable[wire.GraphGroup]) -> list[str]:
    """One line per group of tasks whose labels begin alike, indented by depth."""
    return [_group_line(group) for group in groups]


def _group_line(group: wire.GraphGroup) -> str:
    name = f"{group.prefix or 'tasks'}{'*' if group.num_nodes > 1 else ''}"
    indented = "  " * min(group.depth, _MAX_INDENT // 2) + name
    if len(indented) > _GROUP_COLUMNS:
        indented = f"{indented[: _GROUP_COLUMNS - 1]}…"
    return f"{indented:<{_GROUP_COLUMNS}}  {counts_text(group.counts)}"


def fit_groups(groups: Sequence[wire.GraphGroup], room: int) -> list[str]:
    """As many groups as fit, in their order; the others are summed up in the last line.

    Groups with failures are kept before those with running tasks, and these before others.
    """
    if len(groups) <= room:
        return group_lines(groups)
    kept = sorted(sorted(groups, key=_rank)[: max(room - 1, 0)], key=lambda group: group.id)
    shown = {group.id for group in kept}
    rest: dict[str, int] = {}
    for group in groups:
        if group.id not in shown:
            for state, n in group.counts.items():
                rest[state] = rest.get(state, 0) + n
    title = f"... {len(groups) - len(kept)} more groups"
    return [*group_lines(kept), f"{title:<{_GROUP_COLUMNS}}  {counts_text(rest)}"]


def _rank(group: wire.GraphGroup) -> int:
    if num_failed(group.counts):
        return 0
    return 1 if group.counts.get("RUNNING") else 2 if group.counts.get("READY") else 3
