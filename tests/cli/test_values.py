"""`value` on this side of the server: what is printed of a value."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click
import msgspec
import pytest

from myrmidon.cli.values import decode, to_json


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
