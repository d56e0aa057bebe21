"""Jobs, functions, bots and pools over time, searches, and changes of many tasks, on every database."""

from __future__ import annotations

import gzip
import json
from functools import partial
from typing import Any

import pytest

from myrmidon.model.ids import parse_id
from myrmidon.model.task_request import Payload
from myrmidon.model.value import GroupOwner
from myrmidon.scheduler import shared_values
from myrmidon.server.api import task_actions
from myrmidon.server.api.job_history import telling_line
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import shared_value
from myrmidon.store.views import listings
from tests.server.contexts import a_task
from tests.server.inside import Inside, inside

SECOND = 1_000_000


@pytest.fixture
def app(tmp_path, db_url):
    with inside(tmp_path, db_url) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


def later(app: Inside, micros: int) -> None:
    now = app.context.now
    app.context.now = lambda: now() + micros


class Worker:
    """A bot that runs what it is told to, with the exit codes that it is given."""

    def __init__(self, app: Inside, name: str = "b1") -> None:
        self.app, self.name, self.nonce = app, name, 0
        app.meet_bot(name)

    def claim(self) -> dict[str, Any] | None:
        found = self._exchange(n=1, wait_s=0)["tasks"]
        return dict(found[0]) if found else None

    def finish(self, run: dict[str, Any], exit_code: int = 0, output: bytes = b"", **fields: Any) -> None:
        if output:
            headers = {"x-run-token": run["token"]}
            path = f"/bot/v1/log/{run['run']}/1?offset=0"
            assert self.app.call("POST", path, output, token=self._token, headers=headers).status == 200
        report = {"type": "finish", "run": run["run"], "token": run["token"], "exit_code": exit_code, "duration": 1.0}
        reply = self._exchange(n=0, reports=[report | fields])
        assert reply["replies"][0]["outcome"] == "accepted", reply

    def run_all(self, exit_codes: dict[str, int] | None = None, output: bytes = b"") -> None:
        """Run everything that is ready, by label."""
        while run := self.claim():
            label = self.label(run)
            later(self.app, SECOND)
            self.finish(run, (exit_codes or {}).get(label, 0), output)

    def label(self, run: dict[str, Any]) -> str:
        return str(self.app.get(f"/api/v1/tasks/{run['run'][:-2]}00").json["request"]["name"])

    @property
    def _token(self) -> str:
        return self.app.credential(self.name)

    def _exchange(self, **fields: Any) -> dict[str, Any]:
        self.nonce += 1
        reply = self.app.post("/bot/v1/exchange", {"session": 1, "nonce": self.nonce, **fields}, token=self._token)
        assert reply.status == 200, reply
        return dict(reply.json)


def a_job(app: Inside, name: str = "nightly", token: str | None = None, **parents: list[str]) -> str:
    tasks = {
        label: {"task": {"payload": {"command": ["true"]}, "metadata": {"name": label}}, "requires": requires}
        for label, requires in parents.items()
    }
    reply = app.post("/api/v1/jobs", {"job": {"name": name, "tasks": tasks}}, token=token)
    assert reply.status == 200, reply
    return str(reply.json["job_id"])


# ---------------------------------------------------------------- jobs


def test_names_of_jobs_have_their_last_runs(app):
    worker = Worker(app)
    jobs = [a_job(app, a=[]), a_job(app, a=[])]
    worker.run_all()
    failed = a_job(app, a=[])
    worker.run_all({"a": 1})
    other = a_job(app, "weekly", a=[])
    names = app.get("/api/v1/job-names").json["names"]
    assert [(one["name"], one["num_jobs"], one["num_failed"]) for one in names] == [("weekly", 1, 0), ("nightly", 3, 1)]
    assert [run["job_id"] for run in names[1]["runs"]] == [failed, *jobs[::-1]]
    assert names[1]["runs"][0]["state"] == "FAILED"
    assert names[0]["runs"][0]["job_id"] == other
    assert app.get("/api/v1/job-names?limit=1").json["names"][0]["name"] == "weekly"
    assert app.get("/api/v1/job-names", token=app.token("viewer", "other")).json["names"] == []


