"""Simulate an epidemic for many parameters on bots, and plot the peaks as an SVG file.

myrmidon up                          # in another terminal
python examples/parameter_sweep.py sweep.svg
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from myrmidon import Client, task


@dataclass
class Model:
    infection: float
    """Infections per day and infected person."""
    recovery: float
    """The share of the infected that recovers each day."""


@dataclass
class Outcome:
    model: Model
    peak: float
    """The largest share of people that are infected at the same time."""
    day: int


@task(cache=True, timeout="5m")  # an equal call that has succeeded before answers at once
def simulate(model: Model, days: int = 365) -> Outcome:
    healthy, infected = 0.999, 0.001
    best = Outcome(model, infected, 0)
    for day in range(1, days + 1):
        new = min(healthy, model.infection * infected * healthy)
        healthy, infected = healthy - new, infected + new - model.recovery * infected
        if infected > best.peak:
            best = Outcome(model, infected, day)
    return best


def plot(outcomes: list[Outcome]) -> str:
    """One line for each rate of recovery: the peak over the rate of infection."""
    width, height, margin = 640, 400, 50
    highest = max(outcome.model.infection for outcome in outcomes)
    lines = []
    for number, recovery in enumerate(sorted({outcome.model.recovery for outcome in outcomes})):
        points = sorted((one.model.infection, one.peak) for one in outcomes if one.model.recovery == recovery)
        path = " ".join(
            f"{margin + x / highest * (width - 2 * margin):.1f},{height - margin - y * (height - 2 * margin):.1f}"
            for x, y in points
        )
        colour = f"hsl({number * 60}, 70%, 45%)"
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        lines.append(
            f'<text x="{margin + 8}" y="{margin + 16 * number}" fill="{colour}">recovery {recovery:.2f}</text>'
        )
    axes = f'<path stroke="#888" fill="none" d="M{margin} {margin}V{height - margin}H{width - margin}"/>'
    label = f'<text x="{width / 2}" y="{height - 15}" text-anchor="middle">infections per day</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    return "\n".join([head, axes, label, *lines, "</svg>", ""])


def main() -> None:
    models = [Model(infection / 20, recovery) for infection in range(1, 25) for recovery in (0.05, 0.1, 0.2, 0.4)]
    with Client() as client:
        outcomes = list(client.map(simulate, models))
    worst = max(outcomes, key=lambda outcome: outcome.peak)
    print(f"{len(outcomes)} simulations; the highest peak is {worst.peak:.0%} on day {worst.day}, with {worst.model}")
    Path(sys.argv[1] if len(sys.argv) > 1 else "sweep.svg").write_text(plot(outcomes))


if __name__ == "__main__":
    main()
