"""Whole lives of tasks on a real bot, as scripts for Swarming know them: states, codes, output, reuse, cancelling."""

from __future__ import annotations

import json
import re
import time
import uuid
from typing import Any

import pytest

from tests.bot.bots import wait_for
from tests.server.swarming_v1.swarm import Swarm, a_task, pairs, properties

SH = "/bin/sh"
PARTS = {"named_caches_install", "named_caches_uninstall", "cache_trim", "package_installation", "cleanup"}


def test_a_success(either):
    done = either.run(SH, "-c", "echo out; echo err >&2", tags=["life:good"], user="ann")
    assert (done["state"], done["exit_code"], done["failure"], done["internal_failure"]) == (
        "COMPLETED", "0", False, False,
    )  # fmt: skip
    assert isinstance(done["duration"], float)
    assert done["task_id"] == done["run_id"][:-1] + "0"
    assert re.fullmatch(r"[0-9a-f]+0", done["task_id"])
    assert (done["try_number"], done["current_task_slice"], done["bot_id"]) == ("1", "0", "b1")
    assert {"key": "pool", "value": ["default"]} in done["bot_dimensions"]
    assert done["bot_version"] == either.call("server.details")["bot_version"]
    assert done["created_ts"] <= done["started_ts"] <= done["completed_ts"] <= done["modified_ts"]
    assert done["bot_idle_since_ts"] <= done["started_ts"]
    assert "abandoned_ts" not in done
    assert len(done["costs_usd"]) == 1
    assert done["server_versions"] == [either.call("server.details")["server_version"]]
    assert {"life:good", "user:ann", "pool:default"} <= set(done["tags"])
    assert either.output(done["task_id"]) == "out\nerr\n"
    assert either.output(done["run_id"], offset=1, length=2) == "ut"
    assert either.output(done["task_id"], offset=100) == ""


def test_stdout_and_stderr_are_one_stream_in_the_order_written(swarm):
    task = swarm.new(SH, "-c", "for i in 1 2; do echo out $i; echo err $i >&2; done; sleep 600")
    wait_for(lambda: swarm.output(task) == "out 1\nerr 1\nout 2\nerr 2\n", "all output, while the task runs")
    swarm.call("task.cancel", task_id=task, body={"kill_running": True})
    assert swarm.ended(task)["state"] == "KILLED"


def test_a_failure_keeps_its_exit_code(either):
    done = either.run(SH, "-c", "exit 7")
    assert (done["state"], done["exit_code"], done["failure"], done["internal_failure"]) == (
        "COMPLETED", "7", True, False,
    )  # fmt: skip


def test_an_unknown_command_is_the_tasks_own_failure(swarm):
    done = swarm.run("/no/such/program")
    assert (done["state"], done["exit_code"], done["failure"], done["internal_failure"]) == (
        "COMPLETED", "1", True, False,
    )  # fmt: skip
    assert done["duration"] > 0
    assert "/no/such/program could not be started: No such file" in swarm.output(done["task_id"])
    run = swarm.call("task.result", task_id=done["run_id"])
    assert run["exit_code"] == "1"
    _, native = swarm.server.get(f"/api/v1/tasks/{done['task_id']}")
    assert (native["result"]["exit_code"], native["result"]["reason"]) == (127, "start_failed")


def test_a_command_that_returns_127_itself_keeps_it(swarm):
    assert swarm.run(SH, "-c", "exit 127")["exit_code"] == "127"


def test_output_that_is_no_text_is_shown_all_the_same(swarm):
    done = swarm.run(SH, "-c", r"printf 'a\377\360b'")
    assert swarm.output(done["task_id"]) == "a\ufffd\ufffdb"


def test_a_command_that_takes_too_long_is_timed_out(swarm):
    done = swarm.run("sleep", "600", execution_timeout_secs=1)
    assert (done["state"], done["failure"]) == ("TIMED_OUT", True)
    assert int(done["exit_code"]) == -15


