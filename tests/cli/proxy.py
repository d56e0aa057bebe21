"""A proxy that cuts: replies before their first byte, or every connection at once."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class Cutter:
    """Forwards bytes both ways between its own port and a server's."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.swallow = 0
        """How many of the next replies are cut before their first byte, after the server has done its work."""
        self.requests: list[bytes] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection that is open now."""
        with self._lock:
            ending, self._open = self._open, set()
        for one in ending:
            _hang_up(one)

    def close(self) -> None:
        _hang_up(self._listener)
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
                with self._lock:
                    self._open |= {caller, server}
                threading.Thread(target=self._forward, args=(caller, server, True), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, caller, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if asks:
                    self.requests.append(data)
                elif self._swallows():
                    break
                target.sendall(data)
        _hang_up(source)
        _hang_up(target)

    def _swallows(self) -> bool:
        with self._lock:
            if self.swallow <= 0:
                return False
            self.swallow -= 1
            return True


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextlib.contextmanager
def cutting(upstream: str) -> Iterator[Cutter]:
    proxy = Cutter(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
