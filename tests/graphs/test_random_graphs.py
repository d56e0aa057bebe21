"""Random graphs over HTTP on the three databases, with random failures, lost bots, extensions and cancels."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack
from typing import Any

import pytest

from tests.bot.test_live import live_bot
from tests.graphs.live import Graphs, checked
from tests.graphs.story import Story
from tests.invariants import Checker
from tests.live import live_server
from tests.server.inside import inside

BLOCK = 50
"""Seeds of one test of the soak: one database is enough for them, and it stays small."""


def live(db_url, tmp_path, seeds):
    with inside(tmp_path, db_url) as app:
        checker = Checker()
        for seed in seeds:
            print(f"seed {seed}")  # what pytest shows of a failure ends with it
            Story(app, seed, checker).live()


def test_whatever_happens_to_a_few_graphs_all_invariants_hold(db_url, tmp_path):
    live(db_url, tmp_path, range(3))


@pytest.mark.full
@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 500, BLOCK))
def test_whatever_happens_to_500_graphs_all_invariants_hold(db_url, tmp_path, first):
    live(db_url, tmp_path, range(first, first + BLOCK))


# ---------------------------------------------------------------- on real bots

SCRIPTS = ("true", "true", "echo out; echo err >&2", "sleep 0.05", "exit 1", "kill -9 $$")


@pytest.fixture(scope="module")
def real_bots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    with ExitStack() as stack:
        server = stack.enter_context(live_server(sweep_s=0.1, heartbeat_s=0.3))
        bots = [stack.enter_context(live_bot(server, folder / f"random-{n}", "random")) for n in (1, 2)]
        yield Graphs(server, "random"), bots


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 20))])
def test_a_random_graph_on_real_bots_ends_and_all_invariants_hold(real_bots, seed, tmp_path):
    """Odd seeds kill a bot with -9 while it works; every fourth one cancels the job."""
    graphs, bots = real_bots
    rng = random.Random(seed)
    go = tmp_path / "go"

    def some(names, known):
        made: dict[str, Any] = {}
        for name in names:
            parents = rng.sample([*known, *made], min(len(known) + len(made), rng.choice((0, 1, 2))))
            policy = rng.choice(("all-succeeded", "all-resolved"))
            made[name] = graphs.node(rng.choice(SCRIPTS), *parents, requires_policy=policy, reruns=rng.choice((0, 1)))
        return made

    first = some([f"n{n}" for n in range(rng.randint(5, 12))], [])
    gate = graphs.node(f"while [ ! -e {go} ]; do sleep 0.02; done", task={"retries": 3})
    job = graphs.submit({"gate": gate, **first})
    job.until("gate", "RUNNING")
    job.extend(some([f"m{n}" for n in range(5)], ["gate", *first]))
    if seed % 2:
        os.kill(rng.choice(bots).worker(), signal.SIGKILL)
    if seed % 4 == 2:
        job.do("cancel")
    go.touch()
    told, states = job.wait(), set(job.settle() and job.states().values())
    assert (told["state"] == "CANCELLED") == (seed % 4 == 2)
    assert (told["state"] == "SUCCEEDED") == (states == {"SUCCEEDED"}) or told["state"] == "CANCELLED"
    checked(graphs.server)