def test_flaky_labels_are_told_with_the_bots_they_fail_on(app):
    good, bad = Worker(app, "good"), Worker(app, "bad")
    app.post("/api/v1/bots/bad/drain", {"draining": True})
    for _ in range(3):
        a_job(app, a=[], b=[])
        good.run_all()
    app.post("/api/v1/bots/bad/drain", {"draining": False})
    app.post("/api/v1/bots/good/drain", {"draining": True})
    for _ in range(2):
        a_job(app, a=[], b=[])
        bad.run_all({"a": 1})
    told = app.get("/api/v1/job-names/flaky?name=nightly").json
    assert told == {
        "num_jobs": 5,
        "labels": [
            {"label": "a", "num_runs": 5, "num_failed": 2, "bots": [{"bot_id": "bad", "num_runs": 2, "num_failed": 2}]}
        ],
    }
    assert app.get("/api/v1/job-names/flaky?name=nope").json == {"num_jobs": 0, "labels": []}
    theirs = app.get("/api/v1/job-names/flaky?name=nightly", token=app.token("user", "other")).json
    assert theirs["num_jobs"] == 0


def test_the_critical_path_is_the_chain_that_ended_last_also_while_it_runs(app):
    worker = Worker(app)
    job = a_job(app, a=[], b=[], c=["a", "b"], d=["c"])
    ids = {row["label"]: row["task_id"] for row in app.get(f"/api/v1/jobs/{job}/timeline").json["rows"]}
    assert set(ids) == {"a", "b", "c", "d"}
    assert app.get(f"/api/v1/jobs/{job}/timeline").json["critical_path"] == [], "nothing has begun"
    ended: list[str] = []
    while len(ended) < 2:  # a and b, in any order
        run = worker.claim()
        assert run is not None
        ended.append(worker.label(run))
        later(app, SECOND)
        worker.finish(run)
    last_parent = max("a", "b", key=ended.index)
    run = worker.claim()
    assert run is not None
    assert worker.label(run) == "c"
    told = app.get(f"/api/v1/jobs/{job}/timeline").json
    assert told["critical_path"] == [ids[last_parent], ids["c"]]
    later(app, SECOND)
    worker.finish(run)
    worker.run_all()
    told = app.get(f"/api/v1/jobs/{job}/timeline").json
    assert told["critical_path"] == [ids[last_parent], ids["c"], ids["d"]]
    rows = {row["label"]: row for row in told["rows"]}
    assert [label for label, row in rows.items() if row["critical"]] == sorted([last_parent, "c", "d"])
    for row in rows.values():
        assert row["ready_at"] <= row["started_at"] <= row["completed_at"]
    page = app.get(f"/api/v1/jobs/{job}/timeline?limit=2").json
    rest = app.get(f"/api/v1/jobs/{job}/timeline?limit=10&cursor={page['cursor']}").json
    assert [row["label"] for row in page["rows"] + rest["rows"]] == [row["label"] for row in told["rows"]]


@pytest.mark.parametrize(("accepted", "encoding"), [("gzip, br", "gzip"), ("gzip;q=0, br", None), ("", None)])
def test_a_large_answer_is_compressed_for_a_client_that_takes_it(app, accepted: str, encoding: str | None):
    job = a_job(app, **dict[str, Any]({f"step-{number}": [] for number in range(300)}))
    path = f"/api/v1/jobs/{job}/timeline"
    reply = app.get(path, headers={"accept-encoding": accepted})
    assert reply.headers.get("content-encoding") == encoding
    whole = gzip.decompress(reply.body) if encoding else reply.body
    assert len(json.loads(whole)["rows"]) == 300
    assert encoding is None or len(reply.body) < len(whole) / 5
    assert "content-encoding" not in app.get(f"{path}?limit=2", headers={"accept-encoding": accepted}).headers


