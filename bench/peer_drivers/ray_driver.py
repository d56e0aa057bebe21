"""Runs the workloads of bench/functions.py on Ray: reads one JSON request per line, answers with the seconds it took.

Started by bench/function_peers.py with the interpreter of an environment that has Ray: a local cluster with two
processors and Ray's own defaults.
"""

import json
import os
import sys
import time

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import ray  # type: ignore[import-not-found] # it reads the variable when it is imported

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)


@ray.remote
def noop(x):
    return x


MODULUS = 1_000_003  # as in bench/function_tasks.py


@ray.remote
def add(a, b):
    return (a + b) % MODULUS


@ray.remote
def megabyte(number):
    return bytes([number % 256]) * 1_000_000


@ray.remote
def total_size(*parts):
    return sum(len(part) for part in parts)


def many(n):
    assert sum(ray.get([noop.remote(i) for i in range(n)])) == n * (n - 1) // 2


def one(n):
    """n calls one after another; the time of each is answered, not the sum."""
    times = []
    for i in range(n):
        start = time.perf_counter()
        ray.get(noop.remote(i))
        times.append(time.perf_counter() - start)
    return times


def layers(n):
    """n layers of n tasks, each of which adds two of the layer before."""
    row = [noop.remote(1) for _ in range(n)]
    for _ in range(n - 1):
        row = [add.remote(row[j], row[(j + 1) % n]) for j in range(n)]
    assert ray.get(row) == [pow(2, n - 1, MODULUS)] * n


def chain(n):
    value = noop.remote(0)
    for _ in range(n - 1):
        value = noop.remote(value)
    assert ray.get(value) == 0


def values(n):
    assert ray.get(total_size.remote(*[megabyte.remote(i) for i in range(n)])) == n * 1_000_000


WORKLOADS = {"many": many, "one": one, "layers": layers, "chain": chain, "values": values}


def main():
    many(500)
    print(json.dumps({"ready": ray.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        times = WORKLOADS[request["workload"]](request["n"])
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "times": times}), flush=True)


if __name__ == "__main__":
    main()
