"""`--json` prints what the server has answered, with the keys of the API in their order; and nothing is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from myrmidon.cli.main import myrmidon
from myrmidon.sdk.transport import Reply, Transport
from tests.cli.conftest import Up
from tests.cli.terminal import Terminal
from tests.live import live_server
from tests.server.wire import WireBot

DOCUMENT = {"name": "two", "tasks": {"a": {"task": {"payload": {"command": ["true"]}}}}}


@dataclass
class Shown:
    """What a command printed, and the JSON answers that it got."""

    stdout: str
    answers: list[Any]


class Recording:
    """Runs commands in this process and notes the answers of their calls."""

    def __init__(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        self._env = terminal.env
        self._answers: list[Any] = []
        call = Transport.call

        def recorded(transport: Transport, *args: Any, **options: Any) -> Reply:
            reply = call(transport, *args, **options)
            if reply.headers.get("content-type", "").startswith("application/json"):
                self._answers.append(json.loads(reply.data))
            return reply

        monkeypatch.setattr(Transport, "call", recorded)

    def run(self, *words: str, given: str = "") -> Shown:
        self._answers = []
        done = CliRunner().invoke(myrmidon, [*_with_json(words)], env=self._env, input=given)
        assert done.exit_code == 0, (words, done.output, done.exception)
        return Shown(done.stdout, self._answers)


def _with_json(words: tuple[str, ...]) -> list[str]:
    before, dashes, command = " ".join(words).partition(" -- ")
    return [*before.split(), "--json", *([dashes.strip(), *command.split()] if dashes else [])]


def last(answers: list[Any]) -> Any:
    return answers[-1]


COMMANDS: list[tuple[str, Callable[[list[Any]], Any]]] = [
    ("tasks --limit 3", last),
    ("tasks --tag none:such", last),
    ("task show {task}", last),
    ("task show {failed}", last),
    ("task why {task}", last),
    ("task log {task}", last),
    ("task log -f {task}", last),
    ("task rerun --force {task}", last),
    ("task cancel {task}", lambda answers: {"tasks": answers, "tags": [], "num_tagged": 0}),
    ("bots", last),
    ("bot show {bot}", lambda answers: {**answers[0], "events": answers[1]["events"]}),
    ("bot drain --undo {bot}", last),
    ("bot quarantine --undo {bot}", last),
    ("queues", last),
    ("pools", last),
    ("servers", last),
    ("releases", last),
    ("token list", last),
    ("token create somebody", last),
    ("token create bots --role bot-bootstrap --uses 2", last),
    ("token create signer --hawk", last),
    ("webhook create http://93.184.216.34/hook", last),
    ("webhook list", last),
    ("resource-group create mine", last),
    ("resource-group list", last),
    ("resource-group show default", last),
    ("resource-group delete mine --force", last),
    ("value list", last),
    ("value put {json} --type int64", last),
    ("jobs", last),
    ("job show {job}", last),
    ("job result {job}", last),
    ("job diff {job} {job}", last),
    ("job seal {job}", last),
    ("job rerun --full {job}", last),
    ("job priority {job} 90", last),
    ("job cancel {job}", last),
    ("collect {failed}", lambda answers: {"tasks": [answers[-1]], "waiting": []}),
    ("run -- echo hello", last),
    ("trigger -- echo hello", lambda answers: {"tasks": answers[-1]["tasks"]}),
    ("trigger --evaluate-only -- echo hello", lambda answers: {"tasks": answers[-1]["tasks"]}),
]


@pytest.fixture(scope="module")
def names(up: Up) -> dict[str, str]:
    """A task that has succeeded, one that has failed, a job and a bot."""
    terminal = up.terminal
    number = up.data.parent / "number.json"
    number.write_text("7")
    terminal.run("run", "--name", "failed", "--", "sh", "-c", "echo no >&2; exit 3")
    [failed] = terminal.json("tasks", "--name", "failed", "--limit", "1")["tasks"]
    return {
        "task": json.loads(terminal.ok("run", "--json", "--tag", "a:b", "-e", "A=1", "--", "true"))["task_id"],
        "failed": failed["task_id"],
        "job": terminal.json("job", "submit", "-", given=json.dumps(DOCUMENT))["job_id"],
        "bot": terminal.json("bots")["bots"][0]["bot_id"],
        "json": str(number),
    }


@pytest.mark.parametrize(("words", "expected"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_json_is_what_the_server_has_answered(up, names, monkeypatch, words, expected):
    shown = Recording(up.terminal, monkeypatch).run(*words.format(**names).split())
    assert shown.stdout == json.dumps(expected(shown.answers)) + "\n"


def test_an_invitation_is_the_new_token_and_the_command(up, monkeypatch):
    shown = Recording(up.terminal, monkeypatch).run("bot", "invite", "--uses", "3")
    printed = json.loads(shown.stdout)
    assert shown.stdout == json.dumps({**shown.answers[-1], "command": printed["command"]}) + "\n"


def test_refused_tasks_of_a_file_are_shown_with_their_errors(up, monkeypatch, tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"name": "no slices"}\n')
    recording = Recording(up.terminal, monkeypatch)
    done = CliRunner().invoke(myrmidon, ["trigger", "--file", str(file), "--json"], env=up.terminal.env)
    assert done.stdout == json.dumps({"tasks": recording._answers[-1]["tasks"]}) + "\n"
    assert "problems" in json.loads(done.stdout)["tasks"][0]["error"]


def test_what_ends_a_bot_a_token_a_webhook_or_a_release_prints_the_answer(monkeypatch, tmp_path):
    """On a server of its own: nothing else needs them."""
    with live_server(folder=tmp_path / "server") as server:
        terminal = Terminal(tmp_path / "home", MYRMIDON_SERVER=server.url, MYRMIDON_TOKEN=server.token)
        WireBot(server, "b1").shake()
        token = terminal.json("token", "create", "somebody")["id"]
        webhook = terminal.json("webhook", "create", "http://93.184.216.34/hook")["id"]
        [release] = terminal.json("releases")["releases"]
        recording = Recording(terminal, monkeypatch)
        for words in (
            "bot terminate b1",
            "bot revoke b1",
            "bot delete --force b1",
            f"token revoke {token}",
            f"webhook deliveries {webhook}",
            f"webhook delete {webhook}",
            f"releases allow {release['digest']}",
        ):
            shown = recording.run(*words.split())
            assert shown.stdout == json.dumps(shown.answers[-1]) + "\n", words
