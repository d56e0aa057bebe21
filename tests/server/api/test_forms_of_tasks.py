"""One form of a task wherever one is written, and nothing in it that is accepted and ignored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.inside import Inside, Reply, inside

SHORT = {"command": ["make"], "dimensions": {"os": "Linux"}, "execution_timeout_s": 60}
IN_A_PAYLOAD = {"payload": {"command": ["make"], "dimensions": {"os": "Linux"}, "maxRunTime": 60}}
LONG = {
    "slices": [
        {"properties": {
            "command": ["make"], "dimensions": {"pool": ["default"], "os": ["Linux"]}, "execution_timeout_s": 60,
        }}
    ]
}  # fmt: skip
FORMS = pytest.mark.parametrize("task", [SHORT, IN_A_PAYLOAD, LONG], ids=["short", "payload", "long"])


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with inside(tmp_path_factory.mktemp("forms")) as opened:
        yield opened


def problems(reply: Reply) -> dict[str, str]:
    """The paths of the problems, with what is allowed there."""
    assert reply.status == 400, reply
    return {problem["path"]: problem["allowed"] for problem in reply.json["error"]["problems"]}


def submitted(app: Inside, task: dict[str, Any]) -> Any:
    [answer] = app.post("/api/v1/tasks", {"tasks": [task]}).json["tasks"]
    return answer


def in_a_job(task: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"job": {"name": "j", "tasks": {"a": {"task": task, **fields}}}}


@FORMS
def test_a_task_may_be_written_in_each_form_wherever_one_is_written(app: Inside, task: dict[str, Any]):
    alone = submitted(app, {"name": "make", **task})["task_id"]
    job = app.post("/api/v1/jobs", in_a_job(task, hold=True)).json
    more = app.post(f"/api/v1/jobs/{job['job_id']}/extend", {"job": {"tasks": {"b": {"task": task}}}}).json
    ids = [alone, job["task_ids"]["a"], more["task_ids"]["b"]]
    shown = [app.get(f"/api/v1/tasks/{task_id}").json["request"]["slices"] for task_id in ids]
    for [piece] in shown:
        assert piece["properties"]["command"] == ["make"]
        assert piece["properties"]["dimensions"] == {"pool": ["default"], "os": ["Linux"]}
        assert piece["properties"]["execution_timeout_s"] == 60


def test_a_short_task_outside_of_a_job_is_named_after_its_program(app: Inside):
    task = submitted(app, {"command": ["/bin/true"]})["task_id"]
    assert app.get(f"/api/v1/tasks/{task}").json["request"]["name"] == "true"


def test_a_repeated_short_task_is_the_same_task(app: Inside):
    body, key = {"tasks": [{"command": ["x"]}]}, {"idempotency-key": "k1"}
    first = app.post("/api/v1/tasks", {"tasks": [SHORT]}, headers=key).json["tasks"][0]
    again = app.post("/api/v1/tasks", {"tasks": [SHORT]}, headers=key).json["tasks"][0]
    assert (again["task_id"], again["repeated"]) == (first["task_id"], True)
    assert app.post("/api/v1/tasks", body, headers=key).json["tasks"][0]["error"]["code"] == "request.conflict"


@pytest.mark.parametrize(
    ("task", "path", "said"),
    [
        ({"comand": ["x"]}, "comand", "`command` (did you mean that?)"),
        ({"command": "echo x"}, "command", 'for a shell write ["sh", "-c", '),
        ({"command": ["echo", True]}, "command[1]", "write it in quotes"),
        ({"command": ["x"], "surprise": {}}, "surprise", "one of "),
        ({"command": ["x"], "environment": {}}, "environment", "use `env`"),
        ({"command": ["x"], "timeout": 7}, "timeout", "use `execution_timeout_s`"),
        ({"command": ["x"], "image": "ubuntu"}, "image", "run on the bot itself"),
        ({"slices": [{"properties": {"command": ["x"], "mounts": []}}]}, "slices[0].properties.mounts", "use `caches`"),
        ({"command": ["x"], "dimensions": {"os": 7}}, "dimensions.os[0]", "text"),
        ({"command": ["x"], "executionTimeoutS": 7}, "executionTimeoutS", "`execution_timeout_s` (did you mean that?)"),
        ({"payload": {"command": ["x"], "outputs": ["a"]}}, "payload.outputs", "a field of the task"),
        ({"payload": {"command": ["x"], "image": "ubuntu"}}, "payload.image", "run on the bot itself"),
        ({"payload": {"command": ["x"], "artifacts": {"a": {}}}}, "payload.artifacts", "declare `outputs`"),
        ({"payload": {"command": ["x"], "capabilities": {"privileged": True}}}, "payload.capabilities", "nothing here"),
        ({"payload": {"command": ["x"], "mounts": [{"file": "a"}]}}, "payload.mounts", "use `caches`"),
        ({"payload": {"command": ["x"], "maxRunTime": -1}}, "payload.maxRunTime", "a number in "),
        ({"payload": {"command": ["x"], "maxruntime": 1}}, "payload.maxruntime", "`maxRunTime` (did you mean that?)"),
        ({"payload": {"command": ["x"]}, "routes": ["r"]}, "routes", "use `tags`"),
        ({"name": "x"}, "slices", "or `command`"),
    ],
)
def test_what_is_not_carried_out_is_refused_with_what_to_write(app: Inside, task: dict[str, Any], path: str, said: str):
    error = submitted(app, {"name": "t", **task})["error"]
    alone = {problem["path"]: problem["allowed"] for problem in error["problems"]}
    assert said in alone[path], error
    assert said in problems(app.post("/api/v1/jobs", in_a_job(task)))[f"tasks.a.task.{path}"]


def test_a_misspelt_command_is_not_called_a_missing_name(app: Inside):
    error = submitted(app, {"comand": ["x"]})["error"]
    assert {problem["path"] for problem in error["problems"]} == {"comand", "slices"}


@pytest.mark.parametrize(
    ("node", "path", "said"),
    [
        ({"command": ["x"]}, "tasks.b.command", "a field inside of `task`"),
        ({"task": SHORT, "needs": ["a"]}, "tasks.b.needs", "use `requires`"),
        ({"task": SHORT, "require": ["a"]}, "tasks.b.require", "`requires` (did you mean that?)"),
    ],
)
def test_a_field_at_the_wrong_place_of_a_job_is_refused_with_its_place(app: Inside, node: Any, path: str, said: str):
    assert said in problems(app.post("/api/v1/jobs", {"job": {"tasks": {"b": node}}}))[path]


def test_a_job_says_what_its_failure_policy_is_called(app: Inside):
    job = {"tasks": {"b": {"task": SHORT}}, "fail_fast": True}
    assert "use `failure_policy: fail-fast`" in problems(app.post("/api/v1/jobs", {"job": job}))["fail_fast"]


def test_all_problems_of_short_tasks_come_at_once(app: Inside):
    task = {"payload": {"command": 7, "mine": 1}, "deadline": "2001-01-01", "priority": 999}
    found = problems(app.post("/api/v1/jobs", in_a_job(task, requires=["nobody"])))
    paths = {"payload.command", "payload.mine", "deadline", "priority"}
    assert set(found) == {f"tasks.a.task.{path}" for path in paths} | {"tasks.a.requires[0]"}
    error = submitted(app, task)["error"]
    assert {problem["path"] for problem in error["problems"]} == paths


def test_a_wrong_short_task_does_not_rename_the_problems_of_a_long_one(app: Inside):
    long = {"slices": [{"properties": {"command": ["x"], "dimensions": {"pool": ["p"]}, "env": 7}}], "deadline_s": 0}
    tasks = {"short": {"task": {"payload": {"command": 7}}}, "long": {"task": long}}
    assert set(problems(app.post("/api/v1/jobs", {"job": {"tasks": tasks}}))) == {
        "tasks.short.task.payload.command", "tasks.long.task.slices[0].properties.env", "tasks.long.task.deadline_s",
    }  # fmt: skip


@pytest.mark.parametrize("document", [{"tasks": []}, {"tasks": {}}, {}])
def test_a_job_without_tasks_is_shown_how_to_write_one(app: Inside, document: dict[str, Any]):
    for path in ("/api/v1/jobs", "/api/v1/jobs/check"):
        reply = app.post(path, {"job": document})
        assert 'got no tasks; allowed: at least one task, such as {"hello"' in reply.json["error"]["message"]


def test_a_call_without_tasks_is_shown_how_many_there_may_be(app: Inside):
    assert problems(app.post("/api/v1/tasks", {"tasks": []})) == {"tasks": "a list of 1..10000 items"}


# ---------------------------------------------------------------- fields without effect

HARMLESS = {**IN_A_PAYLOAD, "expires": "2100-01-01T00:00:00Z", "scopes": ["queue:x"], "created": "2026-01-01T00:00:00Z"}
TOLD = (
    "tasks.a.task.expires has no effect: results are kept as long as the server's settings say; "
    "tasks.a.task.scopes has no effect: what a task may do depends on the token that submits it"
)


def test_fields_of_taskcluster_without_effect_are_named_in_the_answer(app: Inside):
    for path in ("/api/v1/jobs", "/api/v1/jobs/check"):
        reply = app.post(path, in_a_job(HARMLESS))
        assert (reply.status, reply.headers["myrmidon-warning"]) == (200, TOLD)
    assert reply.json["warnings"] == TOLD.split("; ")
    assert "myrmidon-warning" not in app.post("/api/v1/jobs", in_a_job(IN_A_PAYLOAD)).headers
    warned = app.post("/api/v1/tasks", {"tasks": [HARMLESS]}).headers["myrmidon-warning"]
    assert warned == TOLD.replace("tasks.a.task.", "")


def test_labels_cannot_break_the_header_of_a_warning(app: Inside):
    job = {"job": {"tasks": {"ä\r\nset-cookie: x": {"task": HARMLESS}}}}
    warned = app.post("/api/v1/jobs/check", job).headers["myrmidon-warning"]
    assert warned.isascii()
    assert "\n" not in warned
    many = {"job": {"tasks": {"x" * 200 + str(n): {"task": HARMLESS} for n in range(100)}}}
    assert len(app.post("/api/v1/jobs/check", many).headers["myrmidon-warning"]) <= 4_096
