"""``context()``: what a function may ask and tell while it runs.

On a bot the executor provides the context of the run. Elsewhere, as in unit tests, it is a local one, with the same
methods: progress goes nowhere, and submitted functions are simply called.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Callable, Iterable, Sequence, TypeVar

R = TypeVar("R")
T = TypeVar("T")
if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec

    P = ParamSpec("P")


class Context:
    """The run of a function. All texts are empty and ``run`` is 0 in a local one."""

    task_id = ""
    job_id = ""
    label = ""
    """The label of the task in its job."""
    bot_id = ""
    run = 0
    """The number of this run of the task: 1 for the first, more after a failure or the loss of a bot."""
    is_local = True

    @property
    def log(self) -> logging.Logger:
        """A logger; on a bot its records, from INFO on, are a part of the log of the run."""
        return logging.getLogger("myrmidon.task")

    def progress(self, value: float) -> None:
        """Tell how much is done, from 0 to 1. Cheap: may be called often, only the newest value is sent."""
        if not 0 <= value <= 1:
            raise ValueError(f"progress is a number from 0 to 1, not {value!r}")

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Add a call to the job of this run. Returns a handle, as a call does while a job is being built.

        The calls are sent when the function returns. A result cannot be waited for: pass the handle to another call,
        or return it, and its value becomes the result of this function. In a local context the function is called.
        """
        return function(*args, **kwargs)

    def map(
        self, function: Callable[Concatenate[Any, P], R], items: Iterable[Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]:
        """Submit a call for each item; the list of their handles."""
        return [function(item, *args, **kwargs) for item in items]

    def share(self, value: T, type: Any = None, localities: Sequence[str] = ()) -> T:  # noqa: A002, ARG002 - as on a bot
        """Store a value once, for any number of calls that this run submits. Returns what stands for it there.

        ``type`` is its annotation; default: that of the value and its first items. The job of this run keeps the value.
        In a local context the value itself is returned.
        """
        return value

    def flush(self) -> None:
        """Send the calls that were submitted so far, so that they begin at once. They cannot be returned any more."""

    def __repr__(self) -> str:
        return f"<context of {self.label or 'a local call'}>"


_LOCAL = Context()
_provider: Callable[[], Context] | None = None


def context() -> Context:
    """The context of the run that this process is in, from any of its threads; a local one if it is in none."""
    return _LOCAL if _provider is None else _provider()


def provide_context(provider: Callable[[], Context] | None) -> None:
    """Set where contexts come from; for the executor."""
    global _provider
    _provider = provider
