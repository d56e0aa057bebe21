"""Errors of functions as the bot gets them: class, bases, message, arguments, and the user's part of the traceback."""

from __future__ import annotations

import pytest

SOURCE = """
    from __future__ import annotations

    import asyncio
    import json

    class Base(Exception):
        pass

    class Own(Base, ValueError):
        pass

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def helper(a: int) -> int:
        secret = 5
        raise Own("bad thing", a)

    def fails(a: int) -> int:
        return helper(a)

    async def fails_later(a: int) -> int:
        await asyncio.sleep(0)
        return helper(a)

    def chained(a: int) -> int:
        try:
            return helper(a)
        except Own as error:
            raise KeyError("outer") from error

    def parses(text: str) -> int:
        return json.loads(text)

    def mute() -> None:
        raise Mute(object())

    def long(size: int) -> None:
        raise ValueError("x" * size)

    def surrogate() -> None:
        raise ValueError("\\ud800")

    def huge_integer() -> None:
        raise ValueError(1 << 70)

    def tuple_argument() -> None:
        raise ValueError(("a", 1))

    def large_locals() -> None:
        data = bytearray(50_000_000)
        raise ValueError("large")
"""


def test_an_error_has_its_class_bases_message_and_arguments(start_on):
    error = start_on(SOURCE).error("fails", 7)
    assert error["kind"] == "exception"
    assert error["type"] == "sample.Own"
    assert error["bases"] == ["sample.Base", "builtins.ValueError", "builtins.Exception", "builtins.BaseException"]
    assert error["message"] == "('bad thing', 7)"
    assert error["summary"] == "Own: ('bad thing', 7)"
    assert error["error"]["args"] == ["bad thing", 7]


@pytest.mark.parametrize("function", ["fails", "fails_later"])
def test_the_traceback_begins_in_the_code_of_the_user(start_on, function):
    executor = start_on(SOURCE)
    lines = executor.error(function, 7)["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{executor.code}/sample.py"')
    assert lines[1].endswith(f"in {function}")
    assert lines[2] == "    return helper(a)"
    assert lines[-1] == "sample.Own: ('bad thing', 7)"
    assert "myrmidon/" not in "\n".join(lines)


def test_the_place_is_the_last_line_of_the_users_code_and_not_that_of_a_library(start_on):
    executor = start_on(SOURCE)
    lines = [line.strip() for line in SOURCE.splitlines()]
    for function, argument, line, name in (
        ("fails", 7, 'raise Own("bad thing", a)', "helper"),
        ("parses", "{bad", "return json.loads(text)", "parses"),
    ):
        assert executor.error(function, argument)["place"] == f"sample.py:{lines.index(line) + 1} in {name}"


def test_causes_are_part_of_the_traceback(start):
    error = start(SOURCE).error("chained", 7)
    assert error["type"] == "builtins.KeyError"
    assert "sample.Own: ('bad thing', 7)" in error["traceback"]
    assert "direct cause" in error["traceback"]


def test_an_error_that_cannot_be_shown_is_reported_all_the_same(start_on):
    executor = start_on(SOURCE)
    error = executor.error("mute")
    assert error["type"] == "sample.Mute"
    assert error["message"] == "<str() of it raised RuntimeError>"
    assert "args" not in error["error"]
    assert executor.error("surrogate")["message"] == "\\ud800"


def test_arguments_that_json_would_change_are_left_out(start):
    executor = start(SOURCE)
    for function in ("tuple_argument", "huge_integer", "surrogate"):
        assert "args" not in executor.error(function)["error"]


def test_long_messages_are_cut_in_the_middle(start):
    error = start(SOURCE).error("long", 1_000_000)
    assert len(error["message"]) < 10_000
    assert "characters ..." in error["message"]
    assert len(error["traceback"]) < 40_000
    assert "args" not in error["error"]


def test_the_variables_of_a_failed_call_are_freed(start):
    executor = start(SOURCE)
    for _ in range(8):
        assert executor.error("large_locals", memory_mb=100)["message"] == "large"
    with open(f"/proc/{executor.process.pid}/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    assert resident < 200_000
