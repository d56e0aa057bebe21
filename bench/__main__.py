"""The speed of the whole: `make bench`, or `python -m bench [--only NAME,NAME] [--quick]`.

Prints what is measured, with figures of other systems that are installed in turn with ours, and the line of each bar
when it is known; `... | grep ^bar` prints these lines only.
"""

from __future__ import annotations

import argparse
import signal
import sys

from bench import bars, commands, counts, fleet, functions, graphs, relay, resume, submit_rate, v1

PARTS = (counts, commands, fleet, submit_rate, v1, graphs, relay, functions, resume)
BARS = [bar for part in PARTS for bar in part.BARS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAMES", help="the bars to measure, with commas between")
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    asked = parser.parse_args()
    wanted = bars.chosen(BARS, asked.only)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else its files and servers would stay
    for part in PARTS:
        if here := [bar for bar in wanted if bar in part.BARS]:
            part.measure_bars(here, quick=asked.quick)


if __name__ == "__main__":
    main()
