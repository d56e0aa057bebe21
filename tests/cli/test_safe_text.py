"""Hostile text: nothing in a name or a log makes a terminal do anything."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.cli.safe_text import LogFilter, escape

SGR = re.compile(r"\x1b\[[0-9;:]*m")
PIECES = st.sampled_from(
    ["\x1b", "[", "]", "P", "31m", "0m", "2J", "52;c;aGk=", "\x07", "\x1b\\", "\x9b", "\x9d", "\x9c", "\r", "\n", "\t",
     "\u202e", "\u2066", "\x00", "\x7f", "\x85", "\u2028", ";", ":", "a", "é", "漢", "\U000e0041", "9" * 70]
)  # fmt: skip
HOSTILE = st.lists(PIECES | st.text(max_size=3), max_size=20).map("".join)


def is_control(character: str) -> bool:
    return character not in "\u200c\u200d" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def controls(text: str, *, allowed: str = "") -> list[str]:
    return [one for one in text if is_control(one) and one not in allowed]


@given(HOSTILE | st.text(st.characters()))
def test_escaped_text_has_no_control_characters(text: str):
    shown = escape(text)
    assert controls(shown) == []
    assert escape(shown) == shown


def test_readable_text_stays_as_it_is():
    for text in ("nightly build", "naïve café", "漢字", "👩\u200d💻", "क\u200cष", "C:\\x"):
        assert escape(text) == text


def test_what_is_not_readable_is_shown_as_text():
    assert escape("a\x1b[31mb\nc\u202ed\x9be\ud800") == r"a\x1b[31mb\nc\u202ed\x9be\ud800"


def filtered(*chunks: bytes) -> str:
    log = LogFilter()
    return b"".join([*(log.feed(chunk) for chunk in chunks), log.finish()]).decode()


@given(HOSTILE, st.integers(1, 7))
def test_a_log_keeps_colours_only_wherever_it_is_cut(text: str, size: int):
    data = text.encode("utf-8", "surrogatepass")
    whole = filtered(data)
    assert controls(SGR.sub("", whole), allowed="\n\t") == []
    if "9" * 70 not in text:  # a sequence beyond any sensible length is cut where the chunk ends
        assert filtered(*(data[i : i + size] for i in range(0, len(data), size))) == whole


@given(st.binary(max_size=60))
def test_bytes_that_are_no_text_become_text(data: bytes):
    assert controls(SGR.sub("", filtered(data)), allowed="\n\t") == []


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[1;32mok\x1b[0m done\n", "\x1b[1;32mok\x1b[0m done\n"),
        ("\x1b[38:2::1:2:3mx", "\x1b[38:2::1:2:3mx\x1b[0m"),
        ("\x1b]52;c;ZXZpbA==\x07after", "after"),
        ("\x1b]0;title\x1b\\after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2;0;0;0\x1b\\after", "after"),
        ("\x9d0;title\x9cafter", "after"),
        ("a\x1b[2J\x1b[1;1Hb", "ab"),
        ("\x9b2Jb", "b"),
        ("\x1b[>4;2mb", "b"),
        ("\x1b(0b\x1bcb", "bb"),
        ("50%\r100%\r\n", "50%\n100%\n"),
        ("\x1b]0;never ended\nnext line\n", "\nnext line\n"),
        ("evil\u202etxt.exe\x08\x07\x00", "eviltxt.exe"),
        ("tab\there\n", "tab\there\n"),
        ("naïve 漢字 👩\u200d💻\n", "naïve 漢字 👩\u200d💻\n"),
    ],
)
def test_sequences_of_a_log(written: str, shown: str):
    assert filtered(written.encode()) == shown
    assert filtered(*(bytes([byte]) for byte in written.encode())) == shown


def test_a_string_that_never_ends_is_not_kept_in_memory():
    log = LogFilter()
    log.feed(b"\x1b]52;c;")
    for _ in range(1000):
        assert log.feed(b"A" * 1000) == b""
    assert sum(len(value) for value in vars(log).values() if isinstance(value, str)) < 100
    assert log.feed(b"\nnext") == b"\nnext"
