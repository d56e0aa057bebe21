"""Everything else a user types: lists, one thing in full, bots, tokens, the doctor; for people and for programs."""

from __future__ import annotations

import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest

from tests.bot.bots import wait_for
from tests.cli.conftest import Up
from tests.cli.terminal import Terminal
from tests.deadline import HANG_S


@pytest.fixture(scope="session")
def failed(up: Up) -> str:
    """The id of a task that wrote to both streams and failed."""
    task_id = up.terminal.ok(
        "trigger", "-n", "failed", "-t", "shelf:3", "--", "sh", "-c", "echo out; echo err >&2; exit 3"
    )
    up.terminal.run("collect", task_id.strip())
    return task_id.strip()


@pytest.fixture(scope="session")
def bot_id(up: Up) -> str:
    return str(up.terminal.json("bots")["bots"][0]["bot_id"])


def test_tasks_are_listed_by_what_they_are_like(terminal: Terminal, failed: str):
    found = terminal.json("tasks", "--tag", "shelf:3", "--state", "failed", "--since", "1h", "--pool", "default")
    assert [task["task_id"] for task in found["tasks"]] == [failed]
    shown = terminal.ok("tasks", "--name", "failed")
    assert shown.splitlines()[0].split() == ["TASK", "STATE", "CREATED", "DURATION", "BOT", "NAME"]
    assert failed in shown


def test_a_list_ends_at_its_limit_and_says_so(terminal: Terminal, failed: str):
    terminal.ok("run", "--", "true")
    found = terminal.run("tasks", "--limit", "1")
    assert len(found.stdout.splitlines()) == 2
    assert "There are more" in found.stderr


def test_a_task_is_shown_in_full(terminal: Terminal, failed: str):
    shown = terminal.ok("task", "show", failed)
    assert "FAILED (exit code 3)" in shown
    assert "sh -c 'echo out; echo err >&2; exit 3'" in shown
    assert "shelf:3" in shown
    assert "priority:100" not in shown


