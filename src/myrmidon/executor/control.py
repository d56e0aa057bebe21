"""The control channel to the bot: frames of a length (uint32, little endian) and a MessagePack map.

A frame to this process is one message of a socket. The process announces each run that it begins: until then the bot
may take the message out of the socket again, and only one of the two can receive it.
"""

from __future__ import annotations

import os
import select
import struct
import threading
from typing import Any

from myrmidon.functions import msgpack

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18
"""The bot sends a frame as one message of a socket that keeps boundaries: a shorter read would lose its rest."""


class Closed(Exception):
    """The bot has closed the channel."""


class Control:
    """Reads requests and writes answers. Writing is safe from several threads; reading is for the main thread."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._in = fd_in
        self._out = fd_out
        os.set_blocking(fd_in, False)
        self._poll = select.poll()
        self._poll.register(fd_in, select.POLLIN)
        self._space = memoryview(bytearray(_READ_BYTES))
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def read(self) -> dict[str, Any]:
        """The next frame. Raises Closed at the end."""
        while True:
            frame = self.read_now()
            if frame is not None:
                return frame
            self._poll.poll()

    def read_now(self) -> dict[str, Any] | None:
        """The next frame if one is there. Raises Closed at the end."""
        try:
            count = os.readv(self._in, [self._space])  # os.read would allocate this memory for each frame
        except BlockingIOError:
            return None
        if not count:
            raise Closed
        return msgpack.unpack(bytes(self._space[4:count]))  # type: ignore[no-any-return]

    def write(self, *frames: dict[str, Any]) -> None:
        """Send frames together. A fork of this process that got here is ended: only one process may answer."""
        if os.getpid() != self._pid:
            os._exit(0)
        bodies = [msgpack.pack(frame) for frame in frames]
        data = b"".join(part for body in bodies for part in (_LENGTH.pack(len(body)), body))
        with self._lock:
            written = os.write(self._out, data)
            while written < len(data):
                written += os.write(self._out, data[written:])
