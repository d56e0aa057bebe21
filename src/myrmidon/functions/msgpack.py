"""MessagePack, written in Python because a bot has the standard library only.

Plain objects are None, bool, int, float, str, bytes, list, tuple, dict and ``Ext``. Floats take 8 bytes, everything
else the shortest form, so the bytes are those of other encoders (tests compare them with msgspec's).
"""

from __future__ import annotations

import struct
from typing import Any, Callable, NamedTuple, Sequence

MIN_INT, MAX_INT = -(1 << 63), (1 << 64) - 1
_DEEP = "the value is nested too deeply, or contains itself"


class MsgpackError(ValueError):
    """The bytes are not MessagePack, or an object cannot be encoded."""


class Ext(NamedTuple):
    """An extension value: a number of the application and bytes."""

    code: int
    data: bytes


class Packed(bytes):
    """An object that is encoded already; ``pack`` copies it."""


def pack(value: Any) -> bytes:
    """Encode a plain object. Raises MsgpackError for an object of another type or an integer of more than 64 bits."""
    parts: list[Any] = []
    try:
        _WRITERS[type(value)](value, parts.append)
    except KeyError as error:
        raise MsgpackError(f"cannot encode an object of {error.args[0]}") from None
    except RecursionError:
        raise MsgpackError(_DEEP) from None
    except UnicodeEncodeError as error:
        raise MsgpackError(f"the text is not Unicode: {error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def pack_packed(items: Sequence[bytes]) -> bytes:
    """The list of objects that are encoded already."""
    size = len(items)
    return b"".join([_FIXARRAY[size] if size < 16 else _wide_header(size, 0xDC, 0xDD), *items])


def unpack(data: bytes, ext: Callable[[int, bytes], Any] = Ext) -> Any:
    """Decode bytes that hold exactly one object; ``ext`` is called for every extension value."""
    try:
        value, at = _read(data, 0, ext)
    except (IndexError, struct.error):
        raise MsgpackError("the data ends too early") from None
    except (UnicodeDecodeError, TypeError) as error:
        raise MsgpackError(f"the data is not MessagePack: {error}") from None
    except RecursionError:
        raise MsgpackError(_DEEP) from None
    if at != len(data):
        raise MsgpackError(f"{len(data) - at} bytes follow the object" if at < len(data) else "the data ends too early")
    return value


# -------------------------------------------------------------------------------------------------------------- write

_Write = Callable[[Any], None]
_SMALL_INTS = {n: struct.pack("b" if n < 0 else "B", n) for n in range(-32, 128)}
_U8, _U16, _U32, _U64 = (struct.Struct(f">B{letter}").pack for letter in "BHIQ")
_I8, _I16, _I32, _I64 = (struct.Struct(f">B{letter}").pack for letter in "bhiq")
_F64 = struct.Struct(">Bd").pack


def _write_none(_: None, write: _Write) -> None:
    write(b"\xc0")


def _write_bool(value: bool, write: _Write) -> None:
    write(b"\xc3" if value else b"\xc2")


def _write_int(value: int, write: _Write) -> None:
    small = _SMALL_INTS.get(value)
    write(small if small is not None else _large_int(value))


def _large_int(value: int) -> bytes:
    if not MIN_INT <= value <= MAX_INT:
        raise MsgpackError(f"the integer {_shorten(value)} has more than 64 bits")
    if value >= 0:
        if value < 0x100:
            return _U8(0xCC, value)
        if value < 0x10000:
            return _U16(0xCD, value)
        return _U32(0xCE, value) if value < 0x100000000 else _U64(0xCF, value)
    if value >= -0x80:
        return _I8(0xD0, value)
    if value >= -0x8000:
        return _I16(0xD1, value)
    return _I32(0xD2, value) if value >= -0x80000000 else _I64(0xD3, value)


def _shorten(value: int) -> str:
    """Python refuses to print integers of thousands of digits."""
    return str(value) if value.bit_length() < 256 else f"of {value.bit_length()} bits"


def _write_float(value: float, write: _Write) -> None:
    write(_F64(0xCB, value))


def _write_str(value: str, write: _Write) -> None:
    data = value.encode()
    size = len(data)
    if size < 32:
        write(_FIXSTR[size] + data)
        return
    write(_header(size, 0xD9, 0xDA, 0xDB))
    write(data)


def _write_bytes(value: Any, write: _Write) -> None:
    write(_header(len(value), 0xC4, 0xC5, 0xC6))
    write(value)


def _write_memory(value: memoryview, write: _Write) -> None:
    write(_header(value.nbytes, 0xC4, 0xC5, 0xC6))
    write(value)


def _write_list(value: Any, write: _Write) -> None:
    size = len(value)
    write(_FIXARRAY[size] if size < 16 else _wide_header(size, 0xDC, 0xDD))
    writers = _WRITERS
    for item in value:
        writers[type(item)](item, write)


def _write_dict(value: dict[Any, Any], write: _Write) -> None:
    size = len(value)
    write(_FIXMAP[size] if size < 16 else _wide_header(size, 0xDE, 0xDF))
    writers = _WRITERS
    for key, item in value.items():
        writers[type(key)](key, write)
        writers[type(item)](item, write)


def _write_ext(value: Ext, write: _Write) -> None:
    size = len(value.data)
    fixed = _FIXEXT.get(size)
    write(bytes([fixed]) if fixed is not None else _header(size, 0xC7, 0xC8, 0xC9))
    write(struct.pack("b", value.code))
    write(value.data)


def _write_packed(value: Packed, write: _Write) -> None:
    write(value)


def _header(size: int, short: int, middle: int, long: int) -> bytes:
    if size < 0x100:
        return _U8(short, size)
    return _wide_header(size, middle, long)


def _wide_header(size: int, middle: int, long: int) -> bytes:
    if size < 0x10000:
        return _U16(middle, size)
    if size < 0x100000000:
        return _U32(long, size)
    raise MsgpackError(f"{size} is too many for one object")


_FIXSTR = [bytes([0xA0 | size]) for size in range(32)]
_FIXARRAY = [bytes([0x90 | size]) for size in range(16)]
_FIXMAP = [bytes([0x80 | size]) for size in range(16)]
_FIXEXT = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}
_WRITERS: dict[type, Callable[[Any, _Write], None]] = {
    type(None): _write_none,
    bool: _write_bool,
    int: _write_int,
    float: _write_float,
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytes,
    memoryview: _write_memory,
    list: _write_list,
    tuple: _write_list,
    dict: _write_dict,
    Ext: _write_ext,
    Packed: _write_packed,
}


