"""Command lines become requests; nothing here talks to a server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from myrmidon.cli import exit_codes, option_names
from myrmidon.cli.main import Commands, myrmidon
from myrmidon.cli.request_options import REQUEST_PARAMETERS, build_request, request_options
from myrmidon.model.task_request import Properties, Slice, TaskRequest
from myrmidon.model.task_validation import parse_task
from tests.architecture import source


@click.command(context_settings={"allow_interspersed_args": False})
@request_options
def ask(command: tuple[str, ...], **given: Any) -> None:
    """Prints what would be sent."""
    request, group = build_request(command, **given)
    click.echo(json.dumps([request, group]))


def asked(*words: str, **environment: str) -> dict[str, Any]:
    done = CliRunner().invoke(ask, list(words), env={"USER": "", **environment}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    request, _ = json.loads(done.output)
    parse_task(request)  # the server's own reading has no complaint
    return dict(request)


def refused(*words: str) -> str:
    done = CliRunner().invoke(ask, list(words), catch_exceptions=False)
    assert done.exit_code == exit_codes.USAGE
    return done.output


def test_a_plain_command_is_a_small_request():
    assert asked("--", "make", "-j4", "test") == {
        "name": "make",
        "slices": [{"properties": {"command": ["make", "-j4", "test"], "dimensions": {"pool": ["default"]}}}],
    }


@pytest.mark.parametrize(("command", "name"), [("/bin/ls", "ls"), ("/", "/"), (".", "."), ("..", "..")])
def test_a_task_has_a_name_whatever_its_command(command: str, name: str):
    assert asked("--", command)["name"] == name


def test_a_timeout_may_have_a_fraction_and_an_expiry_not():
    properties = asked("--timeout", "1.5m", "--io-timeout", "2.25", "--", "true")["slices"][0]["properties"]
    assert (properties["execution_timeout_s"], properties["io_timeout_s"]) == (90, 2.25)
    assert "write 90, 90s, 1.5s" in refused("--timeout", "1.5.5", "--", "true")
    assert "is not a duration" in refused("--expires", "1.5", "--", "true")


def test_options_after_the_command_belong_to_the_command():
    assert asked("ls", "--pool", "x")["slices"][0]["properties"]["command"] == ["ls", "--pool", "x"]


def test_every_option_finds_its_place():
    request = asked(
        *("--pool", "lab", "-d", "os=Linux", "-d", "gpu=a100|h100", "--expires", "2m", "--no-wait-for-capacity"),
        *(
            "-p",
            "20",
            "-n",
            "nightly",
            "-t",
            "a:b",
            "-t",
            "c:d",
            "--user",
            "ada",
            "-e",
            "CI=1",
            "-e",
            "HOME",
            "-e",
            "X=",
        ),
        *("--env-prefix", "PATH=bin", "--env-prefix", "PATH=more", "--cwd", "src", "--cache", "pip=.pip"),
        *("--timeout", "2h", "--io-timeout", "90", "--grace", "5s", "--deadline", "1d", "--idempotent"),
        *("--merge-output", "--retries", "0", "--reruns", "2", "--detached", "--lease", "1m", "--max-instances", "2"),
        *("--soft-timeout", "90s", "--service-account", "bot", "--external-id", "e-1", "--metadata", "a=b=c"),
        *("--evaluate-only", "--", "true"),
        HOME="/home/ada",
    )
    assert request == {
        "name": "nightly",
        "slices": [
            {
                "properties": {
                    "command": ["true"],
                    "relative_cwd": "src",
                    "env": {"CI": "1", "HOME": "/home/ada", "X": ""},
                    "env_prefixes": {"PATH": ["bin", "more"]},
                    "caches": [{"name": "pip", "path": ".pip"}],
                    "execution_timeout_s": 7200,
                    "io_timeout_s": 90,
                    "grace_period_s": 5,
                    "idempotent": True,
                    "merge_output": True,
                    "dimensions": {"os": ["Linux"], "gpu": ["a100|h100"], "pool": ["lab"]},
                },
                "expiration_s": 120,
                "wait_for_capacity": False,
            }
        ],
        "priority": 20,
        "tags": ["a:b", "c:d"],
        "user": "ada",
        "retries": 0,
        "reruns": 2,
        "deadline_s": 86400,
        "detached": True,
        "lease_s": 60,
        "max_instances": 2,
        "soft_timeout_s": 90,
        "service_account": "bot",
        "external_id": "e-1",
        "metadata": {"a": "b=c"},
        "evaluate_only": True,
    }


def test_every_field_of_a_request_has_an_option_or_is_documented_not_to():
    fields = {field for struct in (TaskRequest, Slice, Properties) for field in struct.__struct_fields__}
    assert fields - REQUEST_PARAMETERS.keys() == {*option_names.WITHOUT_OPTION, "properties"}
    assert REQUEST_PARAMETERS.keys() - fields == {"pool", "group"}


def test_the_options_of_the_fields_are_documented():
    page = (source.ROOT / "docs" / "requests.md").read_text()
    options = {field: option for field, option in REQUEST_PARAMETERS.items() if field not in ("pool", "group")}
    assert [field for field, option in options.items() if f"| `{field}` | `{option}` |" not in page] == []
    assert [field for field in option_names.WITHOUT_OPTION if f"`{field}`" not in page.split("## Options")[1]] == []


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("slices[0].properties.execution_timeout_s", "--timeout"),
        ("slices[0].properties.dimensions.os[0]", "--dimension os"),
        ("slices[0].properties.dimensions.pool", "--pool"),
        ("slices[0].properties.dimensions['a b'][0]", "--dimension 'a b'"),
        ("slices[0].properties.command[2]", "COMMAND"),
        ("slices[0].properties.env.PATH", "--env PATH"),
        ("slices[0].properties.caches[0].path", "--cache"),
        ("slices[0].expiration_s", "--expires"),
        ("slices[1].expiration_s", "--fallback"),
        ("slices[1]", "--fallback"),
        ("slices", "--fallback"),
        ("tags[3]", "--tag"),
        ("metadata.a", "--metadata a"),
        ("lease_s", "--lease"),
        ("", None),
        ("function.language", None),
    ],
)
def test_a_problem_names_the_option(path: str, option: str | None):
    assert option_names.option_for(path) == option


def test_a_problem_of_all_slices_is_told_once():
    def problem(path: str) -> dict[str, str]:
        return {"path": path, "value": "0", "allowed": "1..9"}

    found = option_names.with_options(
        [problem(f"slices[{n}].properties.{field}") for n in (0, 1) for field in ("io_timeout_s", "dimensions.os[0]")]
        + [problem("slices[1].properties.dimensions.gpu[0]")]
    )
    assert [one["option"] for one in found] == ["--io-timeout", "--dimension os", "--fallback"]


def test_a_fallback_changes_adds_and_drops_dimensions():
    request = asked(
        *("-d", "gpu=a100", "-d", "os=Linux", "--expires", "60"),
        *("--fallback", "5m:gpu=t4,site=north", "--fallback", "gpu=", "--", "./train"),
    )
    wanted = [(one["properties"]["dimensions"], one.get("expiration_s")) for one in request["slices"]]
    assert wanted == [
        ({"gpu": ["a100"], "os": ["Linux"], "pool": ["default"]}, 60),
        ({"gpu": ["t4"], "os": ["Linux"], "pool": ["default"], "site": ["north"]}, 300),
        ({"os": ["Linux"], "pool": ["default"]}, None),
    ]


def test_a_secret_comes_from_a_file_or_stdin_and_never_from_the_command_line(tmp_path: Path):
    (tmp_path / "key").write_bytes(b"\0secret")
    assert base64.b64decode(asked("--secret-file", str(tmp_path / "key"), "true")["secret_bytes"]) == b"\0secret"
    done = CliRunner().invoke(ask, ["--secret-file", "-", "true"], input=b"from stdin", catch_exceptions=False)
    assert base64.b64decode(json.loads(done.output)[0]["secret_bytes"]) == b"from stdin"
    assert "nowhere" in refused("--secret-file", str(tmp_path / "nowhere"), "true")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-d", "os", "true"], "is not KEY=VALUE"),
        (["--expires", "soon", "true"], "write 90, 90s, 15m, 2h or 1d"),
        (["--priority", "256", "true"], "0<=x<=255"),
        (["-e", "SURELY_NOT_SET", "true"], "write SURELY_NOT_SET=VALUE"),
        (["--fallback", "5m:gpu", "true"], "is not KEY=VALUE"),
        ([], "Missing argument"),
    ],
)
def test_what_is_wrong_is_told(words: list[str], told: str):
    assert told in " ".join(refused(*words).split())


def every_command(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found = [(words, command)]
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            found += every_command(inner, (*words, name))
    return found


def test_every_command_and_every_option_has_help():
    silent = []
    for words, command in every_command(myrmidon):
        if not command.help:
            silent.append(words)
        options = [option for option in command.params if isinstance(option, click.Option)]
        silent += [(*words, option.opts[0]) for option in options if not option.help]
    assert silent == []


def test_help_of_every_command_is_shown():
    for words, _ in every_command(myrmidon):
        done = CliRunner().invoke(myrmidon, [*words, "--help"], prog_name="myrmidon", catch_exceptions=False)
        assert done.exit_code == 0
        assert done.output.startswith(f"Usage: myrmidon{''.join(f' {word}' for word in words)}")


def test_the_table_of_commands_names_only_what_exists():
    assert isinstance(myrmidon, Commands)
    ctx = click.Context(myrmidon)
    assert all(myrmidon.get_command(ctx, name) for name in myrmidon.list_commands(ctx))


def test_every_exit_code_is_documented():
    page = (source.ROOT / "docs" / "exit-codes.md").read_text()
    assert [
        f"| {code} | {meaning} |"
        for code, meaning in exit_codes.MEANINGS.items()
        if f"| {code} | {meaning} |" not in page
    ] == []
    assert " ".join(exit_codes.RULE.split()) in " ".join(page.split())


@pytest.mark.parametrize(
    ("state", "exit_code", "code"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 3, 3),
        ("FAILED", -15, 143),
        ("FAILED", 256, 1),
        ("FAILED", None, 1),
        ("TIMED_OUT", -9, 124),
        ("KILLED", -15, 125),
        ("CANCELLED", None, 125),
        ("EXPIRED", None, 121),
        ("NO_RESOURCE", None, 122),
        ("BOT_DIED", None, 123),
        ("CLIENT_ERROR", None, 123),
    ],
)
def test_the_end_of_a_task_decides_the_exit_code(state: str, exit_code: int | None, code: int):
    assert exit_codes.of_task(state, exit_code) == code


def test_an_option_before_the_command_is_told_its_place():
    done = CliRunner().invoke(myrmidon, ["-S", "http://127.0.0.1:1", "bots"])
    assert done.exit_code == exit_codes.USAGE
    assert "No such option '-S'. Options stand after the command, as in `myrmidon bots --json`." in done.output


def groups(command: click.Command, name: str) -> Iterator[tuple[click.Group, click.Context]]:
    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        yield command, context
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            assert inner is not None
            yield from groups(inner, f"{name} {word}")


def test_the_lists_of_commands_cut_no_sentence():
    for group, context in groups(myrmidon, "myrmidon"):
        cut = [line for line in group.get_help(context).splitlines() if line.startswith("  ") and line.endswith("...")]
        assert all(line.endswith(", ...") for line in cut), cut  # lists of examples may go on
