"""Storms: real work on a real system while everything breaks, and then the question whether each promise was kept.

    make chaos                                                         two minutes on each database
    make chaos CHAOS_ARGS="--databases postgresql --seconds 1800 --servers 2"
    python -m tests.chaos --databases sqlite --bug token-guard         with a bug of tests/planted in the sources

The seed decides what is submitted and what breaks; what happens then also depends on the machine. Ends with 1 if a
promise was broken, and prints each violation with its evidence.
"""

from __future__ import annotations

import argparse
import faulthandler
import signal
import sys
import threading
import time
from collections import Counter
from typing import NamedTuple

from tests import databases, servers
from tests.chaos import checks
from tests.chaos.faults import Faults, evidence_of
from tests.chaos.ledger import Ledger, Violation
from tests.chaos.receivers import receiving
from tests.chaos.site import a_site
from tests.chaos.storm import Storm
from tests.planted.bugs import BUGS, Bug

SHOWN = 20
LINES = 60


class Outcome(NamedTuple):
    """What a storm has done and found."""

    work: Counter[str]
    faults: Counter[str]
    violations: list[Violation]
    last_faults: list[str]

    def text(self) -> str:
        lines = [f"{len(self.violations)} violations"]
        for one in self.violations[:SHOWN]:
            lines += [f"VIOLATION {one.promise}: {one.text}", *(f"    {line}" for line in one.evidence[:LINES])]
        if self.violations:
            lines += ["the last faults:", *(f"    {line}" for line in self.last_faults)]
        for title, counts in (("work", self.work), ("faults", self.faults)):
            lines += [f"{title}:", *(f"  {n:8,d}  {what}" for what, n in sorted(counts.items()))]
        return "\n".join(lines)


def storm(
    kind: str, *, seconds: float, seed: int, num_servers: int = 2, num_bots: int = 3, bug: Bug | None = None
) -> Outcome:
    """One storm on a new database. Call it from the main thread (see site.py)."""
    disk_mb = 160 + round(seconds / 2)
    with a_site(kind, num_servers=num_servers, num_bots=num_bots, disk_mb=disk_mb, bug=bug) as site:
        ledger = Ledger(site.notes)
        faults = Faults(site, seed)
        calm = threading.Event()
        with receiving(site, ledger, seed, calm):
            clients = Storm(site, ledger, seed, calm)
            clients.start()
            for what, step in (
                ("faults", lambda: faults.storm(seconds)),
                ("clients", clients.finish),
                ("drain", lambda: checks.drain(site, ledger)),
                ("tasks and jobs", lambda: checks.compare(site, ledger)),
                ("messages", lambda: checks.messages(site, ledger)),
            ):
                print(f"{kind}: {what} ...", file=sys.stderr, flush=True)
                step()
        for server in site.servers:
            server.stop()
        checks.database(site, ledger, time.time_ns() // 1000)
        return Outcome(ledger.counts + site.counts, faults.counts, ledger.violations, evidence_of(faults.done))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--databases", default=",".join(databases.DIALECTS), help="comma-separated")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long things break, for each database")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", type=int, default=2, help="servers on one database; SQLite has one")
    parser.add_argument("--bots", type=int, default=3)
    parser.add_argument("--bug", choices=[bug.name for bug in BUGS], help="plant this bug first", metavar="NAME")
    given = parser.parse_args(arguments)
    bug = next((bug for bug in BUGS if bug.name == given.bug), None)
    signal.signal(signal.SIGTERM, _end)
    faulthandler.register(signal.SIGUSR1)
    broken = 0
    for kind in given.databases.split(","):
        if why := servers.available().get(kind):
            print(f"{kind}: {why}")
            return 2
        began = time.monotonic()
        outcome = storm(
            kind, seconds=given.seconds, seed=given.seed, num_servers=given.servers, num_bots=given.bots, bug=bug
        )
        broken += len(outcome.violations)
        print(f"{kind}, seed {given.seed}, {time.monotonic() - began:.0f} s: {outcome.text()}", flush=True)
    return 1 if broken else 0


def _end(*_: object) -> None:
    """SIGTERM ends as Ctrl-C does: what was started is ended and removed."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