@pytest.mark.full
def test_a_command_that_says_nothing_for_too_long_is_timed_out(swarm):
    done = swarm.run("sleep", "600", io_timeout_secs=1)
    assert (done["state"], done["failure"]) == ("TIMED_OUT", True)
    assert int(done["exit_code"]) == -15


@pytest.mark.full
def test_what_a_command_wrote_before_its_timeout_and_in_its_grace_period_stays(swarm):
    script = "trap 'echo late; exit 3' TERM; echo early; while :; do sleep 0.05; done"
    for limit_s in (1, 10, 100):  # longer, where the shell has not even begun in time
        done = swarm.run(SH, "-c", script, execution_timeout_secs=limit_s, grace_period_secs=600)
        if output := swarm.output(done["task_id"]):
            break
    assert (done["state"], done["exit_code"]) == ("TIMED_OUT", "3")
    assert output.replace("Terminated\n", "") == "early\nlate\n", "a shell may tell of its sleep, too"


def test_the_environment_is_as_asked_for(swarm):
    env = pairs(GREETING="hi", HOME="")
    done = swarm.run(SH, "-c", "echo $GREETING ${HOME-unset}", env=env, relative_cwd="deep/down")
    assert swarm.output(done["task_id"]) == "hi unset\n"


def test_an_equal_idempotent_task_is_answered_at_once(swarm):
    same = {"idempotent": True, "env": pairs(KEY=uuid.uuid4().hex)}
    first = swarm.run(SH, "-c", "echo once", **same)
    answer = swarm.call("tasks.new", body=a_task(SH, "-c", "echo once", **same, user="bob"))
    again = answer["task_result"]
    assert (again["state"], again["try_number"], again["deduped_from"]) == ("COMPLETED", "0", first["run_id"])
    assert (again["exit_code"], again["duration"]) == (first["exit_code"], first["duration"])
    assert (again["started_ts"], again["completed_ts"]) == (first["started_ts"], first["completed_ts"])
    assert again["bot_id"] == "b1"
    assert again["run_id"] == first["run_id"]
    assert "costs_usd" not in again
    assert [again["cost_saved_usd"]] == first["costs_usd"]
    assert again["cost_saved_usd"] > 0, "the cost of a millisecond is not dropped"
    assert again["user"] == "bob"
    assert swarm.output(answer["task_id"]) == "once\n"
    listed = swarm.call("tasks.list", state="DEDUPED", limit=10)["items"]
    assert answer["task_id"] in [one["task_id"] for one in listed]
    assert first["task_id"] not in [one["task_id"] for one in listed]


def test_a_secret_is_never_shown(swarm):
    task = swarm.new("true", secret_bytes="c2VjcmV0\n")
    shown = swarm.call("task.request", task_id=task)
    assert shown["properties"]["secret_bytes"] == "PFJFREFDVEVEPg=="
    assert "c2VjcmV0" not in str(shown)


def test_a_task_that_waits_is_cancelled(either):
    task = either.new("true", dimensions=pairs(pool="default", os="Haiku"), wait_for_capacity=True)
    assert either.call("task.cancel", task_id=task, body={"kill_running": False}) == {"ok": True, "was_running": False}
    done = either.call("task.result", task_id=task)
    assert done["state"] == "CANCELED"
    assert done["abandoned_ts"]
    assert not {"exit_code", "duration", "bot_id", "started_ts"} & set(done)
    assert either.call("task.cancel", task_id=task, body={})["ok"] is False


def test_a_task_that_runs_is_killed_with_its_own_exit_code(swarm):
    script = "trap 'exit 23' TERM; echo ready; while :; do sleep 0.05; done"
    task = swarm.new(SH, "-c", script, grace_period_secs=600)
    swarm.until(task, "RUNNING")
    wait_for(lambda: "ready" in swarm.output(task), "the trap")
    assert swarm.call("task.cancel", task_id=task, body={}) == {"ok": False, "was_running": True}
    assert swarm.call("task.cancel", task_id=task, body={"kill_running": True}) == {"ok": True, "was_running": True}
    done = swarm.ended(task)
    assert (done["state"], done["exit_code"], done["failure"], done["internal_failure"]) == (
        "KILLED", "23", True, False,
    )  # fmt: skip
    assert done["abandoned_ts"] <= done["completed_ts"]
    run = swarm.call("task.result", task_id=done["run_id"])
    assert (run["abandoned_ts"], run["exit_code"]) == (done["abandoned_ts"], "23")
    assert is_listed(swarm, done, "KILLED")


