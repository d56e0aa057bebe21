"""Other systems doing the same, as far as they are installed here: for the table, no bar is theirs.

`MYRMIDON_PEERS` names the folder of their drivers (default: peers in the folder shared beside the checkout),
`PEERS_HOME` the one with an environment for each. A driver appends its figures to a file of JSON lines. What is missing
is not mentioned.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DRIVERS = Path(os.environ.get("MYRMIDON_PEERS") or Path(__file__).parents[2] / "shared" / "peers")
HOME = Path(os.environ.get("PEERS_HOME") or Path(tempfile.gettempdir()) / "peers")
OWN = ("ray", "dramatiq", "dask", "celery", "procrastinate")
"""Those that live in an environment of their own."""


def installed() -> dict[str, list[str]]:
    """The command of each driver that can run here."""
    found = {}
    if shutil.which("parallel") and (DRIVERS / "bench_parallel.py").exists():
        found["parallel"] = [sys.executable, str(DRIVERS / "bench_parallel.py")]
    for name in OWN:
        python, driver = HOME / name / "bin" / "python", DRIVERS / f"bench_{name}.py"
        if python.exists() and driver.exists():
            found[name] = [str(python), str(driver), *(["redis"] if name == "celery" else [])]
    return found


def commands_per_second(command: list[str]) -> dict[str, float]:
    """What one run of a driver says of /bin/true, by system; nothing when it does not work."""
    with tempfile.TemporaryDirectory(prefix="myrmidon-peers-") as folder:
        out = Path(folder) / "results.jsonl"
        (HOME / "data").mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "PEERS_OUT": str(out), "PEERS_RUNS": "1", "PEERS_HOME": str(HOME)}
        subprocess.run(command, cwd=DRIVERS, env=env, check=False, capture_output=True)
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return {line["peer"]: line["median"] for line in lines if line["workload"] == "W4 /bin/true"}
