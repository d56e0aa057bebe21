"""`job` and `jobs` against a real server with bots."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bots import wait_for
from tests.cases import some
from tests.cli.conftest import Up
from tests.cli.terminal import Terminal


def node(script: str, *requires: str, **fields: Any) -> dict[str, Any]:
    return {"requires": list(requires), "task": {"payload": {"command": ["sh", "-c", script]}}, **fields}


def graph(name: str = "nightly", **tasks: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "tasks": {label.replace("_", "-"): task for label, task in tasks.items()}}


def submit(terminal: Terminal, document: object, *words: str) -> str:
    return terminal.ok("job", "submit", "-", *words, given=json.dumps(document)).strip()


def states(terminal: Terminal, job: str) -> dict[str, str]:
    return {task["label"]: task["state"] for task in terminal.json("job", "tree", job)}


@pytest.fixture(scope="module")
def failed_job(up: Up) -> str:
    """build succeeds, test-2 fails and blocks report."""
    job = submit(
        up.terminal,
        graph(
            build=node("echo built"),
            test_1=node("echo fine", "build"),
            test_2=node("echo first; echo last >&2; exit 3", "build"),
            report=node("true", "test-1", "test-2"),
            mail=node("true", "report"),
        ),
    )
    assert up.terminal.run("job", "result", job).returncode == 1
    return job


# ---------------------------------------------------------------- documents


@pytest.mark.parametrize("form", ["json", "yaml", "stdin"])
def test_a_document_is_submitted_from_a_file_or_stdin(terminal: Terminal, tmp_path: Path, form: str):
    yaml = "name: n\ntasks: {a: {task: {payload: {command: ['true']}}}}"
    file = tmp_path / f"g.{form}"
    file.write_text(json.dumps(graph(a=node("exit 0"))) if form == "json" else yaml)
    words = ["-"] if form == "stdin" else [str(file)]
    job = terminal.ok("job", "submit", *words, given=file.read_text()).strip()
    assert terminal.run("job", "result", job).returncode == 0


def test_parameters_are_given_at_submit(terminal: Terminal):
    document = {
        "name": "p",
        "parameters": {"word": None, "n": 1},
        "tasks": {"a": {"task": {"payload": {"command": ["echo", {"$param": "word"}, {"$param": "n"}]}}}},
    }
    job = submit(terminal, document, "-p", "word=hello", "-p", "n=3")
    terminal.ok("job", "result", job)
    assert terminal.ok("task", "log", f"{job}/a") == "hello 3\n"
    missing = terminal.run("job", "submit", "-", given=json.dumps(document))
    assert (missing.returncode, "word" in missing.stderr) == (65, True)


BAD = {
    "an unknown label": (json.dumps(graph(a=node("true", "nowhere"))), 65, "nowhere"),
    "a cycle": (json.dumps(graph(a=node("true", "c"), b=node("true", "a"), c=node("true", "b"))), 65, " -> "),
    "no tasks": ('{"name": "n", "tasks": {}}', 65, "tasks"),
    "nothing": ("", 2, "a graph document is an object"),
    "an unknown id": (
        '{"name": "n", "tasks": {"a": {"task": {"payload": {"command": ["x", {"$subs": "taskId:b"}]}}}}}',
        65, "task.payload.command[1].$subs: got",
    ),
    "a tag": ("tasks: !!python/object/apply:os.getcwd []", 2, "not valid YAML"),
    "a bomb": (
        "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]), 2,
        "values after anchors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("verb", some(["submit", "check"], short=1))
def test_a_bad_document_is_refused_in_a_sentence_and_nothing_is_stored(terminal: Terminal, verb: str, name: str):
    text, code, told = BAD[name]
    before = terminal.json("jobs")["counts"]
    done = terminal.run("job", verb, "-", given=text)
    assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
    assert sum(terminal.json("jobs")["counts"].values()) == sum(before.values())


def test_every_problem_of_a_document_is_told_at_once(terminal: Terminal):
    document = graph(a=node("true", "x"), b=node("true", "y"))
    done = terminal.run("job", "submit", "-", given=json.dumps(document))
    assert done.returncode == 65
    assert "2 problems" in done.stderr
    for label, parent in (("a", "x"), ("b", "y")):
        assert any(f"tasks.{label}." in line and parent in line for line in done.stderr.splitlines())


def test_a_check_tells_what_is_not_carried_out(terminal: Terminal):
    def check(**fields: Any) -> str:
        task = {"payload": {"command": ["true"], **fields}, "scopes": ["queue:x"]}
        return terminal.run("job", "check", "-", given=json.dumps(graph(a={"task": task}))).stderr

    assert "warning: tasks.a.task.scopes has no effect: what a task may do depends on the token" in check()
    assert "tasks.a.task.payload.image: got text of 6 characters; allowed: nothing here: " in check(image="ubuntu")
    assert "`command` (did you mean that?)" in check(comand=["false"])
    done = terminal.run("job", "check", "-", given=json.dumps({"tasks": []}))
    assert "tasks: got no tasks; allowed: at least one task, such as" in done.stderr


def test_a_plan_tells_what_would_happen_and_stores_nothing(terminal: Terminal):
    name = f"plan {os.getpid()}"
    known = {"name": name, "payload": {"command": ["echo", name], "idempotent": True}}
    document = {"name": name, "tasks": {
        "once": {"task": known},
        "gpu": {"requires": ["once"], "task": {"payload": {"command": ["true"], "dimensions": {"gpu": ["a100"]}}}},
    }}  # fmt: skip
    first = terminal.run("job", "submit", "-", "--plan", given=json.dumps(document))
    assert first.returncode == 1
    assert "2, 1 edge, 2 deep" in first.stdout
    assert "without a live bot" in first.stdout
    assert "unknown: no such task has run yet" in first.stdout
    assert "gpu: no live bot matches" in first.stderr
    assert terminal.json("jobs", "--name", name)["jobs"] == []
    terminal.ok("job", "submit", "-", "--watch", given=json.dumps({"name": name, "tasks": {"once": {"task": known}}}))
    plan = terminal.run("job", "check", "-", "--json", given=json.dumps(document))
    found = json.loads(plan.stdout)
    assert (plan.returncode, found["num_deduped"], found["num_without_bots"]) == (1, 1, 1)
    assert found["critical_path"] == ["once", "gpu"]
    assert found["expected_s"] == 0.0


# ---------------------------------------------------------------- names


@pytest.mark.full
def test_a_label_stands_for_a_task_wherever_an_id_does(terminal: Terminal, failed_job: str):
    name = f"{failed_job}/test-2"
    task_id = terminal.json("task", "show", name)["task_id"]
    listed = {task["label"]: task["task_id"] for task in terminal.json("job", "tree", failed_job)}
    assert listed["test-2"] == task_id
    logged = terminal.run("task", "log", name)
    assert (logged.stdout, logged.stderr) == ("first\n", "last\n")
    assert "The task has ended: FAILED" in terminal.ok("task", "why", name)
    assert terminal.run("task", "reproduce", name).returncode == 3
    assert terminal.run("collect", name).returncode == 3
    assert f"Task {task_id} had ended already: FAILED." in terminal.run("task", "cancel", name).stdout
    for words in (["task", "show"], ["task", "cancel"], ["collect"]):
        missing = terminal.run(*words, f"{failed_job}/nothing")
        assert missing.returncode == 66
        assert "has no task 'nothing'" in missing.stderr
    job = submit(terminal, graph(a=node("exit 0")))
    terminal.ok("job", "result", job)
    terminal.ok("task", "rerun", "--force", f"{job}/a")
    terminal.ok("collect", f"{job}/a")
    assert len(terminal.json("task", "show", f"{job}/a")["runs"]) == 2


@pytest.mark.full
def test_latest_is_the_last_job_of_ones_own_token(up: Up, tmp_path: Path):
    made = up.terminal.json("token", "create", "bob", "--role", "user", "--group", "default")
    bob = Terminal(tmp_path, MYRMIDON_SERVER=up.url, MYRMIDON_TOKEN=made["token"])
    nothing = bob.run("job", "show", "@latest")
    assert (nothing.returncode, "no job that was submitted with this token" in nothing.stderr) == (66, True)
    of_bob = submit(bob, graph(a=node("echo bob")))
    of_admin = submit(up.terminal, graph(a=node("echo admin")))
    assert bob.json("job", "show", "@latest")["job_id"] == of_bob
    assert up.terminal.json("job", "show", "@latest")["job_id"] == of_admin
    bob.ok("collect", "@latest")
    assert bob.ok("task", "log", "@latest/a") == "bob\n"


def test_collect_waits_for_jobs_and_tasks_and_prints_their_output(terminal: Terminal, failed_job: str):
    external = f"mine-{os.getpid()}"
    job = submit(terminal, {**graph(a=node("echo from a"), b=node("echo from b", "a")), "external_id": external})
    task = terminal.ok("trigger", "--", "echo", "from a task").strip()
    done = terminal.run("collect", "--log", external, task)
    assert done.returncode == 0
    assert done.stdout == "from a task\nfrom a\nfrom b\n"
    assert terminal.run("collect", job, failed_job).returncode == 1
    found = terminal.json("collect", given=terminal.ok("job", "show", "--json", job))
    assert ([one["job_id"] for one in found["jobs"]], found["tasks"], found["waiting"]) == ([job], [], [])
    held = submit(terminal, graph(a=node("true", hold=True)))
    assert terminal.run("collect", "--timeout", "0", held).returncode == 75
    terminal.ok("job", "cancel", held)
    assert terminal.run("collect", held).returncode == 125


# ---------------------------------------------------------------- look


def test_a_failed_job_says_what_failed_and_what_it_blocks(terminal: Terminal, failed_job: str):
    shown = terminal.ok("job", "show", failed_job)
    assert "test-2: FAILED with exit code 3" in shown
    assert "1 FAILED, 2 WAITING, 2 SUCCEEDED" in shown
    why = terminal.ok("job", "why", failed_job)
    assert "1 task ended FAILED with exit code 3: last\n  test-2\n" in why
    assert "2 tasks cannot run because test-2 did not succeed: mail, report." in why
    facts = terminal.json("job", "why", failed_job)
    assert facts["unreachable"] == {"report": "test-2", "mail": "test-2"}
    tree = terminal.ok("job", "tree", failed_job).splitlines()
    assert [line.split()[0] for line in tree] == ["SUCCEEDED", "SUCCEEDED", "WAITING", "WAITING", "FAILED"]
    assert sum("(cannot run: test-2 did not succeed)" in line for line in tree) == 2


def test_why_says_what_a_job_waits_for(terminal: Terminal):
    document = {"name": "w", "tasks": {
        "gpu": {"task": {"payload": {"command": ["true"], "dimensions": {"gpu": ["a100"]}}}},
    }}  # fmt: skip
    job = submit(terminal, document)
    assert "gpu: No bot matches" in terminal.ok("job", "why", job)
    terminal.ok("job", "cancel", job)
    held = submit(terminal, graph(a=node("true", hold=True)))
    assert "a: The task is held; release it to let it run." in terminal.ok("job", "why", held)
    terminal.ok("job", "cancel", held)


def test_logs_of_a_job_are_below_their_labels_and_can_be_selected(terminal: Terminal, failed_job: str):
    every = terminal.run("job", "log", failed_job)
    assert (every.returncode, sorted(every.stdout.split())) == (0, ["built", "fine", "first"])
    assert "--- build" in every.stderr
    failed = terminal.run("job", "log", "--failed", failed_job)
    assert failed.stdout == "first\n"
    assert "--- test-2: FAILED with exit code 3" in failed.stderr
    assert terminal.ok("job", "log", "--label", "b*", failed_job) == "built\n"


@pytest.mark.full
def test_a_followed_log_goes_on_to_the_end_of_the_job(terminal: Terminal):
    job = submit(terminal, graph(a=node("echo one; echo two"), b=node("echo three; exit 4", "a")))
    done = terminal.run("job", "log", "-f", job)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (1, ["a | one", "a | two", "b | three"])


def test_jobs_are_listed_with_filters(terminal: Terminal, failed_job: str):
    listed = terminal.json("jobs", "--name", "nightly", "-s", "FAILED")
    assert failed_job in {job["job_id"] for job in listed["jobs"]}
    [line] = [line for line in terminal.ok("jobs", "-s", "FAILED").splitlines() if failed_job in line]
    assert line.split()[1:4] == ["FAILED", "2/5", "1"]


def test_timing_and_results_name_the_tasks(terminal: Terminal, failed_job: str):
    assert {task["label"] for task in terminal.json("job", "timing", failed_job)} == {
        "build", "test-1", "test-2", "report", "mail",
    }  # fmt: skip
    done = terminal.run("job", "result", "--json", failed_job)
    assert (done.returncode, [task["label"] for task in json.loads(done.stdout)["tasks"]]) == (1, ["mail"])


@pytest.mark.full
def test_a_graph_is_drawn_in_three_formats(terminal: Terminal, failed_job: str):
    dot = terminal.ok("job", "graph", failed_job)
    assert dot.startswith("digraph job {")
    assert dot.count(" -> ") == 5
    mermaid = terminal.ok("job", "graph", "--format", "mermaid", failed_job)
    assert mermaid.startswith("flowchart LR\n")
    assert mermaid.count(" --> ") == 5
    assert ":::FAILED" in mermaid
    svg = terminal.ok("job", "graph", "--format", "svg", failed_job)
    assert (svg.startswith("<svg"), svg.count("<rect"), svg.count("<path")) == (True, 5, 5)


@pytest.mark.full
def test_two_jobs_are_compared(terminal: Terminal, failed_job: str):
    other = submit(terminal, graph(build=node("echo built"), more=node("true", "build")))
    terminal.ok("job", "result", other)
    done = terminal.run("job", "diff", failed_job, other)
    assert done.returncode == 1
    assert "only in second" in next(line for line in done.stdout.splitlines() if line.startswith("more"))
    assert terminal.run("job", "diff", other, other).returncode == 0


# ---------------------------------------------------------------- change


def test_the_failed_part_runs_again_after_a_dry_run(terminal: Terminal, tmp_path: Path):
    mark = tmp_path / "mark"
    job = submit(terminal, graph(a=node("true"), b=node(f"test -e {mark}", "a"), c=node("true", "b")))
    assert terminal.run("job", "watch", job).returncode == 1
    dry = terminal.run("job", "rerun", "--failed", "--dry-run", job)
    assert (dry.stdout.split(), "1 task would run again" in dry.stderr) == (["b"], True)
    mark.touch()
    terminal.ok("job", "rerun", "--failed", job)
    assert terminal.run("job", "watch", job).returncode == 0
    assert terminal.ok("job", "rerun", "--from", "b", "--dry-run", job).split() == ["b", "c"]
    assert terminal.run("job", "rerun", "--from", "b", "--full", job).returncode == 2


def test_a_job_is_extended_until_it_is_sealed(terminal: Terminal):
    job = submit(terminal, graph(a=node("true", hold=True)))
    more = json.dumps({"tasks": {"b": node("true", "a")}})
    assert "Added 1 task" in terminal.ok("job", "extend", job, "-", given=more)
    assert "Added 0 tasks" in terminal.ok("job", "extend", job, "-", given=more)
    assert "accepts no more tasks" in terminal.ok("job", "seal", job)
    refused = terminal.run("job", "extend", job, "-", given=json.dumps({"tasks": {"c": node("true", "a")}}))
    assert refused.returncode == 78
    terminal.ok("job", "release", job, "--task", "a")
    terminal.ok("job", "result", job)
    assert states(terminal, job) == {"a": "SUCCEEDED", "b": "SUCCEEDED"}


def test_a_held_job_starts_after_its_release(terminal: Terminal):
    job = submit(terminal, graph(gate=node("true", hold=True), a=node("true", "gate")))
    terminal.ok("job", "hold", job)
    wait_for(lambda: all(task["held"] for task in terminal.json("job", "tree", job)), "the hold of every task")
    terminal.ok("job", "release", job, "--task", "gate")
    wait_for(lambda: states(terminal, job)["gate"] == "SUCCEEDED", "the task that is not held")
    assert states(terminal, job)["a"] == "WAITING"
    terminal.ok("job", "release", job)
    assert terminal.run("job", "result", job).returncode == 0


@pytest.mark.full
def test_a_job_ends_with_a_code_of_its_own(terminal: Terminal):
    job = submit(terminal, graph(a=node("sleep 60")))
    terminal.ok("job", "cancel", job)
    assert terminal.run("job", "watch", job).returncode == 125
    assert terminal.run("job", "result", job).returncode == 125
    late = submit(terminal, {**graph(a=node("sleep 60")), "deadline_s": 1})
    assert terminal.run("job", "watch", late).returncode == 124


def test_an_ended_job_is_deleted_and_a_running_one_is_not(terminal: Terminal):
    job = submit(terminal, graph(a=node("true", hold=True)))
    assert terminal.run("job", "delete", job).returncode == 78
    terminal.ok("job", "cancel", job)
    terminal.run("job", "result", job)
    terminal.ok("job", "delete", job)
    wait_for(lambda: terminal.run("job", "show", job).returncode == 66, "the deleted job to be gone")


# ---------------------------------------------------------------- resume


def test_a_job_is_resumed_under_its_id(terminal: Terminal, tmp_path: Path):
    def document(*commands: str) -> str:
        """A graph of idempotent commands."""
        tasks = {
            f"n{i}": {"task": {"payload": {"command": ["sh", "-c", text], "idempotent": True}}}
            for i, text in enumerate(commands)
        }
        path = tmp_path / "graph.json"
        path.write_text(json.dumps({"name": "resumed", "tasks": tasks}))
        return str(path)

    words = ("job", "submit", "--id", "cli-resumed", "--resume")
    first = terminal.ok(*words, document("true", "true # two")).split()[0]
    terminal.ok("job", "result", first)
    assert terminal.ok(*words, document("true", "true # two")).split()[0] == first
    planned = terminal.run(*words, "--plan", document("true", "true # edited"))
    assert "n1 runs: its command, its options or its signature have changed" in planned.stdout
    assert "n0 runs" not in planned.stdout
    refused = terminal.run(*words[:-1], document("true", "true # edited"))
    assert (refused.returncode, "--resume" in refused.stderr) == (78, True)
    second = terminal.ok(*words, document("true", "true # edited")).split()[0]
    assert second != first
    terminal.ok("job", "result", second)
    shown = terminal.json("job", "show", "cli-resumed~1")
    assert (shown["job_id"], shown["state"]) == (first, "SUCCEEDED")


def test_a_watched_submit_names_the_job(terminal: Terminal):
    done = terminal.run("job", "submit", "-", "--watch", given=json.dumps(graph(a=node("true"))))
    assert done.stderr.splitlines()[0] == f"job {terminal.json('job', 'show', '@latest')['job_id']}"


def test_a_job_is_not_taken_for_a_task(terminal: Terminal):
    done = terminal.run("task", "show", "@latest")
    assert (done.returncode, "@latest/LABEL" in done.stderr) == (2, True)


@pytest.mark.full
def test_a_job_that_has_succeeded_runs_again_with_full_only(terminal: Terminal):
    job = submit(terminal, graph(a=node("true")))
    terminal.ok("job", "result", job)
    refused = terminal.run("job", "rerun", job)
    assert (refused.returncode, "--full" in refused.stderr) == (78, True)
    terminal.ok("job", "rerun", job, "--full")


def test_resume_needs_an_id(terminal: Terminal, tmp_path: Path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"tasks": {"a": {"task": {"payload": {"command": ["true"]}}}}}))
    done = terminal.run("job", "submit", "--resume", str(path))
    assert (done.returncode, "--id" in done.stderr) == (2, True)
