"""`job tree`, `job graph` and `job log`: the tasks of a job as a tree, as a drawing, and their output."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.jobs import JOB_ARGUMENT, describe_end, handle
from myrmidon.cli.logs import follow_log, print_log

if TYPE_CHECKING:
    from myrmidon.wire import jobs as wire

MAX_TREE: Final = 500
FAILED: Final = ["FAILED", "TIMED_OUT", "BOT_DIED", "EXPIRED", "CANCELED", "KILLED", "NO_RESOURCE", "CLIENT_ERROR"]
_COLOURS: Final = {
    "SUCCEEDED": "#2e7d32", "RUNNING": "#f9a825", "READY": "#0288d1", "WAITING": "#90a4ae", "CANCELED": "#8e24aa",
    "KILLED": "#8e24aa",
}  # fmt: skip
_FAILED_COLOUR: Final = "#c62828"


# ---------------------------------------------------------------- tree


@click.command()
@JOB_ARGUMENT
@click.option("--all", "everything", is_flag=True, help="Every task, also of a large job.")
@connected
def tree(cli: CliContext, name: str, *, everything: bool) -> None:
    """Show the tasks of a job as a tree: each below the parent that it is deepest under."""
    the_job = handle(cli, name)
    if cli.as_json:
        output.print_struct(list(the_job.tasks()))
        return
    info = the_job.info()
    if info.num_tasks > MAX_TREE and not everything:
        graph = the_job.graph(max_nodes=1)
        for line in group_lines(graph.groups):
            output.echo(line)
        output.note(f"{info.num_tasks} tasks in groups; --all shows each.")
        return
    for line in tree_lines(list(the_job.tasks())):
        output.echo(line)


def tree_lines(tasks: Sequence[wire.JobTask]) -> list[str]:
    """One line per task, indented below its deepest parent; further parents are named."""
    by_label = {task.label: task for task in tasks}
    depth = _depths(by_label)
    children: dict[str | None, list[wire.JobTask]] = {}
    for task in tasks:
        above = max((label for label in task.requires if label in by_label), key=depth.__getitem__, default=None)
        children.setdefault(above, []).append(task)
    lines: list[str] = []
    pending = [(task, 0, None) for task in reversed(children.get(None, []))]
    stack: list[tuple[wire.JobTask, int, str | None]] = list(pending)
    while stack:
        task, level, above = stack.pop()
        lines.append("  " * level + task_line(task, above))
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


def task_line(task: wire.JobTask, above: str | None) -> str:
    others = [label for label in task.requires if label != above]
    parts = [task.label, output.state(task.state)]
    if task.held:
        parts.append("(held)")
    if task.duration_s is not None:
        parts.append(str(output.duration(task.duration_s)))
    if task.exit_code:
        parts.append(f"exit code {task.exit_code}")
    if others:
        parts.append(f"(also after {', '.join(others[:3])}{', ...' if len(others) > 3 else ''})")
    return "  ".join(parts)


def group_lines(groups: Iterable[wire.GraphGroup]) -> list[str]:
    """One line per group of tasks whose labels begin alike, indented by depth."""
    return [
        "  " * min(group.depth, 20)
        + f"{group.prefix or 'tasks'}{'-*' if group.num_nodes > 1 else ''}  {output.plural(group.num_nodes, 'task')}  "
        + "  ".join(f"{output.state(state)} {n}" for state, n in sorted(group.counts.items()))
        for group in groups
    ]


# ---------------------------------------------------------------- drawing


@click.command()
@JOB_ARGUMENT
@click.option(
    "--format",
    "kind",
    type=click.Choice(["dot", "mermaid", "svg"]),
    default="dot",
    show_default=True,
    help="What to print.",
)
@connected
def graph(cli: CliContext, name: str, kind: str) -> None:
    """Draw the graph of a job, for Graphviz, Mermaid or as a picture; a large one in groups."""
    drawn = handle(cli, name).graph(max_nodes=5_000)
    if cli.as_json:
        output.print_struct(drawn)
        return
    nodes, edges = _drawing(drawn)
    output.echo_lines({"dot": _dot, "mermaid": _mermaid, "svg": _svg}[kind](nodes, edges))


def _drawing(graph: wire.JobGraph) -> tuple[list[tuple[str, str, int]], list[tuple[int, int]]]:
    """Nodes (text, state, depth) and edges by index; of a large graph its groups."""
    if not graph.groups:
        return [(node.label, node.state, node.depth) for node in graph.nodes], graph.edges
    nodes = [(f"{group.prefix} x{group.num_nodes}", _worst_state(group.counts), group.depth) for group in graph.groups]
    return nodes, [(a, b) for a, b, _ in graph.group_edges]


def _worst_state(counts: Mapping[str, int]) -> str:
    order = [*FAILED, "RUNNING", "READY", "WAITING", "SUCCEEDED"]
    return next((state for state in order if counts.get(state)), "WAITING")


def _colour(state: str) -> str:
    return _COLOURS.get(state, _FAILED_COLOUR)


def _dot(nodes: Sequence[tuple[str, str, int]], edges: Sequence[tuple[int, int]]) -> str:
    lines = ["digraph job {", "  rankdir=LR; node [shape=box, style=filled, fontcolor=white];"]
    for number, (text, state, _) in enumerate(nodes):
        shown = text.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  n{number} [label="{shown}", fillcolor="{_colour(state)}", tooltip="{state}"];')
    return "\n".join([*lines, *(f"  n{a} -> n{b};" for a, b in edges), "}"])


def _mermaid(nodes: Sequence[tuple[str, str, int]], edges: Sequence[tuple[int, int]]) -> str:
    lines = ["flowchart LR"]
    for number, (text, state, _) in enumerate(nodes):
        lines.append(f'  n{number}["{html.escape(text)}"]:::{state}')
    lines += [f"  n{a} --> n{b}" for a, b in edges]
    used = Counter(state for _, state, _ in nodes)
    return "\n".join([*lines, *(f"  classDef {state} fill:{_colour(state)},color:#fff" for state in used)])


def _svg(nodes: Sequence[tuple[str, str, int]], edges: Sequence[tuple[int, int]]) -> str:
    """Columns by depth. Enough to look at a graph of some hundred nodes without another program."""
    width, height, gap_x, gap_y = 180, 26, 60, 12
    rows: Counter[int] = Counter()
    places: list[tuple[int, int]] = []
    for _, _, depth in nodes:
        places.append((10 + depth * (width + gap_x), 10 + rows[depth] * (height + gap_y)))
        rows[depth] += 1
    total_x = 20 + (max(rows, default=0) + 1) * (width + gap_x)
    total_y = 20 + max(rows.values(), default=1) * (height + gap_y)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_x}" height="{total_y}" font-family="sans-serif"'
            ' font-size="12">'
        )
    ]
    for a, b in edges:
        (x1, y1), (x2, y2) = places[a], places[b]
        parts.append(
            f'<path d="M{x1 + width},{y1 + height // 2} C{x1 + width + gap_x // 2},{y1 + height // 2}'
            f' {x2 - gap_x // 2},{y2 + height // 2} {x2},{y2 + height // 2}" fill="none" stroke="#90a4ae"/>'
        )
    for (text, state, _), (x, y) in zip(nodes, places, strict=True):
        shown = text if len(text) <= 24 else f"{text[:23]}…"
        parts.append(
            f'<g><title>{html.escape(text)}: {state}</title><rect x="{x}" y="{y}" width="{width}" height="{height}"'
            f' rx="4" fill="{_colour(state)}"/>'
            f'<text x="{x + 8}" y="{y + 17}" fill="#fff">{html.escape(shown)}</text></g>'
        )
    return "\n".join([*parts, "</svg>"])


# ---------------------------------------------------------------- logs


@click.command()
@JOB_ARGUMENT
@click.option("--failed", is_flag=True, help="Only tasks that did not succeed.")
@click.option("--label", "pattern", metavar="GLOB", help="Only tasks whose label matches, such as 'test-*'.")
@click.option(
    "--follow", "-f", is_flag=True, help="Follow each task until it ends, one after the other, until the job ends."
)
@connected
def log(cli: CliContext, name: str, pattern: str | None, *, failed: bool, follow: bool) -> int:
    """Print the output of the tasks of a job, each below a line with its label."""
    the_job = handle(cli, name)
    printed: set[str] = set()
    while True:
        info = the_job.info()
        states = FAILED if failed else None
        ready = [task for task in the_job.tasks(state=states, label=pattern) if task.started_at or task.deduped_from]
        for task in sorted(ready, key=lambda task: task.started_at or 0):
            if task.task_id in printed or (not follow and task.resolution is None and failed):
                continue
            printed.add(task.task_id)
            _print_task_log(cli, task, follow=follow and task.resolution is None)
        if not follow or info.ended_at is not None:
            return exit_codes.of_job(info) if follow else exit_codes.OK
        the_job.poll(wait_s=1.0)


def _print_task_log(cli: CliContext, task: wire.JobTask, *, follow: bool) -> None:
    end = "" if task.resolution is None or not task.resolution.failed else f": {describe_end(task)}"
    output.note(f"--- {task.label}{end}")
    source = task.deduped_from or task.task_id
    if follow:
        follow_log(cli, source)
    else:
        print_log(cli, source)
