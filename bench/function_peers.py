"""Ray and BullMQ as peers of the function benchmarks: long-lived drivers that run a workload when asked.

`make bench-peers` installs them into build/peers. One that is not installed is reported as missing.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1] / "build" / "peers"
DRIVERS = Path(__file__).parent / "peer_drivers"


class Driver:
    """A process of another system; `seconds` runs a workload there and returns how long it took."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._read()

    def seconds(self, workload: str, n: int) -> float:
        return float(self._ask(workload, n)["seconds"])

    def times(self, workload: str, n: int) -> list[float]:
        """The seconds of each of n calls."""
        return list(self._ask(workload, n)["times"])

    def _ask(self, workload: str, n: int) -> dict[str, Any]:
        if self.process.stdin is None:
            raise RuntimeError("the driver has no pipe")
        self.process.stdin.write(json.dumps({"workload": workload, "n": n}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise RuntimeError("the driver has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def ray() -> Iterator[Driver | None]:
    """A local Ray with two processors; None where it is not installed."""
    python = HOME / "ray" / "bin" / "python"
    if not python.exists():
        yield None
        return
    with _started([str(python), str(DRIVERS / "ray_driver.py")]) as driver:
        yield driver


@contextmanager
def bullmq() -> Iterator[Driver | None]:
    """BullMQ on a Redis of its own, which keeps everything in memory; None where one of them is not installed."""
    node, redis, modules = shutil.which("node"), shutil.which("redis-server"), HOME / "node" / "node_modules"
    if not (node and redis and modules.exists()):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="myrmidon-redis-") as folder, _free_port() as port:
        server = subprocess.Popen(
            [redis, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""],
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_for_port(port)
            script = HOME / "node" / "bullmq_driver.mjs"  # modules are found from where the script is
            shutil.copyfile(DRIVERS / script.name, script)
            with _started([node, str(script), str(port)]) as driver:
                yield driver
        finally:
            server.terminate()
            server.wait()


@contextmanager
def _started(words: list[str]) -> Iterator[Driver]:
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield Driver(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.wait(60)


@contextmanager
def _free_port() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    yield port


def _wait_for_port(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
