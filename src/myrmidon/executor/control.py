"""The control channel to the bot: frames of a length (uint32, little endian) and a MessagePack map."""

from __future__ import annotations

import os
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
    """Reads requests and writes answers. Writing is safe from several threads; reading is for the main thread.

    Nothing is read ahead: the bot takes back frames that were not read yet.
    """

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._in = fd_in
        self._out = fd_out
        self._buffer = b""
        self._space = memoryview(bytearray(_READ_BYTES))
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def read(self) -> dict[str, Any]:
        """The next frame. Raises Closed at the end."""
        data, self._buffer = self._buffer, b""
        while len(data) < 4 or len(data) < 4 + _LENGTH.unpack_from(data)[0]:
            count = os.readv(self._in, [self._space])  # into memory that is there: os.read would map it anew each time
            if not count:
                raise Closed
            data += self._space[:count]
        end = 4 + _LENGTH.unpack_from(data)[0]
        if len(data) > end:
            self._buffer = data[end:]
        return msgpack.unpack(data[4:end])  # type: ignore[no-any-return]

    def write(self, frame: dict[str, Any]) -> None:
        """Send a frame. A fork of this process that got here is ended: only one process may answer."""
        if os.getpid() != self._pid:
            os._exit(0)
        body = msgpack.pack(frame)
        data = _LENGTH.pack(len(body)) + body
        with self._lock:
            written = os.write(self._out, data)
            while written < len(data):
                written += os.write(self._out, data[written:])
