"""Values as MessagePack, encoded, decoded and checked by their annotations. Nothing is ever pickled.

Each annotation gets a codec once: a pair of functions between the value and a plain object (see msgpack.py). An object
with fields is a map by field name, an enum's member its name, a flag its number, a datetime its ISO text, a numpy array
a map of dtype, shape and data.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Sequence

from myrmidon.functions import msgpack
from myrmidon.functions.codecs import codec_of
from myrmidon.functions.scalar_codecs import Codec
from myrmidon.functions.types import TypeProblem, kind_of

MAX_BYTES = 64 << 20
"""The largest size of an encoded value; the server stores no larger files."""
INLINE_BYTES = 1 << 10
"""The largest size of an encoded value that is sent in place; larger ones are stored as files, by their digest."""
PART = 1
"""The extension code of a placeholder in a gathered value: a number of 32 bits, big endian, which part goes there."""


def too_large(what: str, size: int) -> str:
    """Return the message about a value of more than MAX_BYTES."""
    return f"{what} has {size / (1 << 20):.1f} MiB; at most {MAX_BYTES >> 20} MiB"


def encode(value: Any, annotation: Any) -> bytes:
    """The bytes of a value. Raises TypeProblem if it does not have the type that the annotation says."""
    return encode_by(codec_of(annotation), value)


def encode_by(codec: Codec, value: Any) -> bytes:
    """``encode`` for a caller that keeps the codec of the annotation."""
    return _pack(_plain(value, codec))


def decode(data: Any, annotation: Any) -> Any:
    """The value that the bytes hold. Raises TypeProblem if it does not have the type that the annotation says."""
    return codec_of(annotation).from_plain(decode_plain(data))


def encode_gathered(value: Any, annotation: Any, place: Callable[[Any, Any], int | None]) -> bytes:
    """The shape of a value with parts that are not known yet, at any depth of lists, tuples and values of dicts.

    ``place(object, annotation)`` gives the number of the part that stands for an object, or None for a known value; it
    may raise TypeProblem, to which the path is added.
    """
    return _pack(_shape(value, annotation, place))


def decode_gathered(shape: bytes | None, parts: Sequence[Any], annotation: Any) -> Any:
    """The value whose shape has these encoded parts; without a shape it is the list of the parts."""
    return decode_gathered_by(codec_of(annotation), shape, parts)


def decode_gathered_by(codec: Codec, shape: Any, parts: Sequence[Any]) -> Any:
    """``decode_gathered`` for a caller that keeps the codec of the annotation."""
    plain = [decode_plain(part) for part in parts]
    if shape is None:
        return codec.from_plain(plain)

    def part(code: int, data: bytes) -> Any:
        if code != PART or len(data) != 4:
            raise msgpack.MsgpackError("the shape contains an unknown extension")
        (number,) = struct.unpack(">I", data)
        if number >= len(plain):
            raise msgpack.MsgpackError(f"the shape refers to part {number} of {len(plain)}")
        return plain[number]

    return codec.from_plain(decode_plain(shape, part))


def _plain(value: Any, codec: Codec) -> Any:
    try:
        return codec.to_plain(value)
    except RecursionError:
        raise TypeProblem("the value is nested too deeply, or contains itself") from None


def _pack(plain: Any) -> bytes:
    try:
        return msgpack.pack(plain)
    except msgpack.MsgpackError as error:
        raise TypeProblem(str(error)) from None


def decode_plain(data: Any, ext: Callable[[int, bytes], Any] = msgpack.Ext) -> Any:
    """The plain object that the bytes hold, for a codec."""
    try:
        return msgpack.unpack(data, ext)
    except msgpack.MsgpackError as error:
        raise TypeProblem(f"the stored value is damaged: {error}") from None


def _shape(value: Any, annotation: Any, place: Callable[[Any, Any], int | None]) -> Any:
    number = place(value, annotation)
    if number is not None:
        return msgpack.Ext(PART, struct.pack(">I", number))
    kind = kind_of(annotation)
    if kind.name == "optional":
        return None if value is None else _shape(value, kind.of[0], place)
    if kind.name == "map" and type(value) is dict:
        return _shape_of_dict(value, annotation, place)
    if kind.name in ("list", "items") and type(value) is (list if kind.name == "list" else tuple):
        return _shape_of_items(value, [kind.of[0]] * len(value), place)
    if kind.name == "tuple" and type(value) is tuple and len(value) == len(kind.of):
        return _shape_of_items(value, kind.of, place)
    return _plain(value, codec_of(annotation))


def _shape_of_items(values: Sequence[Any], annotations: Sequence[Any], place: Any) -> list[Any]:
    shapes: list[Any] = []
    try:
        for value, annotation in zip(values, annotations):
            shapes.append(_shape(value, annotation, place))
    except TypeProblem as problem:
        raise problem.inside(f"[{len(shapes)}]") from None
    return shapes


def _shape_of_dict(value: Any, annotation: Any, place: Any) -> Any:
    of_key, of_value = kind_of(annotation).of
    keys = codec_of(of_key)
    shapes = {}
    for key, item in value.items():
        try:
            shapes[keys.to_plain(key)] = _shape(item, of_value, place)
        except TypeProblem as problem:
            raise problem.inside(f"[{key!r}]") from None
    return shapes