def test_failures_are_grouped_with_their_last_lines_and_the_last_success(app):
    worker = Worker(app)
    good = a_job(app, a=[], b=[], c=[], d=[])
    worker.run_all()
    job = a_job(app, a=[], b=[], c=[], d=[])
    worker.run_all({"a": 3, "b": 3, "c": 4}, output=b"x" * 5000 + b"\nlast line\n\xff")
    told = app.get(f"/api/v1/jobs/{job}/failures").json
    assert (told["num_failed"], told["last_success"]) == (3, good)
    assert [(one["num_tasks"], one["exit_code"]) for one in told["groups"]] == [(2, 3), (1, 4)]
    assert {task["label"] for task in told["groups"][0]["tasks"]} == {"a", "b"}
    assert told["groups"][0]["tail"] == "last line\n\ufffd"
    assert app.get(f"/api/v1/jobs/{good}/failures").json == {"num_failed": 0, "groups": [], "last_success": None}


def test_failures_of_functions_are_grouped_by_class_and_place_and_not_by_message(app):
    worker = Worker(app)
    job = a_job(app, a=[], b=[], c=[], d=[])
    errors = {"a": (3, "parse"), "b": (7, "parse"), "c": (7, "load"), "d": (7, "load")}

    def write(tx: Tx) -> None:
        for label, (number, place) in errors.items():
            error = f'{{"type": "builtins.ValueError", "message": "bad {number}", "place": "r.py:1 in {place}"}}'
            tx.run(
                "UPDATE task_runs SET error = :error"
                " WHERE task_id = (SELECT task_id FROM task_labels WHERE label = :label)",
                error=error,
                label=label,
            )

    worker.run_all(dict.fromkeys("abcd", 1))
    app.context.db.engine.write(write)
    groups = app.get(f"/api/v1/jobs/{job}/failures").json["groups"]
    found = {group["error"]["place"]: [task["label"] for task in group["tasks"]] for group in groups}
    assert {place: sorted(labels) for place, labels in found.items()} == {
        "r.py:1 in parse": ["a", "b"],
        "r.py:1 in load": ["c", "d"],
    }
    assert {group["message"] for group in groups} <= {"ValueError: bad 3", "ValueError: bad 7"}


def test_failures_of_commands_are_grouped_by_the_line_that_tells_most_without_its_numbers(app):
    worker = Worker(app)
    job = a_job(app, a=[], b=[], c=[], d=[])
    output = {
        "a": b"Error: timeout after 31 s on 'x'\nbye\n",
        "b": b"Error: timeout after 7 s on 'yy'\n",
        "c": b"",
        "d": b"Error: disk full",
    }
    while run := worker.claim():
        worker.finish(run, 1, output[worker.label(run)])
    groups = app.get(f"/api/v1/jobs/{job}/failures").json["groups"]
    found = {group["message"]: sorted(task["label"] for task in group["tasks"]) for group in groups}
    assert next(iter(found.values())) == ["a", "b"]
    assert found[""] == ["c"]
    assert found["Error: disk full"] == ["d"]


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("ok\n\x1b[31mAssertionError: 3 != 4\x1b[0m\ncleaning up\n", "AssertionError: 3 != 4"),
        (
            "E       AssertionError: assert 3 == 4\n\ntests/test_cart.py:31: AssertionError\n",
            "AssertionError: assert 3 == 4",
        ),
        ("one\ntwo\n", "two"),
        ("", ""),
    ],
)
def test_the_line_that_tells_most_is_the_last_error_with_a_text(log: str, line: str):
    assert telling_line(log) == line


def test_failures_show_no_secret(app):
    worker = Worker(app)
    task = a_task(secret_bytes="c2VzYW1lLW9wZW4=")
    job = app.post("/api/v1/jobs", {"job": {"name": "s", "tasks": {"a": {"task": task}}}}).json
    assert "job_id" in job, job
    run = worker.claim()
    assert run is not None
    worker.finish(run, 1, b"the word is sesame-open\n")
    tail = app.get(f"/api/v1/jobs/{job['job_id']}/failures").json["groups"][0]["tail"]
    assert tail == "the word is ***********\n"


