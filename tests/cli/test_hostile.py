"""Names, tags, dimensions, reasons and messages print no control character, whoever has chosen them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.cli import output
from myrmidon.cli.main import myrmidon
from tests.architecture import source
from tests.cases import some
from tests.cli.conftest import Up
from tests.cli.hostile import EVIL, hostile
from tests.cli.terminal import Terminal
from tests.cli.test_look import in_a_shell, seen
from tests.cli.test_parsing import every_command
from tests.cli.test_safe_text import HOSTILE, controls

PRINTS = re.compile(r"click\.(echo|secho|style)\(|(?<![.\w])print\(|\.buffer\.write\(|sys\.std(out|err)\.write\(")


def test_only_one_file_of_the_command_line_prints():
    found = [
        (file, number, line.strip())
        for file in source.files("cli")
        if file != "cli/output.py"
        for number, line in enumerate((source.ROOT / "src" / "myrmidon" / file).read_text().splitlines(), start=1)
        if PRINTS.search(line)
    ]
    assert found == []


@given(st.lists(st.tuples(HOSTILE, HOSTILE), min_size=1, max_size=3), HOSTILE)
def test_whatever_is_printed_has_no_control_characters(rows: list[tuple[str, str]], text: str):
    @click.command()
    def print_all() -> None:
        output.table(("id", "name"), rows, empty=text)
        output.fields([("one", text), ("many", [cell for row in rows for cell in row])])
        output.echo(text)
        output.echo(f"Task {output.state(text)} {text}", err=True)
        output.note(text)
        output.next_step(text)
        output.print_json({text: rows})

    done = CliRunner().invoke(print_all, catch_exceptions=False)
    assert controls(done.output, allowed="\n") == []
    num_items = sum(1 for row in rows for cell in row)
    assert len(done.output.split("\n")) <= 1 + len(rows) + 1 + num_items + 3 + 2, "no line of its own making"


def test_text_cannot_imitate_the_styles_of_this_program():
    green = output.style("SUCCEEDED", fg="green")
    assert output.render(green, colour=True) == "\x1b[32mSUCCEEDED\x1b[0m"
    assert output.render(output.render(green, colour=True), colour=True) == r"\x1b[32mSUCCEEDED\x1b[0m"


@pytest.fixture(scope="module")
def evil_task(up: Up) -> str:
    """A task whose texts are as hostile as the server accepts."""
    accepted = EVIL.replace("\x00", "").replace("\ud800", "")
    words = ["-n", f"n{accepted}", "-t", f"evil:{accepted}", "--user", f"u{accepted}", "-e", f"V={accepted}"]
    task_id = up.terminal.ok("trigger", *words, "--", "printf", accepted).strip()
    up.terminal.run("collect", task_id)
    return task_id


@pytest.fixture(scope="module")
def evil_job(up: Up) -> str:
    """A failed job with a hostile name, whose one task prints hostile text."""
    accepted = EVIL.replace("\x00", "").replace("\ud800", "")
    prints = {"command": ["sh", "-c", 'printf %s "$0"; exit 3', accepted]}
    tasks = {
        "prints": {"task": {"name": f"n{accepted}", "payload": prints}},
        "quiet": {"task": {"payload": {"command": ["true"]}}},
        "after": {"requires": ["prints"], "task": {"payload": {"command": ["true"]}}},
    }
    document = {"name": f"n{accepted}", "tags": [f"evil:{accepted}"], "metadata": {"m": accepted}, "tasks": tasks}
    job_id = up.terminal.ok("job", "submit", "-", given=json.dumps(document)).strip()
    assert up.terminal.run("job", "result", job_id).returncode == 1
    return job_id


@pytest.fixture(scope="module")
def evil_server(up: Up, evil_task: str, evil_job: str) -> Iterator[Terminal]:
    waiting = up.terminal.ok("trigger", "-d", "gpu=a100", "-t", "evil:waits", "--", "true").strip()
    token = (up.data / "admin.token").read_text().strip()
    with hostile(up.url) as url:
        ids = {"EVIL": evil_task, "WAITS": waiting, "JOB": evil_job}
        yield Terminal(up.terminal.home, MYRMIDON_SERVER=url, MYRMIDON_TOKEN=token, **ids)
    up.terminal.ok("task", "cancel", waiting)


COMMANDS = (
    "tasks", "task show $EVIL", "task why $EVIL", "task why $WAITS", "task cancel $EVIL", "collect $EVIL", "bots",
    "bot show $BOT", "bot drain --undo $BOT", "queues", "pools", "releases", "servers", "token list", "doctor",
    "task rerun 5cee4880088100", "task cancel -t no:thing", "bot delete none", "run --timeout 0 -- true",
    "trigger --file -", "task reproduce $EVIL", "query tasks/list", "query bots/list --json", "tasks --json",
    "bot quarantine --undo $BOT", "bot invite", "token create evil", "token revoke none", "releases revert ffff",
    "releases allow ffff", "bot revoke none",
    "post tasks/new", "login $URL", "jobs", "job submit -", "job check -", "job show $JOB", "job watch $JOB",
    "job tree $JOB", "job log $JOB --label q*", "job result $JOB", "job why $JOB", "job timing $JOB",
    "job cancel $JOB", "job rerun $JOB --dry-run", "job extend $JOB -", "job seal $JOB", "job hold $JOB",
    "job release $JOB", "job priority $JOB 50", "job log -f $JOB --label q*", "job meta set $JOB m v",
    "job meta get $JOB", "job meta get $JOB m", "job meta delete $JOB m", "job annotate $EVIL -",
    "job diff $JOB $JOB", "job graph $JOB", "job graph $JOB --format svg", "job delete none",
    "open --print", "config show", "config put --remove pools.toml --dry-run",
    "webhook list", "webhook create $URL", "webhook deliveries 1", "webhook replay 1 2", "webhook delete 1",
    "resource-group list", "resource-group show default", "resource-group create evil", "resource-group delete none",
    "value list", "value put - --type int64", "value ref 5cee4880088100", "value unref 5cee4880088100",
    "value list $JOB", "value show 5cee4880088100", "value get 5cee4880088100 --json",
)  # fmt: skip
LOCAL = (
    "up", "server", "config check", "backup", "restore", "copy-db", "help", "completion", "bot start",
    "native include-dir", "native crate-dir", "native functions",
)  # fmt: skip
"""Commands that print what this machine says, and nothing of a server's."""
LIKE_OTHERS = ("bot terminate", "task log")
"""It would end a bot of the other tests, and prints like `bot drain`; logs have a test of their own below."""


