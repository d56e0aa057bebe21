"""Errors as documents: class, message, bases, arguments, a traceback that begins in the user's code, and the line of
that code that the exception passed last."""

from __future__ import annotations

import json
import os
import sys
import traceback
from types import TracebackType
from typing import Any

from myrmidon.functions import msgpack
from myrmidon.functions.native_errors import LibraryProblem, NativeFailure

_MAX_MESSAGE = 8 << 10
_MAX_TRACEBACK = 32 << 10
_MAX_ARGS = 4 << 10
_OWN = ("myrmidon.executor.", "myrmidon.functions.")
_MACHINERY = ("asyncio.", "importlib.")
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_PACKAGES = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages", "bot.zip"))
_MAX_PLACE = 500
_PYTHON_BASES = {
    "std::bad_alloc": "builtins.MemoryError",
    "std::domain_error": "builtins.ValueError",
    "std::invalid_argument": "builtins.ValueError",
    "std::length_error": "builtins.ValueError",
    "std::out_of_range": "builtins.IndexError",
    "std::overflow_error": "builtins.OverflowError",
    "std::range_error": "builtins.ValueError",
    "std::system_error": "builtins.OSError",
}
"""Which class of Python an error is, so that ``except ValueError`` of the submitter works."""


class ExecutorError(Exception):
    """A run cannot be made or its result cannot be stored; ``kind`` says which."""

    kind = "exception"


class SignatureMismatch(ExecutorError):
    """The function on the bot is not the one that was submitted."""

    kind = "signature"


class ResultTooLarge(ExecutorError):
    """An output is larger than a value may be."""

    kind = "size"


class NotFound(ExecutorError):
    """The module has no such function."""

    kind = "import"


class LibraryFailed(Exception):
    """A function of a library has returned an error."""

    def __init__(self, failure: NativeFailure) -> None:
        super().__init__(str(failure))
        base = _PYTHON_BASES.get(failure.type)
        self.described: dict[str, Any] = {
            "type": shorten(failure.type, _MAX_ARGS),
            "message": shorten(str(failure), _MAX_MESSAGE),
            "traceback": "",
            "bases": [base, "builtins.Exception"] if base else ["builtins.Exception"],
            "place": "",
        }


def describe(error: BaseException) -> dict[str, Any]:
    """The document of an exception. Never raises, whatever the exception's methods do."""
    if isinstance(error, LibraryFailed):
        return error.described
    cls = type(error)
    message = shorten(_text(error), _MAX_MESSAGE)
    document: dict[str, Any] = {
        "type": class_name(cls),
        "message": message,
        "traceback": "" if isinstance(error, LibraryProblem) else shorten(_traceback(error), _MAX_TRACEBACK),
        "bases": [class_name(one) for one in cls.__mro__[1:-1]],
        "place": shorten(_place(error.__traceback__), _MAX_PLACE),
    }
    args = _plain_args(error)
    if args is not None:
        document["args"] = args
    return document


def sentence(described: dict[str, Any]) -> str:
    """The document of an exception as one sentence, as Python shows it: ``ValueError: bad thing``."""
    name, message = described["type"].rpartition(".")[2], described["message"]
    return f"{name}: {message}" if message else name


def class_name(cls: type) -> str:
    """``module.QualName``; the executor's own errors are shown as the package's."""
    module = "myrmidon" if f"{cls.__module__}.".startswith(_OWN) else cls.__module__
    return f"{module}.{cls.__qualname__}"


def shorten(text: str, limit: int) -> str:
    """A text of at most ``limit`` characters, without its middle if it is longer, in valid Unicode."""
    if len(text) > limit:
        half = limit // 2 - 20
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the function called sys.exit({error.code!r})"
    try:
        return str(error)
    except BaseException as other:  # noqa: BLE001 - code of the user
        return f"<str() of it raised {type(other).__name__}>"


def _plain_args(error: BaseException) -> Any:
    """The arguments, if JSON can hold them unchanged, so that the class can be made again elsewhere."""
    try:
        args = list(error.args)
        msgpack.pack(args)
        text = json.dumps(args, allow_nan=False)
        return args if len(text) <= _MAX_ARGS and json.loads(text) == args else None
    except Exception:  # noqa: BLE001 - an argument of any class
        return None


def _traceback(error: BaseException) -> str:
    try:
        shown = traceback.TracebackException(type(error), error, users_frames(error.__traceback__))
        return "".join(shown.format())
    except BaseException as other:  # noqa: BLE001 - code of the user
        return f"<the traceback of {type(error).__name__} cannot be shown: {type(other).__name__}>\n"


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of the executor, and of asyncio and importlib, at its beginning."""
    begin = trace
    while begin is not None and f"{begin.tb_frame.f_globals.get('__name__')}.".startswith((*_OWN, *_MACHINERY)):
        begin = begin.tb_next
    return begin


def _place(trace: TracebackType | None) -> str:
    """The last line of the user's code that the exception has passed, as ``report.py:12 in parse``.

    If it has passed none, the line of a library that raised it; empty without a traceback.
    """
    one = users_frames(trace)
    last = user = None
    while one is not None:
        last = one
        file = one.tb_frame.f_code.co_filename
        if not file.startswith(_LIBRARIES) and not any(part in file for part in _PACKAGES):
            user = one
        one = one.tb_next
    shown = user or last
    if shown is None:
        return ""
    code = shown.tb_frame.f_code
    return f"{_short_path(code.co_filename)}:{shown.tb_lineno} in {code.co_name}"


def _short_path(file: str) -> str:
    """The path below the folder or zip that Python has imported it from: the folders of two bots differ."""
    above = [path for path in sys.path if path and file.startswith(path + os.sep)]
    return file[len(max(above, key=len)) + 1 :] if above else os.path.basename(file)


def forget(error: BaseException) -> None:
    """Free the local variables of the failed call, which may be large."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__