# ---------------------------------------------------------------- functions


def test_functions_have_durations_and_failures(app):
    worker = Worker(app)
    ids = app.submit(*(a_task() for _ in range(4)))

    def name_functions(tx: Tx) -> None:
        tx.run("UPDATE task_requests SET package_name = 'pkg', func_name = 'f'")

    def write_errors(tx: Tx) -> None:
        error = '{"type": "builtins.ValueError", "message": "no\\nmore"}'
        tx.run("UPDATE task_runs SET error = :error WHERE state = 'FAILED'", error=error)

    app.context.db.engine.write(name_functions)
    for exit_code in (0, 0, 1):
        run = worker.claim()
        assert run is not None
        later(app, 2 * SECOND)
        worker.finish(run, exit_code)
    app.context.db.engine.write(write_errors)
    [told] = app.get("/api/v1/functions").json["functions"]
    assert (told["name"], told["num_tasks"], told["num_failed"]) == ("pkg:f", 4, 1)
    assert told["p50_s"] >= 2
    one = app.get("/api/v1/functions/pkg:f").json
    assert one["summary"] == told
    assert [(error["state"], error["error"]) for error in one["errors"]] == [("FAILED", "builtins.ValueError: no")]
    assert [(version["code"], version["num_tasks"]) for version in one["versions"]] == [(None, 4)]
    assert {task["task_id"] for task in one["tasks"]} == set(ids)
    assert app.get("/api/v1/functions/pkg:g").json["summary"] is None
    assert app.get("/api/v1/functions", token=app.token("user", "other")).json["functions"] == []


# ---------------------------------------------------------------- bots and pools


def test_a_bots_chart_shows_when_it_was_busy(app):
    worker = Worker(app)
    app.submit(a_task(), a_task())
    later(app, 3600 * SECOND - app.context.now() % (3600 * SECOND))  # to the beginning of an hour
    run = worker.claim()
    assert run is not None
    later(app, 90 * SECOND)
    worker.finish(run, 1)
    later(app, 30 * SECOND)
    told = app.get("/api/v1/bots/b1/series").json
    assert [round(share, 1) for share in told["busy"][-3:]] == [1.0, 0.5, 0.0]
    assert (sum(told["failed"]), sum(told["succeeded"]), told["known_from"]) == (1, 0, None)
    live = worker.claim()
    assert live is not None
    later(app, 30 * SECOND)
    assert app.get("/api/v1/bots/b1/series").json["busy"][-1] == pytest.approx(1.0, abs=0.1)
    assert app.get("/api/v1/bots/nobody/series").status == 404


def test_the_load_of_a_pool_says_how_long_tasks_wait(app):
    worker = Worker(app)
    app.submit(*(a_task() for _ in range(4)))
    later(app, 10 * SECOND)
    assert worker.claim() is not None
    told = {pool["pool"]: pool for pool in app.get("/api/v1/pools/load").json["pools"]}["default"]
    assert (told["num_ready"], told["num_bots"], told["num_busy"], told["wanted_bots"]) == (3, 1, 1, 3)
    assert told["wait_p50_s"] == pytest.approx(10, abs=5)
    theirs = app.get("/api/v1/pools/load", token=app.token("user", "other")).json["pools"]
    assert [(pool["num_ready"], pool["wait_p50_s"]) for pool in theirs] == [(0, None)]


# ---------------------------------------------------------------- values