def test_nobody_could_ever_run_it(either):
    answer = either.call("tasks.new", body=a_task(dimensions=pairs(pool="default", os="Haiku")))
    assert answer["task_result"]["state"] == "NO_RESOURCE"
    done = either.call("task.result", task_id=answer["task_id"])
    assert (done["state"], done["abandoned_ts"]) == ("NO_RESOURCE", done["created_ts"])


def slices(*pieces: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"expiration_secs": "60", "properties": one} for one in pieces]


def test_the_first_of_two_slices_runs(swarm):
    both = slices(properties(SH, "-c", "echo one"), properties(SH, "-c", "echo two"))
    done = swarm.ended(swarm.new(task_slices=both))
    assert (done["current_task_slice"], swarm.output(done["task_id"])) == ("0", "one\n")
    shown = swarm.call("task.request", task_id=done["task_id"])
    assert len(shown["task_slices"]) == 2
    assert shown["expiration_secs"] == "120"


def test_a_slice_that_nobody_can_run_is_skipped(swarm):
    nobody = properties("false", dimensions=pairs(pool="default", os="Haiku"))
    answer = swarm.call("tasks.new", body=a_task(task_slices=slices(nobody, properties(SH, "-c", "echo two"))))
    assert answer["task_result"]["current_task_slice"] == "1"
    done = swarm.ended(answer["task_id"])
    assert (done["current_task_slice"], swarm.output(done["task_id"])) == ("1", "two\n")


@pytest.mark.full
def test_a_task_that_finds_no_bot_in_time_expires(swarm):
    nobody = pairs(pool="default", os="Haiku")
    done = swarm.ended(swarm.new(dimensions=nobody, wait_for_capacity=True, expiration_secs=1))
    assert (done["state"], done["abandoned_ts"]) == ("EXPIRED", done["completed_ts"])
    assert "exit_code" not in done
    assert is_listed(swarm, done, "EXPIRED")


def is_listed(swarm: Swarm, done: dict[str, Any], state: str) -> bool:
    return done["task_id"] in [one["task_id"] for one in swarm.call("tasks.list", state=state, limit=5)["items"]]


def test_better_priorities_run_first_and_equal_ones_in_order(swarm, tmp_path):
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    tmp_path.chmod(0o777)
    blocker = swarm.new(SH, "-c", "while [ ! -e $0 ]; do sleep 0.02; done", str(gate))
    swarm.until(blocker, "RUNNING")
    wanted = [(9, "a"), (8, "b"), (6, "c"), (7, "d"), (8, "e")]
    ids = [swarm.new(SH, "-c", "echo $0 >> $1", f"p{p} {name}", str(ran), priority=p) for p, name in wanted]
    gate.touch()
    for task in ids:
        swarm.ended(task)
    assert ran.read_text().splitlines() == ["p6 c", "p7 d", "p8 b", "p8 e", "p9 a"]


@pytest.mark.full
def test_output_grows_while_the_command_runs(swarm):
    script = "echo one; while [ ! -e stop ]; do sleep 0.02; done"
    task = swarm.new(SH, "-c", script)
    wait_for(lambda: swarm.output(task) == "one\n", "the first line")
    assert swarm.call("task.stdout", task_id=task)["state"] == "RUNNING"
    assert is_listed(swarm, {"task_id": task}, "RUNNING")
    assert is_listed(swarm, {"task_id": task}, "PENDING_RUNNING")
    running = swarm.call("task.result", task_id=task)
    assert not {"duration", "exit_code", "completed_ts"} & set(running)
    swarm.call("task.cancel", task_id=task, body={"kill_running": True})
    assert swarm.ended(task)["state"] == "KILLED"


