"""Commands run on real bots: their output, their codes, and how they are stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.architecture import source
from tests.cli.conftest import Up
from tests.cli.terminal import Terminal
from tests.deadline import HANG_S

GPU = {"pool": ["default"], "gpu": ["a100"]}


def a_fifo(tmp_path: Path) -> Path:
    """A command that reads it waits until the test writes to it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    return fifo


def test_run_shows_both_streams_and_exits_with_the_commands_code(terminal: Terminal):
    done = terminal.run("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, output_of(done)) == (3, "out\n", "err\n")


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    """What `run` wrote to stderr after the line with the task's id, without the note that a slow bot causes."""
    first, *rest = done.stderr.splitlines(keepends=True)
    assert re.fullmatch("task [0-9a-f]+( \\(deduped\\))?\n", first), done.stderr
    return "".join(line for line in rest if not line.startswith("waiting: "))


def test_the_id_comes_at_once_and_what_it_waits_for_soon_also_without_a_terminal(terminal: Terminal):
    with terminal.start("run", "-d", "gpu=a100", "--", "true") as running:
        assert running.stderr is not None
        task_id = running.stderr.readline().split()[1]
        assert running.stderr.readline().startswith("waiting: No bot matches: none of the remaining bots has gpu:a100;")
        terminal.ok("task", "cancel", task_id)
        assert running.wait(HANG_S) == 125


@pytest.mark.full
def test_what_it_waits_for_is_said_again_when_it_is_something_else(terminal: Terminal):
    bot = terminal.json("bots")["bots"][0]["bot_id"]
    terminal.ok("bot", "quarantine", bot, "--reason", "a broken disk")
    try:
        with terminal.start("run", "-d", f"id={bot}", "--", "true") as running:
            assert running.stderr is not None
            running.stderr.readline()
            first = running.stderr.readline()
            terminal.ok("bot", "quarantine", bot, "--reason", "a broken fan")
            second = running.stderr.readline()
            terminal.ok("bot", "quarantine", bot, "--undo")
            assert running.wait(HANG_S) == 0
    finally:
        terminal.ok("bot", "quarantine", bot, "--undo")
    assert [first, second] == [
        f"waiting: 1 bot matches, but it is not available: {bot} (quarantined: {why}).\n"
        for why in ("a broken disk", "a broken fan")
    ]


def test_every_command_that_waits_says_what_for(terminal: Terminal, tmp_path: Path):
    task = terminal.ok("trigger", "-d", "gpu=a100", "--", "true").strip()
    document = {"name": "stuck", "tasks": {"a": {"task": {"payload": {"command": ["true"], "dimensions": GPU}}}}}
    (tmp_path / "job.json").write_text(json.dumps(document))
    job = terminal.ok("job", "submit", str(tmp_path / "job.json")).strip()
    commands = [
        ("task", "log", "-f", task), ("collect", task),
        ("collect", job), ("job", "result", job), ("job", "watch", job), ("job", "log", "-f", job),
    ]  # fmt: skip
    with ExitStack() as stack:
        running = [stack.enter_context(terminal.start(*command)) for command in commands]
        for one in running:
            assert one.stderr is not None
            assert re.match(r"waiting( for \S+)?: No bot matches: .* has gpu:a100;", one.stderr.readline())
        terminal.ok("task", "cancel", task)
        terminal.ok("job", "cancel", job)
        for one in running:
            one.communicate(timeout=HANG_S)


def test_a_task_that_expires_says_what_was_missing(terminal: Terminal):
    done = terminal.run("run", "-d", "gpu=a100", "--expires", "1s", "--", "true")
    assert done.returncode == 121
    assert "ended: EXPIRED" in done.stderr
    assert "\nNo bot matches: none of the remaining bots has gpu:a100; their gpu is " in done.stderr
    assert done.stderr.endswith(". Start such a bot, or change the dimensions.\n")


def test_a_task_that_must_not_wait_says_what_was_missing(terminal: Terminal):
    done = terminal.run("run", "-d", "gpu=a100", "--no-wait-for-capacity", "--", "true")
    assert done.returncode == 122
    assert "\nNo bot matches: none of the remaining bots has gpu:a100; their gpu is " in done.stderr


def test_the_output_of_a_rerun_is_told_apart(terminal: Terminal):
    done = terminal.run("run", "--reruns", "1", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\nout\n"), "stdout has the task's bytes only"
    assert output_of(done) == "err\n--- run 2; the output above is from run 1 ---\nerr\n"


def test_a_value_that_is_refused_is_named_by_its_option(terminal: Terminal):
    one = terminal.run("run", "--timeout", "0", "--fallback", "os=none", "--", "true")
    assert one.returncode == 65
    assert one.stderr.startswith("error: --timeout: got 0; allowed: ")
    assert "slices" not in one.stderr
    two = terminal.run("trigger", "--lease", "1s", "-t", "x", "--", "true")
    assert "--lease: got 1;" in two.stderr
    assert "--tag: got 'x';" in two.stderr


def test_a_request_can_be_checked_without_a_task(terminal: Terminal):
    for verb in ("run", "trigger"):
        told = terminal.ok(verb, "--evaluate-only", "-t", "only:checked", "--", "true")
        assert told == "The request is valid; no task was stored.\n"
    assert terminal.run("run", "--evaluate-only", "--timeout", "0", "--", "true").returncode == 65
    assert terminal.json("tasks", "--tag", "only:checked")["tasks"] == []


def test_bytes_that_are_no_text_come_through(terminal: Terminal):
    done = terminal.run("run", "--", "sh", "-c", r"printf 'a\377\000b' | od -An -tx1")
    assert done.stdout.split() == ["61", "ff", "00", "62"]


def test_a_line_is_seen_while_the_command_still_runs(terminal: Terminal, tmp_path: Path):
    fifo = a_fifo(tmp_path)
    with terminal.start("run", "--", "sh", "-c", f"echo first; cat {fifo}; exit 4") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "first\n"
        assert running.poll() is None
        fifo.write_text("second\n")
        rest, _ = running.communicate(timeout=HANG_S)
    assert (running.returncode, rest) == (4, "second\n")


def test_options_reach_the_command(terminal: Terminal, tmp_path: Path):
    (tmp_path / "secret").write_text("hush")
    done = terminal.run(
        *("run", "-e", "GREETING=hi", "--cwd", "below", "--cache", "c=kept", "--env-prefix", "WHERE=bin"),
        *("--secret-file", str(tmp_path / "secret"), "--"),
        *("sh", "-c", 'echo $GREETING ${PWD##*/}; ls -d ../kept; echo ${WHERE##*/}; tr h H < "$MYRMIDON_SECRET_FILE"'),
    )
    assert done.stdout == "hi below\n../kept\nbin\nHusH"
    assert done.returncode == 0


def test_a_fallback_is_taken_when_no_bot_has_what_is_wanted(terminal: Terminal):
    done = terminal.run("run", "--no-wait-for-capacity", "-d", "gpu=a100", "--fallback", "gpu=", "--", "echo", "plan b")
    assert (done.returncode, done.stdout) == (0, "plan b\n")


def test_no_bot_at_all_is_an_exit_code_of_its_own(terminal: Terminal):
    done = terminal.run("run", "--no-wait-for-capacity", "-d", "gpu=a100", "--", "true")
    assert done.returncode == 122
    assert "NO_RESOURCE" in done.stderr


def test_a_timeout_is_124(terminal: Terminal):
    done = terminal.run("run", "--timeout", "1s", "--grace", "1s", "--", "sleep", "600")
    assert done.returncode == 124
    assert "TIMED_OUT" in done.stderr


def test_a_missing_program_is_127_and_a_signal_128_and_more_wherever_it_is_shown(terminal: Terminal):
    missing = terminal.run("run", "--", "no-such-program")
    assert missing.returncode == 127
    assert "no-such-program could not be started: No such file" in missing.stderr
    assert terminal.run("run", "--", "/etc/passwd").returncode == 126
    task = terminal.run("trigger", "--", "sh", "-c", "kill -9 $$").stdout.strip()
    collected = terminal.run("collect", task)
    assert (collected.returncode, " exit 137 " in collected.stdout) == (137, True)
    assert terminal.run("task", "log", "-f", task).returncode == 137
    shown = terminal.run("task", "show", task).stdout
    assert "(exit code 137, signal 9)" in shown
    assert " 137 " in shown.splitlines()[-1]
    assert json.loads(terminal.run("task", "show", "--json", task).stdout)["result"]["exit_code"] == -9
    assert terminal.run("task", "reproduce", task).returncode == 137
    lost = terminal.run("trigger", "--", "no-such-program").stdout.strip()
    assert terminal.run("collect", lost).returncode == 127
    assert "start_failed" in terminal.run("task", "show", lost).stdout
    assert terminal.run("task", "reproduce", lost).returncode == 127


def test_stdin_is_passed_on_where_asked_and_else_refused_aloud(terminal: Terminal):
    done = terminal.run("run", "-i", "--", "sort", given="b\na\n")
    assert (done.returncode, done.stdout, output_of(done)) == (0, "a\nb\n", "")
    ignored = terminal.run("run", "--", "cat", given="b\na\n")
    assert (ignored.returncode, ignored.stdout) == (0, "")
    assert output_of(ignored) == "Standard input is not passed on to the command; use -i (--stdin) to pass it on.\n"
    assert output_of(terminal.run("run", "--", "cat")) == "", "nothing was given"
    much = terminal.run("run", "-i", "--", "wc", "-c", given="x" * (1 << 20))
    assert much.stdout.strip() == str(1 << 20)
    more = terminal.run("run", "-i", "--", "wc", "-c", given="x" * (1 + (1 << 20)))
    assert (more.returncode, "more than 1 MiB" in more.stderr) == (2, True)
    both = terminal.run("run", "-i", "--secret-file", "-", "--", "true", given="x")
    assert (both.returncode, "cannot both read" in both.stderr) == (2, True)
    task = terminal.run("trigger", "-i", "--", "cat", given="in\n").stdout.strip()
    assert terminal.run("collect", "--log", task).stdout == "in\n"
    assert "3 bytes" in terminal.run("task", "show", task).stdout
    again = terminal.run("task", "reproduce", task, given="other\n")
    assert (again.stdout, "does not return the task's stdin" in again.stderr) == ("other\n", True)


def test_with_json_the_output_goes_to_stderr_and_the_task_to_stdout(terminal: Terminal):
    done = terminal.run("run", "--json", "--name", "told", "-t", "a:b", "--", "sh", "-c", "echo out; exit 3")
    task = json.loads(done.stdout)
    assert done.returncode == 3
    assert output_of(done) == "out\n"
    assert (task["request"]["name"], task["result"]["state"], task["result"]["exit_code"]) == ("told", "FAILED", 3)
    assert "a:b" in task["request"]["tags"]


def test_an_equal_earlier_result_answers_with_its_log(terminal: Terminal):
    asked = ("run", "--json", "--idempotent", "-e", "ROUND=dedupe", "--", "sh", "-c", "echo once")
    first, second = terminal.run(*asked), terminal.run(*asked)
    assert (output_of(first), output_of(second)) == ("once\n", "once\n")
    assert json.loads(second.stdout)["result"]["deduped_from"] == json.loads(first.stdout)["result"]["run"]


def test_ctrl_c_asks_once_and_cancels_the_second_time(terminal: Terminal, tmp_path: Path):
    fifo = a_fifo(tmp_path)
    with terminal.start("run", "--", "sh", "-c", f"echo begun; exec cat {fifo}") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "begun\n"
        assert running.stderr.readline().startswith("task ")
        running.send_signal(signal.SIGINT)
        assert any("Press Ctrl-C again to cancel task" in line for line in running.stderr)
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        _, rest = running.communicate(timeout=HANG_S)
    assert running.returncode == 125
    assert "Cancelling" in rest
    assert "KILLED" in rest


def test_a_request_with_problems_is_told_in_full(terminal: Terminal):
    done = terminal.run("run", "-d", "os= x", "--cache", "A=../b", "--", "true")
    assert done.returncode == 65
    assert "3 problems" in done.stderr
    assert done.stderr.count("allowed:") == 3
    told = json.loads(terminal.run("run", "--json", "-d", "os= x", "--", "true").stdout)
    assert told["error"]["code"] == "request.invalid"
    assert told["error"]["problems"][0]["path"] == "slices[0].properties.dimensions.os[0]"


def test_json_that_is_asked_of_the_command_is_not_asked_of_us(terminal: Terminal):
    done = terminal.run("run", "-d", "os= x", "ls", "--json")
    assert (done.returncode, done.stdout) == (65, "")
    assert done.stderr.startswith("error: ")
    assert json.loads(terminal.run("run", "--json", "--nonsense", "ls").stdout)["error"]["code"] == "usage"


def test_collect_waits_for_many_and_tells_of_the_first_that_failed(terminal: Terminal):
    said = [terminal.ok("trigger", "--json", "--", "sh", "-c", f"echo {n}; exit {n}") for n in (0, 5, 6)]
    made = [json.loads(text)["tasks"][0] for text in said]
    done = terminal.run("collect", "--json", given=json.dumps({"tasks": made}))
    assert done.returncode == 5
    collected = json.loads(done.stdout)
    assert [task["task_id"] for task in collected["tasks"]] == [task["task_id"] for task in made]
    assert [task["result"]["exit_code"] for task in collected["tasks"]] == [0, 5, 6]
    assert collected["waiting"] == []
    plain = terminal.run("collect", "--log", *(f"{task['task_id'][:-2]}01" for task in made))
    assert sorted(plain.stdout.split()) == ["0", "5", "6"]
    assert plain.stderr.count("FAILED exit") == 2


@pytest.mark.parametrize(
    ("given", "code"),
    [("null", 66), ("{}", 2), ("[null]", 2), ('{"tasks": [{"error": {}}]}', 2), ('{"tasks": null}', 2), ("[1", 2),
     ("456", 66)],
)  # fmt: skip
def test_collect_says_what_is_wrong_with_the_ids_it_reads(terminal: Terminal, given: str, code: int):
    done = terminal.run("collect", given=given)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_collect_takes_an_id_for_an_id_also_when_it_looks_like_a_number(terminal: Terminal):
    done = terminal.run("collect", given="123456788100\n")
    assert done.returncode == 66
    assert "123456788100" in done.stderr


def test_one_task_that_cannot_be_cancelled_does_not_keep_the_others_from_it(terminal: Terminal):
    first, last = (terminal.ok("trigger", "-d", "gpu=a100", "--", "true").strip() for _ in range(2))
    done = terminal.run("task", "cancel", first, "5cee4880088100", last)
    assert done.returncode == 66
    assert [line.split()[1] for line in done.stdout.splitlines()] == [first, last]
    assert "There is no task 5cee4880088100" in done.stderr
    assert terminal.run("collect", first, last).returncode == 125
    told = json.loads(terminal.run("task", "cancel", "--json", "5cee4880088100", first).stdout)["tasks"]
    assert [one.get("error", {}).get("code") for one in told] == ["not_found", None]
    nothing = terminal.run("task", "cancel", "--tag", "nocolon")
    assert (nothing.returncode, "is not KEY:VALUE" in nothing.stderr) == (2, True)


def test_what_has_not_ended_in_time_is_75_and_what_is_cancelled_125(terminal: Terminal):
    task_id = terminal.ok("trigger", "--name", "never", "-d", "gpu=a100", "--", "true").strip()
    waiting = terminal.run("collect", "--timeout", "0", task_id)
    assert waiting.returncode == 75
    why = terminal.ok("task", "why", task_id)
    assert "none of the remaining bots has gpu:a100" in why
    assert "CANCELLED" in terminal.ok("task", "cancel", task_id)
    assert terminal.run("collect", task_id).returncode == 125


def test_everything_with_a_tag_is_cancelled(terminal: Terminal):
    made = [terminal.ok("trigger", "-t", "batch:7", "-d", "gpu=a100", "--", "true").strip() for _ in range(2)]
    cancelled = terminal.json("task", "cancel", "--tag", "batch:7")
    assert cancelled == {"tasks": [], "tags": ["batch:7"], "num_tagged": 2}
    assert terminal.run("collect", *made).returncode == 125
    terminal.ok("trigger", "-t", "batch:8", "-d", "gpu=a100", "--", "true")
    assert terminal.ok("task", "cancel", "--tag", "batch:8") == "Cancelling 1 task with batch:8.\n"
    none = terminal.run("task", "cancel", "--tag", "batch:7")
    assert (none.returncode, none.stderr) == (66, "Nothing to cancel: no unfinished task has batch:7.\n")
    assert terminal.run("task", "cancel").returncode == 2


def test_a_reader_that_leaves_does_not_learn_how_the_task_ends(terminal: Terminal):
    with terminal.start("run", "-t", "unread:yes", "--", "sh", "-c", "while echo y; do sleep 0.05; done") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "y\n"
        running.stdout.close()
        assert running.wait(HANG_S) == 141
    [task] = terminal.json("tasks", "--tag", "unread:yes")["tasks"]
    assert task["state"] == "RUNNING"
    terminal.ok("task", "cancel", task["task_id"])


def test_trigger_can_wait(terminal: Terminal):
    assert terminal.run("trigger", "--wait", "--", "sh", "-c", "exit 9").returncode == 9


def a_request(name: str, script: str, **more: Any) -> str:
    properties = {"dimensions": {"pool": ["default"]}, "command": ["sh", "-c", script]}
    return json.dumps({"name": name, "slices": [{"properties": properties}], **more})


def test_a_file_of_requests_is_submitted_at_once(terminal: Terminal, tmp_path: Path):
    lines = [a_request("one", "echo 1"), "", a_request("four", "exit 4", tags=["from:file"])]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    made = terminal.ok("trigger", "--file", str(tmp_path / "tasks.jsonl")).split()
    assert [terminal.json("task", "show", task_id)["request"]["name"] for task_id in made] == ["one", "four"]
    assert terminal.run("collect", given="\n".join(made)).returncode == 4
    waited = terminal.run("trigger", "--file", "-", "--wait", "--json", given="\n".join(lines))
    assert waited.returncode == 4
    assert [task["result"]["exit_code"] for task in json.loads(waited.stdout)["tasks"]] == [0, 4]


def test_a_file_may_have_the_short_form_of_documents(terminal: Terminal):
    lines = [
        '{"command": ["true"]}',
        '{"payload": {"command": ["sh", "-c", "exit 4"], "maxRunTime": 60}, "name": "four"}',
    ]
    made = terminal.ok("trigger", "--file", "-", given="\n".join(lines)).split()
    assert [terminal.json("task", "show", task_id)["request"]["name"] for task_id in made] == ["true", "four"]
    assert terminal.run("collect", given="\n".join(made)).returncode == 4
    done = terminal.run("trigger", "--file", "-", given='{"comand": ["true"]}\n{"command": ["x"], "scopes": []}')
    assert "stdin:1: comand: got a list of 1 item; " in done.stderr
    assert "`command` (did you mean that?)" in done.stderr
    assert "stdin:2: scopes: got a list of 0 items; " in done.stderr


def test_a_field_without_effect_is_told_when_a_file_is_submitted(terminal: Terminal):
    line = '{"payload": {"command": ["true"]}, "expires": "2100-01-01"}'
    done = terminal.run("trigger", "--file", "-", given=line)
    assert (done.returncode, len(done.stdout.split())) == (0, 1)
    assert "warning: expires has no effect: results are kept" in done.stderr


def test_a_request_of_a_file_that_is_refused_is_told_with_its_line(terminal: Terminal):
    lines = [a_request("", "true"), a_request("fine", "true"), '{"name": "no slices"}']
    done = terminal.run("trigger", "--file", "-", given="\n".join(lines))
    assert done.returncode == 65
    assert len(done.stdout.split()) == 1
    told = done.stderr.splitlines()
    assert [line.split()[0] for line in told[:2]] == ["stdin:1:", "stdin:3:"]
    assert told[-1] == "2 of 3 tasks refused; the others are stored."
    done = terminal.run("trigger", "--file", "-", given=lines[0])
    assert done.stderr.splitlines()[-1] == "1 of 1 task refused; nothing is stored."


def test_a_task_that_succeeded_is_rerun_with_the_option_that_the_error_names(terminal: Terminal):
    (task_id,) = terminal.ok("trigger", "--", "true").split()
    terminal.ok("collect", task_id)
    refused = terminal.run("task", "rerun", task_id)
    assert (refused.returncode, "(`--force`)" in refused.stderr) == (78, True)
    terminal.ok("task", "rerun", task_id, "--force")


@pytest.mark.parametrize(
    ("words", "given", "told"),
    [
        (["--file", "-"], "{\n", "stdin:1: not valid JSON"),
        (["--file", "-"], f"{a_request('a', 'true')}\n[]\n", "stdin:2: not a JSON object"),
        (["--file", "-"], "tasks: {}\n", "Write one task request per line"),
        (["--file", "-"], "\n", "stdin contains no task requests"),
        (["--file", "/nowhere"], "", "/nowhere: No such file"),
        (["--file", "-", "--timeout", "1"], "", "--timeout cannot be used with --file"),
        (["--file", "-", "--", "true"], "", "command cannot be used with --file"),
        ([], "", "Give a COMMAND, or a file"),
    ],
)
def test_a_wrong_file_submits_nothing(terminal: Terminal, words: list[str], given: str, told: str):
    done = terminal.run("trigger", *words, given=given)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_the_program_of_the_documentation_submits_many_tasks(up: Up):
    page = (source.ROOT / "docs" / "requests.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    token = (up.data / "admin.token").read_text().strip()
    done = subprocess.run(
        [sys.executable, "-c", program.replace("http://127.0.0.1:8910", up.url)],
        env={**up.terminal.env, "MYRMIDON_TOKEN": token},
        capture_output=True,
        text=True,
        check=True,
    )
    made = [line.rsplit(" ", 1)[1] for line in done.stdout.splitlines()]
    assert len(set(made)) == 200
    assert up.terminal.run("collect", given="\n".join(made)).returncode == 0
