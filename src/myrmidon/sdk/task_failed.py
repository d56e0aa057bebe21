"""TaskFailed: a task of a job has ended without success, with what happened on the bot."""

from __future__ import annotations

import contextlib
import importlib
import sys
from functools import lru_cache
from typing import Any

from myrmidon.functions.types import module_name
from myrmidon.sdk.client import Client
from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.exit_code import exit_code_text
from myrmidon.wire.values import TaskOutcome


class TaskFailed(Exception):
    """A task has failed. If it raised an exception whose class is known here, this error is also of that class.

    ``remote_traceback`` is the traceback on the bot, ``error_type`` the full name of the exception's class there, and
    ``place`` the last line of your code that it has passed; all are empty if the task did not fail by an exception.
    ``state`` and ``reason`` say how it has ended.
    """

    label = ""
    task_id = ""
    state = ""
    reason = ""
    bot: str | None = None
    run: str | None = None
    exit_code: int | None = None
    error_type = ""
    error_message = ""
    remote_traceback = ""
    place = ""
    client: Client | None = None
    _log_tail: str | None = None
    _message: str | None = None

    @property
    def log_tail(self) -> str:
        """The last 8 KiB of the task's output; read from the server when it is first asked for."""
        if self._log_tail is None and self.client is not None:
            with contextlib.suppress(CallFailed):
                self._log_tail = self.client.log_tail(self.task_id).decode("utf-8", "replace")
        return self._log_tail or ""

    @property
    def message(self) -> str:
        """What the bot has said about the end of a run that no exception has ended: a crash, too much memory."""
        if self._message is None and self.client is not None:
            with contextlib.suppress(CallFailed):
                runs = self.client.task(self.task_id).runs
                self._message = str((runs[-1].evidence or {}).get("message", "")) if runs else ""
        return self._message or ""

    @property
    def what(self) -> str:
        """What happened, without the label and the bot: with the message of the exception."""
        if self.error_type:
            name = self.error_type.removeprefix("builtins.")
            return f"{name}: {self.error_message}" if self.error_message else name
        code = f" with {exit_code_text(self.exit_code)}" if self.exit_code else ""
        return self.message or (f"{self.state}{code} ({self.reason})" if self.reason else f"{self.state}{code}")

    def __str__(self) -> str:
        where = f" on bot {self.bot}" if self.bot else ""
        traceback = f"\n\n{self.remote_traceback.rstrip()}" if self.remote_traceback else ""
        return f"{self.label or self.task_id} failed{where}: {self.what}{traceback}"

    def __reduce__(self) -> Any:
        """Copied without the connection to the server."""
        state = {name: value for name, value in vars(self).items() if name != "client"}
        return _restored, (self.error_type, [], state)


def task_failed(outcome: TaskOutcome, label: str, client: Client) -> TaskFailed:
    """The error for a task that has ended without success. The server is asked for more when that is read."""
    error = outcome.error
    names = [error.type, *error.bases] if error is not None else []
    original = next((cls for name in names if (cls := _exception_class(name)) is not None), None)
    failure = _instance(original, error.args if error is not None else None)
    failure.label = label
    failure.task_id = outcome.ended_by or outcome.task_id
    failure.state = outcome.state
    failure.reason = outcome.reason
    failure.bot = outcome.bot_id
    failure.run = outcome.run
    failure.exit_code = outcome.exit_code
    if error is not None:
        failure.error_type = error.type
        failure.error_message = error.message
        failure.remote_traceback = error.traceback
        failure.place = error.place
    failure.client = client
    return failure


def _restored(error_type: str, bases: list[str], state: dict[str, Any]) -> TaskFailed:
    original = next((cls for name in (error_type, *bases) if (cls := _exception_class(name)) is not None), None)
    failure = _instance(original, None)
    failure.__dict__.update(state)
    return failure


def _instance(original: type[BaseException] | None, args: Any) -> TaskFailed:
    """An error of the class TaskFailed, or of one that is also the original's. Its __init__ gets the same arguments."""
    given = tuple(args) if isinstance(args, list) else ()
    if original is None:
        failure = TaskFailed()
        failure.args = given
        return failure
    try:
        cls: Any = _combined(original)  # type: ignore[arg-type] # classes can be hashed
        failure = _new(cls, given)
        with contextlib.suppress(Exception):  # its __init__ may want something that is no plain value
            original.__init__(failure, *given)
    except Exception:  # noqa: BLE001 - a class that cannot be combined or made: the plain error has all facts
        failure = TaskFailed()
    failure.args = given
    return failure


def _new(cls: Any, given: tuple[Any, ...]) -> TaskFailed:
    """An instance without its __init__. Python refuses the __new__ of MemoryError if that is not the first base."""
    try:
        return cls.__new__(cls, *given)  # type: ignore[no-any-return]
    except TypeError:
        return Exception.__new__(cls, *given)  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def _combined(original: Any) -> type[TaskFailed]:
    namespace = {"__module__": TaskFailed.__module__, "__qualname__": "TaskFailed", "__doc__": TaskFailed.__doc__}
    return type("TaskFailed", (TaskFailed, original), namespace)


def _exception_class(name: str) -> type[Exception] | None:
    """The class with this full name, if its module is loaded or a part of Python.

    No other module is imported: the name comes from a bot, and importing a module runs its code.
    """
    module_of, _, rest = name.rpartition(".")
    found: Any = None
    while module_of and found is None:
        found = _loaded(module_of)
        if found is None:
            module_of, _, outer = module_of.rpartition(".")
            rest = f"{outer}.{rest}"
    for part in rest.split("."):
        found = getattr(found, part, None)
    # KeyboardInterrupt and SystemExit would end this program though only a task has failed.
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _loaded(module: str) -> Any:
    if module == module_name("__main__"):
        return sys.modules["__main__"]
    if module in sys.modules:
        return sys.modules[module]
    if module.partition(".")[0] in sys.stdlib_module_names:
        with contextlib.suppress(ImportError):
            return importlib.import_module(module)
    return None
