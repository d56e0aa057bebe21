"""PAGE: what the web page asks for. Its statements must have good plans too; READS_ALL lists those that need not."""

from __future__ import annotations

from typing import Any

from myrmidon.store.tables import activity
from myrmidon.store.views import (
    function_stats,
    job_details,
    job_history,
    listings,
    load,
    overview,
    queues,
    search,
    shared_values,
    task_values,
)
from myrmidon.store.views.job_details import JobFilter
from myrmidon.store.views.listings import MAX_ID, BotFilter, TaskFilter
from myrmidon.store.views.selection import GROUP_NAME
from tests.plans.hot import Call, Facts
from tests.world import World


def _first_view(tx: Any, w: World, f: Facts) -> Any:
    return (
        overview.deepest_queues(tx, group_id=None, n=20),
        overview.deepest_queues(tx, group_id=w.group, n=20),
        overview.bots_by_status(tx, None, w.now),
        overview.num_running(tx, w.group),
        overview.silent_runs(tx, group_id=None, before=w.now, n=20),
        overview.unkilled_runs(tx, group_id=w.group, before=w.now, n=20),
        activity.series(tx, group_id=None, start=w.now - 3600 * 10**6, step=60 * 10**6),
    )


def _lists_of_tasks(tx: Any, w: World, f: Facts) -> Any:
    filters = (
        TaskFilter(), TaskFilter(group_id=w.group), TaskFilter(states=["FAILED"]), TaskFilter(tags=["k:v", "os:Linux"]),
        TaskFilter(name="no such"), TaskFilter(bot_id="b1"), TaskFilter(user="joe"), TaskFilter(submitter="joe"),
    )  # fmt: skip
    return [listings.tasks(tx, one, n=100, cursor=None, oldest_first=old) for one in filters for old in (False, True)]


def _counts_of_tasks(tx: Any, w: World, f: Facts) -> Any:
    return [listings.count_tasks(tx, one) for one in (TaskFilter(name="no such"), TaskFilter(tags=["k:v"]))]


def _jobs(tx: Any, w: World, f: Facts) -> Any:
    return (
        job_details.jobs(tx, JobFilter(group_id=w.group, states=["FAILED"]), before=MAX_ID, n=100),
        job_details.jobs(tx, JobFilter(name="no such"), before=MAX_ID, n=100),
        job_history.newest(tx, group_id=w.group, n=100),
        job_history.runs_by_label(tx, [f["job"]]),
        job_history.times(tx, f["job"], after=0, n=100, path=()),
        job_history.critical_path(tx, f["job"]),
        job_history.failed_tasks(tx, f["job"], 100),
    )


def _bots(tx: Any, w: World, f: Facts) -> Any:
    listings.bots(tx, BotFilter(state="idle"), after="b1_500", n=100)
    return (load.runs_of_bot(tx, "b1"), listings.runs_of_bot(tx, "b1", group_id=None, before=MAX_ID, n=50))


def _search(tx: Any, w: World, f: Facts) -> Any:
    return (
        search.tasks_by_name(tx, "no such", group_id=w.group, n=8),
        search.tasks_by_id(tx, f["job"], f["job"] + 16, group_id=None, n=8),
        search.jobs_by_name(tx, "no such", group_id=None, n=8),
        search.jobs_by_id(tx, f["job"], f["job"] + 16, group_id=None, n=8),
        search.tags(tx, "k:", group_id=w.group, n=8),
    )


PAGE: dict[str, Call] = {
    "the first view": _first_view,
    "lists of tasks": _lists_of_tasks,
    "counts of tasks": _counts_of_tasks,
    "jobs": _jobs,
    "bots": _bots,
    "the palette": _search,
    "queues": lambda tx, w, f: queues.queues(tx, group_id=None, after=0, n=100),
    "waits of pools": lambda tx, w, f: load.waits(tx, w.group),
    "functions": lambda tx, w, f: function_stats.newest(tx, group_id=w.group),
    "values of a task": lambda tx, w, f: (
        task_values.inputs(tx, f["ids"]["z"], max_parts=100),
        task_values.outputs(tx, f["ids"]["x"]),
        task_values.inputs(tx, f["ids"]["y"], max_parts=100),
        task_values.on_edges(tx, sorted(f["ids"].values())[:100]),
    ),
    "shared values": lambda tx, w, f: shared_values.page(tx, group_id=None, before=MAX_ID, n=100),
}

READS_ALL = {
    f"SELECT d.id, {GROUP_NAME.format('d')}, d.pool, d.dimensions, q.num_ready": "counts what waits, by an index",
    "SELECT s.status, COUNT(*) FROM (SELECT CASE": "counts bots",
    "SELECT u.task_id, u.run, r.name, u.bot_id, b.heartbeat": "sorts live runs, of which each bot has few",
    "SELECT u.task_id, u.run, r.name, u.bot_id, t.modified_at": "sorts live runs, of which each bot has few",
    "SELECT u.task_id, u.run, r.name, u.state": "sorts the live runs of one bot",
    "SELECT id FROM task_results WHERE job_id = :job AND started_at": "sorts the tasks of one job",
    "SELECT t.id, t.completed_at FROM task_edges": "sorts the parents of one task",
    "SELECT j.id, j.state, j.creation_time": "ends at its limit, in the order of the key",
    "SELECT id FROM task_results ORDER BY id DESC LIMIT 1 OFFSET": "ends at its limit, in the order of the key",
    "SELECT id FROM task_requests ORDER BY id DESC LIMIT 1 OFFSET": "ends at its limit, in the order of the key",
    "SELECT id FROM jobs ORDER BY id DESC LIMIT 1 OFFSET": "ends at its limit, in the order of the key",
    "SELECT j.id, j.external_id": "reads a limited number of jobs, and the test has fewer",
    "SELECT jobs.id, jobs.name, jobs.state": "reads a limited number of jobs, and the test has fewer",
}
"""Beginnings of statements that read all of something, or sort it, and why they may."""
