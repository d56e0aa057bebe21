"""Run seeds: `python -m tests.sim --seeds 0-499`. With `--seed N -v` one seed tells its whole history."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.sim.databases import databases_for
from tests.sim.faults import table
from tests.sim.run import run


def main() -> int:
    args = _arguments()
    first, _, last = args.seeds.partition("-") if args.seed is None else (str(args.seed), "", "")
    struck: Counter[str] = Counter()
    states: Counter[str] = Counter()
    failed = []
    began = time.perf_counter()
    seeds = range(int(first), int(last or first) + 1)
    tasks = events = 0
    with databases_for(args.database) as fresh:
        for seed in seeds:
            try:
                with fresh() as dbs:
                    outcome = run(seed, dbs, verbose=args.verbose, trouble=not args.calm)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this seed
                failed.append(seed)
                print(f"seed {seed} failed: {type(error).__name__}: {error}", file=sys.stderr)
                if args.verbose or args.traceback:
                    traceback.print_exc()
                print(f"  replay: python -m tests.sim --seed {seed} --database {args.database} -v", file=sys.stderr)
                continue
            struck += outcome.struck
            states += outcome.states
            tasks += outcome.tasks
            events += outcome.events
            if args.seed is not None:
                print(f"history {outcome.history}")
    seconds = time.perf_counter() - began
    n = len(seeds)
    print(
        f"{n} seeds on {args.database}, {len(failed)} failed, {seconds / n:.3f} s per seed,"
        f" {tasks / n:.0f} tasks and {events / n:.0f} events per seed"
    )
    print("faults and what they did:")
    print(table(struck))
    print("states when quiet:", ", ".join(f"{state} {n:,}" for state, n in states.most_common()))
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0-19", help="a range, 0-499")
    parser.add_argument("--database", default="sqlite", choices=("sqlite", "postgresql", "mariadb"))
    parser.add_argument("--calm", action="store_true", help="no faults at all")
    parser.add_argument("--traceback", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell every event")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
