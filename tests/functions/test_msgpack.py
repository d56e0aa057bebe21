"""The codec of MessagePack, compared with msgspec's."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.functions.msgpack import Ext, MsgpackError, pack, unpack

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
KEYS = st.one_of(st.text(), st.integers(-(1 << 63), (1 << 63) - 1), st.binary())
OBJECTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(KEYS, inner, max_size=20)),
    max_leaves=40,
)
EDGES = [
    *(n + d for n in (0, -32, 1 << 7, -(1 << 7), 1 << 8, -(1 << 15), 1 << 16, 1 << 32) for d in (-1, 0, 1)),
    (1 << 64) - 1, -(1 << 63), -(1 << 31), -(1 << 31) - 1,
    *("x" * n for n in (0, 31, 32, 255, 256, 65535, 65536)),
    *(b"x" * n for n in (0, 255, 256, 65535, 65536)),
    *([0] * n for n in (0, 15, 16, 65535, 65536)),
    *(dict.fromkeys(range(n)) for n in (0, 15, 16, 65535, 65536)),
    float("inf"), 1.5, "ä€🙂",
]  # fmt: skip


@given(OBJECTS)
def test_it_writes_what_msgspec_writes_and_reads_it_back(value):
    data = pack(value)
    assert data == msgspec.msgpack.encode(value)
    assert unpack(data) == value
    assert msgspec.msgpack.decode(data, strict=False) == value


@pytest.mark.parametrize("value", EDGES, ids=lambda value: f"{type(value).__name__} {str(value)[:12]}")
def test_every_width_of_a_header_is_as_msgspec_writes_it(value):
    data = pack(value)
    assert data == msgspec.msgpack.encode(value)
    assert unpack(data) == value


@given(st.lists(st.floats(allow_nan=False) | st.integers(0, 200), max_size=40) | st.lists(st.floats(allow_nan=False)))
def test_long_lists_of_numbers_are_read_as_they_were_written(value):
    back = unpack(pack(value * 3))
    assert back == value * 3
    assert list(map(type, back)) == list(map(type, value * 3))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 8, 16, 17, 255, 256, 65536])
def test_extensions_have_a_code_and_bytes(size):
    value = Ext(5, b"x" * size)
    assert unpack(pack(value)) == value
    assert msgspec.msgpack.decode(pack(value), type=msgspec.msgpack.Ext) == msgspec.msgpack.Ext(5, b"x" * size)
    assert unpack(pack([value]), lambda code, data: (code, len(data))) == [(5, size)]


def test_floats_of_four_bytes_are_read():
    assert unpack(b"\xca\x3f\xc0\x00\x00") == 1.5


def test_buffers_are_written_as_bytes_without_a_copy_first():
    assert pack(memoryview(b"abc")) == pack(bytearray(b"abc")) == pack(b"abc")


@given(st.binary(max_size=40))
def test_bytes_from_anywhere_give_an_object_or_an_error(data):
    try:
        value = unpack(data)
    except MsgpackError:
        return
    assert unpack(pack(value)) == value or value != value or "nan" in repr(value)


@given(OBJECTS.map(pack), st.data())
def test_data_that_was_cut_off_is_an_error(data, draw):
    end = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(MsgpackError):
        unpack(data[:end])
    with pytest.raises(MsgpackError, match="bytes follow"):
        unpack(data + b"\x00")


def test_lists_that_claim_to_be_huge_are_refused_before_memory_is_taken():
    with pytest.raises(MsgpackError, match="ends too early"):
        unpack(b"\xdd\xff\xff\xff\xff\x00")


@pytest.mark.parametrize(
    ("value", "reason"),
    [(object(), "cannot encode"), (1 << 64, "more than 64 bits"), ("\ud800", "not Unicode"), ({1, 2}, "cannot encode")],
)
def test_what_cannot_be_written_is_an_error(value, reason):
    with pytest.raises(MsgpackError, match=reason):
        pack([value])


def test_endless_nesting_is_an_error_both_ways():
    endless: list = []
    endless.append(endless)
    with pytest.raises(MsgpackError, match="nested too deeply"):
        pack(endless)
    with pytest.raises(MsgpackError, match="nested too deeply"):
        unpack(b"\x91" * 100_000 + b"\x00")
