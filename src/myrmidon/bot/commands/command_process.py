"""The process of one running command, and its output pipes.

Each run has its own pipes, which are closed at its end: processes that a command leaves behind cannot write into the
log of a later run.
"""

from __future__ import annotations

import os

from myrmidon.bot.run.run import Run
from myrmidon.bot.system import processes


class CommandProcess:
    """``readers``: the bot's ends of the pipes, by stream; one for both if they are merged. ``streams``: the stream of
    each reader that is open. ``has_ended``: its pid and its pipes must not be used any more.
    """

    __slots__ = ("has_ended", "is_known", "pid", "readers", "run", "streams", "writers")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.pid = 0
        self.readers: list[int] = []
        self.writers: list[int] = []
        self.streams: dict[int, int] = {}
        self.is_known = False
        self.has_ended = False

    def open_pipes(self) -> None:
        for stream in range(1 if self.run.task.merge_output else 2):
            reader, writer = processes.make_pipe()
            self.readers.append(reader)
            self.writers.append(writer)
            self.streams[reader] = stream

    def close_writers(self) -> None:
        """Close the bot's writers once the command has its own: then the readers see the end of the streams."""
        while self.writers:
            os.close(self.writers.pop())

    def close(self) -> None:
        """Close both pipes; processes that still write into them get SIGPIPE or EPIPE. Idempotent."""
        self.has_ended = True
        self.close_writers()
        self.streams.clear()
        while self.readers:
            os.close(self.readers.pop())
