"""Any graph, any failures: no child runs before its parents, every task ends, counters equal edges."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from myrmidon.model.errors import InvalidRequest, WrongState
from myrmidon.model.ids import IdSource
from myrmidon.model.task_result import Fault
from myrmidon.scheduler import cancel, rerun
from tests import databases
from tests.builders import World, a_graph, finished
from tests.conftest import Clock
from tests.invariants import Checker, check_settled

FATES = st.sampled_from(["ok", "ok", "ok", "ok", "fail", "fault", "give back", "lose", "cancel", "again"])


@pytest.fixture(scope="module")
def new_world():
    """Makes a world for each example."""
    folder = databases.scratch_folder()
    files = databases.SqliteFiles(folder)

    @contextmanager
    def make():
        url = files.migrated()
        db = databases.open_for_test(url)
        try:
            yield World(db, Clock(), IdSource(1))
        finally:
            db.close()
            files.remove(url)

    yield make
    shutil.rmtree(folder)


@st.composite
def graphs(draw):
    """A DAG, by label with parents, and the policies of its nodes."""
    n = draw(st.integers(1, 12))
    parents = [sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(n)]
    edges = {str(i): [str(parent) for parent in mine] for i, mine in enumerate(parents)}
    policies = st.sampled_from(["all-succeeded", "all-succeeded", "all-resolved"])
    few = st.integers(0, 1)
    nodes = {x: {"requires_policy": draw(policies), "reruns": draw(few), "retries": draw(few)} for x in edges}
    return edges, nodes


def satisfied(states, parents, policy):
    if policy == "all-resolved":
        return all(states[parent] not in ("WAITING", "READY", "RUNNING") for parent in parents)
    return all(states[parent] == "SUCCEEDED" for parent in parents)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(graph=graphs(), retries=st.integers(0, 1), fast=st.booleans(), data=st.data())
def test_no_child_runs_before_its_parents_and_every_task_ends(new_world, graph, retries, fast, data):
    edges, nodes = graph
    with new_world() as w:
        w.bots("b1", "b2")
        policy = "fail-fast" if fast else "continue"
        job = w.job(edges, nodes=nodes, max_num_retries=retries, failure_policy=policy, deadline_s=100_000)
        checker = Checker()
        for _ in range(40):
            runs = w.claim("b1", data.draw(st.integers(1, 3)))
            states = w.states(job)
            for run in runs:
                label = job.label(run.task_id)
                fed = satisfied(states, edges[label], nodes[label]["requires_policy"])
                assert fed or w.task(run.task_id).forced
            for run in runs:
                if data.draw(st.booleans()):
                    grow(w, run, job, edges, nodes, data)
                live(w, run, job, data.draw(FATES))
            w.sweep()
            checker.check(w.db)
            if not w.job_row(job).num_active:
                break
        w.advance(100_001)
        w.sweep()
        check_settled(w.db, w.now)
        assert not set(w.states(job).values()) & {"WAITING", "READY", "RUNNING"}


def grow(w, run, job, edges, nodes, data):
    """A running task adds a task, and with it parents to those that wait for it; what cannot be is refused whole."""
    label = job.label(run.task_id)
    states = w.states(job)
    waiting = [x for x, parents in edges.items() if label in parents and states[x] == "WAITING"]
    if len(edges) > 20 or not waiting:
        return
    new, some = f"x{len(edges)}", st.sampled_from(sorted(edges))
    own = sorted(data.draw(st.sets(some, max_size=2)))
    wanted = {x: sorted({new, *data.draw(st.sets(some, max_size=2))} - {x}) for x in waiting}
    before = w.count("task_edges")
    try:
        w.extend(job, {}, raw={**a_graph({new: own}), "requires": wanted})
    except (InvalidRequest, WrongState):
        assert w.count("task_edges") == before
        return
    edges[new], nodes[new] = own, {"requires_policy": "all-succeeded"}
    for child, parents in wanted.items():
        edges[child] = sorted({*edges[child], *parents})


def live(w, run, job, fate):
    """What becomes of one run."""
    match fate:
        case "ok":
            w.report(finished(run))
        case "fail":
            w.report(finished(run, 1))
        case "fault":
            w.report(Fault(task_id=run.task_id, run=run.run, token=run.token, kind="reboot"))
        case "give back":
            w.give_back(run)
        case "lose":
            w.start(run)
            w.lose("b1")
        case "cancel":
            w.do(cancel.cancel, [run.task_id])
            w.report(finished(run))
        case "again":
            w.report(finished(run))
            if w.job_state(job) in ("RUNNING", "SUCCEEDED", "FAILED") and w.task(run.task_id).run_number < 5:
                w.carry()
                w.do(rerun.rerun, run.task_id, force=True, cascade=True)
