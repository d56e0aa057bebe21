"""What a command says to do next is right: for addresses, tokens, ids and host names that are wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Up
from tests.cli.terminal import Terminal
from tests.deadline import HANG_S
from tests.sdk.scripted import Answer, answer, scripted


def test_the_names_of_this_machine_find_the_token_of_its_server(up: Up):
    assert up.terminal.run("tasks", "-S", up.url.replace("127.0.0.1", "localhost")).returncode == 0


def test_a_server_with_a_folder_of_its_own_is_found_with_its_token_and_forgotten_at_its_end(tmp_path: Path):
    terminal = Terminal(tmp_path)
    words = [sys.executable, "-m", "myrmidon", "server", "--port", "0", "--data-dir", str(tmp_path / "own")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=terminal.env, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        token_file = tmp_path / "own" / "admin.token"
        assert server.stdout.readline() == f"The first administrator's token is in {token_file}\n"
        assert terminal.run("tasks", "-S", url).stderr == "No tasks.\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(HANG_S) == 0
    assert not list(Path(terminal.env["XDG_CONFIG_HOME"]).glob("myrmidon/local-*"))


def test_without_a_token_the_next_step_is_to_log_in(up: Up, tmp_path: Path):
    done = Terminal(tmp_path, MYRMIDON_SERVER=up.url).run("tasks")
    assert done.returncode == 77
    assert done.stderr == (
        f"error: This needs a token.\nnext: `myrmidon login {up.url}` saves one."
        " The first token of a server is in its data folder, in admin.token.\n"
    )


def test_a_refused_token_is_named_by_where_it_is_from(up: Up, tmp_path: Path):
    done = Terminal(tmp_path, MYRMIDON_SERVER=up.url, MYRMIDON_TOKEN="myr_wrong").run("tasks")
    assert "next: The token is from MYRMIDON_TOKEN, which takes precedence over `myrmidon login`." in done.stderr
    told = Terminal(tmp_path).run("login", up.url, "--json", given="myr_wrong\n").stdout
    assert "`myrmidon token create`" in json.loads(told)["error"]["message"]


def test_a_refused_host_name_is_not_answered_with_advice_about_tokens(tmp_path: Path):
    message = "The host name 'x' is not allowed; add it to the setting allowed_hosts."
    with scripted(answer(403, {"error": {"code": "forbidden", "message": message}})) as server:
        terminal = Terminal(tmp_path, MYRMIDON_SERVER=server.url, MYRMIDON_TOKEN="myr_x")
        assert terminal.run("tasks").stderr == f"error: {message}\n"
        doctor = json.loads(terminal.run("doctor", "--json").stdout)["findings"][0]
    assert (doctor["what"], doctor["how"], doctor["advice"]) == ("server", "wrong", "")


def test_https_that_is_spoken_to_an_http_server_is_one_sentence_at_once(up: Up):
    https = up.url.replace("http:", "https:")
    done = up.terminal.run("tasks", "-S", https)
    place = up.url.partition("//")[2]
    assert done.stderr == f"error: The server at {place} speaks HTTP, not HTTPS.\nnext: Write {up.url}.\n"


def test_another_web_server_is_told_from_a_broken_one(tmp_path: Path):
    for other in (Answer(404, b"<html>"), Answer(501, b"<html>"), Answer(200, b"<html>")):
        with scripted(other) as server:
            done = Terminal(tmp_path, MYRMIDON_SERVER=server.url).run("tasks")
        assert "error: This is no response of a Myrmidon server" in done.stderr
        assert done.stderr.endswith("next: Check the server's address.\n")


def test_ids_of_the_other_kind_name_the_command_that_shows_them(terminal: Terminal, tmp_path: Path):
    task = terminal.ok("trigger", "--", "true").strip()
    document = {"name": "j", "tasks": {"a": {"task": {"payload": {"command": ["true"]}}}}}
    (tmp_path / "job.json").write_text(json.dumps(document))
    job = terminal.ok("job", "submit", str(tmp_path / "job.json")).strip()
    for verb in ("show", "why", "watch", "cancel", "tree"):
        told = terminal.run("job", verb, task).stderr
        assert f"{task} is a task, not a job. `myrmidon task show {task}` shows it." in told
    for verb in ("show", "why", "log", "cancel", "rerun"):
        told = terminal.run("task", verb, job).stderr
        assert f"{job} is a job, not a task. `myrmidon job show {job}` shows it." in told


def test_a_bot_that_is_quarantined_again_keeps_its_reason(terminal: Terminal):
    bot = terminal.json("bots")["bots"][0]["bot_id"]
    try:
        for options, reason in ((["--reason", "a broken disk"], "a broken disk"), ([], "a broken disk")):
            assert terminal.json("bot", "quarantine", bot, *options)["quarantined"] == reason
    finally:
        terminal.ok("bot", "quarantine", bot, "--undo")
