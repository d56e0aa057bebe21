"""`value`: list, show and get values of a real server; what is printed of a value."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import click
import msgspec
import pytest

from myrmidon.cli import exit_codes
from myrmidon.cli.values import decode, to_json
from myrmidon.sdk.client import Client
from myrmidon.sdk.transport import Transport
from tests.cli.conftest import Up
from tests.cli.terminal import Terminal
from tests.functions import remote_tasks


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"a": [1, 2.5, None, True]}, {"a": [1, 2.5, None, True]}),
        ({1: "one", b"k": 2}, {"1": "one", "b'k'": 2}),
        (b"\x00\xff", "AP8="),
        ([float("nan"), float("inf")], ["nan", "inf"]),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
        (
            [msgspec.msgpack.Ext(1, b"\x00\x00\x01\x02"), msgspec.msgpack.Ext(7, b"x")],
            ["<part 258>", "<extension 7, 1 byte>"],
        ),
    ],
)
def test_every_value_has_a_form_in_json(content, shown):
    decoded = decode(msgspec.msgpack.encode(content))
    assert to_json(decoded) == shown
    json.dumps(to_json(decoded), allow_nan=False)


def test_what_is_not_messagepack_is_an_error_that_says_so():
    with pytest.raises(click.ClickException, match="not MessagePack"):
        decode(b"\xc1")


# ---------------------------------------------------------------- against a real server

TEXT = msgspec.msgpack.encode({"words": ["a\x1b[31mred", "b"], "count": 2})
LARGE = msgspec.msgpack.encode("long text " * 1000)


@pytest.fixture(scope="module")
def job(up: Up) -> Iterator[str]:
    """A job of one function, which no bot runs, with a small and a large constant."""
    token = (up.data / "admin.token").read_text().strip()
    digest = sha256(LARGE).hexdigest()
    api = Client(Transport(up.url, token))
    assert api.missing_files({digest: len(LARGE)}).missing == [digest]
    assert api.upload_file(digest, LARGE).size == len(LARGE)
    assert api.missing_files({digest: len(LARGE)}).missing == []
    constants = [
        {"kind": "constant", "type": "Map<string,int64>", "payload": {"inline": b64encode(TEXT).decode()}},
        {"kind": "constant", "type": "string", "payload": {"digest": digest, "size": len(LARGE)}},
    ]
    task = {
        "function": {"package_name": "lib", "func_name": "f"},
        "inputs": constants,
        "outputs": [{"type": "int64"}],
        "slices": [{"properties": {"dimensions": {"pool": ["default"], "none": ["such"]}}}],
    }
    job_id = api.submit_job({"name": "values", "tasks": {"f": {"task": task}}}).id
    yield job_id
    up.terminal.ok("job", "cancel", job_id)


@pytest.fixture
def values(terminal: Terminal, job: str) -> dict[str, str]:
    """The ids of the values of the job by type."""
    return {one["type"]: one["value_id"] for one in terminal.json("value", "list", job)["values"]}


def test_the_values_of_a_job_are_listed_with_their_origin(terminal: Terminal, job: str):
    head, *lines = [line.split() for line in terminal.ok("value", "list", job).splitlines()]
    assert head == ["ID", "FROM", "SIZE", "READ", "BY", "TYPE"]
    assert sorted(line[1:] for line in lines) == [
        ["constant", str(len(TEXT)), "B", "1", "Map<string,int64>"],
        ["constant", "9.8", "KiB", "1", "string"],
        ["f:0", "not", "written", "0", "int64"],
    ]


def test_a_value_is_shown_as_text_without_control_characters(terminal: Terminal, values: dict[str, str]):
    shown = terminal.ok("value", "show", values["Map<string,int64>"])
    assert shown == "{'words': ['a\\x1b[31mred', 'b'], 'count': 2}\n"
    told = terminal.json("value", "show", values["Map<string,int64>"])
    assert told == {"type": "Map<string,int64>", "size": len(TEXT), "value": msgspec.msgpack.decode(TEXT)}


def test_a_value_is_saved_as_bytes_or_json(terminal: Terminal, values: dict[str, str], tmp_path: Path):
    for kind, content in (("Map<string,int64>", TEXT), ("string", LARGE)):
        terminal.ok("value", "get", values[kind], "-o", str(tmp_path / "value"))
        assert (tmp_path / "value").read_bytes() == content
        assert json.loads(terminal.ok("value", "get", values[kind], "--json")) == msgspec.msgpack.decode(content)


def test_a_value_that_is_not_written_or_not_there_is_an_error(terminal: Terminal, values: dict[str, str]):
    unwritten = terminal.run("value", "show", values["int64"])
    assert unwritten.returncode == exit_codes.CONFLICT
    assert "has not been produced" in unwritten.stderr
    unknown = terminal.run("value", "get", "5cee4880088100")
    assert unknown.returncode == exit_codes.NOT_FOUND
    assert "There is no value 5cee4880088100" in unknown.stderr


def test_the_result_of_a_job_has_its_values_also_those_that_a_delegate_has_written(up: Up, terminal: Terminal):
    with Client(Transport(up.url, (up.data / "admin.token").read_text().strip())) as client:
        with client.new_job("values") as made:
            remote_tasks.factorial(5)
            remote_tasks.two(1)
            remote_tasks.make(5_000)
        made.wait()
    lines = {line.split()[0]: line for line in terminal.ok("job", "result", made.id).splitlines()}
    assert lines["LABEL"].split() == ["LABEL", "STATE", "EXIT", "TASK", "OUTPUTS"]
    assert lines["factorial"].split()[1:3] + lines["factorial"].split()[4:] == ["SUCCEEDED", "0", "10"]
    assert lines["two"].endswith(" 2, '<1>'")
    (task,) = [one for one in terminal.json("job", "result", made.id)["tasks"] if one["label"] == "make"]
    value = task["values"][0]["value_id"]
    assert lines["make"].endswith(f" 4.9 KiB: value {value}")
    assert msgspec.msgpack.decode(client.value(value).data) == b"x" * 5_000


# ---------------------------------------------------------------- shared values


def test_a_value_is_put_listed_kept_and_dropped(terminal: Terminal, job: str, tmp_path: Path):
    file = tmp_path / "table.json"
    file.write_text('{"a": 1, "b": 2}')
    made = terminal.json("value", "put", str(file), "--type", "Map<string,int64>", "--at", "10.0.0.7")
    value_id = made["id"]
    assert terminal.json("value", "show", value_id)["value"] == {"a": 1, "b": 2}
    [line] = [one for one in terminal.json("value", "list")["values"] if one["id"] == value_id]
    assert (line["num_groups"], line["num_jobs"], line["localities"]) == (1, 0, ["10.0.0.7"])
    assert value_id in terminal.ok("value", "list", "--group", "default")
    assert "referenced" in terminal.ok("value", "ref", value_id, "--job", job)
    assert "kept" in terminal.ok("value", "unref", value_id)
    assert "deleted" in terminal.ok("value", "unref", value_id, "--job", job)
    gone = terminal.run("value", "unref", value_id)
    assert (gone.returncode, "shared value" in gone.stderr) == (exit_codes.NOT_FOUND, True)


def test_a_large_value_and_one_in_messagepack(terminal: Terminal):
    large = terminal.ok("value", "put", "-", "--type", "string", given=json.dumps("x" * 5_000)).strip()
    assert terminal.json("value", "show", large)["value"] == "x" * 5_000
    packed = terminal.run("value", "put", "--msgpack", "--type", "int64", given=msgspec.msgpack.encode(7).decode())
    assert terminal.json("value", "show", packed.stdout.strip())["value"] == 7
    for value_id in (large, packed.stdout.strip()):
        terminal.ok("value", "unref", value_id)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("int64", '"a"', "The value must be int64"),
        ("int64", "{", "not JSON"),
        ("List<", "[1]", "not a type string"),
        ("nonsense<x>", "1", "type"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_refused(terminal: Terminal, kind: str, text: str, words: str):
    done = terminal.run("value", "put", "-", "--type", kind, given=text)
    assert done.returncode not in (0, None)
    assert words in done.stderr


def test_resource_groups_from_the_command_line(terminal: Terminal):
    terminal.ok("resource-group", "create", "farm")
    assert "farm" in terminal.ok("resource-group", "list")
    again = terminal.run("resource-group", "create", "farm")
    assert (again.returncode, "already exists" in again.stderr) == (exit_codes.CONFLICT, True)
    terminal.ok("value", "put", "-", "--type", "int64", "--group", "farm", given="7")
    job = {"name": "j", "tasks": {"a": {"task": {"payload": {"command": ["true"], "dimensions": {"pool": "no"}}}}}}
    terminal.json("job", "submit", "-", "--group", "farm", given=json.dumps(job))
    shown = terminal.json("resource-group", "show", "farm")
    assert (shown["jobs"], shown["tasks"], shown["num_values"]) == ({"RUNNING": 1}, {"READY": 1}, 1)
    assert "1 RUNNING" in terminal.ok("resource-group", "show", "farm")
    refused = terminal.run("resource-group", "delete", "farm")
    assert "has not ended" in refused.stderr
    assert "is being deleted" in terminal.ok("resource-group", "delete", "farm", "--force")
    while terminal.run("resource-group", "show", "farm").returncode != exit_codes.NOT_FOUND:
        pass
    assert terminal.run("resource-group", "delete", "farm").returncode == exit_codes.NOT_FOUND
