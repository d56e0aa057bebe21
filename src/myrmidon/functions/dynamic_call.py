"""Calls of functions without annotations, for ``client.executor()``: arguments and results are plain objects.

The values have the types that they happen to have: None, bool, int, float, str, bytes, list, tuple, dict, set and
frozenset. Nothing is pickled.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from myrmidon.functions import msgpack

_TUPLE, _PAIRS, _SET, _FROZENSET, _INTEGER = 2, 3, 4, 5, 6


def call(module: str, name: str, arguments: bytes) -> bytes:
    """Call a function by its name; what it returns, encoded."""
    args, kwargs = unpack_plain(arguments)
    result = find(module, name)(*args, **kwargs)
    if inspect.iscoroutine(result):
        import asyncio  # late: few functions are coroutines

        result = asyncio.run(result)
    return pack_plain(result)


def find(module: str, name: str) -> Any:
    """The function with this qualified name."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def name_of(function: Any) -> tuple[str, str]:
    """Module and qualified name. Raises TypeError unless they lead back to the function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError(f"{function!r} has no name by which a bot could import it")
    try:
        found = find(module, name)
    except (ImportError, AttributeError):
        found = None
    if found is not function:
        raise TypeError(f"{function!r} cannot be imported as {module}.{name}, so a bot cannot call it")
    return module, name


def pack_plain(value: Any) -> bytes:
    """Encode a plain object. Raises TypeError for an object of another class."""
    try:
        return msgpack.pack(_marked(value))
    except msgpack.MsgpackError as error:
        raise TypeError(f"{error}; a function without annotations takes and returns plain objects") from None
    except RecursionError:
        raise TypeError("the value is nested too deeply, or contains itself") from None


def unpack_plain(data: bytes) -> Any:
    """The inverse of ``pack_plain``."""
    return msgpack.unpack(data, _unmarked)


def _marked(value: Any) -> Any:
    """The object with an extension value for everything that MessagePack does not have."""
    kind = type(value)
    if kind is list:
        return [_marked(item) for item in value]
    if kind is dict:
        if all(type(key) is str for key in value):
            return {key: _marked(item) for key, item in value.items()}
        return msgpack.Ext(_PAIRS, msgpack.pack([[_marked(key), _marked(item)] for key, item in value.items()]))
    if kind in _CODES:
        return msgpack.Ext(_CODES[kind], msgpack.pack([_marked(item) for item in value]))
    if kind is int and not msgpack.MIN_INT <= value <= msgpack.MAX_INT:
        return msgpack.Ext(_INTEGER, str(value).encode())
    return value


_CODES: dict[Any, int] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}
_CLASSES = {code: cls for cls, code in _CODES.items()}


def _unmarked(code: int, data: bytes) -> Any:
    if code == _INTEGER:
        return int(data.decode())
    items = msgpack.unpack(data, _unmarked)
    return dict(items) if code == _PAIRS else _CLASSES[code](items)
