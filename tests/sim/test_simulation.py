"""Seeds of the simulator, in chunks that workers can share; a failing seed says how to replay it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests import databases
from tests.sim.databases import in_memory, on_server
from tests.sim.faults import OF_CALLS, OF_MACHINES
from tests.sim.run import NUM_BOTS, NUM_SERVERS, run

CHUNK = 10
SQLITE_SEEDS = 500
SERVER_SEEDS = 50
SHORT = 60
SERVER_SHORT = 4
"""Seeds of the short suite, on SQLite and on each server."""
SOAK_SEEDS = 10_000
SOAK_CHUNK = 100
SERVER_CHUNK = 2


def simulate(seeds: range, kind: str, fresh: Callable[[], AbstractContextManager[list[Any]]]) -> Counter[str]:
    """Every seed of a chunk; the first that fails tells how to see it again."""
    struck: Counter[str] = Counter()
    for seed in seeds:
        try:
            with fresh() as dbs:
                outcome = run(seed, dbs)
        except Exception as error:
            error.add_note(f"replay: python -m tests.sim --seed {seed} --database {kind} -v")
            raise
        assert outcome.tasks >= 200
        struck += outcome.struck
    return struck


def chunks(n: int, size: int, *, short: int = 0) -> list[Any]:
    """The seeds below n in chunks; the short suite has those below `short`."""
    parts = [range(at, min(at + size, n)) for at in range(0, n, size)]
    return [
        pytest.param(part, id=f"{part[0]}-{part[-1]}", marks=[pytest.mark.full] if part[0] >= short else [])
        for part in parts
    ]


@pytest.mark.untraced
@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
@pytest.mark.parametrize("seeds", chunks(SQLITE_SEEDS, CHUNK, short=SHORT))
def test_every_seed_keeps_all_promises_on_sqlite(seeds: range, dialect: str) -> None:
    struck = simulate(seeds, dialect, in_memory)
    assert all(struck[name] for name in OF_CALLS if name != "server killed inside a call"), struck
    assert sum(struck[name] for name in OF_MACHINES) > len(seeds)


@pytest.mark.untraced
@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("seeds", chunks(SERVER_SEEDS, SERVER_CHUNK, short=SERVER_SHORT))
def test_every_seed_keeps_all_promises_on_a_server(
    seeds: range, dialect: str, server_databases: Callable[[str], databases.ServerDatabase]
) -> None:
    simulate(seeds, dialect, lambda: on_server(server_databases(dialect)))


@pytest.mark.soak
@pytest.mark.untraced
@pytest.mark.parametrize("seeds", chunks(SOAK_SEEDS, SOAK_CHUNK))
def test_ten_thousand_seeds_keep_all_promises(seeds: range) -> None:
    simulate(seeds, "sqlite", in_memory)


@pytest.mark.untraced
def test_a_seed_is_a_whole_history_and_another_seed_another() -> None:
    histories = []
    for seed in (7, 7, 8):
        with in_memory() as dbs:
            histories.append(run(seed, dbs).history)
    assert histories[0] == histories[1]
    assert histories[0] != histories[2]


def test_without_faults_nothing_is_lost_and_nothing_strikes() -> None:
    with in_memory() as dbs:
        outcome = run(3, dbs, trouble=False)
    assert not any(outcome.struck[name] for name in (*OF_CALLS, *OF_MACHINES))
    assert outcome.tasks >= 200


def test_the_cast_is_as_large_as_promised() -> None:
    assert NUM_SERVERS >= 3
    assert NUM_BOTS >= 20
