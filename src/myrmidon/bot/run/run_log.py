"""The output of one run on its way to the server: in memory while it is little, else in the spool."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from myrmidon.bot.storage.log_spool import LogSpool

MAX_INLINE_BYTES = 65536
"""More output than this is written to the spool; less is kept in memory and sent with the result."""


class TransferFailed(Exception):
    """A file of a run could not be fetched or stored. ``is_permanent``: it cannot be elsewhere either."""

    def __init__(self, message: str, *, is_permanent: bool = False) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent


class RunLog:
    """The base of a running command or function. ``sizes``: bytes of both streams so far.

    ``inline`` holds the output of both streams until it is ``spooled``. ``discard_output``: it cannot be stored, or the
    server rejects it.
    """

    __slots__ = ("discard_output", "inline", "run", "sizes", "spooled", "token")

    def __init__(self, task: dict[str, Any]) -> None:
        self.run: str = task["run"]
        self.token: str = task["token"]
        self.sizes = [0, 0]
        self.inline: list[list[bytes]] = [[], []]
        self.spooled = False
        self.discard_output = False

    def must_end(self) -> bool:
        """Whether this run is to end before it has done what it does now. Called by other threads."""
        raise NotImplementedError

    def store_output(self, stream: int, data: bytes, spool: LogSpool, *, to_spool: bool) -> None:
        """Keep output in memory while it is small, unless ``to_spool``; else in the spool. Raises OSError."""
        is_small = self.sizes[0] + self.sizes[1] + len(data) <= MAX_INLINE_BYTES
        if not self.discard_output and (to_spool or self.spooled or not is_small):
            self._move_to_spool(spool)
            spool.append(self.run, self.token, stream, data, self.sizes[stream])
        elif not self.discard_output:
            self.inline[stream].append(data)
        self.sizes[stream] += len(data)

    def _move_to_spool(self, spool: LogSpool) -> None:
        self.spooled = True
        for stream in (0, 1):
            if self.inline[stream]:
                spool.append(self.run, self.token, stream, b"".join(self.inline[stream]), 0)
                self.inline[stream] = []

    def log_chunks(self) -> list[list[Any]]:
        """The output that is in memory, as [stream, offset, base64]; empty if it is in the spool."""
        return [[stream, 0, b64encode(b"".join(parts)).decode()] for stream, parts in enumerate(self.inline) if parts]
