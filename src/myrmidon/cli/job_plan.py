"""The plan of a job: what `job submit --plan` and `job check` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext
from myrmidon.cli.job_lines import shortened

if TYPE_CHECKING:
    from myrmidon.wire import jobs as wire

_SHOWN_LABELS = 20


def show_plan(cli: CliContext, plan: wire.JobCheck, *, resume: bool = False) -> int:
    """Print a plan; fails if a node could not run on any live bot. With ``resume``, say why each node runs."""
    if cli.as_json:
        output.print_struct(plan)
    else:
        expected = output.duration(plan.expected_s)
        known = f" (known for {plan.num_with_known_duration} of {plan.num_tasks})" if expected else ""
        output.fields(
            [
                ("job", plan.name),
                ("tasks", f"{plan.num_tasks}, {output.plural(plan.num_edges, 'edge')}, {plan.depth} deep"),
                ("the same job as", plan.attached_to),
                ("supersedes", plan.supersedes),
                ("from earlier results", plan.num_deduped or None),
                ("without a live bot", plan.num_without_bots or None),
                (
                    "expected duration",
                    f"{expected}{known}" if expected else "unknown: no such task has run yet",
                ),
                ("critical path", " -> ".join(shortened(plan.critical_path)) or None),
            ]
        )
        if resume:
            _show_why(plan)
        nowhere = [node for node in plan.nodes if not node.live_bots and node.deduped_from is None]
        for node in nowhere[:_SHOWN_LABELS]:
            dead = f"; {output.plural(node.dead_bots, 'bot')} would match but cannot work now" if node.dead_bots else ""
            output.note(f"{node.label}: no live bot matches{dead}.")
        if len(nowhere) > _SHOWN_LABELS:
            output.note(f"... and {len(nowhere) - _SHOWN_LABELS} more.")
    return exit_codes.FAILED if plan.num_without_bots else exit_codes.OK


def _show_why(plan: wire.JobCheck) -> None:
    from myrmidon.sdk.plan import why_it_runs  # late, for startup time

    running = [node for node in plan.nodes if node.deduped_from is None]
    for node in running[:_SHOWN_LABELS]:
        output.echo(f"{node.label} runs: {why_it_runs(node)}")
    if len(running) > _SHOWN_LABELS:
        output.note(f"... and {len(running) - _SHOWN_LABELS} more run.")
