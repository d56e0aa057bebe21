"""A thread that makes sure the main thread handles signals.

The kernel delivers a signal to any thread that does not block it, but Python runs handlers in the main thread only, at
its next bytecode. A main thread that is blocked in a lock would not notice SIGTERM. So `signal.set_wakeup_fd` writes
the number of each signal to a pipe; a thread reads it and interrupts the main thread with `WAKE`. That is repeated
until the main thread has run a handler, because a `WAKE` that arrives just before it blocks is lost.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Mapping

WAKE = signal.SIGURG
"""Interrupts any blocking call of the main thread and has no other effect."""
_RETRY_S = 0.05


class SignalThread(threading.Thread):
    """Forwards signals to the main thread, except those in ``handlers``, which it handles itself.

    Those are handled even when the main thread hangs. Handlers must not block.
    """

    def __init__(self, handlers: Mapping[int, Callable[[], None]]) -> None:
        super().__init__(name="signals", daemon=True)
        self.handlers = handlers
        self.reader, self.writer = os.pipe()
        self.main_thread = threading.main_thread()
        os.set_blocking(self.writer, False)
        self.wake_pending = False

    def install(self) -> None:
        """Start forwarding. Must be called by the main thread."""
        signal.signal(WAKE, self._on_wake)
        for number in self.handlers:
            signal.signal(number, _do_nothing)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        self.start()

    def run(self) -> None:
        # Blocks all signals in this thread: else the SIGCHLD of every command would be delivered here.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            if select.select([self.reader], [], [], _RETRY_S if self.wake_pending else None)[0]:
                for number in os.read(self.reader, 64):
                    self._dispatch(number)
            elif self.wake_pending:
                self._wake_main_thread()

    def _dispatch(self, number: int) -> None:
        handler = self.handlers.get(number)
        if handler is not None:
            handler()
        elif number != WAKE:
            self.wake_pending = True
            self._wake_main_thread()

    def _wake_main_thread(self) -> None:
        if self.main_thread.ident is not None:
            signal.pthread_kill(self.main_thread.ident, WAKE)

    def _on_wake(self, _number: int, _: object) -> None:
        """Runs in the main thread. Python runs pending handlers by number, so that of the signal has run before."""
        self.wake_pending = False


def _do_nothing(_number: int, _: object) -> None:
    """Without a Python handler, the number would not be written to the pipe."""
