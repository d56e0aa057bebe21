"""How much a process grows over many lives; run alone, so that nothing else has left room in it.

python -m bench.memory sqlite:///path LIVES WARM_UP BATCH     prints the growth in MB
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from bench.bed import Bed


def resident_mb() -> float:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not say how large this process is")


def main() -> None:
    url, lives, warm_up, batch = sys.argv[1], *map(int, sys.argv[2:5])
    bed = Bed(url)
    bed.greet()
    for _ in range(warm_up // batch):
        bed.live(bed.requests(batch))
    before = resident_mb()
    for _ in range(lives // batch):
        bed.live(bed.requests(batch))
    print(resident_mb() - before)
    bed.close()


if __name__ == "__main__":
    main()
