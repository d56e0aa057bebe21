"""Codecs of values without values inside: numbers, texts, bytes, enums, datetimes and numpy arrays."""

from __future__ import annotations

import datetime as dt
import enum
import operator
import sys
import typing
from typing import Any

from myrmidon.functions.types import Kind, TypeProblem, show


class Codec:
    """Converts the values of one annotation.

    ``exact`` are the classes whose instances are plain already, in both directions; lists of such need no conversion.
    """

    exact: frozenset[type] = frozenset()

    def __init__(self, annotation: Any, kind: Kind) -> None:
        self.annotation = annotation
        self.kind = kind

    def prepare(self) -> None:
        """Make the codecs inside. Separate from the constructor, because a class may contain itself."""

    def to_plain(self, value: Any) -> Any:
        raise NotImplementedError

    def from_plain(self, plain: Any) -> Any:
        raise NotImplementedError

    def check_exact(self, values: Any) -> None:
        """Check what the classes in ``exact`` do not say."""

    def wrong(self, given: Any) -> TypeProblem:
        return TypeProblem(f"expected {show(self.annotation)}, given {_describe(given)}")


def _describe(value: Any) -> str:
    shown = show(type(value))
    if isinstance(value, int) and value.bit_length() > 256:  # Python does not print thousands of digits
        return f"an integer of {value.bit_length()} bits"
    if value is None or not isinstance(value, (int, float, str, bytes)):
        return shown
    text = repr(value)
    return f"{shown} ({text[:60]}{'...' if len(text) > 60 else ''})"


class IntegerCodec(Codec):
    def __init__(self, annotation: Any, kind: Kind) -> None:
        super().__init__(annotation, kind)
        bits = int(kind.name[3:])
        self.low, self.high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        self.cls = kind.cls
        self.exact = frozenset({int}) if kind.cls is None else frozenset()

    def to_plain(self, value: Any) -> int:
        if type(value) is not int:
            value = self.convert(value)
        if not self.low <= value <= self.high:
            raise self.out_of_range(value)
        return value  # type: ignore[no-any-return]

    def convert(self, value: Any) -> int:
        """An integer of another class, such as numpy's; bool is not taken for one."""
        if isinstance(value, bool) or not hasattr(type(value), "__index__") or getattr(value, "shape", ()) != ():
            raise self.wrong(value)
        return operator.index(value)

    def from_plain(self, plain: Any) -> int:
        if type(plain) is not int:
            raise self.wrong(plain)
        if not self.low <= plain <= self.high:
            raise self.out_of_range(plain)
        return plain if self.cls is None else self.cls(plain)

    def check_exact(self, values: Any) -> None:
        if values and not (self.low <= min(values) and max(values) <= self.high):
            wrong, index = next((one, at) for at, one in enumerate(values) if not self.low <= one <= self.high)
            raise self.out_of_range(wrong).inside(f"[{index}]")

    def out_of_range(self, value: int) -> TypeProblem:
        return TypeProblem(f"expected {self.kind.name} ({self.low}..{self.high}), given {_describe(value)}")


class FloatCodec(Codec):
    exact = frozenset({float})

    def to_plain(self, value: Any) -> float:
        if type(value) is float:
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self.from_int(value)
        if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and value.dtype.kind in "fiu":
            return float(value)
        raise self.wrong(value)

    def from_plain(self, plain: Any) -> float:
        if type(plain) is float:
            return plain
        if type(plain) is int:
            return self.from_int(plain)
        raise self.wrong(plain)

    def from_int(self, value: Any) -> float:
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(value) from None


class ExactCodec(Codec):
    """str, bytes and bool: the value is plain."""

    def __init__(self, annotation: Any, kind: Kind) -> None:
        super().__init__(annotation, kind)
        self.cls = {"string": str, "bytes": bytes, "bool": bool}[kind.name]
        self.exact = frozenset({self.cls})

    def to_plain(self, value: Any) -> Any:
        if type(value) is self.cls:
            return value
        if isinstance(value, self.cls) and not isinstance(value, enum.Enum):
            return self.cls(value)
        if self.cls is bool and type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
            return bool(value)
        raise self.wrong(value)

    def from_plain(self, plain: Any) -> Any:
        if type(plain) is self.cls:
            return plain
        raise self.wrong(plain)


class DatetimeCodec(Codec):
    def to_plain(self, value: Any) -> str:
        if not isinstance(value, dt.datetime):
            raise self.wrong(value)
        return value.isoformat()

    def from_plain(self, plain: Any) -> dt.datetime:
        if type(plain) is not str:
            raise self.wrong(plain)
        try:
            return dt.datetime.fromisoformat(plain)
        except ValueError:
            raise self.wrong(plain) from None


class EnumCodec(Codec):
    def to_plain(self, value: Any) -> Any:
        if type(value) is not self.kind.cls:
            raise self.wrong(value)
        return value.value if isinstance(value, enum.Flag) else value.name

    def from_plain(self, plain: Any) -> Any:
        cls = self.kind.cls
        try:
            if issubclass(cls, enum.Flag):
                return cls(plain)
            return cls[plain]
        except (KeyError, ValueError, TypeError):
            raise self.wrong(plain) from None


class ArrayCodec(Codec):
    """A numpy array, by its buffer. The module with the annotation has imported numpy already."""

    def prepare(self) -> None:
        self.dtype: Any = None
        if len(self.kind.of) == 2:  # NDArray[float64] is ndarray[Any, dtype[float64]]
            inner = typing.get_args(self.kind.of[1])
            self.dtype = inner[0] if inner and isinstance(inner[0], type) else None

    def to_plain(self, value: Any) -> dict[str, Any]:
        numpy = sys.modules["numpy"]
        if type(value) is not numpy.ndarray and type(value) is not numpy.memmap:
            raise self.wrong(value)
        self.check_dtype(value.dtype)
        if value.dtype.hasobject or value.dtype.names:
            raise TypeProblem(f"expected an array of numbers or texts, given dtype {value.dtype}")
        flat = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8) if value.size else numpy.empty(0, "u1")
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": flat.data}

    def from_plain(self, plain: Any) -> Any:
        numpy = sys.modules["numpy"]
        if type(plain) is not dict or set(plain) != {"dtype", "shape", "data"}:
            raise self.wrong(plain)
        try:
            dtype = numpy.dtype(str(plain["dtype"]))
            if dtype.hasobject:
                raise self.wrong(plain)
            array = numpy.frombuffer(plain["data"], dtype).reshape(plain["shape"]).copy()
        except (TypeError, ValueError, SyntaxError) as error:
            raise TypeProblem(f"the stored array is damaged: {error}") from None
        self.check_dtype(array.dtype)
        return array

    def check_dtype(self, dtype: Any) -> None:
        if self.dtype is not None and not issubclass(dtype.type, self.dtype):
            raise TypeProblem(f"expected {show(self.annotation)}, given an array of {dtype}")
