"""Values and results over HTTP: what a job has, what a value contains, and the results of many tasks at once."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from hashlib import sha256

import msgspec
import pytest

from myrmidon.model.ids import show_run, show_task
from myrmidon.model.task_request import Payload
from myrmidon.scheduler.extend import extend
from myrmidon.scheduler.submit_job import JobSubmitted
from tests.server.contexts import a_task, until
from tests.server.functions import file_path, finish_with, inline, run_headers, stored_constant, world_of
from tests.server.inside import BOT, Inside, inside
from tests.world import INT, World, a_function, a_node, constant, gathered, output_of

SEVEN = msgspec.msgpack.encode(7)
TEXT = msgspec.msgpack.encode("a long text" * 1000)
DIGEST = sha256(TEXT).hexdigest()


@pytest.fixture
def app(tmp_path, db_url):
    with inside(tmp_path, db_url) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


@pytest.fixture
def world(app) -> World:
    return world_of(app)


def run_next(world: World, *outputs: tuple[str, Payload], exit_code: int = 0) -> None:
    """The bot runs the next task."""
    run = world.running(BOT)[0]
    world.report(finish_with(run, *outputs, exit_code=exit_code))


def results(app: Inside, *task_ids: int, **given) -> list[dict]:
    body = {"task_ids": [show_task(one) for one in task_ids], "wait_s": 0, **given}
    reply = app.post("/api/v1/results", body)
    assert reply.status == 200, reply
    found: list[dict] = reply.json["results"]
    return found


def upload(app: Inside, content: bytes) -> Payload:
    app.put(f"/api/v1/files/{sha256(content).hexdigest()}", content)
    return Payload(digest=sha256(content).hexdigest(), size=len(content))


# ---------------------------------------------------------------- results


def test_the_result_of_a_function_has_its_small_outputs_inside(app, world):
    job = world.job({"f": a_node(task=a_function(constant(), outputs=(INT, "string")))})
    task = job.task_ids["f"]
    assert results(app, task) == []
    run_next(world, (INT, inline(SEVEN)), ("string", upload(app, TEXT)))
    (found,) = results(app, task)
    number, text = found.pop("outputs")
    assert found == {
        "task_id": show_task(task), "state": "SUCCEEDED", "reason": "", "bot_id": BOT, "run": show_run(task, 1),
        "exit_code": 0, "error": None,
    }  # fmt: skip
    assert (number["type"], number["size"], b64decode(number["inline"])) == (INT, 1, SEVEN)
    assert (text["type"], text["size"], text["inline"]) == ("string", len(TEXT), None)
    assert app.get(f"/api/v1/values/{number['value_id']}").body == SEVEN
    assert app.get(f"/api/v1/values/{text['value_id']}").body == TEXT


def test_only_ended_tasks_are_in_the_results(app, world):
    job = world.job({name: a_node(task=a_function()) for name in "abc"})
    run_next(world, (INT, inline(SEVEN)))
    run_next(world, exit_code=1)
    found = {one["task_id"]: one for one in results(app, *job.task_ids.values())}
    assert sorted(one["state"] for one in found.values()) == ["FAILED", "SUCCEEDED"]
    failed = next(one for one in found.values() if one["state"] == "FAILED")
    assert (failed["exit_code"], failed["outputs"]) == (1, [])


def test_the_result_of_a_failed_function_has_its_exception(app, world):
    job = world.job({"f": a_node(task=a_function())})
    run = world.running(BOT)[0]
    error = {"type": "builtins.ValueError", "message": "bad thing", "traceback": "...", "bases": ["builtins.Exception"]}
    report = {**finish_report(run), "error": error}
    exchange = {"session": 1, "nonce": 9, "n": 0, "reports": [report]}
    app.meet_bot()
    assert app.post("/bot/v1/exchange", exchange, token=app.credential(BOT)).status == 200
    (found,) = results(app, job.task_ids["f"])
    assert (found["state"], found["error"]) == ("FAILED", {**error, "args": None, "place": ""})


def test_commands_have_results_too(app, world):
    (task,) = app.submit(a_task())
    run_next(world)
    reply = app.post("/api/v1/results", {"task_ids": [task, task], "wait_s": 0})
    assert [(one["task_id"], one["state"], one["outputs"]) for one in reply.json["results"]] == [
        (task, "SUCCEEDED", [])
    ]


def test_a_caller_waits_for_the_first_task_that_ends(app, world):
    job = world.job({name: a_node(task=a_function()) for name in "ab"})
    app.meet_bot()
    ids = [show_task(one) for one in job.task_ids.values()]

    async def story():
        asking = asyncio.create_task(app.ask("POST", "/api/v1/results", {"task_ids": ids, "wait_s": 100}))
        await until(lambda: app.context.hub._task_ends.waiters)
        exchange = {"session": 1, "nonce": 9, "n": 0, "reports": [finish_report(run)]}
        await app.ask("POST", "/bot/v1/exchange", exchange, token=app.credential(BOT))
        return await asking

    run = world.running(BOT)[0]
    reply = app.run(story())
    assert [one["task_id"] for one in reply.json["results"]] == [show_task(run.task_id)]


def finish_report(run) -> dict:
    return {"type": "finish", "run": show_run(run.task_id, run.run), "token": run.token, "exit_code": 1}


def delegating(world: World) -> int:
    """A task that has ended and left its output to another one, which is ready."""
    return delegating_job(world).task_ids["f"]


def delegating_job(world: World) -> JobSubmitted:
    job = world.job({"f": a_node(task=a_function(outputs=(INT,)))})
    run = world.running(BOT)[0]
    raw = {"tasks": {"d": a_node(task=a_function(outputs=(INT,)))}, "delegates": {"d": "f"}}
    world.do(extend, job.job_id, raw, group_id=world.group, by=run.task_id)
    world.report(msgspec.structs.replace(finish_with(run), delegated=True))
    assert world.state(run.task_id) == "SUCCEEDED"
    return job


def test_a_task_that_delegates_has_a_result_when_its_delegate_has_written_it(app, world):
    task = delegating(world)
    assert results(app, task) == []
    run_next(world, (INT, inline(SEVEN)))
    (result,) = results(app, task)
    assert (result["task_id"], result["state"]) == (show_task(task), "SUCCEEDED")
    assert b64decode(result["outputs"][0]["inline"]) == SEVEN


def test_the_failure_of_a_delegate_is_the_result_of_the_task_that_delegates(app, world):
    task = delegating(world)
    run = world.running(BOT)[0]
    world.report(finish_with(run, exit_code=3))
    (result,) = results(app, task)
    assert (result["task_id"], result["state"], result["exit_code"]) == (show_task(task), "FAILED", 3)
    assert result["run"] == show_run(run.task_id, run.run)


def test_a_caller_that_waits_for_a_task_that_delegates_is_woken_by_the_delegate(app, world):
    task = delegating(world)
    app.meet_bot()
    run = world.running(BOT)[0]

    async def story():
        body = {"task_ids": [show_task(task)], "wait_s": 100}
        asking = asyncio.create_task(app.ask("POST", "/api/v1/results", body))
        await until(lambda: run.task_id in app.context.hub._task_ends.waiters)
        exchange = {"session": 1, "nonce": 9, "n": 0, "reports": [finish_report(run)]}
        await app.ask("POST", "/bot/v1/exchange", exchange, token=app.credential(BOT))
        return await asking

    assert [one["state"] for one in app.run(story()).json["results"]] == ["FAILED"]


def test_tasks_of_another_group_have_no_results(app):
    other = world_of(app, "other").job({"f": a_node(task=a_function())})
    body = {"task_ids": [show_task(other.task_ids["f"])], "wait_s": 0}
    reply = app.post("/api/v1/results", body, token=app.token("viewer"))
    assert (reply.status, reply.code) == (404, "not_found")
    assert app.post("/api/v1/results", body, token=app.token("viewer", "other")).status == 200


def test_many_results_need_two_statements(app, world, monkeypatch):
    job = world.job({f"f{n}": a_node(task=a_function()) for n in range(100)})
    runs = world.running(BOT, 100)
    world.report(*(finish_with(run, (INT, inline(SEVEN))) for run in runs))
    statements: list[str] = []
    monkeypatch.setattr(app.context.db.engine, "_probe", lambda kind, text: statements.append(text))
    assert len(results(app, *job.task_ids.values())) == 100
    assert len([text for text in statements if "task_results" in text or "task_outputs" in text]) == 2


# ---------------------------------------------------------------- the values of a job


def test_the_values_of_a_job_are_constants_and_outputs(app, world):
    payload = upload(app, TEXT)
    job = world.job(
        {
            "make": a_node(task=a_function(constant(SEVEN), stored_constant(DIGEST, len(TEXT)))),
            "use": a_node(task=a_function(output_of("make"))),
            "use-again": a_node(task=a_function(output_of("make"), output_of("make"), outputs=("string",))),
        }
    )
    run_next(world, (INT, inline(SEVEN)))
    path = f"/api/v1/jobs/{show_task(job.job_id)}/values"
    found = app.get(path).json["values"]
    shown = {
        (
            one["producer"],
            one["position"],
            one["type"],
            one["size"],
            one["digest"],
            one["written"],
            one["num_consumers"],
        )
        for one in found
    }
    assert shown == {
        (None, None, INT, 1, None, True, 1),
        (None, None, "string", payload.size, DIGEST, True, 1),
        ("make", 0, INT, 1, None, True, 3),
        ("use", 0, INT, None, None, False, 0),
        ("use-again", 0, "string", None, None, False, 0),
    }
    assert len(found) == 5
    assert {app.get(f"/api/v1/values/{one['value_id']}").status for one in found if one["written"]} == {200}


def test_parts_of_gathered_inputs_are_read_by_their_task(app, world):
    part = {"label": "a", "position": 0, "type": INT}
    gathered = {"kind": "gathered", "type": f"List<{INT}>", "parts": [part, part]}
    job = world.job({"a": a_node(task=a_function()), "join": a_node(task=a_function(gathered, outputs=()))})
    (line,) = app.get(f"/api/v1/jobs/{show_task(job.job_id)}/values").json["values"]
    assert (line["producer"], line["num_consumers"]) == ("a", 2)


def test_values_are_listed_page_by_page(app, world):
    job = world.job({f"f{n}": a_node(task=a_function(constant())) for n in range(5)})
    path, cursor, found = f"/api/v1/jobs/{show_task(job.job_id)}/values?limit=2", "", []
    while True:
        page = app.get(path + (f"&cursor={cursor}" if cursor else "")).json
        assert len(page["values"]) <= 4
        found += page["values"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert len({one["value_id"] for one in found}) == len(found) == 10


def test_the_outputs_of_a_job_name_their_values(app, world):
    job = world.job({"f": a_node(task=a_function(outputs=(INT, "string")))})
    run_next(world, (INT, inline(SEVEN)), ("string", upload(app, TEXT)))
    (task,) = app.get(f"/api/v1/jobs/{show_task(job.job_id)}/outputs").json["tasks"]
    assert [app.get(f"/api/v1/values/{one['value_id']}").body for one in task["values"]] == [SEVEN, TEXT]
    assert [one["digest"] for one in task["values"]] == [None, DIGEST]


def job_outputs(app: Inside, job_id: int) -> list[dict]:
    found: list[dict] = app.get(f"/api/v1/jobs/{show_task(job_id)}/outputs").json["tasks"]
    return found


def test_the_outputs_of_a_job_name_the_function_that_has_delegated_its_output(app, world):
    job = delegating_job(world)
    (shown,) = job_outputs(app, job.job_id)
    assert (shown["label"], shown["state"], shown["values"][0]["size"]) == ("f", "READY", None)
    run_next(world, (INT, inline(SEVEN)))
    (shown,) = job_outputs(app, job.job_id)
    assert (shown["label"], shown["task_id"], shown["state"]) == ("f", show_task(job.task_ids["f"]), "SUCCEEDED")
    assert b64decode(shown["values"][0]["data"]) == SEVEN


def test_a_chain_of_delegates_is_one_output_and_the_failure_of_any_is_its_end(app, world):
    job = delegating_job(world)
    run = world.running(BOT)[0]
    raw = {"tasks": {"e": a_node(task=a_function(outputs=(INT,)))}, "delegates": {"e": "d"}}
    world.do(extend, job.job_id, raw, group_id=world.group, by=run.task_id)
    assert [(one["label"], one["state"]) for one in job_outputs(app, job.job_id)] == [("f", "WAITING")]
    world.report(finish_with(run, exit_code=3))
    (shown,) = job_outputs(app, job.job_id)
    assert (shown["label"], shown["state"], shown["exit_code"]) == ("f", "FAILED", 3)


# ---------------------------------------------------------------- one value


def a_value(app: Inside, world: World, payload: Payload, **given) -> str:
    job = world.job({"f": a_node(task=a_function(**given))})
    run_next(world, (INT, payload))
    (found,) = results(app, job.task_ids["f"])
    shown: str = found["outputs"][0]["value_id"]
    return shown


def test_a_value_is_sent_as_messagepack_with_its_type(app, world):
    reply = app.get(f"/api/v1/values/{a_value(app, world, inline(SEVEN))}")
    assert (reply.status, reply.body) == (200, SEVEN)
    assert (reply.headers["content-type"], reply.headers["x-value-type"]) == ("application/msgpack", INT)


def test_the_content_of_a_large_value_is_the_file_that_the_bot_has_stored(app, world):
    content = msgspec.msgpack.encode(b"x" * (3 << 20))
    digest = sha256(content).hexdigest()
    job = world.job({"f": a_node(task=a_function(outputs=("bytes",)))})
    run = world.running(BOT)[0]
    app.put(file_path(run, digest), content, token=app.credential(BOT), headers=run_headers(run))
    world.report(finish_with(run, ("bytes", Payload(digest=digest, size=len(content)))))
    (found,) = results(app, job.task_ids["f"])
    reply = app.get(f"/api/v1/values/{found['outputs'][0]['value_id']}")
    assert (reply.headers["content-length"], reply.body == content) == (str(len(content)), True)


def test_a_value_that_is_not_written_is_an_error_that_says_so(app, world):
    job = world.job({"f": a_node(task=a_function())})
    (line,) = app.get(f"/api/v1/jobs/{show_task(job.job_id)}/values").json["values"]
    reply = app.get(f"/api/v1/values/{line['value_id']}")
    assert (reply.status, reply.code) == (409, "wrong_state")
    assert "has not been produced" in reply.json["error"]["message"]


def test_a_damaged_value_is_an_error_that_says_so(app, world):
    value = a_value(app, world, upload(app, TEXT))
    app.context.files.folder.path_of(DIGEST).write_bytes(TEXT[:-1])
    reply = app.get(f"/api/v1/values/{value}")
    assert (reply.status, reply.code) == (410, "files.damaged")
    assert "is damaged" in reply.json["error"]["message"]


def test_a_reference_with_a_wrong_size_does_not_harm_the_file(app, world):
    upload(app, TEXT)
    job = world.job({"f": a_node(task=a_function(stored_constant(DIGEST, len(TEXT)), outputs=()))})
    app.context.db.engine.write(lambda tx: tx.run('UPDATE "values" SET size = 1'))
    (line,) = app.get(f"/api/v1/jobs/{show_task(job.job_id)}/values").json["values"]
    assert app.get(f"/api/v1/values/{line['value_id']}").body == TEXT


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_a_value_of_another_group_does_not_exist(app, shared):
    value = a_value(app, world_of(app, "other"), inline(SEVEN), shared=shared)
    assert app.get(f"/api/v1/values/{value}", token=app.token("user")).code == "not_found"
    assert app.get(f"/api/v1/values/{value}", token=app.token("viewer", "other")).body == SEVEN
    assert app.get(f"/api/v1/values/{value}").body == SEVEN


def test_a_run_sees_the_values_of_its_own_job_only(app, world):
    value = a_value(app, world, inline(SEVEN))
    assert app.get(f"/api/v1/values/{value}", token=app.token("run")).code == "not_found"


@pytest.mark.parametrize("text", ["nope", "5cee4880088101", "5cee4880088100", "..%2fx"])
def test_what_is_no_value_is_not_found(app, text):
    assert app.get(f"/api/v1/values/{text}").code == "not_found"


def test_a_task_shows_where_its_inputs_come_from_and_what_it_has_written(app, world):
    job = world.job(
        {
            "x": a_node(task=a_function(constant(SEVEN))),
            "y": a_node(task=a_function(output_of("x"), constant(SEVEN))),
            "z": a_node(task=a_function(gathered("x", "y"))),
        }
    )
    run_next(world, (INT, inline(SEVEN)))
    ids = {label: show_task(task_id) for label, task_id in job.task_ids.items()}
    seen = {label: app.get(f"/api/v1/tasks/{shown}/values").json for label, shown in ids.items()}
    assert [value["size"] for value in seen["x"]["outputs"]] == [len(SEVEN)]
    assert [value["size"] for value in seen["y"]["outputs"]] == [None]
    assert [value["source"] for value in seen["x"]["inputs"]] == [None]
    first, second = seen["y"]["inputs"]
    assert first["source"] == {"task_id": ids["x"], "label": "x", "position": 0}
    assert (first["size"], first["type"], second["source"]) == (len(SEVEN), INT, None)
    assert app.get(f"/api/v1/values/{second['value_id']}").body == SEVEN
    [whole] = seen["z"]["inputs"]
    assert (whole["num_parts"], [part["source"]["label"] for part in whole["parts"]]) == (2, ["x", "y"])
    graph = app.get(f"/api/v1/jobs/{show_task(job.job_id)}/graph?values=true").json
    labels = [node["label"] for node in graph["nodes"]]
    on_edges = {
        tuple(labels[end] for end in graph["edges"][value["edge"]]): (value["type"], value["size"])
        for value in graph["edge_values"]
    }
    assert on_edges == {("x", "y"): (INT, len(SEVEN)), ("x", "z"): (INT, len(SEVEN)), ("y", "z"): (INT, None)}
    assert app.get(f"/api/v1/jobs/{show_task(job.job_id)}/graph").json["edge_values"] == []
    other = app.token("user", "other")
    assert app.get(f"/api/v1/tasks/{ids['x']}/values", token=other).status == 404