def test_shared_values_are_listed_with_sizes_and_references(app):
    groups = {name: app.run(app.context.groups.id_of(name, app.context.now())) for name in ("default", "other")}
    job = a_job(app, a=[])
    made = []
    for owner, size in ((GroupOwner(groups["default"]), 5), (GroupOwner(groups["other"]), 7)):
        create = partial(
            shared_values.create_value, owner=owner, type_string="str", payload=Payload(inline=b"x" * size, size=size)
        )
        made.append(app.context.db.engine.write(lambda tx, c=create: c(tx, now=app.context.now(), ids=app.context.ids)))

    def use_in_job(tx: Tx) -> None:
        shared_value.ref_by_job(tx, [made[1].id], parse_id(job)[0])

    app.context.db.engine.write(use_in_job)
    told = app.get("/api/v1/values").json
    assert [(one["size"], one["num_groups"], one["num_jobs"]) for one in told["values"]] == [(7, 1, 1), (5, 1, 0)]
    assert {(one["group"], one["num_values"], one["num_bytes"]) for one in told["totals"]} == {
        ("default", 1, 5), ("other", 1, 7),
    }  # fmt: skip
    theirs = app.get("/api/v1/values", token=app.token("viewer", "other")).json
    assert [(one["size"], one["num_groups"], one["num_jobs"]) for one in theirs["values"]] == [(7, 1, 0)]
    assert [one["group"] for one in theirs["totals"]] == ["other"]
    mine = app.get("/api/v1/values", token=app.token("user")).json["values"]
    assert [(one["size"], one["num_groups"], one["num_jobs"]) for one in mine] == [(7, 0, 1), (5, 1, 0)]
    page = app.get("/api/v1/values?limit=1").json
    rest = app.get(f"/api/v1/values?limit=1&cursor={page['cursor']}").json
    assert [one["size"] for one in page["values"] + rest["values"]] == [7, 5]


# ---------------------------------------------------------------- search


def test_search_finds_by_id_name_and_tag(app):
    [task] = app.submit(a_task("compile 100%_done", tags=["branch:main", "branch:dev"]))
    job = a_job(app, "Nightly build", a=[])
    app.meet_bot("worker-7")
    ask = lambda q, **more: app.get(f"/api/v1/search?q={q}", **more).json  # noqa: E731
    assert [found["id"] for found in ask(task)["tasks"]] == [task]
    assert task in [found["id"] for found in ask(task[:8])["tasks"]]
    assert [found["id"] for found in ask(job)["jobs"]] == [job]
    assert [found["id"] for found in ask("COMPILE")["tasks"]] == [task]
    assert [found["id"] for found in ask("100%25_d")["tasks"]] == [task]
    assert ask("100_")["tasks"] == [], "no character stands for others"
    assert [found["name"] for found in ask("build")["jobs"]] == ["Nightly build"]
    assert ask("KER-7")["bots"] == ["worker-7"]
    assert ask("branch:")["tags"] == ["branch:dev", "branch:main"]
    assert ask("branch:main")["tags"] == ["branch:main"]
    assert ask("%20")["tasks"] == []
    other = app.token("user", "other")
    assert [ask(q, token=other) for q in (task, "branch:", "build")] == [
        {"tasks": [], "jobs": [], "bots": [], "tags": []}
    ] * 3, "nothing of another group, not even its tags"


# ---------------------------------------------------------------- many tasks


def test_tasks_are_counted_by_state(app, monkeypatch):
    worker = Worker(app)
    app.submit(*(a_task(tags=["k:1"]) for _ in range(3)), a_task("named"))
    run = worker.claim()
    assert run is not None
    worker.finish(run, 1)
    counts = "/api/v1/tasks/counts"
    assert app.get(counts).json == {"counts": {"FAILED": 1, "READY": 3}, "total": 4, "complete": True}
    assert app.get(f"{counts}?tag=k:1&state=READY").json["total"] == 2
    assert app.get(f"{counts}?name=named&pool=default").json["counts"] == {"READY": 1}
    assert app.get(f"{counts}?mine=true", token=app.token("user")).json["total"] == 0
    assert app.get(counts, token=app.token("user", "other")).json["total"] == 0
    monkeypatch.setattr(listings, "SCAN_LIMIT", 1)
    newest = app.get(counts).json
    assert (newest["counts"], newest["complete"]) == ({"READY": 2}, False), "more than the limit: only the newest ones"
    assert app.get(f"{counts}?tag=k:1&tag=pool:default").json["complete"] is False
    monkeypatch.setattr(listings, "SCAN_LIMIT", 3)
    both = app.get(f"{counts}?pool=default&tag=k:1").json
    assert (both["total"], both["complete"]) == (3, True), "the rows of the rarer tag are enough"