def test_a_log_is_shown_and_its_streams_can_be_had_apart(terminal: Terminal, failed: str):
    done = terminal.run("task", "log", failed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")
    assert terminal.run("task", "log", "--stream", "stderr", failed).stdout == ""
    followed = terminal.run("task", "log", "-f", failed)
    assert (followed.returncode, followed.stdout, followed.stderr) == (3, "out\n", "err\n")


def test_a_task_runs_again_and_here(terminal: Terminal, failed: str):
    assert "runs again" in terminal.ok("task", "rerun", failed)
    assert terminal.run("collect", failed).returncode == 3
    assert len(terminal.json("task", "show", failed)["runs"]) == 2
    here = terminal.run("task", "reproduce", failed)
    assert (here.returncode, here.stdout) == (3, "out\n")


def test_a_task_runs_here_with_more_arguments_and_with_options_behind_its_id(terminal: Terminal):
    script = 'echo "$@"; echo ${MYRMIDON_TASK_ID-no run}'
    task_id = terminal.ok("trigger", "--", "sh", "-c", script, "sh").strip()
    done = terminal.run("task", "reproduce", task_id, "--json", "--", "-x", "--json", MYRMIDON_TASK_ID="5cee4880088101")
    assert json.loads(done.stdout) == {"task_id": task_id, "exit_code": 0}
    assert done.stderr.splitlines()[-2:] == ["-x --json", "no run"]


IDS = (
    ["task", "show"], ["task", "log"], ["task", "why"], ["task", "cancel"], ["task", "rerun"], ["task", "reproduce"],
    ["collect"], ["bot", "show"], ["bot", "delete"], ["bot", "drain"], ["token", "revoke"], ["releases", "revert"],
)  # fmt: skip


@pytest.mark.parametrize("words", IDS, ids=" ".join)
def test_an_empty_id_is_a_wrong_command_line(terminal: Terminal, words: list[str]):
    done = terminal.run(*words, "")
    assert done.returncode == 2
    assert "'' is not an id; perhaps a shell variable is not set." in done.stderr


def test_an_id_that_is_not_whole_is_told_as_it_was_typed(terminal: Terminal, failed: str):
    for given in ("7bff", "123"):
        for words, code in ((["collect"], 66), (["task", "show"], 2), (["task", "cancel"], 2)):
            done = terminal.run(*words, given)
            assert (done.returncode, f"{given!r} is not a task id" in done.stderr) == (code, True)


def test_a_run_that_never_was_is_not_found(terminal: Terminal, failed: str):
    first, never = f"{failed[:-2]}01", f"{failed[:-2]}99"
    assert terminal.json("task", "show", first)["task_id"] == failed
    for verb in ("show", "log", "rerun", "reproduce"):
        done = terminal.run("task", verb, never)
        assert (done.returncode, f"has no run {never}" in done.stderr) == (66, True)


def test_why_tells_of_a_task_that_has_ended(terminal: Terminal, failed: str):
    assert "The task has ended: FAILED" in terminal.ok("task", "why", failed)


LISTS: list[tuple[list[str], set[str]]] = [
    (["tasks"], {"tasks", "cursor"}),
    (["bots"], {"bots", "cursor"}),
    (["queues"], {"queues", "cursor"}),
    (["pools"], {"pools", "cursor"}),
    (["servers"], {"servers"}),
    (["token", "list"], {"tokens", "cursor"}),
    (["doctor"], {"findings"}),
    (["config", "check"], {"data_dir", "database", "port"}),
]


@pytest.mark.parametrize(("words", "keys"), LISTS, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
@pytest.mark.usefixtures("failed")
def test_every_list_is_json_with_stable_keys(terminal: Terminal, words: list[str], keys: set[str]):
    found = terminal.json(*words)
    assert keys <= set(found)
    assert len(terminal.ok(*words).splitlines()) >= 2


def test_one_thing_is_json_too(terminal: Terminal, failed: str, bot_id: str):
    task = terminal.json("task", "show", failed)
    assert {"task_id", "group", "request", "result", "runs"} <= set(task)
    assert {"task_id", "state", "summary", "dimensions"} <= set(terminal.json("task", "why", failed))
    assert {"bot_id", "status", "dimensions", "runs", "events"} <= set(terminal.json("bot", "show", bot_id))


def status_of(terminal: Terminal, bot_id: str) -> str:
    return str(terminal.json("bot", "show", bot_id, "--events", "0")["status"])


@pytest.mark.full
def test_a_bot_is_put_aside_and_works_again(terminal: Terminal, bot_id: str):
    terminal.ok("bot", "quarantine", bot_id, "--reason", "bad disk")
    for words in (["bot", "show", bot_id], ["bots"], ["doctor"]):
        shown = terminal.ok(*words)
        assert "quarantined" in shown
        assert "bad disk" in shown
    task_id = terminal.ok("trigger", "-d", f"id={bot_id}", "--", "true").strip()
    assert f"1 bot matches, but it is not available: {bot_id} (quarantined: bad disk)." in terminal.ok(
        "task", "why", task_id
    )
    terminal.ok("bot", "quarantine", bot_id, "--undo")
    terminal.ok("bot", "drain", bot_id)
    assert status_of(terminal, bot_id) == "draining"
    terminal.ok("bot", "drain", bot_id, "--undo")
    wait_for(lambda: status_of(terminal, bot_id) == "idle", "the end of what the tests before have triggered")


def test_a_busy_bot_is_listed_with_the_name_of_its_task(terminal: Terminal):
    task = terminal.ok("trigger", "--name", "index the archive", "--", "sleep", "600").strip()
    wait_for(lambda: "RUNNING" in terminal.ok("task", "show", task), "a run")
    assert "index the archive" in terminal.ok("bots", "--state", "busy")
    bot = terminal.json("task", "show", task)["runs"][0]["bot_id"]
    assert f"{task[:-2]}01 index the archive" in terminal.ok("bot", "show", bot)
    terminal.ok("task", "cancel", task)
    terminal.run("collect", task)


def test_bots_show_their_state_pool_and_os_first_and_fit_a_terminal(terminal: Terminal):
    lines = terminal.ok("bots").splitlines()
    assert lines[0].split()[:4] == ["BOT", "STATE", "POOL", "OS"]
    assert "python=3" in lines[1], "a pipe gets all of it"
    shown = seen(terminal, "bots", COLUMNS="80", NO_COLOR="1").decode().splitlines()
    assert [line for line in shown if len(line) > 80] == []
    assert len(shown) == len(lines)


def test_a_bot_is_started_used_terminated_and_forgotten(up: Up, tmp_path: Path):
    words = ["bot", "--dir", str(tmp_path / "bot"), "--id", "third", "-d", "shelf=3", "--server", up.url]
    with up.terminal.start(*words) as bot:
        assert up.terminal.ok("run", "-d", "shelf=3", "--", "echo", "from the shelf") == "from the shelf\n"
        look = "cat ../../token ../../../*.token /proc/$PPID/environ; test -e ../../credential && ! test -e ../../token"
        looked = up.terminal.run("run", "-d", "shelf=3", "--", "sh", "-c", look)
        assert (looked.returncode, "myr_" in looked.stdout) == (0, False), "the token is gone once the bot is in"
        up.terminal.ok("bot", "terminate", "third", "--reason", "done", "--wait")
        assert bot.wait(HANG_S) == 0
    up.terminal.ok("bot", "delete", "third")
    gone = up.terminal.run("bot", "show", "third")
    assert gone.returncode == 66
    assert "There is no bot third" in gone.stderr


def test_an_invitation_is_a_command_with_a_token_of_its_own(terminal: Terminal):
    made = terminal.json("bot", "invite", "--expires", "1h")
    assert made["role"] == "bot-bootstrap"
    assert made["command"].startswith("curl -sSf 'http://127.0.0.1:")
    assert made["token"] in made["command"]


def test_an_invitation_says_where_the_bot_belongs(terminal: Terminal):
    words = ["--pool", "gpu", "--id", "rack 3", "--uses", "2", "-d", "shelf=3", "-d", "note=a&b"]
    made = terminal.json("bot", "invite", *words)
    assert (made["bot_pool"], made["bot_ids"], made["uses_left"]) == ("gpu", "rack 3", 2)
    assert made["expires_at"] - made["created_at"] == 86_400_000_000
    query = parse_qs(urlsplit(shlex.split(made["command"])[2]).query)
    assert query == {
        "tok": [made["token"]],
        "pool": ["gpu"],
        "bot_id": ["rack 3"],
        "dimension": ["shelf:3", "note:a&b"],
    }
    group = terminal.json("bot", "invite", "--group", "lab", "--id", "lab-*")
    assert (group["bot_pool"], group["bot_group"], group["bot_ids"]) == (None, "lab", "lab-*")
    assert "bot_id" not in group["command"]
    [line] = [line for line in terminal.ok("token", "list").splitlines() if group["id"] in line]
    assert "1 bot group lab ids lab-*" in line
    refused = terminal.run("token", "create", "ada", "--role", "user", "--uses", "3")
    assert (refused.returncode, "bot-bootstrap" in refused.stderr) == (65, True)


@pytest.mark.full
def test_a_bot_that_lives_is_revoked_and_deleted_by_force_only(up: Up, tmp_path: Path):
    with up.terminal.start("bot", "--dir", str(tmp_path / "bot"), "--id", "fourth", "--server", up.url) as bot:
        up.terminal.ok("run", "-d", "id=fourth", "--", "true")
        refused = up.terminal.run("bot", "delete", "fourth")
        assert (refused.returncode != 0, "(`--force`)" in refused.stderr) == (True, True)
        assert "revoked" in up.terminal.ok("bot", "revoke", "fourth")
        assert status_of(up.terminal, "fourth") == "dead"
        bot.terminate()
        bot.wait(HANG_S)
    with up.terminal.start("bot", "--dir", str(tmp_path / "bot"), "--server", up.url) as bot:
        up.terminal.ok("run", "-d", "id=fourth", "--", "true")
        up.terminal.ok("bot", "delete", "fourth", "--force")
        assert up.terminal.run("bot", "show", "fourth").returncode == 66
        bot.terminate()
        bot.wait(HANG_S)


def test_a_release_that_is_not_there_is_not_allowed(terminal: Terminal):
    [release] = terminal.json("releases")["releases"]
    assert "is active" in terminal.ok("releases", "allow", release["digest"][:12])
    assert terminal.run("releases", "allow", "0" * 64).returncode == 66


def test_a_token_of_an_administrator_is_bound_to_no_group(terminal: Terminal):
    refused = terminal.run("token", "create", "ada", "--role", "admin", "--group", "default")
    assert refused.returncode == 2
    assert "administrators have access to all resource groups" in refused.stderr


def test_a_token_lets_in_what_its_role_may_and_nothing_once_revoked(up: Up, tmp_path: Path):
    made = up.terminal.json("token", "create", "ada", "--role", "viewer")
    ada = Terminal(tmp_path)
    assert "Logged in" in ada.ok("login", up.url, given=f"{made['token']}\n")
    ada.ok("tasks")
    refused = ada.run("run", "--", "true")
    assert refused.returncode == 77
    assert "next:" in refused.stderr
    up.terminal.ok("token", "revoke", made["id"])
    assert ada.run("tasks").returncode == 77
    assert [
        one["revoked_at"] is not None for one in up.terminal.json("token", "list")["tokens"] if one["id"] == made["id"]
    ] == [True]


def test_a_token_for_hawk_is_printed_as_the_variables_that_its_clients_read(up: Up):
    printed = up.terminal.ok("token", "create", "ci", "--hawk").splitlines()
    names = [line.removeprefix("export ").partition("=")[0] for line in printed]
    assert names == ["TASKCLUSTER_CLIENT_ID", "TASKCLUSTER_ACCESS_TOKEN"]
    made = up.terminal.json("token", "create", "ci", "--hawk")
    assert made["hawk"]["client_id"] == made["id"]
    assert len(made["hawk"]["access_key"]) == 43


def test_a_login_is_used_and_says_when_it_is_not(up: Up, tmp_path: Path):
    made = up.terminal.json("token", "create", "ada", "--role", "viewer")
    folder = up.terminal.home / "config" / "myrmidon"
    shutil.copytree(folder, tmp_path / "config" / "myrmidon")
    ada = Terminal(tmp_path)
    assert ada.run("login", up.url, given=made["token"]).stderr == ""
    assert ada.run("run", "--", "true").returncode == 77, "the administrator's token is in the data folder"
    told = ada.run("login", up.url.replace("127.0.0.1", "localhost"), given=made["token"]).stderr
    assert f"Commands use {up.url} (from the running `myrmidon up`)" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["token", "create", "ada", "--expires", "0"], "error: --expires: got "),
        (["token", "create", ""], "error: NAME: got "),
        (["bot", "quarantine", "none", "-r", "x" * 1025], "error: --reason: got "),
        (["tasks", *["-t", "a:b"] * 17], "error: --tag: got "),
        (["task", "cancel", "-t", f"a:{'b' * 400}"], "error: --tag: got "),
        (["query", "/api/v1/tasks?limit=0"], "error: limit: got "),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_a_refused_value_is_named_by_its_option(terminal: Terminal, words: list[str], told: str):
    done = terminal.run(*words)
    assert (done.returncode, done.stderr[: len(told)]) == (65, told)


def test_a_broken_token_is_told_without_being_shown(up: Up):
    token = (up.data / "admin.token").read_text().strip()
    assert up.terminal.run("tasks", MYRMIDON_TOKEN=f"{token}\r").returncode == 0
    done = up.terminal.run("tasks", MYRMIDON_TOKEN=f"{token}\nmore")
    assert done.returncode == 77
    assert "The token contains an invalid character" in done.stderr
    assert token not in done.stdout + done.stderr


def test_wrong_settings_are_told_all_at_once(terminal: Terminal):
    done = terminal.run("config", "check", "--nonsense", "1", "--log-level", "loud")
    assert done.returncode == 65
    assert "nonsense" in done.stderr
    assert "loud" in done.stderr
    assert terminal.json("config", "check", "--log-mib", "10", "--metrics-open=true")["log_mib"] == 10


@contextmanager
def on_a_terminal(terminal: Terminal, *words: str, **variables: str) -> Iterator[Iterator[bytes]]:
    """What a command writes when a person looks, piece by piece."""
    ours, theirs = pty.openpty()
    env = {**terminal.env, "TERM": "xterm", **variables}
    child = subprocess.Popen([sys.executable, "-m", "myrmidon", *words], env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        yield pieces(ours)
    finally:
        child.wait(HANG_S)
        os.close(ours)


def pieces(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # Linux says so when the last writer is gone
        while piece := os.read(terminal, 65_536):
            yield piece


def seen(terminal: Terminal, *words: str, **variables: str) -> bytes:
    """All of it."""
    with on_a_terminal(terminal, *words, **variables) as shown:
        return b"".join(shown)


def test_there_are_colours_on_a_terminal_only_and_never_with_no_color(terminal: Terminal, failed: str):
    assert b"\x1b[" in seen(terminal, "tasks")
    assert b"\x1b[" not in seen(terminal, "tasks", NO_COLOR="1")
    assert "\x1b[" not in terminal.ok("tasks")


def test_errors_have_no_colours_with_no_color(terminal: Terminal):
    assert b"\x1b[" in seen(terminal, "task", "show", "nope")
    assert b"\x1b[" not in seen(terminal, "task", "show", "nope", NO_COLOR="1")


def in_a_shell(terminal: Terminal, line: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash in which $M is this program."""
    env = {**terminal.env, "M": f"{sys.executable} -m myrmidon"}
    return subprocess.run(["bash", "-c", line], env=env, capture_output=True, check=False, timeout=HANG_S)


@pytest.mark.full
def test_a_list_whose_reader_leaves_has_done_its_work(terminal: Terminal, failed: str):
    for words in ("tasks", "tasks --json", "query tasks/list", "--help"):
        done = in_a_shell(terminal, f"$M {words} | true; exit ${{PIPESTATUS[0]}}")
        assert (done.returncode, done.stderr) == (0, b""), words


ORDINARY = (
    ("$M tasks > /dev/full", 1, b"The output: No space left on device."),
    ("$M query tasks/list > /dev/full", 1, b"The output: No space left on device."),
    ("$M task show --json 5cee4880088100 > /dev/full", 66, b""),
    ("$M task show --json 5cee4880088100 | true; exit ${PIPESTATUS[0]}", 66, b""),
    ("$M task show nope 2> /dev/full", 2, b""),
    ("$M --help > /dev/full", 1, b"The output: No space left on device."),
    ("$M tasks --json >&-", 0, b""),
    ("$M collect <&-", 2, b"Give task ids"),
    ("$M backup /proc/foo", 78, b"No such file or directory"),
    ("$M bot --dir /proc/foo", 1, b"/proc/foo.first.zip: "),
    ("$M up --data-dir /proc/foo", 1, b"/proc/foo: "),
    ("$M up --data-dir /etc/passwd", 1, b"/etc/passwd: "),
    ("$M tasks --since \u00b2", 2, b"is not a duration"),
    (r"$M bot show $'\xff'", 2, b"is not UTF-8"),
    (r"$M run -- printf %s $'\xff'", 2, b"is not UTF-8"),
    (r"A=$'\xff' $M run -e A -- true", 2, b"The value of A is not UTF-8"),
)


@pytest.mark.parametrize(("line", "code", "told"), ORDINARY, ids=[line for line, _, _ in ORDINARY])
def test_an_ordinary_mistake_is_told_in_a_sentence(terminal: Terminal, failed: str, line: str, code: int, told: bytes):
    done = in_a_shell(terminal, line)
    assert done.returncode == code
    assert told in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_mistake_is_json_for_programs(terminal: Terminal, failed: str):
    done = terminal.run("task", "reproduce", failed, "--json", "--folder", "/proc/foo")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "failed"


@pytest.mark.full
def test_collect_shows_a_bar_on_a_terminal(terminal: Terminal):
    task_id = terminal.ok("trigger", "--", "true").strip()
    shown = seen(terminal, "collect", task_id)
    assert b"1/1" in shown
    assert b"SUCCEEDED" in shown


def test_collect_writes_to_a_file_what_it_shows_a_person(terminal: Terminal, tmp_path: Path):
    task_id = terminal.ok("trigger", "-n", "filed", "--", "true").strip()
    ours, theirs = pty.openpty()
    with (tmp_path / "file").open("wb") as file:
        words = [sys.executable, "-m", "myrmidon", "collect", task_id]
        subprocess.run(
            words, env={**terminal.env, "TERM": "xterm"}, stdout=file, stderr=theirs, check=True, timeout=HANG_S
        )
    os.close(theirs)
    assert b"1/1" in b"".join(pieces(ours))
    os.close(ours)
    assert (tmp_path / "file").read_text().startswith(f"{task_id}  SUCCEEDED  filed")


def test_an_expired_token_is_shown_as_such(terminal: Terminal):
    made = terminal.json("token", "create", "soon over", "--expires", "1s")
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        [line] = [line for line in terminal.ok("token", "list").splitlines() if made["id"] in line]
        if "expired" in line:
            return
    raise AssertionError(line)


def test_no_match_is_told_as_such(terminal: Terminal, failed: str):
    assert terminal.run("bots", "-d", "shelf=none").stderr == "No matching bots.\n"
    assert failed in terminal.ok("tasks", "--since", "99999d", "-l", "1000")


def test_a_person_is_told_what_a_task_waits_for(terminal: Terminal):
    with on_a_terminal(terminal, "run", "-t", "stuck:yes", "-d", "gpu=a100", "--", "true") as shown:
        told = b""
        while b"waiting: No bot matches" not in told:
            told += next(shown)
        terminal.ok("task", "cancel", "--tag", "stuck:yes")
        assert b"CANCELLED" in b"".join(shown)


def log_in_by(link: str) -> dict[str, object]:
    """Follow a link as the page does; who is logged in then."""
    page, _, code = link.partition("#")
    site = page.removesuffix("/auth/link")
    origin = {"Origin": site, "Content-Type": "application/json"}
    login = Request(f"{site}/auth/link", json.dumps({"code": code}).encode(), origin)
    with urlopen(login, timeout=HANG_S) as reply:
        cookie = reply.headers["Set-Cookie"].partition(";")[0]
        to = json.load(reply)["to"]
    with urlopen(Request(f"{site}/api/v1/session", headers={"Cookie": cookie}), timeout=HANG_S) as reply:
        return {**json.load(reply), "to": to}


def test_open_prints_a_link_that_logs_in_a_browser_once(terminal: Terminal):
    link = terminal.ok("open", "/tasks", "--print").strip()
    who = log_in_by(link)
    assert (who["role"], who["via"], who["to"]) == ("admin", "session", "/tasks")
    with pytest.raises(HTTPError, match="401"):
        log_in_by(link)
    assert log_in_by(str(terminal.json("open")["url"]))["to"] == "/"
    assert "must begin with a slash" in terminal.run("open", "tasks").stderr


@pytest.mark.full
def test_up_prints_such_a_link_too(tmp_path: Path):
    """On a terminal; of an `up` that was started just now, because its link is good for ten minutes only."""
    words = [sys.executable, "-m", "myrmidon", "up", "--port", "0", "--bots", "0", "--data-dir", str(tmp_path / "data")]
    master, slave = pty.openpty()
    with os.fdopen(master) as shown:
        child = subprocess.Popen(words, env=Terminal(tmp_path).env, stdin=slave, stdout=slave, stderr=slave)
        try:
            said = list(takewhile(lambda line: "Ctrl-C to stop" not in line, shown))
            [link] = [line.strip() for line in said if "/auth/link#" in line]
            assert log_in_by(link)["role"] == "admin"
        finally:
            child.terminate()
            child.wait(HANG_S)
            os.close(slave)


def test_the_order_of_both_streams_and_their_times_are_known(terminal: Terminal, tmp_path: Path):
    """The command writes its next line only when the one before has arrived."""
    tmp_path.chmod(0o777)
    go = tmp_path / "go"
    script = (
        f"echo a; until [ -e {go}1 ]; do sleep 0.05; done; echo bb >&2; until [ -e {go}2 ]; do sleep 0.05; done; echo c"
    )
    task = terminal.ok("trigger", "--", "sh", "-c", script).strip()

    def times() -> list[tuple[int, int]]:
        marks = terminal.json("query", f"/api/v1/tasks/{task}/log/times")["marks"]
        assert [at for at, _, _ in marks] == sorted(at for at, _, _ in marks)
        return [(stream, offset) for _, stream, offset in marks]

    wait_for(lambda: times() == [(0, 0)], "the time of the first line")
    Path(f"{go}1").touch()
    wait_for(lambda: times() == [(0, 0), (1, 0)], "that of the second")
    Path(f"{go}2").touch()
    terminal.run("collect", task)
    assert times()[:2] == [(0, 0), (1, 0)]
