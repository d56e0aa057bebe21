"""The speed of the whole: `make bench`, or `python -m bench [--only NAME,NAME] [--quick]`.

A table of what was measured, with figures of other systems that are installed in turn with ours; then one line per bar.
"""

from __future__ import annotations

import argparse
import signal
import sys

from bench import bars, commands, fleet, functions, graphs, relay, resume, submit_rate, v1

BARS = (
    *commands.BARS[:3],
    *fleet.BARS,
    *commands.BARS[3:],
    *submit_rate.BARS,
    *v1.BARS,
    *graphs.BARS,
    *relay.BARS,
    *functions.BARS,
    *resume.BARS,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAMES", help="the bars to measure, with commas between")
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    asked = parser.parse_args()
    wanted = bars.chosen(BARS, asked.only)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else its files and servers would stay
    lines = commands.measure([bar for bar in wanted if bar in commands.BARS], quick=asked.quick)
    lines += fleet.measure_bars([bar for bar in wanted if bar in fleet.BARS], quick=asked.quick)
    lines += submit_rate.measure_bars([bar for bar in wanted if bar in submit_rate.BARS], quick=asked.quick)
    lines += v1.measure_bars([bar for bar in wanted if bar in v1.BARS], quick=asked.quick)
    lines += graphs.measure_bars([bar for bar in wanted if bar in graphs.BARS], quick=asked.quick)
    lines += relay.measure_bars([bar for bar in wanted if bar in relay.BARS], quick=asked.quick)
    lines += functions.measure_bars([bar for bar in wanted if bar in functions.BARS], quick=asked.quick)
    lines += resume.measure_bars([bar for bar in wanted if bar in resume.BARS], quick=asked.quick)
    print()
    names = [bar.name for bar in BARS]
    for line in sorted(lines, key=lambda line: names.index(line.split()[1])):
        print(line)


if __name__ == "__main__":
    main()
