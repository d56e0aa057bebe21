"""Files are not served yet: every API says so, and what the core knows of files is shown."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.scheduler import submit as submitting
from tests.server.inside import Inside, inside
from tests.server.swarming_v1.swarm import NEW, OLD, Checker, a_task, pairs

API = f"{NEW}swarming/v1/"
REF = {"digest": "ab" * 32, "size": 77, "namespace": "default"}
ROOT = {"cas_instance": "default", "digest": {"hash": "ab" * 32, "size_bytes": "77"}}
ISOLATED = {"isolated": "ab" * 32, "namespace": "default"}


def native(**properties: Any) -> dict[str, Any]:
    given = {"command": ["true"], "dimensions": {"pool": ["default"]}, **properties}
    return {"name": "files", "slices": [{"properties": given}]}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with inside(tmp_path_factory.mktemp("files")) as opened:
        opened.meet_bot()
        yield opened


WISHES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"inputs": REF}, {"cas_input_root": ROOT}),
    ({"outputs": ["a"]}, {"outputs": ["a"]}),
    ({"command": ["run", "${ISOLATED_OUTDIR}/a"]}, {"command": ["run", "${ISOLATED_OUTDIR}/a"]}),
    ({"env": {"OUT": "${ISOLATED_OUTDIR}"}}, {"env": [{"key": "OUT", "value": "${ISOLATED_OUTDIR}"}]}),
]


def test_every_door_refuses_files_in_the_same_words(app: Inside) -> None:
    for ours, theirs in WISHES:
        tasks = [{**native(), "evaluate_only": True}, native(**ours)]
        good, bad = app.post("/api/v1/tasks", {"tasks": tasks}).json["tasks"]
        assert "error" not in good, "one that is wrong harms no other"
        [problem] = bad["error"]["problems"]
        assert (bad["error"]["code"], problem["code"]) == ("request.invalid", "not_served")
        assert problem["path"].startswith("slices[0].properties.")
        for prefix in (NEW, OLD):
            reply = app.post(f"{prefix}swarming/v1/tasks/new", a_task(**theirs))
            told = reply.json["error"]
            assert (reply.status, told["status"]) == (400, "request.invalid")
            assert problem["allowed"] in told["message"], "the same words"
    both = native(inputs=REF, outputs=["a", "b"])
    [refused] = app.post("/api/v1/tasks", {"tasks": [{**both, "evaluate_only": True}]}).json["tasks"]
    assert [one["path"].rpartition(".")[2] for one in refused["error"]["problems"]] == ["inputs", "outputs"]


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_function_outside_of_a_job_is_refused_at_submit(app: Inside, evaluate: bool) -> None:
    fields = {
        "function": {"package_name": "lib", "func_name": "lib.add"},
        "slices": [{"properties": {"dimensions": {"pool": ["default"]}}}],
        "outputs": [{"type": "int64"}],
    }
    [refused] = app.post("/api/v1/tasks", {"tasks": [{**native(), **fields, "evaluate_only": evaluate}]}).json["tasks"]
    [problem] = refused["error"]["problems"]
    assert (problem["path"], problem["code"]) == ("function", "no_job")
    assert "submit a job" in problem["allowed"]


def test_what_the_core_knows_of_files_is_shown(app: Inside) -> None:
    task = stored(app, native(dimensions={"pool": ["default"], "os": ["Linux"]}, inputs=REF, outputs=["a/b"]))
    check = checker(app)
    request = app.get(f"{API}task/{task}/request").json
    check.check(request, {"$ref": "SwarmingRpcsTaskRequest"})
    shown = request["properties"]
    assert (shown["cas_input_root"], shown["inputs_ref"], shown["outputs"]) == (ROOT, ISOLATED, ["a/b"])
    assert shown["dimensions"] == pairs(os="Linux", pool="default")
    moved = '{"duration": 1.5, "initial_size": 9, "items_cold": "eJw="}'
    stats = {"bot_overhead": 0.5, "cleanup": 0.25, "isolated_download": moved, "isolated_upload": "no JSON"}
    finish_with(app, outputs_ref=REF, stats=stats)
    result = app.get(f"{API}task/{task}/result?include_performance_stats=True").json
    check.check(result, {"$ref": "SwarmingRpcsTaskResult"})
    assert (result["cas_output_root"], result["outputs_ref"]) == (ROOT, ISOLATED)
    unused = ("named_caches_install", "named_caches_uninstall", "cache_trim", "package_installation")
    assert result["performance_stats"] == {
        **{part: {"duration": 0} for part in unused},
        "bot_overhead": 0.5,
        "cleanup": {"duration": 0.25},
        "isolated_download": {"duration": 1.5, "initial_size": "9", "items_cold": "eJw="},
    }


def stored(app: Inside, raw: dict[str, Any]) -> str:
    """A task past the context: what another version, or a later one, may have let in."""
    context = app.context
    draft = submitting.draft_task(raw, now=context.now(), ids=context.ids)
    group = app.run(context.groups.id_of("default", context.now()))
    context.db.engine.write(
        lambda tx: submitting.submit(tx, group, [draft], now=context.now(), ids=context.ids, rules=context.rules)
    )
    return f"{draft.task_id:x}00"


def finish_with(app: Inside, **said: Any) -> None:
    """The bot takes the task that waits, and reports this of it."""
    bot = app.token("bot")
    [one] = app.post("/bot/v1/exchange", {"session": 1, "nonce": 1, "n": 1}, token=bot).json["tasks"]
    report = {"type": "finish", "run": one["run"], "token": one["token"], "exit_code": 0, **said}
    answer = app.post("/bot/v1/exchange", {"session": 1, "nonce": 1, "n": 0, "reports": [report]}, token=bot)
    assert [one["outcome"] for one in answer.json["replies"]] == ["accepted"], answer


def checker(app: Inside) -> Checker:
    return Checker(app.get(f"{NEW}discovery/v1/apis/swarming/v1/rest").json["schemas"])
