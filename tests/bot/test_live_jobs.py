"""The real server and the real bot: a task calls the server for its own job, with nothing but the bot's zip."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bots import BotProcess, wait_for
from tests.bot.test_live import ended, live_bot, log
from tests.live import LiveServer, live_server

JOB = 'python3 "$MYRMIDON_BOT_ZIP" job'


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as started:
        yield started


@pytest.fixture(scope="module")
def bot(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BotProcess]:
    with live_bot(server, tmp_path_factory.mktemp("live") / "caller", "calls") as started:
        yield started


def run_caller(server: LiveServer, script: str, *, api: bool = True) -> tuple[dict[str, Any], str, str]:
    """Run a shell script as the only task of a job: the task, its stdout and stderr."""
    payload = {"command": ["/bin/sh", "-c", script], "dimensions": {"pool": "calls"}, **({"api": "job"} if api else {})}
    status, job = server.post("/api/v1/jobs", {"job": {"tasks": {"caller": {"task": {"payload": payload}}}}})
    assert status == 200, job
    task = job["task_ids"]["caller"]
    found = ended(server, task)
    return found, log(server, task).decode(), log(server, task, "stderr").decode()


def test_the_token_is_in_a_private_file_that_is_gone_afterwards(server: LiveServer, bot: BotProcess):
    script = 'echo "$MYRMIDON_TOKEN_FILE"; stat -c %a "$MYRMIDON_TOKEN_FILE"; cat "$MYRMIDON_TOKEN_FILE"; echo; env'
    task, out, _ = run_caller(server, script)
    path, mode, token, *env = out.splitlines()
    assert (mode, token[:4], token in "\n".join(env)) == ("600", "myu_", False)
    assert not Path(path).exists()
    variables = dict(line.partition("=")[::2] for line in env)
    assert (variables["MYRMIDON_JOB_ID"], variables["MYRMIDON_SERVER"]) == (task["job_id"], server.url)
    assert not Path(variables["MYRMIDON_BOT_ZIP"]).exists()
    wait_for(lambda: server.call("GET", f"/api/v1/jobs/{task['job_id']}", token=token).status == 401, "its end")


def test_a_task_extends_annotates_and_shares_texts(server: LiveServer, bot: BotProcess, interpreter: str):
    payload = {"command": ["true"], "dimensions": {"pool": "calls"}}
    graph = json.dumps({"tasks": {"more": {"task": {"payload": payload}}}})
    script = f"""set -e
        job() {{ {interpreter} "$MYRMIDON_BOT_ZIP" job "$@"; }}
        echo '{graph}' > graph.json; job extend graph.json; job extend - < graph.json
        printf '# Done' | job annotate -
        job meta set version 1.2; job meta get version; job meta get; job meta delete version; job meta get"""
    task, out, err = run_caller(server, script)
    assert (task["result"]["state"], task["annotation"]["content"]) == ("SUCCEEDED", "# Done"), (out, err)
    assert out.split("\n", 3) == ["1 new tasks", "0 new tasks", "1.2", '{\n  "version": "1.2"\n}\n{}\n']
    job = f"/api/v1/jobs/{task['job_id']}"
    wait_for(lambda: server.get(job)[1]["state"] == "SUCCEEDED", "the job's end")
    assert server.get(job)[1]["num_tasks"] == 2


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("extend missing.json", 1, "missing.json"),
        ("extend /dev/null", 1, "is not JSON"),
        ("meta get nothing", 1, "no text named nothing"),
        ("meta set 'a b' x", 1, "request.invalid"),
        ("extend", 2, "usage: job extend FILE"),
        ("", 2, "usage: job extend FILE"),
        ("meta set x", 2, "usage: job extend FILE"),
        ("""extend - <<'END'\n{"tasks": {"a": {"requires": ["nobody"]}, "b": {}}}\nEND""", 1, "tasks.b.task"),
    ],
)
def test_what_cannot_be_done_is_said(server: LiveServer, bot: BotProcess, command: str, code: int, message: str):
    task, _, err = run_caller(server, f"{JOB} {command}")
    assert (task["result"]["exit_code"], message in err) == (code, True), err


def test_a_task_that_did_not_ask_gets_nothing(server: LiveServer, bot: BotProcess):
    task, out, _ = run_caller(server, "env", api=False)
    assert task["result"]["exit_code"] == 0
    assert not {"MYRMIDON_TOKEN_FILE", "MYRMIDON_BOT_ZIP", "MYRMIDON_JOB_ID"} & {x.split("=")[0] for x in out.split()}
