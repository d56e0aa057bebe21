"""One address in front of several servers, as a load balancer is: who is behind it changes while it runs."""

from __future__ import annotations

import contextlib
import socket
import threading
from itertools import count

_numbers = count()


class Balancer:
    """Each new connection goes to the next server. One that is taken out loses its connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._lock = threading.Lock()
        self._behind: dict[int, set[socket.socket]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def add(self, port: int) -> None:
        with self._lock:
            self._behind[port] = set()

    def remove(self, port: int) -> None:
        with self._lock:
            open_ones = self._behind.pop(port, set())
        for one in open_ones:
            _hang_up(one)

    def close(self) -> None:
        _hang_up(self._listener)
        for port in list(self._behind):
            self.remove(port)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                if not self._connected(caller):
                    _hang_up(caller)

    def _connected(self, caller: socket.socket) -> bool:
        with self._lock:
            ports = sorted(self._behind)
        if not ports:
            return False
        port = ports[next(_numbers) % len(ports)]
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            return False
        with self._lock:
            if port not in self._behind:
                _hang_up(server)
                return False
            self._behind[port] |= {caller, server}
        for source, target in ((caller, server), (server, caller)):
            threading.Thread(target=_forward, args=(source, target), daemon=True).start()
        return True


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    _hang_up(source)
    _hang_up(target)


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
