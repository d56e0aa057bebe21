"""`job tree` and `job graph`: the tasks of a job as a tree, and as a drawing."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.job_lines import group_lines, tree_lines
from myrmidon.cli.jobs import JOB_ARGUMENT, handle
from myrmidon.sdk.job_graph import FAILED

if TYPE_CHECKING:
    from myrmidon.wire import jobs as wire

MAX_TREE: Final = 500
_COLOURS: Final = {
    "SUCCEEDED": "#2e7d32", "RUNNING": "#f9a825", "READY": "#0288d1", "WAITING": "#90a4ae", "CANCELLED": "#8e24aa",
    "KILLED": "#8e24aa",
}  # fmt: skip
_FAILED_COLOUR: Final = "#c62828"


# ---------------------------------------------------------------- tree


@click.command()
@JOB_ARGUMENT
@click.option("--all", "everything", is_flag=True, help="Every task, also of a large job.")
@connected
def tree(cli: CliContext, name: str, *, everything: bool) -> None:
    """Show the tasks of a job as a tree. Each is below its deepest parent; a large job is shown in groups."""
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
    """Draw the graph of a job. A large one is drawn in groups."""
    drawn = handle(cli, name).graph(max_nodes=5_000)
    if cli.prints(drawn):
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
