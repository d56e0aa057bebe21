"""The first page in one call, on every database: bots, queues, charts, what is stuck, whose work."""

from __future__ import annotations

import pytest

from myrmidon.server.background.activity import count_activity
from myrmidon.server.settings import Webhooks
from myrmidon.store.engine.db import Tx
from tests.server.contexts import a_task
from tests.server.inside import Inside, inside

SECOND = 1_000_000
OVERVIEW = "/api/v1/overview"


@pytest.fixture
def app(tmp_path, db_url):
    webhooks = Webhooks(allowed_networks=["127.0.0.0/8"])
    with inside(tmp_path, db_url, webhooks=webhooks) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


def later(app: Inside, micros: int) -> None:
    now = app.context.now
    app.context.now = lambda: now() + micros


def count_events(app: Inside) -> int:
    from myrmidon.store.tables import outbox

    app.context.db.engine.write(lambda tx: outbox.assign_positions(tx, 1000))
    return int(app.run(count_activity(app.context)))


def run_one(app: Inside) -> str:
    """A task that a bot has run."""
    run = app.running()
    app.end_run(run)
    return str(run["run"])


def test_an_empty_server_is_well(app):
    told = app.get(OVERVIEW).json
    assert set(told["bots"].values()) == {0}
    assert (told["queues"], told["stuck"], told["my_tasks"], told["my_jobs"]) == ([], [], [], [])
    assert (told["num_ready"], told["num_running"]) == (0, 0)


@pytest.mark.parametrize(("window", "steps"), [("1h", 60), ("24h", 96), ("7d", 84)])
def test_charts_count_what_began_and_ended_in_each_step(app, window, steps):
    app.meet_bot()
    [_, gone] = app.submit(a_task(), a_task())
    run_one(app)
    app.post(f"/api/v1/tasks/{gone}/cancel")
    assert count_events(app) > 0
    assert count_events(app) == 0, "each event counts once"
    series = app.get(f"{OVERVIEW}?window={window}").json["series"]
    names = ("submitted", "succeeded", "failed", "cancelled")
    assert {len(series[name]) for name in names} == {steps}
    assert [sum(series[name]) for name in names] == [3, 1, 0, 1]
    assert series["start"] + steps * series["step"] > app.context.now()
    other = app.get(f"{OVERVIEW}?window={window}", token=app.token("viewer", "other")).json["series"]
    assert [sum(other[name]) for name in names] == [0, 0, 0, 0], "of another resource group"


def test_counts_survive_a_restored_database_and_are_deleted_in_time(app):
    app.submit(a_task())
    count_events(app)
    app.context.db.engine.write(lambda tx: tx.run("UPDATE sinks SET position = 1000000 WHERE name = 'activity'"))
    app.submit(a_task())
    count_events(app)
    app.submit(a_task())
    count_events(app)
    assert sum(app.get(OVERVIEW).json["series"]["submitted"]) == 2, "what came before the reset was not seen"
    later(app, 9 * 86_400 * SECOND)
    app.submit(a_task())
    count_events(app)
    assert app.context.db.engine.read(lambda tx: tx.all("SELECT SUM(num) FROM activity"))[0][0] == 1


def test_bots_are_counted_by_their_status(app):
    for name in ("b1", "b2", "b3"):
        app.meet_bot(name)
    app.post("/api/v1/bots/b2/quarantine", {"reason": "broken"})
    app.post("/api/v1/bots/b3/drain", {"draining": True})
    app.running()
    counts = app.get(OVERVIEW).json["bots"]
    assert {status: num for status, num in counts.items() if num} == {
        "idle": 1, "quarantined": 1, "draining": 1, "busy": 1,
    }  # fmt: skip
    listed = {bot["status"] for bot in app.get("/api/v1/bots").json["bots"]}
    assert listed == {"idle", "quarantined", "draining", "busy"}, "as in the list"
    counted = app.get("/api/v1/bots/counts").json
    assert counted["counts"] == counts
    assert sum(counted["versions"].values()) == 4
    later(app, 3600 * SECOND)
    assert app.get(OVERVIEW).json["bots"]["silent"] == 4


def test_the_deepest_queue_comes_first(app):
    app.submit(*(a_task() for _ in range(3)))
    app.submit(a_task(dimensions={"pool": ["default"], "os": ["Mac"]}))
    told = app.get(OVERVIEW).json
    assert [(queue["dimensions"]["os"], queue["num_ready"]) for queue in told["queues"]] == [
        (["Linux"], 3),
        (["Mac"], 1),
    ]
    assert told["num_ready"] == 4
    assert app.get(OVERVIEW, token=app.token("user", "other")).json["queues"] == []


def test_what_does_not_move_is_named(app):
    app.submit(a_task(dimensions={"pool": ["nowhere"]}))
    run = app.running()
    hook = app.post("/api/v1/webhooks", {"url": "http://127.0.0.1:65535/hook", "kinds": ["task-pending"]}).json["id"]

    def fail(tx: Tx) -> None:
        tx.run("UPDATE webhooks SET num_failures = 5")

    app.context.db.engine.write(fail)
    assert [item["kind"] for item in app.get(OVERVIEW).json["stuck"]] == ["webhook"], "the others may still move"
    app.post(f"/api/v1/tasks/{run['run'][:-2]}00/cancel", {"kill_running": True})
    later(app, 400 * SECOND)
    stuck = app.get(OVERVIEW).json["stuck"]
    assert [item["kind"] for item in stuck] == ["queue", "run", "run", "webhook"]
    assert stuck[0]["name"] == "pool:nowhere"
    assert {stuck[1]["id"], stuck[2]["id"]} == {run["run"]}
    assert (stuck[3]["id"], stuck[3]["name"]) == (hook, "127.0.0.1:65535")
    for role in ("viewer", "user"):
        assert app.get(OVERVIEW, token=app.token(role, "other")).json["stuck"] == []
    assert "webhook" not in str(app.get(OVERVIEW, token=app.token("viewer")).json["stuck"])


def test_my_work_is_what_i_have_submitted(app):
    mine = app.submit(a_task(), token=app.token("user"))
    app.submit(a_task())
    job = {"name": "j", "tasks": {"a": {"task": {"payload": {"command": ["true"]}}}}}
    my_job = app.post("/api/v1/jobs", {"job": job}, token=app.token("user")).json["job_id"]
    app.post("/api/v1/jobs", {"job": job})
    told = app.get(OVERVIEW, token=app.token("user")).json
    assert [task["task_id"] for task in told["my_tasks"]][-1:] == mine
    assert len(told["my_tasks"]) == 2, "with the task of the job"
    assert [job["job_id"] for job in told["my_jobs"]] == [my_job]
    listed = app.get("/api/v1/tasks?mine=true", token=app.token("user")).json["tasks"]
    assert len(listed) == 2
    by_user = app.submit(a_task(user="ann"))
    assert [task["task_id"] for task in app.get("/api/v1/tasks?user=ann").json["tasks"]] == by_user
