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
    api = Client(Transport(up.url, token)).api
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
    job_id = api.submit_job({"name": "values", "tasks": {"f": {"task": task}}}).job_id
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
