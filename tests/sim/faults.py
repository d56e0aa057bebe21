"""Faults: how likely each one is under a seed, and how often each one struck."""

from __future__ import annotations

from collections import Counter
from random import Random

SECOND = 1_000_000

# Each with the most that its rate may be. Of a call: per call. Of a machine: expected number per run.
OF_CALLS = {
    "request lost": 0.06,
    "reply lost": 0.06,
    "call duplicated": 0.06,
    "call delayed": 0.04,
    "call reordered": 0.06,
    "store failed before": 0.04,
    "store failed at commit": 0.03,
    "store lost the commit's answer": 0.04,
    "store did it, caller saw an error": 0.03,
    "store unavailable": 0.02,
    "server killed inside a call": 0.004,
}
OF_MACHINES = {
    "bot killed, journal kept": 6.0,
    "bot killed, journal lost": 6.0,
    "bot frozen": 5.0,
    "server killed": 3.0,
    "clock jumped forward": 1.5,
    "clock jumped back": 1.5,
    "clock drifted": 2.0,
    "outage of all servers": 0.8,
}
# Found by looking rather than thrown: they show that a fault had its effect.
EFFECTS = (
    "verb run again, outcome unknown",
    "calls gone with a server",
    "calls refused by a server",
    "leases resumed",
    "sweep refused, clock untrusted",
    "late reply ignored",
    "claim repeated by its nonce",
    "stale report",
    "forged report refused",
)


class Faults:
    """The rates of one seed; all of them 0 once ``stop`` was called."""

    def __init__(self, rng: Random) -> None:
        self.calls = {name: most * _rate(rng) for name, most in OF_CALLS.items()}
        self.machines = {name: most * _rate(rng) for name, most in OF_MACHINES.items()}
        self.struck: Counter[str] = Counter()
        self.on = True

    def stop(self) -> None:
        self.on = False

    def drawn(self, rng: Random, name: str) -> bool:
        """Whether a fault of calls shall happen now; whoever makes it happen counts it."""
        return self.on and rng.random() < self.calls[name]

    def strikes(self, rng: Random, name: str) -> bool:
        """Whether a fault of calls happens now; counted."""
        if not self.drawn(rng, name):
            return False
        self.struck[name] += 1
        return True

    def note(self, name: str, n: int = 1) -> None:
        self.struck[name] += n


def _rate(rng: Random) -> float:
    """Some seeds are free of a fault, so that what another one does alone is seen too."""
    return 0.0 if rng.random() < 0.2 else rng.random()


def times(rng: Random, expected: float) -> int:
    """How often something happens that is expected so often."""
    whole = int(expected)
    return whole + (rng.random() < expected - whole)


def table(struck: Counter[str]) -> str:
    names = [*OF_CALLS, *OF_MACHINES, *EFFECTS]
    width = max(map(len, names))
    return "\n".join(f"  {name:{width}} {struck[name]:9,}" for name in names)
