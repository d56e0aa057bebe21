"""Plant every bug, or those named, and say which of them the tests have caught."""

from __future__ import annotations

import sys

from tests.planted.bugs import BUGS, why_missed


def main(names: list[str]) -> int:
    chosen = [bug for bug in BUGS if not names or bug.name in names]
    missed = 0
    for bug in chosen:
        trouble = why_missed(bug)
        missed += bool(trouble)
        print(f"{'MISSED' if trouble else 'caught'}  {bug.name}: {bug.why}", flush=True)
        if trouble:
            print("    " + trouble.replace("\n", "\n    "), flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs were caught")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
