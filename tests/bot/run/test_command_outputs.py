"""Outputs of commands: JSON files by position, converted by their types, stored when they are large."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.commands.command_outputs import read_outputs
from myrmidon.bot.protocol import Output, Payload
from myrmidon.functions import msgpack
from tests.bot.stub import Stub

SHELL = "/bin/sh"


def convert(folder: Path, kind: str, value: Any) -> Any:
    (folder / "0").write_text(json.dumps(value))
    stored: dict[str, bytes] = {}
    [output], problem = read_outputs(str(folder), [kind], stored.__setitem__)
    assert (output.type, problem) == (kind, "")
    assert output.payload.inline is not None
    return msgpack.unpack(output.payload.inline)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("int64", 7, 7),
        ("double", 7, 7.0),
        ("bool", True, True),
        ("string", "text", "text"),
        ("bytes", "AAE=", b"\0\1"),
        ("List<double>", [1, 2.5], [1.0, 2.5]),
        ("Map<string,List<int64>>", {"a": [1]}, {"a": [1]}),
        ("Map<int64,bool>", {"-3": False}, {-3: False}),
        ("Optional<int8>", None, None),
        ("Optional<int8>", 5, 5),
        ("Tuple<int64,string>", [1, "a"], [1, "a"]),
        ("shop.Price", {"cents": 3}, {"cents": 3}),
        ("List<shop.Price>", [{"cents": 3}], [{"cents": 3}]),
    ],
)
def test_json_is_converted_by_the_declared_type(tmp_path: Path, kind: str, given: Any, expected: Any):
    found = convert(tmp_path, kind, given)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("int64", "7", 'output 0 must be int64, not "7"'),
        ("int64", True, "output 0 must be int64, not true"),
        ("int8", 128, "output 0 must be int8, not 128"),
        ("double", "x", "must be double"),
        ("bytes", "*", "must be bytes as a string in base64"),
        ("List<int64>", [1, None], r"output 0\[1\] must be int64, not null"),
        ("Map<string,int64>", {"a": 0.5}, r'output 0\["a"\] must be int64, not 0.5'),
        ("Map<int64,int64>", {"a": 1}, 'a key of output 0 must be int64, not "a"'),
        ("Tuple<int64,string>", [1], "must be Tuple"),
        ("string", None, "must be string, not null"),
    ],
)
def test_a_wrong_type_is_named_with_its_place(tmp_path: Path, kind: str, given: Any, message: str):
    (tmp_path / "0").write_text(json.dumps(given))
    outputs, problem = read_outputs(str(tmp_path), [kind], lambda *_: None)
    assert outputs == [Output(kind, Payload())]
    assert re.search(message, problem), problem


def test_an_output_that_is_a_link_or_no_json_is_refused(tmp_path: Path):
    (tmp_path / "0").symlink_to("/etc/passwd")
    assert "cannot be read" in read_outputs(str(tmp_path), ["string"], lambda *_: None)[1]
    (tmp_path / "1").write_text("{")
    (tmp_path / "0").unlink()
    (tmp_path / "0").write_text("1")
    outputs, problem = read_outputs(str(tmp_path), ["int64", "int64"], lambda *_: None)
    assert problem.startswith("output 1 is not JSON")
    assert [output.payload == Payload() for output in outputs] == [False, True]


def test_a_command_writes_its_outputs_small_and_large(fleet: Stub):
    large = '(printf "\\""; head -c 5000 /dev/zero | tr "\\0" x; printf "\\"")'
    script = f'echo 5 > "$MYRMIDON_OUTPUT_DIR/0"; {large} > "$MYRMIDON_OUTPUT_DIR/1"'
    report = fleet.run(SHELL, "-c", script, output_types=["int64", "string"])
    assert report["exit_code"] == 0, report
    small, stored = report["outputs"]
    assert small == {"type": "int64", "payload": {"inline": "BQ=="}}
    assert msgpack.unpack(fleet.files[stored["payload"]["digest"]]) == "x" * 5000


def test_a_command_without_its_output_has_failed_and_one_that_failed_needs_none(fleet: Stub):
    report = fleet.run(SHELL, "-c", "true", output_types=["int64"])
    assert (report["exit_code"], report["message"]) == (
        1,
        "the command has not written output 0: $MYRMIDON_OUTPUT_DIR/0",
    )
    report = fleet.run(SHELL, "-c", "exit 3", output_types=["int64"])
    assert (report["exit_code"], report["message"], report["outputs"]) == (3, "", ())
    assert fleet.run(SHELL, "-c", 'test -z "$MYRMIDON_OUTPUT_DIR"')["exit_code"] == 0


def test_what_a_failed_command_has_written_is_kept(fleet: Stub):
    report = fleet.run(SHELL, "-c", 'echo 5 > "$MYRMIDON_OUTPUT_DIR/1"; exit 3', output_types=["string", "int64"])
    assert report["exit_code"] == 3
    assert report["outputs"] == [
        {"type": "string", "payload": {}},
        {"type": "int64", "payload": {"inline": "BQ=="}},
    ]
    report = fleet.run(SHELL, "-c", 'echo 5 > "$MYRMIDON_OUTPUT_DIR/0"', output_types=["int64", "string"])
    assert (report["exit_code"], len(report["outputs"])) == (1, 2)
    assert report["message"].startswith("the command has not written output 1")


def test_a_command_that_the_server_cannot_complete_is_an_error_of_the_client(fleet: Stub):
    report = fleet.run(SHELL, "-c", "true", problem="the output of a is too large for a command")
    assert (report["type"], report["kind"]) == ("fault", "client_error")
    assert report["message"] == "the output of a is too large for a command"