def test_states_of_many_tasks_at_once(either):
    done = either.run("true")["task_id"]
    waiting = either.new("true", dimensions=pairs(pool="nobody"), wait_for_capacity=True)
    asked = [waiting, done, "5cee4880088100", done]
    assert either.call("tasks.get_states", task_id=asked)["states"] == ["PENDING", "COMPLETED", "PENDING", "COMPLETED"]
    assert either.refused("tasks.get_states")[0] == 400
    either.call("task.cancel", task_id=waiting)


def test_a_run_is_shown_by_its_own_id(swarm):
    done = swarm.run("true")
    run = swarm.call("task.result", task_id=done["run_id"])
    assert (run["task_id"], run["try_number"], run["state"]) == (done["run_id"], "1", "COMPLETED")
    assert not {"tags", "user"} & set(run)
    assert swarm.refused("task.result", task_id=done["run_id"][:-1] + "2")[0] == 404


def test_a_task_that_triggers_others_is_shown_with_them_and_takes_them_along(swarm):
    parent = swarm.new(SH, "-c", "echo up; exec sleep 600", user="ann")
    wait_for(lambda: swarm.output(parent) == "up\n", "the first word")
    run = swarm.call("task.result", task_id=parent)["run_id"]
    waits = {"dimensions": pairs(pool="default", os="Haiku"), "wait_for_capacity": True}
    children = [swarm.new("true", parent_task_id=run, user="bob", **waits) for _ in range(2)]
    asked = swarm.call("task.request", task_id=children[0])
    told = swarm.call("tasks.new", body=a_task(parent_task_id=run, user="bob", evaluate_only=True, **waits))["request"]
    assert {**told, "created_ts": asked["created_ts"], "task_id": children[0]} == asked
    assert (asked["parent_task_id"], asked["user"]) == (run, "ann")
    assert {f"parent_task_id:{run}", "user:ann"} <= set(asked["tags"])
    assert swarm.call("task.result", task_id=parent)["children_task_ids"] == children
    listed = {one["task_id"]: one for one in swarm.call("tasks.list", limit=3)["items"]}
    assert listed[parent]["children_task_ids"] == children
    assert "children_task_ids" not in listed[children[0]]
    swarm.call("task.cancel", task_id=parent, body={"kill_running": True})
    assert [swarm.ended(child)["state"] for child in children] == ["CANCELED", "CANCELED"]


@pytest.mark.parametrize("kill", [False, True])
def test_many_are_cancelled_by_their_tags(swarm: Swarm, kill: bool) -> None:
    tag = f"mass:{uuid.uuid4().hex}"
    running = swarm.new(SH, "-c", "echo up; exec sleep 600", tags=[tag, "half:1"])
    wait_for(lambda: swarm.output(running) == "up\n", "the first word")
    haiku = pairs(pool="default", os="Haiku")
    ids = [swarm.new("true", tags=[tag, f"half:{n % 2}"], dimensions=haiku, wait_for_capacity=True) for n in range(5)]
    assert swarm.refused("tasks.cancel", body={"tags": []})[0] == 400
    assert swarm.refused("tasks.cancel")[0] == 400
    found = cursor = 0
    while True:
        body: dict[str, Any] = {"tags": [tag], "limit": "2", "kill_running": kill, "start": 0}
        answer = swarm.call("tasks.cancel", body={**body, "cursor": cursor} if cursor else body)
        found += int(answer["matched"])
        cursor = answer.get("cursor")
        if not cursor:
            break
    assert found == 5 + kill
    assert set(swarm.call("tasks.get_states", task_id=ids)["states"]) == {"CANCELED"}
    if not kill:
        assert swarm.call("task.result", task_id=running)["state"] == "RUNNING"
        swarm.call("task.cancel", task_id=running, body={"kill_running": True})
    assert swarm.ended(running)["state"] == "KILLED"


