"""Random typed graphs, run for real, give the results of the same calls in plain Python.

On SQLite with one server and one bot; on PostgreSQL and MariaDB with two servers and a bot on each.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from myrmidon import Client
from tests.functions.programs import plain_map, program
from tests.functions.site import Site

SETTINGS: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
PROGRAMS: dict[str, Any] = {"seed": st.integers(0, 1 << 30), "steps": st.integers(1, 25)}
SERVERS = pytest.mark.parametrize("dialect", ["postgresql", "mariadb"], indirect=True)


def run_and_compare(client: Client, seed: int, steps: int) -> None:
    with client.new_job("random") as job:
        handles = program(seed, steps, job.map)
    assert job.result(handles) == program(seed, steps, plain_map)


@settings(max_examples=40, **SETTINGS)
@given(**PROGRAMS)
def test_random_graphs_give_what_plain_python_gives(client: Client, seed: int, steps: int):
    run_and_compare(client, seed, steps)


@pytest.mark.untraced
@SERVERS
@settings(max_examples=8, **SETTINGS)
@given(**PROGRAMS, through=st.integers(0, 1))
def test_random_graphs_on_two_servers_give_what_plain_python_gives(site: Site, seed: int, steps: int, through: int):
    run_and_compare(site.clients[through], seed, steps)


@pytest.mark.soak
@pytest.mark.untraced
@SERVERS
@settings(max_examples=150, **SETTINGS)
@given(**PROGRAMS, through=st.integers(0, 1))
def test_many_random_graphs_on_two_servers_give_what_plain_python_gives(
    site: Site, seed: int, steps: int, through: int
):
    run_and_compare(site.clients[through], seed, steps)
