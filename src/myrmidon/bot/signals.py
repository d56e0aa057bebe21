"""Signals are heard, whichever thread the system hands them to.

Python handles signals in the main thread, and only when that takes its next step. The system gives a signal to any
thread that is awake: a main thread that waits for work would sleep on, and the bot would not end when it is told to.
So the number of every signal goes through a pipe to a thread that does nothing else, and that wakes the main thread. A
call that comes just before it lies down to wait is lost, so it is called until it has answered.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Mapping

WAKE = signal.SIGURG
"""Ends whatever the main thread waits for, and means nothing."""
_AGAIN_S = 0.05


class Bell(threading.Thread):
    """``answers`` are for signals that are answered here, also when the main thread hangs; they must not wait."""

    def __init__(self, answers: Mapping[int, Callable[[], None]]) -> None:
        super().__init__(name="bell", daemon=True)
        self.answers = answers
        self.reader, self.writer = os.pipe()
        self.main = threading.main_thread()
        os.set_blocking(self.writer, False)
        self.calling = False

    def hang(self) -> None:
        """From now on nothing is missed. Called by the main thread."""
        signal.signal(WAKE, self._heard)
        for number in self.answers:
            signal.signal(number, _ignored)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        self.start()

    def run(self) -> None:
        """No signal is handed to this thread itself: the ends of commands would wake it for nothing."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            if select.select([self.reader], [], [], _AGAIN_S if self.calling else None)[0]:
                for number in os.read(self.reader, 64):
                    self._take(number)
            elif self.calling:
                self._call()

    def _take(self, number: int) -> None:
        answer = self.answers.get(number)
        if answer is not None:
            answer()
        elif number != WAKE:
            self.calling = True
            self._call()

    def _call(self) -> None:
        if self.main.ident is not None:
            signal.pthread_kill(self.main.ident, WAKE)

    def _heard(self, _number: int, _: object) -> None:
        """The main thread takes a step. It has taken that of the signal before: it goes by their numbers."""
        self.calling = False


def _ignored(_number: int, _: object) -> None:
    """Without a handler there would be no number in the pipe."""