def test_a_secret_is_seen_by_its_own_task_only(swarm):
    script = """python3 - <<'END'
import base64, json, os
told = json.load(open(os.environ["LUCI_CONTEXT"]))["swarming"]
secret = told.get("secret_bytes")
clear = base64.b64decode(secret).decode() if secret else "none"
print(clear.upper(), clear, secret, told["task"]["task_id"], os.environ["SWARMING_TASK_ID"])
END
"""
    done = swarm.run(SH, "-c", script, secret_bytes="Zm9yIG1lIG9ubHk=\n")
    masked = f"{'*' * 11} {'*' * 16}"
    assert swarm.output(done["task_id"]) == f"FOR ME ONLY {masked} {done['task_id']} {done['run_id']}\n"
    assert swarm.output(done["task_id"], offset=13, length=4) == "****"
    other = swarm.run(SH, "-c", script)
    assert swarm.output(other["task_id"]).startswith("NONE ")


def test_a_named_cache_outlives_its_task_and_becomes_a_dimension(swarm):
    name = f"c{uuid.uuid4().hex[:8]}"
    caches = [{"name": name, "path": "kept/here"}]
    first = swarm.run(SH, "-c", "echo kept > kept/here/file", caches=caches)
    assert first["exit_code"] == "0"
    second = swarm.run(SH, "-c", "cat kept/here/file", caches=caches)
    assert swarm.output(second["task_id"]) == "kept\n"
    wait_for(lambda: name in caches_of(swarm), "the cache among the bot's dimensions")
    third = swarm.run("true", dimensions=pairs(pool="default", caches=name))
    assert third["state"] == "COMPLETED"
    stats = second["performance_stats"]
    assert set(stats) == {"bot_overhead", *PARTS}
    assert stats["bot_overhead"] > sum(stats[part]["duration"] for part in PARTS) > 0, "where the time went"


def test_every_run_has_complete_statistics(swarm):
    done = swarm.run("true")
    stats = done["performance_stats"]
    assert set(stats) == {"bot_overhead", *PARTS}
    assert stats["bot_overhead"] > 0
    assert min(stats["cache_trim"]["duration"], stats["cleanup"]["duration"]) > 0
    assert stats["package_installation"] == {"duration": 0}
    _, native = swarm.server.get(f"/api/v1/tasks/{done['task_id']}")
    [run] = native["runs"]
    assert run["stats"]["bot_overhead"] == stats["bot_overhead"]
    assert run["stats"]["cleanup"] == stats["cleanup"]["duration"]
    assert run["stats"]["cache_trim"] == stats["cache_trim"]["duration"]
    assert run["cost_usd"] == done["costs_usd"][0] > 0


def caches_of(swarm: Swarm) -> list[str]:
    found = swarm.call("bot.get", bot_id="b1")["dimensions"]
    return next((one["value"] for one in found if one["key"] == "caches"), [])


def test_substitutions_are_made(swarm):
    script = "echo $SWARMING_HEADLESS $SWARMING_BOT_ID; test -f $0 && echo a file; echo $1"
    done = swarm.run(SH, "-c", script, "${SWARMING_BOT_FILE}", "${SWARMING_TASK_ID}x${EXECUTABLE_SUFFIX}")
    assert swarm.output(done["task_id"]) == f"1 b1\na file\n{done['run_id']}x\n"


def test_a_command_finds_its_realm_its_bot_and_its_deadline_in_its_context(swarm):
    done = swarm.run(SH, "-c", "cat $LUCI_CONTEXT", realm="lab:try")
    told = json.loads(swarm.output(done["task_id"]))
    assert told["realm"] == {"name": "lab:try"}
    assert told["swarming"]["task"]["server"] == swarm.server.url
    assert {"id:b1", "pool:default"} <= set(told["swarming"]["task"]["bot_dimensions"])
    assert told["deadline"]["soft_deadline"] > time.time()
