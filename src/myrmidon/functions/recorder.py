"""The recorder of the current context: while a job is being built, calls of task functions go to it."""

from __future__ import annotations

import threading
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, NoReturn

from myrmidon.functions.graph_errors import GraphError, at_caller

if TYPE_CHECKING:
    from myrmidon.functions.task_function import TaskFunction

_CURRENT: ContextVar[Recorder | None] = ContextVar("myrmidon_recorder", default=None)


class Recorder:
    """Takes the calls of one block. Subclasses implement ``record_call``.

    A block belongs to the thread that opened it: contexts are copied to other threads (``asyncio.to_thread``), and
    calls from several threads would come in an order that differs from run to run.
    """

    def __init__(self) -> None:
        self._thread: int | None = None
        self._token: Token[Recorder | None] | None = None
        self._failure: GraphError | None = None

    @property
    def is_open(self) -> bool:
        return self._token is not None

    def record_call(self, function: TaskFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def open(self) -> None:
        """Begin the block. Blocks cannot be nested: it would be unclear to which job a call belongs."""
        outer = current_recorder()
        if outer is not None:
            outer.fail("a job cannot be built inside the block of another one")
        self._thread = threading.get_ident()
        self._token = _CURRENT.set(self)

    def close(self) -> None:
        """End the block. Raises what made it invalid, even if the program has caught it: the graph has a gap."""
        token, self._token = self._token, None
        if token is not None:
            _CURRENT.reset(token)
        if self._failure is not None:
            raise self._failure

    def fail(self, message: str) -> NoReturn:
        """Make the block invalid, and raise."""
        error = GraphError(at_caller(message))
        self._failure = self._failure or error
        raise error

    def check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            self.fail("a task function was called from another thread while its job was being built")


def current_recorder() -> Recorder | None:
    """The recorder of the block that is open in this context."""
    recorder = _CURRENT.get()
    return recorder if recorder is not None and recorder.is_open else None
