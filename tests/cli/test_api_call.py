"""`query` and `post`: both APIs for scripts, with the exit codes of every other command."""

from __future__ import annotations

import json

from tests.cli.terminal import Terminal

TASK = {
    "name": "scripted",
    "priority": 100,
    "tags": ["scripted:1"],
    "task_slices": [
        {
            "expiration_secs": 600,
            "properties": {
                "command": ["sh", "-c", "echo scripted"],
                "dimensions": [{"key": "pool", "value": "default"}],
                "execution_timeout_secs": 60,
            },
        }
    ],
}


def test_a_script_submits_and_looks_over_either_api(terminal: Terminal):
    made = json.loads(terminal.ok("post", "tasks/new", given=json.dumps(TASK)))
    task = made["task_id"]
    terminal.run("collect", task)
    assert json.loads(terminal.ok("query", f"task/{task}/result"))["state"] == "COMPLETED"
    assert json.loads(terminal.ok("query", f"task/{task}/stdout", "--json"))["output"] == "scripted\n"
    assert terminal.json("query", f"/api/v1/tasks/{task}")["result"]["state"] == "SUCCEEDED"
    assert terminal.ok("query", f"/api/v1/tasks/{task}/log") == "scripted\n"
    assert terminal.json("post", f"task/{task}/cancel") == {"ok": False, "was_running": False}


def test_pages_of_a_list_are_joined(terminal: Terminal):
    for _ in range(2):
        terminal.ok("post", "tasks/new", "-d", json.dumps({**TASK, "tags": ["scripted:many"]}))
    path = "tasks/list?tags=scripted:many&limit=1"
    both = [one["task_id"] for one in terminal.json("query", path)["items"]]
    assert len(both) == 2
    less = terminal.json("query", path.replace("=1", "=2"), "-L", "1")
    assert [one["task_id"] for one in less["items"]] == both[:1]
    rest = terminal.json("query", f"{path}&cursor={less['cursor']}")
    assert [one["task_id"] for one in rest["items"]] == both[1:], "nothing is lost between a list and its cursor"
    assert len(terminal.json("query", "/api/v1/tasks?tag=scripted:many&limit=1", "-L", "0")["tasks"]) == 2


def test_the_paths_can_be_asked_for(terminal: Terminal):
    listed = terminal.json("query", "--list")
    assert {"method": "GET", "path": "bots/list"}.items() <= next(
        one for one in listed if one["path"] == "bots/list"
    ).items()


def test_what_goes_wrong_has_its_exit_code(terminal: Terminal):
    assert terminal.run("query", "task/5cee4880088100/result").returncode == 66
    assert terminal.run("query", "tasks/list?limit=0").returncode == 65
    assert terminal.run("post", "tasks/new", given="{").returncode == 2
    assert terminal.run("query").returncode == 2
    assert terminal.run("query", "tasks/list", "-L", "-1").returncode == 2
    refused = terminal.run("post", "tasks/new", "-d", "{}", "--json")
    assert (refused.returncode, json.loads(refused.stdout)["error"]["code"]) == (65, "request.invalid")
    assert terminal.run("query", "tasks/list", MYRMIDON_TOKEN="wrong").returncode == 77


def test_a_list_of_which_every_item_was_refused_is_an_error(terminal: Terminal):
    wrong = {"name": ""}
    right = {
        "name": "right",
        "slices": [{"properties": {"command": ["true"], "dimensions": {"pool": ["default"]}}}],
    }

    def posted(*tasks: object) -> int:
        done = terminal.run("post", "/api/v1/tasks", "-d", json.dumps({"tasks": tasks}))
        assert len(json.loads(done.stdout)["tasks"]) == len(tasks)
        return done.returncode

    assert [posted(wrong), posted(wrong, wrong), posted(wrong, right), posted(right)] == [65, 65, 0, 0]