def pages(app: Inside, path: str) -> list[list[str]]:
    """The ids of all pages of a list."""
    found = [app.get(path).json]
    while cursor := found[-1]["cursor"]:
        found.append(app.get(f"{path}&cursor={cursor}").json)
    return [[task["task_id"] for task in page["tasks"]] for page in found]


def test_a_list_of_rare_states_continues_behind_many_others(app, monkeypatch):
    monkeypatch.setattr(listings, "SCAN_LIMIT", 2)
    worker = Worker(app)
    failed = []
    for number in range(3):
        app.submit(a_task(tags=["k:1"]))
        run = worker.claim()
        assert run is not None
        worker.finish(run, number % 2)
        failed += [f"{run['run'][:-2]}00"] if number % 2 else []
    app.submit(*(a_task(tags=["k:1"]) for _ in range(6)))
    for filters in ("state=FAILED", "state=FAILED&tag=k:1", "state=FAILED&state=EXPIRED&pool=default"):
        found = pages(app, f"/api/v1/tasks?{filters}")
        assert (found[0], [task_id for page in found for task_id in page]) == ([], failed), filters
    one_each = [page for page in pages(app, "/api/v1/tasks?state=SUCCEEDED&limit=1") if page]
    assert [len(page) for page in one_each] == [1, 1]
    assert app.get("/api/v1/tasks?state=FAILED", token=app.token("user", "other")).json["tasks"] == []


def change(app: Inside, action: str, ids: list[str], **fields: Any) -> tuple[int, list[str]]:
    told = app.post("/api/v1/tasks/batch", {"action": action, "task_ids": ids, **fields}).json
    return told["num_changed"], [one["task_id"] for one in told["skipped"]]


@pytest.mark.parametrize("at_once", [1, 20])
def test_a_selection_is_cancelled_and_run_again_and_the_preview_is_right(app, monkeypatch, at_once):
    monkeypatch.setattr(task_actions, "AT_ONCE", at_once)
    worker = Worker(app)
    ids = app.submit(*(a_task() for _ in range(4)))
    run = worker.claim()
    assert run is not None
    running = f"{run['run'][:-2]}00"
    unknown = "5cee4880088100"
    asked = [*ids, unknown, "nope"]
    for dry_run in (True, False):
        assert change(app, "cancel", asked, dry_run=dry_run) == (3, [running, unknown, "nope"])
    states = {task["task_id"]: task["state"] for task in app.get("/api/v1/tasks").json["tasks"]}
    assert sorted(states.values()) == ["CANCELLED"] * 3 + ["RUNNING"]
    assert change(app, "cancel", [running], kill_running=True, dry_run=True) == (1, [])
    worker.finish(run)
    for dry_run in (True, False):
        assert change(app, "rerun", asked, dry_run=dry_run) == (3, [running, unknown, "nope"])
    assert change(app, "rerun", [running], force=True) == (1, [])
    assert app.get("/api/v1/tasks/counts").json["counts"] == {"READY": 4}


def test_nobody_changes_tasks_of_another_group(app):
    ids = app.submit(a_task())
    body = {"action": "cancel", "task_ids": ids}
    told = app.post("/api/v1/tasks/batch", body, token=app.token("user", "other")).json
    assert (told["num_changed"], told["skipped"][0]["task_id"]) == (0, ids[0])
    assert app.post("/api/v1/tasks/batch", body, token=app.token("viewer")).status == 403