def test_every_command_is_tried_here():
    leaves = {" ".join(words) for words, one in every_command(myrmidon) if not isinstance(one, click.Group)}
    untried = {name for name in leaves if not any(f"{line} ".startswith(f"{name} ") for line in COMMANDS)}
    assert untried == {*LOCAL, *LIKE_OTHERS}


@pytest.mark.parametrize("line", some(COMMANDS, short=8))
@pytest.mark.parametrize("server", some(["evil", "real"], short=1))
def test_no_command_prints_control_characters(up: Up, evil_server: Terminal, tmp_path: Path, server: str, line: str):
    terminal = evil_server if server == "evil" else up.terminal
    if server == "evil" and "reproduce" in line:
        pytest.skip("it runs what the server says; there is nothing to protect")
    values = {
        **evil_server.env,
        "BOT": up.terminal.json("bots")["bots"][0]["bot_id"],
        "URL": terminal.env.get("MYRMIDON_SERVER", up.url),
    }
    words = [values[word[1:]] if word.startswith("$") else word for word in line.split()]
    typed = {"login": values["MYRMIDON_TOKEN"]}.get(words[0], '{"name": ""}\n')
    own_config = {"XDG_CONFIG_HOME": str(tmp_path)} if words[0] == "login" else {}
    piped = terminal.run(*words, given=typed, **own_config)
    assert controls(piped.stderr + ("" if "reproduce" in words else piped.stdout), allowed="\n") == []
    assert "Traceback" not in piped.stderr
    assert "not the expected one" not in piped.stderr, "a response that is refused tests nothing"
    if words[0] in ("collect", "trigger", "post", "login") or "reproduce" in words or "watch" in words or "-" in words:
        return  # a progress bar moves the cursor itself; input is not a terminal's; a local command is on its own
    shown = seen(terminal, *words, NO_COLOR="1").decode()
    assert controls(shown.replace("\r\n", "\n"), allowed="\n") == []


def test_a_log_keeps_its_bytes_in_a_pipe_and_only_colours_on_a_terminal(terminal: Terminal):
    script = r"printf '\033[32mgreen\033[0m \033]0;title\007\033[2Jplain\r50%%\r100%%\n'"
    piped = in_a_shell(terminal, f"$M run -- sh -c {shlex.quote(script)}")
    assert piped.stdout == b"\x1b[32mgreen\x1b[0m \x1b]0;title\x07\x1b[2Jplain\r50%\r100%\n"
    shown = seen(terminal, "run", "--", "sh", "-c", script)
    assert b"\x1b[32mgreen\x1b[0m plain\r\n50%\r\n100%\r\n" in shown