# --------------------------------------------------------------------------------------------------------------- read

_Ext = Callable[[int, bytes], Any]
_NUMBERS = {
    code: (struct.Struct(f">{letter}").unpack_from, struct.calcsize(f">{letter}"))
    for code, letter in {
        0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q",
    }.items()
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZES = {1: struct.Struct(">B").unpack_from, 2: struct.Struct(">H").unpack_from, 4: struct.Struct(">I").unpack_from}
_SIZED_EXT = {code: size for size, code in _FIXEXT.items()}


# Each of these returns the value at a position and the position after it. A text or bytes that is cut off gives a
# position behind the end, which the next read or the caller at the top notices.


def _read(data: Any, at: int, ext: _Ext) -> tuple[Any, int]:
    code = data[at]
    if code < 0x80:
        return code, at + 1
    if code < 0xA0:
        return _read_map(data, code & 15, at + 1, ext) if code < 0x90 else _read_array(data, code & 15, at + 1, ext)
    if code < 0xC0:
        end = at + 1 + (code & 31)
        return str(data[at + 1 : end], "utf-8"), end
    if code >= 0xE0:
        return code - 0x100, at + 1
    return _read_long(data, code, at + 1, ext)


def _read_long(data: Any, code: int, at: int, ext: _Ext) -> tuple[Any, int]:
    """Decode what has a code of its own, 0xc0 to 0xdf."""
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    number = _NUMBERS.get(code)
    if number is not None:
        return number[0](data, at)[0], at + number[1]
    if code in _SIZED_EXT:
        return _read_ext(data, _SIZED_EXT[code], at, ext)
    if code == 0xC1:
        raise MsgpackError("the data is not MessagePack: byte 0xc1")
    width, read = _SIZED[code]
    return read(data, _SIZES[width](data, at)[0], at + width, ext)


def _read_text(data: Any, size: int, at: int, _: _Ext) -> tuple[str, int]:
    return str(data[at : at + size], "utf-8"), at + size


def _read_bytes(data: Any, size: int, at: int, _: _Ext) -> tuple[bytes, int]:
    return data[at : at + size], at + size


def _read_array(data: Any, size: int, at: int, ext: _Ext) -> tuple[list[Any], int]:
    if size > len(data) - at:  # before memory is taken for it
        raise IndexError
    if size > 15:
        numbers, end = _read_numbers(data, size, at)
        if numbers is not None:
            return numbers, end
    items = []
    for _ in range(size):
        item, at = _read(data, at, ext)
        items.append(item)
    return items, at


def _read_numbers(data: bytes, size: int, at: int) -> tuple[list[Any] | None, int]:
    """A long list of only floats, or of only integers from 0 to 127, about four times as fast as one by one."""
    if data[at : at + size].isascii():
        return list(data[at : at + size]), at + size
    end = at + 9 * size
    if data[at:end:9] == b"\xcb" * size and end <= len(data):
        return [one for (one,) in struct.iter_unpack(">xd", data[at:end])], end
    return None, at


def _read_map(data: Any, size: int, at: int, ext: _Ext) -> tuple[dict[Any, Any], int]:
    items = {}
    for _ in range(size):
        key, at = _read(data, at, ext)
        items[key], at = _read(data, at, ext)
    return items, at


def _read_ext(data: Any, size: int, at: int, ext: _Ext) -> tuple[Any, int]:
    (code,) = struct.unpack_from("b", data, at)
    end = at + 1 + size
    if end > len(data):
        raise IndexError
    return ext(code, bytes(data[at + 1 : end])), end


_SIZED: dict[int, tuple[int, Callable[[Any, int, int, _Ext], tuple[Any, int]]]] = {
    0xC4: (1, _read_bytes), 0xC5: (2, _read_bytes), 0xC6: (4, _read_bytes),
    0xC7: (1, _read_ext), 0xC8: (2, _read_ext), 0xC9: (4, _read_ext),
    0xD9: (1, _read_text), 0xDA: (2, _read_text), 0xDB: (4, _read_text),
    0xDC: (2, _read_array), 0xDD: (4, _read_array), 0xDE: (2, _read_map), 0xDF: (4, _read_map),
}  # fmt: skip
